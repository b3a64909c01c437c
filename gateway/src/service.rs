//! HTTP: from a connection's bytes to a request, and from its answer to bytes.

use std::{
    cell::Cell,
    convert::Infallible,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fabric::clock::now_ns;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use program::web::{Access, AnswerBody};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::{
    answer::{self, Events, TokenReader},
    openai::{self, ApiError, Completion, Endpoint, Identity, Prompt, Writer},
    options::options,
    requests::Requests,
    text::Text,
    totals::RequestTimes,
};

/// Longest wait for a request's head, on a new connection or after an answer.
const HEAD: Duration = Duration::from_secs(60);
/// Longest wait for a request's body.
const BODY: Duration = Duration::from_secs(60);
/// Longest head of a request, and bytes that a connection reads at a time.
const HEAD_BYTES: usize = 64 << 10;
/// Texts from this length on become ids on a thread of their own: the others' tokens do not wait.
const LONG_TEXT: usize = 4 << 10;
/// Seconds after which a client may ask again that was sent away.
const RETRY_S: HeaderValue = HeaderValue::from_static("1");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Body of an answer: a whole one, or the events of a stream.
type Reply = Either<AnswerBody, Events>;

/// Serves one connection to its end.
pub async fn serve(requests: Rc<Requests>, stream: TcpStream, blocked_ns: Rc<Cell<u64>>) {
    let service = service_fn(move |request| {
        let requests = requests.clone();
        async move { Ok::<_, Infallible>(respond(&requests, request).await) }
    });
    let stream = TimedStream { stream, blocked_ns };
    // Ignore the error: the client went away, or sent no HTTP.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .writev(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(requests: &Rc<Requests>, request: Request<Incoming>) -> Response<Reply> {
    let arrived_ns = now_ns();
    let gate = &requests.gate;
    let answered = match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => return health(requests),
        (_, _) if !is_admitted(&gate.access, &request) => Err(unauthorized()),
        (&Method::POST, "/v1/completions") => {
            complete(requests, Endpoint::Completions, request, arrived_ns).await
        }
        (&Method::POST, "/v1/chat/completions") => {
            complete(requests, Endpoint::Chat, request, arrived_ns).await
        }
        (&Method::GET, "/v1/models") => {
            return json(StatusCode::OK, openai::models(&gate.model, gate.started));
        }
        (&Method::GET, program::metrics::PATH) => {
            return gate.figures().answer(&request).map(Either::Left);
        }
        (_, "/v1/completions" | "/v1/chat/completions") => Err(refused(405, "send a POST")),
        (_, path) => Err(refused(
            404,
            &format!(
                "nothing is at {path}; there are /v1/completions, /v1/chat/completions, \
                 /v1/models, /health and /metrics"
            ),
        )),
    };
    let response = answered.unwrap_or_else(|error| failed(&error));
    gate.answers.add(response.status().as_u16());
    response
}

fn is_admitted(access: &Option<Access>, request: &Request<Incoming>) -> bool {
    let check = |access: &Access| access.check(request.uri(), request.headers()).is_ok();
    access.as_ref().is_none_or(check)
}

