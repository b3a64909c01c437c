//! `--live` in real runs: the page, its events, the figures of both programs, access to them, and
//! viewers that do not delay a run.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    time::Duration,
};

use crate::common::{
    LLM, PROMPTS, Running, TestFolder, accelerator, accelerator_program, assert_has, free_ports,
    offline, one_of_digests, run, submission::files_with, words,
};
use program::web::MOST_CONNECTIONS;
use serde_json::Value;

/// A Server run of a few seconds that is VALID on a slow machine.
const SERVER: &str = "--scenario server --target-qps 300 --duration-s 4 --set target_latency=30000";

/// Returns the address behind `words` in the standard error of a program.
fn address(place: &TestFolder, program: &str, words: &str) -> SocketAddr {
    let said = fs::read_to_string(place.path(&format!("{program}.stderr"))).expect("its errors");
    let (_, rest) = said.split_once(words).expect("an address");
    let address = rest.split('/').next().expect("a first part");
    let address: SocketAddr = address.parse().expect("an address");
    (Ipv4Addr::LOCALHOST, address.port()).into()
}

fn shown(place: &TestFolder, config: &Path, live: &[&str]) -> (Running, SocketAddr) {
    let all = [&words(SERVER)[..], &["--live"], live].concat();
    let mut running = Running::start(place, "frontend", place.frontend(config, "out", &all));
    running.wait_until_it_says("live: http://");
    (running, address(place, "frontend", "live: http://"))
}

fn send(at: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).expect("it listens");
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("a patience");
    stream.write_all(text.as_bytes()).expect("asked");
    stream
}

/// Sends a request and leaves the response unread.
fn ask(at: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n{headers}\r\n");
    send(at, &request)
}

/// Returns the status and the rest of the response, until the server closes the connection.
fn get(at: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    read(ask(at, path, headers))
}

fn read(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    (status.expect("a status"), text)
}

fn events(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|l| l.strip_prefix("data: "));
    lines
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect()
}

#[test]
fn a_page_and_its_events_come_while_a_run_goes_on_and_end_with_it() {
    let place = TestFolder::new();
    let (config, _there) = one_of_digests(&place, "", "");
    let (running, at) = shown(&place, &config, &["127.0.0.1:0"]);
    // Viewers that never read and one that sends no request hold nothing up.
    let _deaf = [(); 3].map(|()| deaf(at));
    let _mute = TcpStream::connect(at).expect("it listens");
    let stream = ask(at, "/events", "");
    let (status, page) = get(at, "/", "");
    assert_eq!(status, 200);
    assert!(page.contains("EventSource") && page.contains("content-security-policy"));
    let (status, words) = get(at, "/elsewhere", "");
    assert!(
        status == 404 && words.contains("There is nothing here"),
        "{words}"
    );
    let request = "GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n";
    let (status, words) = read(send(at, request));
    assert!(status == 403 && words.contains("localhost"), "{words}");
    // The stream ends with the run.
    let (status, text) = read(stream);
    running.end().judged();
    assert_eq!(status, 200);
    let events = events(&text);
    assert!(events.len() >= 3, "{} events", events.len());
    let html = |e: &Value| e["html"].as_str().expect("HTML").to_owned();
    let going = events.iter().map(&html).rfind(|h| h.contains("GOING ON"));
    let going = going.expect("a picture of the run");
    assert_has(
        &going,
        &[
            "id=\"course\"",
            "data-chart=",
            "acc-a/0",
            "id=\"threads\"",
            "nic",
            "p99 latency",
            "p99 so far",
        ],
    );
    let (last, before) = events.split_last().expect("events");
    assert!(before.iter().all(|e| e["over"] == false) && last["over"] == true);
    let page = place.path("out").join("report.html");
    assert!(page.is_file());
    let said = html(last);
    assert!(said.contains("The run is over") && said.contains("out/report.html"));
}

