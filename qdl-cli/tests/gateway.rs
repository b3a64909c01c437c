//! A gateway before accelerators with the engine `tokens`, as real processes: its answers, its
//! limits, and what happens to answers whose accelerator dies.

#[path = "gateway/clients.rs"]
mod clients;
#[path = "gateway/run_folder.rs"]
mod run_folder;

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use engines::{
    config::TokensConfig,
    tokens::{Answers, answer},
};
use launch::Accelerator as Server;
use serde_json::{Value, json};

const VOCAB: i32 = 1000;
const TOKENS: usize = 40;
const LONG: Duration = Duration::from_secs(60);

/// A gateway, and its accelerators.
struct Place {
    folder: tempfile::TempDir,
    nodes: Vec<Option<Server>>,
    gateway: Server,
    address: String,
}

fn start(config: &Path, program: &str, output: Option<&Path>) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qdl"));
    command.args([program, "--config"]).arg(config);
    if let Some(folder) = output {
        command.arg("--output").arg(folder);
    }
    Server::start_in(&mut command, &config.with_extension("log")).expect("starts")
}

/// The address behind `before` in a line that announces a server.
fn address(ready: &str, before: &str) -> String {
    let (_, rest) = ready.split_once(before).expect("an address");
    let end = rest.find(|c: char| c != ':' && c != '.' && !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].to_owned()
}

impl Place {
    fn new(nodes: usize, step_us: u64, gateway: &str) -> Self {
        Self::with_output(&vec!["both"; nodes], step_us, gateway, None)
    }

    /// A node for each of these roles.
    fn with_output(roles: &[&str], step_us: u64, gateway: &str, output: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let model = "inputs: [{name: p, dtype: i32, shape: [256], ragged: true}], \
                     output: {name: t, dtype: i32, shape: [64], ragged: true}";
        let path = |name: &str| -> PathBuf { folder.path().join(name) };
        let mut controls = Vec::new();
        let nodes: Vec<_> = (roles.iter().enumerate())
            .map(|(n, role)| {
                let config = path(&format!("node-{n}.yaml"));
                let text = format!(
                    "node: node-{n}\ncontrol: {{listen: 127.0.0.1:0}}\nmodel: {{name: m, {model}}}\n\
                     engine: {{kind: tokens, role: {role}, tokens: {{vocab: {VOCAB}, min_tokens: {TOKENS}, \
                     max_tokens: {TOKENS}, step_us: {step_us}}}}}\n\
                     nics: [{{listen: 127.0.0.1:0}}]\n"
                );
                std::fs::write(&config, text).expect("a file");
                let node = start(&config, "accelerator", None);
                let control = address(&node.ready, "control ");
                controls.push(format!("{{control: {control}, role: {role}}}"));
                Some(node)
            })
            .collect();
        let config = path("gateway.yaml");
        let text = format!(
            "node: gateway\nmodel: {{name: m, {model}}}\naccelerators: [{}]\n\
             nics: [{{address: 127.0.0.1, connections: 1, slots: 64}}]\n\
             gateway: {{listen: '127.0.0.1:0', threads: 2{gateway}}}\n",
            controls.join(", ")
        );
        std::fs::write(&config, text).expect("a file");
        let gateway = start(&config, "gateway", output);
        let address = address(&gateway.ready, "http://");
        Place {
            folder,
            nodes,
            gateway,
            address,
        }
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connects");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream
    }

    /// The status and the body of an answer.
    fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        let mut stream = self.open();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // The gateway may answer before it has read all.
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(body);
        split(&read(&mut stream))
    }

    fn ask(&self, body: &Value) -> (u16, String) {
        self.post("/v1/completions", body.to_string().as_bytes())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = self.open();
        let head = format!("GET {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("writes");
        split(&read(&mut stream))
    }

    /// Waits until no request is in flight.
    fn wait_until_idle(&self) {
        let end = Instant::now() + LONG;
        loop {
            let (_, figures) = self.get("/metrics");
            let line = figures
                .lines()
                .find(|l| l.starts_with("qdl_in_flight_samples "));
            let in_flight = line.and_then(|l| l.split(' ').nth(1)).expect("a figure");
            if in_flight.parse::<f64>() == Ok(0.0) {
                return;
            }
            assert!(Instant::now() < end, "still in flight: {in_flight}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("gateway.log")).unwrap_or_default()
    }
}

fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection that is cut after the answer is an answer.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn split(answer: &str) -> (u16, String) {
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.unwrap_or(0), body.to_owned())
}

fn expected(prompt: &[i32]) -> Vec<i32> {
    let settings = TokensConfig {
        vocab: VOCAB,
        min_tokens: TOKENS,
        max_tokens: Some(TOKENS),
        ..TokensConfig::default()
    };
    answer(prompt, &Answers::new(&settings, 64).expect("sound"))
}

/// The events of a stream as JSON, without `[DONE]`; whether that came.
fn events(body: &str) -> (Vec<Value>, bool) {
    let lines = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let (done, events): (Vec<_>, Vec<_>) = lines.partition(|data| *data == "[DONE]");
    let events = events
        .iter()
        .map(|data| serde_json::from_str(data).expect(data));
    (events.collect(), done.len() == 1)
}

fn ids(choice: &Value) -> Vec<i32> {
    let list = choice["token_ids"].as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|id| id.as_i64().expect("an id") as i32)
        .collect()
}

