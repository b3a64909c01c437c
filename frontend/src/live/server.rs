//! HTTP server of the live page: the page at `/`, and server-sent events at `/events`, each with
//! the full drawing.
//!
//! One thread serves all viewers and draws each tick once. A slow viewer skips to the latest tick.
//! So viewers do not delay each other and memory is bounded: a connection holds at most the tick in
//! transmission and one waiting tick.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed, mpsc::Sender},
    thread,
    time::Duration,
};

use accelerator::lock;
use anyhow::{Result, anyhow};
use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Frame, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use report::State;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, timeout_at},
};

use super::{
    Latest, Viewers,
    access::{Access, AccessRefused},
    be_nice, page,
};

/// Maximum number of connections; further connections are closed at once.
const MOST_CONNECTIONS: usize = 64;
pub(super) const MOST_VIEWERS: usize = 16;
/// Time limit for a request's head.
const HEAD: Duration = Duration::from_secs(5);
/// Maximum bytes buffered per connection, besides one tick.
const WAITING: usize = 16 << 10;
/// Bytes of the kernel's send buffer: an ordinary tick fits, so that the last tick still arrives
/// after the program's end.
const KEPT: usize = 64 << 10;
/// Time limit for sending the last event.
const LAST: Duration = Duration::from_millis(800);

pub struct LiveListener {
    listener: std::net::TcpListener,
    address: SocketAddr,
    access: Access,
}

/// Binds the address, so that address errors occur before the run.
pub fn bind(address: SocketAddr, folder: &Path) -> Result<LiveListener> {
    let bound = || -> io::Result<(std::net::TcpListener, SocketAddr)> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // Accepted connections inherit the buffer size.
        SockRef::from(&listener).set_send_buffer_size(KEPT)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let (listener, address) = bound().map_err(|e| {
        anyhow!("--live {address}: {e}; name another one, or port 0 for any that is free")
    })?;
    let access = Access::of(address, folder).map_err(|e| {
        let folder = folder.display();
        anyhow!("--live: cannot write the page's key into {folder}: {e}")
    })?;
    Ok(LiveListener {
        listener,
        address,
        access,
    })
}

impl LiveListener {
    /// Returns the note for the user, with the page's address.
    pub fn note(&self) -> String {
        let address = self.address;
        match &self.access {
            Access::Loopback => format!("live: http://{address}/"),
            Access::Key(key) => format!(
                "live: http://{address}/; open the address in {}, which holds its key",
                key.file.display()
            ),
        }
    }
}

/// A viewer's place; the connection holds the permit until the last reference is dropped.
type ViewerSlot = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

#[derive(Clone)]
struct ConnectionContext {
    access: Access,
    viewers: Arc<Viewers>,
    /// The latest tick as an event; empty before the first.
    events: watch::Receiver<DrawnEvent>,
    /// This connection's viewer place, held until the last byte is sent.
    viewer_slot: ViewerSlot,
}

#[derive(Clone, Debug, Default)]
struct DrawnEvent {
    bytes: Bytes,
    last: bool,
}

/// Serves on its own thread until the run ends, and then signals `done`.
pub fn begin(
    bound: LiveListener,
    latest: Latest,
    viewers: Arc<Viewers>,
    done: Sender<()>,
) -> Result<()> {
    let serve = move || {
        be_nice();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let served = runtime.and_then(|r| {
            let served = r.block_on(serve(bound, latest, viewers));
            // Do not wait for slow connections.
            r.shutdown_background();
            served
        });
        if let Err(error) = served {
            tracing::warn!("--live: {error}; the run goes on without it");
        }
        let _ = done.send(());
    };
    let thread = thread::Builder::new().name("live".to_owned());
    let started = thread.spawn(serve);
    started.map_err(|e| anyhow!("--live: cannot start a thread: {e}"))?;
    Ok(())
}

async fn serve(bound: LiveListener, latest: Latest, viewers: Arc<Viewers>) -> io::Result<()> {
    let listener = TcpListener::from_std(bound.listener)?;
    let (draw, events) = watch::channel(DrawnEvent::default());
    let shared = ConnectionContext {
        access: bound.access,
        viewers,
        events,
        viewer_slot: ViewerSlot::default(),
    };
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let drawing = drawing(latest, draw);
    tokio::pin!(drawing);
    loop {
        tokio::select! {
            () = &mut drawing => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Ok(place) = connections.clone().try_acquire_owned() {
                        let shared = ConnectionContext {
                            viewer_slot: ViewerSlot::default(),
                            ..shared.clone()
                        };
                        tokio::spawn(async move {
                            connection(stream, shared).await;
                            drop(place);
                        });
                    }
                }
                // Out of file descriptors: back off, so that the run can use them.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
        }
    }
    // A viewer's place is free once the viewer has the last event.
    let all = MOST_VIEWERS as u32;
    let _ = timeout_at(
        Instant::now() + LAST,
        shared.viewers.places.acquire_many(all),
    )
    .await;
    Ok(())
}

