//! The HTTP server of both programs: pages and figures for few readers, bounded in connections,
//! time and memory.
//!
//! One thread of lower priority serves all connections; each connection carries one request.

mod access;

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use fabric::os::cannot_listen;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::{net::TcpListener, task::AbortHandle, time};

pub use access::{Access, AccessRefused, FILE, PageKey};

/// Maximum number of connections. A further one takes the place of the oldest silent one, else of
/// the oldest without a secret; where all have shown a secret, it is closed at once.
pub const MOST_CONNECTIONS: usize = 64;
/// Time limit for a request's head.
const HEAD: Duration = Duration::from_secs(5);
/// Maximum bytes buffered per connection, besides one body.
const WAITING: usize = 16 << 10;
/// Bytes of the kernel's send buffer: an ordinary body fits, so that the last one still arrives
/// after the program's end.
const KEPT: usize = 64 << 10;
const NICE: libc::c_int = 10;
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Stages of a connection.
const SILENT: u8 = 0;
const ASKED: u8 = 1;
const PROVED: u8 = 2;

/// A connection's stage and its task.
struct Place(Arc<AtomicU8>, AbortHandle);

/// Makes room for a new connection; false if there is none. `places` are in the order of arrival.
fn make_room(places: &mut Vec<Place>) -> bool {
    places.retain(|Place(_, task)| !task.is_finished());
    if places.len() < MOST_CONNECTIONS {
        return true;
    }
    let stages = places.iter().map(|Place(stage, _)| stage.load(Relaxed));
    let least = stages.enumerate().min_by_key(|(_, stage)| *stage);
    let Some((oldest, SILENT | ASKED)) = least else {
        return false;
    };
    places.remove(oldest).1.abort();
    true
}

/// Body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

/// An answer to a request.
pub type Answer = Response<AnswerBody>;

/// A bound address that is not served yet, so that address errors occur first.
#[derive(Debug)]
pub struct Bound {
    listener: std::net::TcpListener,
    /// The address, with the port that the system chose.
    pub address: SocketAddr,
}

/// Binds the address.
///
/// # Errors
/// The address is not this machine's, or taken.
pub fn bind(address: SocketAddr) -> io::Result<Bound> {
    let listener = std::net::TcpListener::bind(address);
    let listener = listener.map_err(|e| cannot_listen(address, &e))?;
    listener.set_nonblocking(true)?;
    // Accepted connections inherit the buffer size.
    SockRef::from(&listener).set_send_buffer_size(KEPT)?;
    let address = listener.local_addr()?;
    Ok(Bound { listener, address })
}

