//! HTTP connections to the server: opened on demand, one for each concurrent request, and kept.

use std::{
    error::Error,
    net::{self, ToSocketAddrs},
    sync::Mutex,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, Uri,
    body::Incoming,
    client::conn::http1::{Builder, SendRequest},
    header::{
        ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
        RETRY_AFTER,
    },
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use fabric::os::lock;

use super::trouble::{self, Trouble};
use crate::error::shorten;

/// Most bytes of a response that is no stream: vLLM's metrics have some hundred KiB.
const MAX_ANSWER: usize = 8 << 20;
const MAX_HEADERS: usize = 64 << 10;
/// The client keeps a connection only if it is ready again this soon after its answer's end.
const READY: Duration = Duration::from_secs(1);

type Sender = SendRequest<Full<Bytes>>;

pub(super) struct HttpClient {
    /// `host:port`.
    authority: String,
    connect: Duration,
    /// Idle connections. The client reuses the newest first: the server closes old ones first.
    idle: Mutex<Vec<Sender>>,
}

/// An answer's stream whose headers have arrived, and its connection.
pub(super) struct OpenAnswer {
    pub body: Incoming,
    sender: Sender,
}

/// Time limit of [`is_listening`] for each address of the host.
const LOOK: Duration = Duration::from_millis(500);

fn authority(url: &str) -> Result<String, String> {
    let uri: Uri = url.parse().map_err(|e| format!("no address: {e}"))?;
    let authority = match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(a)) if uri.path() == "/" => a,
        _ => return Err("no address of the form http://HOST:PORT".to_owned()),
    };
    let port = authority.port_u16().unwrap_or(80);
    Ok(format!("{}:{port}", authority.host()))
}

/// True if a process accepts connections at `url`; false if none does or the check fails.
pub(super) fn is_listening(url: &str) -> bool {
    let places = authority(url).ok().and_then(|a| a.to_socket_addrs().ok());
    let listens = |at| net::TcpStream::connect_timeout(&at, LOOK).is_ok();
    places.is_some_and(|mut places| places.any(listens))
}

impl HttpClient {
    /// A client of the server at `url`, of the form `http://HOST:PORT`. `connect` is a timeout.
    pub fn new(url: &str, connect: Duration) -> Result<Self, String> {
        Ok(HttpClient {
            authority: authority(url)?,
            connect,
            idle: Mutex::default(),
        })
    }

    /// Sends a `POST` request with `body`; returns once the headers have arrived, without timeout.
    pub async fn post(&self, path: &'static str, body: Bytes) -> Result<OpenAnswer, Trouble> {
        let (response, sender) = self.ask(Method::POST, path, body).await?;
        let status = response.status().as_u16();
        let (head, body) = response.into_parts();
        let header = |name| text_of(&head.headers, name);
        let (kind, coding) = (header(CONTENT_TYPE), header(CONTENT_ENCODING));
        let is_coded = !coding.is_empty() && !coding.eq_ignore_ascii_case("identity");
        let is_page = kind.to_ascii_lowercase().starts_with("text/html");
        if status == 200 && !is_coded && !is_page {
            return Ok(OpenAnswer { body, sender });
        }
        let (location, retry) = (header(LOCATION), header(RETRY_AFTER));
        let words = match &location[..] {
            _ if is_coded => String::new(),
            "" => trouble::words(&self.text(body, sender).await),
            to => format!("it redirects to {}", shorten(to)),
        };
        Err(match status {
            200 if is_coded => Trouble::NoStream(format!(
                "it is compressed (content-encoding: {}), though not asked to be",
                shorten(&coding)
            )),
            200 => Trouble::NoStream(format!("a web page (content-type: text/html): {words}")),
            _ => Trouble::Status {
                status,
                path,
                words,
                retry_after: retry_after(&retry, SystemTime::now()),
            },
        })
    }

    /// Sends a `GET` request; returns the status and the text of the response.
    /// Error: [`Trouble::Connect`], also if the whole response takes longer than the connect
    /// timeout.
    pub async fn get(&self, path: &'static str) -> Result<(u16, String), Trouble> {
        let asked = async {
            let (response, sender) = self.ask(Method::GET, path, Bytes::new()).await?;
            let status = response.status().as_u16();
            Ok((status, self.text(response.into_body(), sender).await))
        };
        let late = |_| Trouble::Connect(format!("no answer to {path} in {:?}", self.connect));
        timeout(self.connect, asked).await.map_err(late)?
    }