/// Draws each tick once, until the last.
async fn drawing(mut latest: Latest, draw: watch::Sender<DrawnEvent>) {
    let mut number = 0u64;
    while latest.changed().await.is_ok() {
        let so_far = latest.borrow_and_update().clone();
        let last = matches!(so_far.state, State::Over(_));
        number += 1;
        draw.send_replace(DrawnEvent {
            bytes: page::event(number, &so_far),
            last,
        });
        if last {
            return;
        }
        // Let the viewers' tasks run first.
        tokio::task::yield_now().await;
    }
}

async fn connection(stream: TcpStream, shared: ConnectionContext) {
    let viewer_slot = shared.viewer_slot.clone();
    let service = service_fn(move |request| {
        let answer = answer(&request, &shared);
        async move { Ok::<_, Infallible>(answer) }
    });
    // Ignore the error: the client closed the connection.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(WAITING)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    lock(&viewer_slot).take();
}

type PageResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(request: &Request<Incoming>, shared: &ConnectionContext) -> PageResponse {
    let cookie = match shared.access.check(request.uri(), request.headers()) {
        Ok(cookie) => cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()),
        Err(AccessRefused::Key) => {
            let mut answer = words(
                StatusCode::UNAUTHORIZED,
                "This run is shown to those who have its page's key: open the address in live.url, in \
                 the run's folder, or send the key in a header: Authorization: Bearer ...\n",
            );
            let scheme = HeaderValue::from_static("Bearer");
            let headers = answer.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, scheme);
            return answer;
        }
        Err(AccessRefused::Host) => {
            return words(
                StatusCode::FORBIDDEN,
                "This run is shown on this machine alone: ask for localhost or 127.0.0.1.\n",
            );
        }
    };
    if request.method() != Method::GET {
        return words(
            StatusCode::METHOD_NOT_ALLOWED,
            "There is nothing but GET.\n",
        );
    }
    if let Some(cookie) = cookie {
        let mut answer = words(StatusCode::SEE_OTHER, "The page is at /.\n");
        let headers = answer.headers_mut();
        headers.insert(header::SET_COOKIE, cookie);
        headers.insert(header::LOCATION, HeaderValue::from_static("/"));
        return answer;
    }
    match request.uri().path() {
        "/" => respond(StatusCode::OK, page::TYPE, Full::new(page::html())),
        "/events" => events(shared),
        _ => words(
            StatusCode::NOT_FOUND,
            "There is nothing here: / is the page, /events what it draws.\n",
        ),
    }
}

fn words(status: StatusCode, words: &'static str) -> PageResponse {
    let bytes = Bytes::from_static(words.as_bytes());
    respond(status, "text/plain; charset=utf-8", Full::new(bytes))
}

fn respond(
    status: StatusCode,
    kind: &'static str,
    body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static,
) -> PageResponse {
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, page::POLICY),
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

fn events(shared: &ConnectionContext) -> PageResponse {
    let Ok(place) = shared.viewers.places.clone().try_acquire_owned() else {
        return words(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many look on already; close one of the pages and load this one again.\n",
        );
    };
    let mut seen = shared.events.clone();
    // Skip the old event: the new viewer makes the next event come at once.
    seen.borrow_and_update();
    *lock(&shared.viewer_slot) = Some(place);
    shared.viewers.fresh.store(true, Relaxed);
    // Wait for an event only when the connection has room, and then take the latest event.
    let next = |seen: Option<watch::Receiver<DrawnEvent>>| async move {
        let mut seen = seen?;
        seen.changed().await.ok()?;
        let event = seen.borrow_and_update().clone();
        let frame = Ok(Frame::data(event.bytes));
        Some((frame, (!event.last).then_some(seen)))
    };
    let body = StreamBody::new(unfold(Some(seen), next));
    respond(StatusCode::OK, "text/event-stream", body)
}