/// Starts the thread `name`, which runs the future made by `serve`. Errors of the future end up in
/// the log.
///
/// # Errors
/// No thread can be started.
pub fn start<F: Future<Output = io::Result<()>>>(
    name: &'static str,
    serve: impl FnOnce() -> F + Send + 'static,
) -> io::Result<()> {
    let served = move || {
        be_nice();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let served = runtime.and_then(|r| {
            let served = r.block_on(serve());
            // Do not wait for slow connections.
            r.shutdown_background();
            served
        });
        if let Err(error) = served {
            tracing::warn!("{name}: {error}; the program goes on without it");
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(served)?;
    Ok(())
}

/// Serves until `over`. `site` makes the function that answers the `GET` requests of one
/// connection, which lasts at most `longest`.
///
/// # Errors
/// The runtime does not take the listener.
pub async fn serve<A>(
    bound: Bound,
    access: &Access,
    longest: Duration,
    over: impl Future<Output = ()>,
    site: impl Fn() -> A,
) -> io::Result<()>
where
    A: Fn(&Request<Incoming>) -> Answer + Send + 'static,
{
    let listener = TcpListener::from_std(bound.listener)?;
    let mut places = Vec::new();
    let mut over = pin!(over);
    loop {
        tokio::select! {
            () = &mut over => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if !make_room(&mut places) {
                        continue;
                    }
                    let stage = Arc::new(AtomicU8::new(SILENT));
                    let (access, site, asked) = (access.clone(), site(), stage.clone());
                    let service = service_fn(move |request| {
                        let has_secret = !matches!(access, Access::Loopback);
                        let answer = admit(&access, &request);
                        let is_proved = has_secret && answer.is_none();
                        asked.store(if is_proved { PROVED } else { ASKED }, Relaxed);
                        let answer = answer.unwrap_or_else(|| site(&request));
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let served = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD)
                        .keep_alive(false)
                        .max_buf_size(WAITING)
                        .serve_connection(TokioIo::new(stream), service);
                    let task = tokio::spawn(async move {
                        // Ignore the errors: the client closed the connection, or is too slow.
                        let _ = time::timeout(longest, served).await;
                    });
                    places.push(Place(stage, task.abort_handle()));
                }
                // Out of file descriptors: back off, so that the run can use them.
                Err(_) => time::sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

/// Answers a request without access, with another method, or with the key in its URL.
fn admit(access: &Access, request: &Request<Incoming>) -> Option<Answer> {
    let cookie = match access.check(request.uri(), request.headers()) {
        Ok(cookie) => cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()),
        Err(AccessRefused::Host) => {
            return Some(words(
                StatusCode::FORBIDDEN,
                "This page is shown on this machine alone: ask for localhost or 127.0.0.1.\n",
            ));
        }
        Err(AccessRefused::Token) => {
            return Some(unauthorized(
                "Send the token of metrics_token_file in a header: Authorization: Bearer ... \
                 (Prometheus: authorization.credentials_file).\n",
            ));
        }
        Err(AccessRefused::Key) => {
            return Some(unauthorized(
                "This run is shown to those who have its page's key: open the address in \
                 live.url, in the run's folder, or send the key in a header: Authorization: \
                 Bearer ...\n",
            ));
        }
    };
    if request.method() != Method::GET {
        return Some(words(
            StatusCode::METHOD_NOT_ALLOWED,
            "There is nothing but GET.\n",
        ));
    }
    let mut answer = words(StatusCode::SEE_OTHER, "The page is at /.\n");
    let headers = answer.headers_mut();
    headers.insert(header::SET_COOKIE, cookie?);
    headers.insert(header::LOCATION, HeaderValue::from_static("/"));
    Some(answer)
}

fn unauthorized(text: &'static str) -> Answer {
    let mut answer = words(StatusCode::UNAUTHORIZED, text);
    let scheme = HeaderValue::from_static("Bearer");
    let headers = answer.headers_mut();
    headers.insert(header::WWW_AUTHENTICATE, scheme);
    answer
}

/// Makes an answer of one line.
pub fn words(status: StatusCode, words: &'static str) -> Answer {
    let bytes = Bytes::from_static(words.as_bytes());
    respond(status, "text/plain; charset=utf-8", Full::new(bytes))
}

/// Makes an answer of the content type `kind`.
pub fn respond(
    status: StatusCode,
    kind: &'static str,
    body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static,
) -> Answer {
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        let value = HeaderValue::from_static(value);
        answer.headers_mut().insert(name, value);
    }
    answer
}

fn be_nice() {
    // SAFETY: setpriority takes integers and touches no memory. On Linux, 0 is the calling thread
    // only.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    if set != 0 {
        tracing::debug!("the priority of the serving thread could not be lowered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_up_by_the_oldest_that_has_shown_least() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        let place = |stage| {
            let task = runtime.spawn(std::future::pending::<()>());
            Place(Arc::new(AtomicU8::new(stage)), task.abort_handle())
        };
        let stages = |places: &[Place]| -> Vec<u8> {
            let each = places.iter().map(|Place(stage, _)| stage.load(Relaxed));
            each.filter(|stage| *stage != PROVED).collect()
        };
        let first = [PROVED, ASKED, SILENT, ASKED, SILENT].map(place);
        let rest = (first.len()..MOST_CONNECTIONS).map(|_| place(PROVED));
        let mut places: Vec<_> = first.into_iter().chain(rest).collect();
        for left in [&[ASKED, ASKED, SILENT][..], &[ASKED, ASKED], &[ASKED], &[]] {
            assert!(make_room(&mut places));
            assert_eq!(stages(&places), left);
            places.push(place(PROVED));
        }
        assert!(!make_room(&mut places), "all have shown a secret");
        assert_eq!(places.len(), MOST_CONNECTIONS);
    }
}