fn health(requests: &Requests) -> Response<Reply> {
    let up = requests.gate.cluster.dispatcher().connections_up();
    let status = match requests.gate.is_healthy() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    json(status, openai::health(up))
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Reply> {
    let body = Full::new(body.into()).boxed_unsync();
    let mut response = Response::new(Either::Left(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

fn failed(error: &ApiError) -> Response<Reply> {
    let status = StatusCode::from_u16(error.status);
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, error.body());
    let headers = response.headers_mut();
    if matches!(error.status, 429 | 503) {
        headers.insert(header::RETRY_AFTER, RETRY_S);
    }
    if matches!(error.status, 408 | 413) {
        // The rest of the body is not read.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn refused(status: u16, message: &str) -> ApiError {
    let mut error = ApiError::server(status, message);
    error.kind = "invalid_request_error";
    error
}

fn unauthorized() -> ApiError {
    refused(
        401,
        "send the gateway's token: `Authorization: Bearer TOKEN`",
    )
}

fn full(what: &str) -> ApiError {
    let mut error = ApiError::server(429, format!("{what}; ask again later"));
    error.kind = "rate_limit_error";
    error
}

async fn complete(
    requests: &Rc<Requests>,
    endpoint: Endpoint,
    request: Request<Incoming>,
    arrived_ns: u64,
) -> Result<Response<Reply>, ApiError> {
    let gate = &requests.gate;
    if gate.is_draining.load(Ordering::Relaxed) {
        return Err(ApiError::server(
            503,
            "the gateway is ending; ask another one",
        ));
    }
    let body = body(request, gate.config.body_mib << 20).await?;
    let mut asked = openai::parse(endpoint, &body)?;
    drop(body);
    if let Some(model) = asked.model.as_ref().filter(|model| **model != gate.model) {
        let mut error = refused(
            404,
            &format!("model {model:?} is not served; {:?} is", gate.model),
        );
        error.param = Some("model".to_owned());
        return Err(error);
    }
    if gate.text.is_none() && !asked.stop.is_empty() {
        return Err(ApiError::invalid(
            "stop",
            "no tokenizer: send `stop_token_ids`",
        ));
    }
    let prompt = std::mem::replace(&mut asked.prompt, Prompt::Ids(Vec::new()));
    let ids = ids(requests, endpoint, prompt).await?;
    if gate.has_roles && asked.sampling.temperature.is_some_and(|t| t > 0.0) {
        // Prefill and decode draw the same first token; equal prompts get different answers.
        let seed = &mut asked.sampling.seed;
        seed.get_or_insert_with(|| fastrand::u64(..));
    }
    let limit = limit(requests, &asked)?;
    let options = options(&asked, limit, gate.options)?;
    if gate.in_flight.load(Ordering::Relaxed) >= gate.config.requests {
        return Err(full(
            "as many requests are in flight as `gateway.requests` allows",
        ));
    }
    let room = gate.prompts.store(&options, &ids);
    let room =
        room.ok_or_else(|| full("the prompts in flight fill the memory of `gateway.prompt_mib`"))?;
    let prompt = ids.len() as u32;
    let streams = asked.stream || !asked.stop.is_empty();
    let times = RequestTimes {
        arrived_ns,
        prompt,
        ..RequestTimes::default()
    };
    let mut reader = TokenReader::new(gate.text.clone(), &asked, limit);
    let sample = requests.ask(room, streams, times);
    let id = format!("{}-{:016x}", prefix(endpoint), sample.id().to_bits());
    let identity = Identity {
        id: &id,
        created: gate.started + (arrived_ns.saturating_sub(gate.began_ns)) / 1_000_000_000,
        model: &gate.model,
    };
    let writer = Writer::new(&identity, endpoint, &asked);
    if !asked.stream {
        let body = answer::whole(sample, &mut reader, &writer, prompt).await?;
        return Ok(json(StatusCode::OK, body));
    }
    // A refusal still has its status: the head waits for the first token.
    if let Some(error) = poll_fn(|cx| sample.poll_ready(cx)).await {
        return Err(error);
    }
    let events = Events::new(sample, reader, writer, prompt);
    let mut response = Response::new(Either::Right(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, EVENTS);
    headers.insert(header::CACHE_CONTROL, NO_CACHE);
    Ok(response)
}

fn prefix(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Completions => "cmpl",
        Endpoint::Chat => "chatcmpl",
    }
}

/// Reads a body of at most `most` bytes.
async fn body(request: Request<Incoming>, most: usize) -> Result<Bytes, ApiError> {
    let too_long = || {
        let mib = most >> 20;
        refused(
            413,
            &format!("the body is longer than {mib} MiB (`gateway.body_mib`)"),
        )
    };
    if request.body().size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    let read = Limited::new(request.into_body(), most).collect();
    match tokio::time::timeout(BODY, read).await {
        Err(_) => Err(refused(408, "the body did not come within 60 s")),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_long()),
        Ok(Err(error)) => Err(refused(
            400,
            &format!("the body could not be read: {error}"),
        )),
    }
}

/// Makes the prompt's ids, on a thread of its own if the text is long.
async fn ids(
    requests: &Requests,
    endpoint: Endpoint,
    prompt: Prompt,
) -> Result<Vec<i32>, ApiError> {
    let gate = &requests.gate;
    let param = match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Completions => "prompt",
    };
    let ids = match (prompt, gate.text.clone()) {
        (Prompt::Ids(ids), _) => ids,
        (_, None) => {
            let why = "the gateway has no tokenizer (`gateway.model_dir`): send `prompt` as token \
                       ids to /v1/completions";
            return Err(ApiError::invalid(param, why));
        }
        (prompt, Some(text)) if length(&prompt) < LONG_TEXT => encode(&text, &prompt)?,
        (prompt, Some(text)) => {
            let made = tokio::task::spawn_blocking(move || encode(&text, &prompt)).await;
            made.map_err(|_| ApiError::server(500, "the tokenizer failed"))??
        }
    };
    let most = gate.sizes.prompt;
    if ids.len() > most {
        let why = format!("{} tokens, where the model takes {most}", ids.len());
        return Err(ApiError::invalid(param, why));
    }
    if ids.is_empty() {
        return Err(ApiError::invalid(param, "the prompt has no token"));
    }
    if let Some(known) = gate.text.as_ref().map(|text| text.vocabulary_len())
        && let Some(at) = ids
            .iter()
            .position(|id| usize::try_from(*id).is_ok_and(|id| id >= known))
    {
        let why = format!("prompt[{at}] is {}, and the model has {known} ids", ids[at]);
        return Err(ApiError::invalid(param, why));
    }
    Ok(ids)
}

fn length(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Ids(ids) => ids.len(),
        Prompt::Text(text) => text.len(),
        Prompt::Chat(messages) => messages.0.iter().map(|m| m.content.len()).sum(),
    }
}

fn encode(text: &Text, prompt: &Prompt) -> Result<Vec<i32>, ApiError> {
    match prompt {
        Prompt::Ids(ids) => Ok(ids.clone()),
        Prompt::Text(prompt) => text
            .encode(prompt)
            .map_err(|e| ApiError::invalid("prompt", e.to_string())),
        Prompt::Chat(messages) => text
            .encode_chat(messages)
            .map_err(|e| ApiError::invalid("messages", e.to_string())),
    }
}

/// Most tokens of the answer: the request's limit, or the model's longest answer.
fn limit(requests: &Requests, asked: &Completion) -> Result<u32, ApiError> {
    let most = requests.gate.sizes.answer as u32;
    match asked.limit {
        Some(limit) if limit.get() > most => Err(ApiError::invalid(
            "max_tokens",
            format!("{limit}, where the model's answers have at most {most} tokens"),
        )),
        Some(limit) => Ok(limit.get()),
        None => Ok(most),
    }
}

/// A connection's stream that notes since when a write waits for the client.
struct TimedStream {
    stream: TcpStream,
    blocked_ns: Rc<Cell<u64>>,
}

impl TimedStream {
    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        match &written {
            Poll::Ready(_) => self.blocked_ns.set(0),
            Poll::Pending if self.blocked_ns.get() == 0 => self.blocked_ns.set(now_ns()),
            Poll::Pending => {}
        }
        written
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.noted(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