#[test]
fn other_addresses_need_the_pages_own_key_and_no_log_or_address_holds_a_token() {
    let place = TestFolder::new();
    let token = &"0123456789abcdef".repeat(4);
    let file = place.write("token", token);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    let config = place.digest_frontend(&[], "token_file: token\n");
    let (running, at) = shown(&place, &config, &["0.0.0.0:0", "--local"]);
    let url = fs::read_to_string(place.path("out").join("live.url")).expect("its address");
    let (_, key) = url.trim().split_once("/?key=").expect("a key");
    let file = fs::metadata(place.path("out").join("live.url")).expect("there");
    assert_eq!((key.len(), file.permissions().mode() & 0o777), (64, 0o600));
    for path in ["/", "/metrics"] {
        let (status, _) = get(at, path, &format!("Authorization: Bearer {key}\r\n"));
        assert_eq!(status, 200);
    }
    for (path, headers) in [
        ("/", String::new()),
        ("/events", String::new()),
        ("/metrics", String::new()),
        ("/?key=", String::new()),
        (&format!("/?Key={key}"), String::new()),
        ("/", format!("Cookie: live_{}=abc\r\n", at.port())),
        // The control plane's token gives no access to the page.
        (&format!("/?token={token}"), String::new()),
        (&format!("/?key={token}"), String::new()),
        ("/", format!("Authorization: Bearer {token}\r\n")),
    ] {
        let (status, words) = get(at, path, &headers);
        assert_eq!(status, 401, "{path} {headers}");
        assert!(words.contains("live.url") && !words.contains("EventSource"));
    }
    let (status, words) = get(at, &format!("/?key={key}"), "");
    assert!(
        status == 303 && words.contains("location: /\r\n"),
        "{words}"
    );
    assert!(words.contains("referrer-policy: no-referrer"), "{words}");
    let cookie = words.lines().find_map(|l| l.strip_prefix("set-cookie: "));
    let (cookie, attributes) = cookie.and_then(|c| c.split_once(';')).expect("a cookie");
    assert_eq!(attributes.trim(), "Path=/; HttpOnly; SameSite=Strict");
    let cookie = format!("Cookie: {cookie}\r\n");
    let (status, page) = get(at, "/", &cookie);
    assert!(status == 200 && !page.contains(key), "{page}");
    let (status, text) = get(at, "/events", &cookie);
    assert!(status == 200 && !events(&text).is_empty());
    let ended = running.end().judged();
    assert!(!place.path("out").join("live.url").exists());
    for secret in [key, token.as_str()] {
        assert!(!ended.stderr.contains(secret) && !ended.stdout.contains(secret));
        let (_, found) = files_with(&place.path("out"), secret);
        assert!(found.is_empty(), "{found:?}");
    }
}

/// A viewer whose receive buffer is full after the first event.
fn deaf(at: SocketAddr) -> TcpStream {
    let kind = socket2::Type::STREAM;
    let socket = socket2::Socket::new(socket2::Domain::for_address(at), kind, None);
    let socket = socket.expect("a socket");
    // Before `connect`: TCP does not shrink an advertised window.
    socket.set_recv_buffer_size(2048).expect("little room");
    socket.connect(&at.into()).expect("it listens");
    let mut stream = TcpStream::from(socket);
    let request = format!("GET /events HTTP/1.1\r\nHost: {at}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("asked");
    stream
}

#[test]
fn what_is_wrong_with_the_place_is_one_line_before_the_run() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let all = [&words(SERVER)[..], &["--local", "--live", &address]].concat();
    let ended = place.run(&config, "out", &all).with_code(2);
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("error: --live") && lines[0].contains(&address),
        "{lines:?}"
    );
    assert!(!place.path("out").join("summary.json").exists());
}

/// Samples of a scrape: name with labels, and value.
type Figures = BTreeMap<String, f64>;