    /// Reads a body, of at most [`MAX_ANSWER`] bytes and for at most the connect timeout. Keeps the
    /// connection if the body is whole.
    async fn text(&self, mut body: Incoming, sender: Sender) -> String {
        let mut text = Vec::new();
        let read = async {
            while let Some(frame) = body.frame().await {
                let data = frame.map(|f| f.into_data().unwrap_or_default());
                let Ok(data) = data else { return false };
                let room = MAX_ANSWER - text.len();
                text.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    return false;
                }
            }
            true
        };
        if timeout(self.connect, read).await == Ok(true) {
            self.keep(sender).await;
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Reads the rest of a stream after its answer's end, and keeps the connection.
    pub async fn done(&self, mut answer: OpenAnswer) {
        let rest = async { while answer.body.frame().await.is_some_and(|f| f.is_ok()) {} };
        // If the stream does not end within `READY`, its connection is closed.
        if timeout(READY, rest).await.is_ok() {
            self.keep(answer.sender).await;
        }
    }

    /// Sends one request on a kept connection. If this connection fails, tries the next kept one,
    /// and finally a new connection.
    async fn ask(
        &self,
        method: Method,
        path: &'static str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, Sender), Trouble> {
        loop {
            let (mut sender, reused) = match self.take_idle() {
                Some(sender) => (sender, true),
                None => (self.open().await?, false),
            };
            let request = Request::builder()
                .method(&method)
                .uri(path)
                .header(HOST, &self.authority)
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "*/*")
                .body(Full::new(body.clone()))
                .map_err(|e| Trouble::Connect(format!("{}: {e}", self.authority)))?;
            match sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok((response, sender));
                }
                // A server closes idle connections after some seconds: try the next connection. No
                // response has begun, so a repeated request cannot duplicate an answer.
                Err(_) if reused => {}
                Err(e) => return Err(Trouble::Connect(chain(e.error()))),
            }
        }
    }

    async fn open(&self) -> Result<Sender, Trouble> {
        let wrong =
            |e: &dyn std::fmt::Display| Trouble::Connect(format!("{}: {e}", self.authority));
        let opened = async {
            let stream = TcpStream::connect(&self.authority).await;
            let stream = stream.map_err(|e| wrong(&e))?;
            stream.set_nodelay(true).map_err(|e| wrong(&e))?;
            let mut builder = Builder::new();
            builder.max_buf_size(MAX_HEADERS);
            let shaken = builder.handshake(TokioIo::new(stream)).await;
            shaken.map_err(|e| wrong(&e))
        };
        let late = |_| Trouble::Connect(format!("no connection in {:?}", self.connect));
        let (sender, connection) = timeout(self.connect, opened).await.map_err(late)??;
        // This task ends when `sender` and the body are dropped; errors reach the body's reader.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn take_idle(&self) -> Option<Sender> {
        // Little contention: a client thread takes the lock for one push or pop.
        let mut idle = lock(&self.idle);
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    async fn keep(&self, mut sender: Sender) {
        if timeout(READY, sender.ready())
            .await
            .is_ok_and(|r| r.is_ok())
        {
            lock(&self.idle).push(sender);
        }
    }
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> String {
    let value = headers.get(name).map(HeaderValue::as_bytes);
    String::from_utf8_lossy(value.unwrap_or_default())
        .trim()
        .to_owned()
}

/// The wait of a `Retry-After` header: seconds, or a date.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let at = httpdate::parse_http_date(value).ok()?;
            Some(at.duration_since(now).unwrap_or_default())
        }
    }
}

/// The messages of an error and of all its sources, in one line.
pub(super) fn chain(e: &dyn Error) -> String {
    let sources = std::iter::successors(e.source(), |e| (**e).source());
    sources.fold(e.to_string(), |text, e| format!("{text}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Fri, 27 Nov 2026 10:00:00 GMT").expect("a date");
        for (value, seconds) in [
            ("7", Some(7)),
            ("0", Some(0)),
            ("Fri, 27 Nov 2026 10:01:30 GMT", Some(90)),
            ("Friday, 27-Nov-26 10:01:30 GMT", Some(90)),
            ("Fri, 27 Nov 2026 09:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            let wait = retry_after(value, now);
            assert_eq!(wait, seconds.map(Duration::from_secs), "{value}");
        }
    }
}
