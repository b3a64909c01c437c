//! Entry function of the fuzz target `server_events`: any bytes of a server.

use std::convert::Infallible;

use crate::config::{Dialect, HttpConfig};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use qdl::model::ModelSpec;
use tokio::runtime::Builder;

use super::{Http, dialect::ServerFacts, start, trouble};
use crate::{EngineKind, EngineParams, error::shorten};

const VOCAB: usize = 1000;
const PROMPT: usize = 3;
const ANSWER: usize = 64;
/// Longest message of an error, in bytes.
const LONGEST: usize = 4096;

/// Bytes of a server: the stream of an answer, or the responses to the queries of the start. Tokens
/// of an answer are below the vocabulary and at most as many as were requested; each message is one
/// line of bounded length.
///
/// The first byte holds the dialect, and whether the bytes are a stream; the second byte holds the
/// length of the network's pieces.
pub fn server_events(data: &[u8]) {
    let [how, piece, data @ ..] = data else {
        return;
    };
    let dialect = Dialect::ALL[usize::from(how >> 1) % Dialect::ALL.len()];
    let mut params = EngineParams::new(EngineKind::Http);
    params.spec = Some(ModelSpec::of_tokens("m", 32, ANSWER));
    params.engine.http = Some(HttpConfig::new("http://127.0.0.1:1", dialect));
    let http = Http::open(&params).expect("an engine");
    let mut server = http.transport.server().expect("a server");
    if how & 1 == 1 {
        let text = String::from_utf8_lossy(data);
        let mut facts = ServerFacts::default();
        for question in server.dialect.questions {
            let _ = (question.read)(&text, &server.ask, &mut facts);
        }
        let judged = start::judge(facts, server.dialect, &mut server.ask);
        check(&judged.err().unwrap_or_default());
        return check(&trouble::words(&text));
    }
    server.ask.limits.vocab = VOCAB;
    let pieces = data.chunks(usize::from(*piece).max(1));
    let frames = pieces.map(|p| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(p))));
    let body = StreamBody::new(stream::iter(frames));
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut account = server.ask.limits.account(PROMPT, ANSWER);
        let asked = server.request_time();
        match server.read(body, asked, &mut account, &mut None).await {
            Ok(last) => {
                let ids = last.iter().map(|id| usize::try_from(*id));
                assert!(ids.into_iter().all(|id| id.is_ok_and(|id| id < VOCAB)));
            }
            Err(error) => check(&error.to_string()),
        }
        assert!(account.received <= ANSWER && account.cached <= PROMPT);
    });
}

fn check(message: &str) {
    let is_line = !message.contains(['\n', '\x1b']);
    assert!(is_line && message.len() <= LONGEST, "{}", shorten(message));
}