fn request(prompt: &[i32], stream: bool) -> Value {
    json!({
        "model": "m", "prompt": prompt, "stream": stream, "return_token_ids": true,
        "stream_options": {"include_usage": true},
    })
}

/// Asks for a stream and returns its ids; an error event is the error.
fn stream_of(place: &Place, prompt: &[i32]) -> Result<Vec<i32>, String> {
    let (status, body) = place.ask(&request(prompt, true));
    if status != 200 {
        return Err(format!("{status} {body}"));
    }
    let (events, is_done) = events(&body);
    let error = events.iter().find(|event| !event["error"].is_null());
    if let Some(error) = error {
        return Err(error.to_string());
    }
    assert!(is_done, "{body}");
    let choices = events.iter().map(|event| &event["choices"][0]);
    Ok(choices.flat_map(ids).collect())
}

#[test]
fn each_token_is_one_event_and_both_forms_of_an_answer_agree() {
    let place = Place::new(2, 500, "");
    let prompt = [1, 2, 3];
    let (status, body) = place.ask(&request(&prompt, false));
    assert_eq!(status, 200, "{body}");
    let whole: Value = serde_json::from_str(&body).expect("JSON");
    let choice = &whole["choices"][0];
    assert_eq!(ids(choice), expected(&prompt));
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(whole["usage"]["completion_tokens"], TOKENS);
    assert_eq!(whole["usage"]["prompt_tokens"], 3);

    let (status, body) = place.ask(&request(&prompt, true));
    assert_eq!(status, 200, "{body}");
    let (events, is_done) = events(&body);
    assert!(is_done);
    let (usage, tokens) = events.split_last().expect("events");
    assert_eq!(usage["usage"]["total_tokens"], 3 + TOKENS);
    let of_events: Vec<_> = tokens.iter().map(|e| ids(&e["choices"][0])).collect();
    assert!(
        of_events.iter().all(|ids| ids.len() <= 1),
        "one token an event"
    );
    assert_eq!(of_events.concat(), expected(&prompt));

    let limited = json!({"prompt": prompt, "max_tokens": 7, "return_token_ids": true});
    let (_, body) = place.ask(&limited);
    let limited: Value = serde_json::from_str(&body).expect("JSON");
    // A shorter answer of this engine ends with the end of sequence, too.
    let limited_ids = ids(&limited["choices"][0]);
    assert_eq!(
        (&limited_ids[..6], limited_ids.len()),
        (&expected(&prompt)[..6], 7)
    );
    assert_eq!(limited["choices"][0]["finish_reason"], "length");
    let (_, models) = place.get("/v1/models");
    assert!(models.contains("\"id\":\"m\""), "{models}");
    assert_eq!(place.get("/health").0, 200);
    assert!(
        place.gateway.ready.contains("2 accelerators"),
        "{}",
        place.gateway.ready
    );
}