/// Returns the figures, or nothing once the program no longer answers.
fn scraped(at: SocketAddr) -> Option<Figures> {
    let mut stream = TcpStream::connect(at).ok()?;
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\n{accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let kind = "application/openmetrics-text; version=1.0.0";
    assert_has(head, &["HTTP/1.1 200", kind]);
    let body = body.strip_suffix("# EOF\n").expect("the end");
    let lines = body.lines().filter(|l| !l.starts_with('#'));
    let pairs = lines.filter_map(|line| line.rsplit_once(' '));
    let number = |text: &str| text.parse().expect("a number");
    let pairs = pairs.map(|(name, value)| (name.to_owned(), number(value)));
    Some(pairs.collect())
}

fn scrape(at: SocketAddr) -> Figures {
    scraped(at).expect("an answer")
}

fn metrics(place: &TestFolder) -> SocketAddr {
    address(place, "acc-a", "metrics: http://")
}

/// Runs an accelerator that refuses these keys; returns its standard error.
fn refused(place: &TestFolder, keys: &str) -> String {
    let config = place.digest_accelerator("acc-b", 0, keys);
    let mut program = Command::new(accelerator_program());
    program.arg("--config").arg(config);
    run(place, program).with_code(2).stderr
}

/// Runs a frontend with `--live`, and returns the figures of its last scrape, whose totals equal
/// the summary's.
fn followed(place: &TestFolder, config: &Path) -> Figures {
    let (running, at) = shown(place, config, &["127.0.0.1:0"]);
    let mut all = vec![scrape(at)];
    while let Some(figures) = scraped(at) {
        all.push(figures);
        std::thread::sleep(Duration::from_millis(20));
    }
    running.end().judged();
    let answered: Vec<_> = all.iter().map(|f| f["qdl_samples_total"]).collect();
    assert!(answered.is_sorted(), "{answered:?}");
    let last = all.pop().expect("figures");
    let going = |f: &&Figures| (1.0..last["qdl_samples_total"]).contains(&f["qdl_samples_total"]);
    let timed = |f: &Figures| {
        let up = f["qdl_connections{state=\"up\"}"] > 0.0;
        up && f.contains_key("qdl_stage_seconds_sum{stage=\"total\"}")
    };
    let has_figures = all.iter().filter(going).any(timed);
    assert!(has_figures, "no figures during the run: {answered:?}");
    let summary = place.summary("out");
    let (ledger, carried) = (&summary["ledger"], &summary["carried"]);
    for (name, expected) in [
        ("samples_total", &ledger["answered"]),
        ("in_flight_samples", &Value::from(0)),
        (
            r#"failures_total{kind="redispatched"}"#,
            &ledger["redispatched"],
        ),
        (
            r#"payload_bytes_total{direction="out"}"#,
            &carried["bytes_out"],
        ),
        (
            r#"payload_bytes_total{direction="in"}"#,
            &carried["bytes_in"],
        ),
    ] {
        let figure = last[&format!("qdl_{name}")];
        assert_eq!(Some(figure), expected.as_f64(), "{name}");
    }
    let tokens = &summary["tokens"];
    let counted = last.get("qdl_tokens_total").copied();
    assert_eq!(counted, tokens["tokens"].as_f64());
    let times = [&summary["stages"], &tokens["times"]].map(Value::as_object);
    for (stage, row) in times.into_iter().flatten().flatten() {
        let of = |part: &str| last[&format!("qdl_stage_seconds_{part}{{stage=\"{stage}\"}}")];
        let (count, mean_us) = (of("count"), row["mean_us"].as_f64().expect("a mean"));
        assert_eq!(Some(count), row["count"].as_f64(), "{stage}");
        // The mean is rounded to nanoseconds.
        let error_us = (of("sum") * 1e6 - mean_us * count).abs();
        assert!(error_us <= 1e-3 * count, "{stage}: {error_us}");
    }
    last
}

#[test]
fn figures_of_both_programs_equal_the_summary_and_outlive_a_frontend() {
    let place = TestFolder::new();
    let (config, _there) = one_of_digests(&place, "metrics: 127.0.0.1:0\n", "");
    let at = metrics(&place);
    let mut before = scrape(at);
    assert_eq!(before["qdl_samples_total"], 0.0);
    followed(&place, &config);
    for again in [false, true] {
        if again {
            place.run(&config, "out", &offline("3000")).with_code(0);
        }
        let (now, summary) = (scrape(at), place.summary("out"));
        let own = &summary["accelerators"][0];
        let grown = |name: &str| now[name] - before[name];
        assert_eq!(Some(grown("qdl_samples_total")), own["samples"].as_f64());
        let batches = own["batches"].as_object().expect("batches by size");
        let batches: f64 = batches.values().filter_map(Value::as_f64).sum();
        assert_eq!(grown("qdl_batch_samples_count"), batches);
        let in_batches = grown("qdl_batch_samples_sum");
        assert_eq!(Some(in_batches), own["samples"].as_f64());
        before = now;
    }
}

#[test]
fn figures_count_the_tokens_of_a_language_model() {
    let place = TestFolder::new();
    let [port] = free_ports();
    let engine = "{kind: tokens, tokens: {min_tokens: 2, max_tokens: 32, step_us: 50}}";
    let there = format!("{LLM}engine: {engine}\n");
    let node = place.accelerator_of("acc-a", port, &format!("{there}metrics: 127.0.0.1:0"));
    let _there = accelerator(&place, &node);
    let yaml = format!("{there}verify: tokens\nnics: [{{address: 127.0.0.1}}]\n{PROMPTS}");
    let last = followed(&place, &place.frontend_of(&[port], &yaml));
    // The accelerator's tokens include the warm-up's.
    let [all, counted] = [scrape(metrics(&place)), last].map(|f| f["qdl_tokens_total"]);
    assert!(
        all >= counted,
        "{all} tokens, of which {counted} in the run"
    );
}

#[test]
fn an_accelerator_serves_figures_only_and_no_slow_client_holds_them_up() {
    let place = TestFolder::new();
    let (_, _there) = one_of_digests(&place, "metrics: 127.0.0.1:0\n", "");
    let at = metrics(&place);
    for (request, status) in [
        ("GET /metrics HTTP/1.1\r\nHost: localhost", 200),
        ("GET / HTTP/1.1\r\nHost: localhost", 404),
        ("GET /metrics HTTP/1.1\r\nHost: elsewhere.example", 403),
        ("POST /metrics HTTP/1.1\r\nHost: localhost", 405),
        ("no request", 400),
    ] {
        let (answered, text) = read(send(at, &format!("{request}\r\n\r\n")));
        let has_figures = text.contains("qdl_samples_total 0");
        assert_eq!((answered, has_figures), (status, status == 200), "{text}");
    }
    // Those that have not asked yet hold no scrape up.
    let slow = |_| send(at, "GET /metrics HT");
    let _slow: Vec<_> = (0..2 * MOST_CONNECTIONS).map(slow).collect();
    scrape(at);
}

#[test]
fn the_key_metrics_takes_a_port_or_an_address_and_its_error_names_it() {
    let place = TestFolder::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let error = refused(&place, &format!("metrics: {port}\n"));
    let named = format!("metrics: 127.0.0.1:{port}");
    assert_has(&error, &[&named, "in use by another program"]);
    let error = refused(&place, "metrics: here:9464\n");
    assert_has(&error, &["metrics", "a port, or an IP address with a port"]);
}

#[test]
fn figures_off_loopback_need_a_token_of_their_own() {
    let place = TestFolder::new();
    let token = "fedcba9876543210".repeat(4);
    let file = place.write("metrics.token", &token);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    let error = refused(&place, "metrics: 0.0.0.0:0\n");
    assert_has(&error, &["metrics_token_file", "qdl token"]);
    let keys = "metrics: 0.0.0.0:0\nmetrics_token_file: metrics.token\n";
    let (_, _open) = one_of_digests(&place, keys, "");
    let at = metrics(&place);
    let right = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(get(at, "/metrics", &right).0, 200);
    let wrong = right.replace("fe", "ef");
    for (path, headers) in [
        ("/metrics", ""),
        ("/metrics", wrong.as_str()),
        (&format!("/metrics?key={token}"), ""),
        ("/", ""),
    ] {
        let (status, words) = get(at, path, headers);
        assert_eq!(status, 401, "{path} {headers}");
        assert_has(&words, &["metrics_token_file"]);
    }
    let said = fs::read_to_string(place.path("acc-a.stderr")).expect("its errors");
    assert!(!said.contains(&token), "{said}");
}