#[test]
fn what_cannot_be_answered_has_its_status_and_names_the_field() {
    let place = Place::new(1, 100, ", body_mib: 1");
    let long: Vec<i32> = vec![1; 257];
    let huge = vec![b' '; 2 << 20];
    for (path, body, status, words) in [
        ("/v1/completions", b"{".to_vec(), 400, "JSON"),
        (
            "/v1/completions",
            b"{\"prompt\": \"\xff\"}".to_vec(),
            400,
            "JSON",
        ),
        (
            "/v1/completions",
            b"{\"prompt\": \"text\"}".to_vec(),
            400,
            "no tokenizer",
        ),
        (
            "/v1/completions",
            b"{\"prompt\": [1], \"n\": 2}".to_vec(),
            400,
            "\"param\":\"n\"",
        ),
        (
            "/v1/completions",
            b"{\"prompt\": [1], \"max_tokens\": 65}".to_vec(),
            400,
            "max_tokens",
        ),
        (
            "/v1/completions",
            json!({"prompt": long}).to_string().into_bytes(),
            400,
            "257 tokens",
        ),
        (
            "/v1/completions",
            b"{\"prompt\": [1], \"model\": \"x\"}".to_vec(),
            404,
            "model",
        ),
        ("/v1/completions", huge, 413, "body_mib"),
        ("/v1/chat", b"{}".to_vec(), 404, "/v1/chat/completions"),
    ] {
        let (got, answer) = place.post(path, &body);
        assert_eq!(got, status, "{answer}");
        assert!(answer.contains(words), "{words}: {answer}");
    }
    let mut stream = place.open();
    let _ = write!(
        stream,
        "GET / HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let (status, _) = split(&read(&mut stream));
    assert!(
        status == 431 || status == 0,
        "{status}: answered, or cut while it still wrote"
    );
    assert_eq!(stream_of(&place, &[5]), Ok(expected(&[5])));
}

#[test]
fn without_the_token_only_the_health_is_shown() {
    let token = "ab".repeat(32);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, &token).expect("a file");
    let place = Place::new(1, 100, &format!(", token_file: {}", file.display()));
    assert_eq!(place.ask(&request(&[1], false)).0, 401);
    assert_eq!(place.get("/v1/models").0, 401);
    assert_eq!(place.get("/health").0, 200);
    let mut stream = place.open();
    let head = "GET /v1/models HTTP/1.1\r\nHost: g\r\nConnection: close\r\nAuthorization: Bearer";
    write!(stream, "{head} {token}\r\n\r\n").expect("writes");
    assert_eq!(split(&read(&mut stream)).0, 200);
}

#[test]
fn more_requests_than_allowed_are_sent_away_and_the_others_are_answered() {
    let place = Place::new(1, 20_000, ", requests: 2");
    let place = &place;
    let answers: Vec<_> = thread::scope(|scope| {
        let asks = (0..6).map(|n| scope.spawn(move || place.ask(&request(&[n], false)).0));
        let asks: Vec<_> = asks.collect();
        asks.into_iter()
            .map(|ask| ask.join().expect("ends"))
            .collect()
    });
    let of = |status| answers.iter().filter(|s| **s == status).count();
    assert_eq!((of(200), of(429)), (2, 4), "{answers:?}");
}

#[test]
fn an_answer_whose_accelerator_is_killed_goes_on_at_another_with_the_same_tokens() {
    let mut place = Place::new(3, 10_000, "");
    let victim = place.nodes[1].take();
    let place = &place;
    thread::scope(|scope| {
        let asks = (0..24).map(|n| scope.spawn(move || (n, stream_of(place, &[n, 7]))));
        let asks: Vec<_> = asks.collect();
        thread::sleep(Duration::from_millis(150));
        drop(victim);
        for ask in asks {
            let (n, tokens) = ask.join().expect("ends");
            assert_eq!(tokens, Ok(expected(&[n, 7])), "{}", place.log());
        }
    });
    let (_, figures) = place.get("/metrics");
    let redispatched = figures.lines().find(|line| line.contains("redispatched"));
    assert!(
        redispatched.is_some_and(|line| !line.ends_with(" 0")),
        "{redispatched:?}"
    );
}

#[test]
fn answers_of_prefill_and_decode_nodes_go_on_when_one_of_either_is_killed() {
    let roles = ["prefill", "prefill", "decode", "decode"];
    let mut place = Place::with_output(&roles, 10_000, "", None);
    assert_eq!(stream_of(&place, &[5]), Ok(expected(&[5])));
    let (status, whole) = place.ask(&request(&[6], false));
    assert_eq!(status, 200, "{whole}");
    let victims = [place.nodes[0].take(), place.nodes[3].take()];
    let place = &place;
    thread::scope(|scope| {
        let asks = (0..24).map(|n| scope.spawn(move || (n, stream_of(place, &[n, 7]))));
        let asks: Vec<_> = asks.collect();
        for victim in victims {
            thread::sleep(Duration::from_millis(100));
            drop(victim);
        }
        for ask in asks {
            let (n, tokens) = ask.join().expect("ends");
            assert_eq!(tokens, Ok(expected(&[n, 7])), "{}", place.log());
        }
    });
    place.wait_until_idle();
}

#[test]
fn a_client_that_goes_away_leaves_nothing_in_flight() {
    let place = Place::new(1, 20_000, "");
    let streams: Vec<_> = (0..8)
        .map(|n| {
            let mut stream = place.open();
            let body = request(&[n], true).to_string();
            let len = body.len();
            write!(
                stream,
                "POST /v1/completions HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{body}"
            )
            .expect("writes");
            let mut first = [0; 64];
            stream.read_exact(&mut first).expect("its first event");
            stream
        })
        .collect();
    drop(streams);
    place.wait_until_idle();
    assert_eq!(stream_of(&place, &[5]), Ok(expected(&[5])));
}
