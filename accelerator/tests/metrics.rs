//! The key `metrics` of the real program: what its endpoint answers, and what it refuses.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, ChildStderr, Command, Stdio},
};

use accelerator::web::MOST_CONNECTIONS;
use qdl::testkit::assert_has;

/// A node with the engine `null`. Dropping it kills the program.
struct Node {
    program: Child,
    /// The program cannot go on without a reader.
    stderr: BufReader<ChildStderr>,
    _folder: tempfile::TempDir,
}

impl Node {
    fn start(metrics: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!(
            "node: a\ncontrol: {{listen: 127.0.0.1:0}}\nengine: {{kind: \"null\"}}\n\
             model: {{name: m, max_input_bytes: 64}}\nnics: [{{listen: 127.0.0.1:0}}]\n\
             metrics: {metrics}\n"
        );
        let file = folder.path().join("a.yaml");
        fs::write(&file, config).expect("written");
        let mut program = Command::new(env!("CARGO_BIN_EXE_accelerator"));
        program.arg("--config").arg(file);
        program.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut program = program.spawn().expect("the accelerator runs");
        Node {
            stderr: BufReader::new(program.stderr.take().expect("piped")),
            program,
            _folder: folder,
        }
    }

    /// Returns the address in the log, and the line.
    fn address(&mut self) -> (SocketAddr, String) {
        let mut lines = self.stderr.by_ref().lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("metrics: http://"));
        let line = line.expect("an address");
        let (_, rest) = line.split_once("http://").expect("an address");
        let address = rest.split("/metrics").next().map(str::parse);
        (address.expect("a first part").expect("an address"), line)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn ask(at: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.write_all(request.as_bytes()).expect("asked");
    read(stream)
}

/// Reads until the server closes the connection.
fn read(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // The server may close before it has read the request.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8(text).expect("text")
}

fn get(at: SocketAddr, path: &str, host: &str) -> String {
    ask(at, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

#[test]
fn figures_are_for_this_machine_and_nothing_but_figures_is_there() {
    let mut node = Node::start("127.0.0.1:0");
    let (at, _) = node.address();
    let answer = get(at, "/metrics", "localhost");
    assert_has(
        &answer,
        &[
            "HTTP/1.1 200",
            "text/plain; version=0.0.4",
            "qdl_samples_total 0",
        ],
    );
    let refusals = [
        (get(at, "/", "localhost"), "404"),
        (get(at, "/metrics/", "localhost"), "404"),
        (get(at, "/metrics", "elsewhere.example"), "403"),
        (
            ask(
                at,
                "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
            ),
            "405",
        ),
        (ask(at, "no request\r\n\r\n"), "400"),
    ];
    for (answer, status) in refusals {
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        assert!(!answer.contains("qdl_"), "{answer}");
    }
}

#[test]
fn slow_clients_lose_their_connections_and_hold_no_other_up() {
    let mut node = Node::start("127.0.0.1:0");
    let (at, _) = node.address();
    let slow = || {
        let mut stream = TcpStream::connect(at).expect("it listens");
        stream.write_all(b"GET /metrics HT").expect("asked");
        stream
    };
    let mut all: Vec<_> = (1..MOST_CONNECTIONS).map(|_| slow()).collect();
    assert_has(&get(at, "/metrics", "localhost"), &["qdl_samples_total"]);
    all.push(slow());
    assert_eq!(read(slow()), "", "one more is closed at once");
    for stream in all {
        assert!(!read(stream).contains("qdl_"));
    }
    assert_has(&get(at, "/metrics", "localhost"), &["qdl_samples_total"]);
}

#[test]
fn a_bare_port_means_loopback_and_another_address_is_open_and_said_to_be() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let mut bare = Node::start(&port.to_string());
    let (at, line) = bare.address();
    assert_eq!(at, ([127, 0, 0, 1], port).into());
    assert!(!line.contains("every host"), "{line}");
    let mut open = Node::start("0.0.0.0:0");
    let (at, line) = open.address();
    assert_has(&line, &["every host that reaches the address can read it"]);
    let at = ([127, 0, 0, 1], at.port()).into();
    assert_has(
        &get(at, "/metrics", "elsewhere.example"),
        &["HTTP/1.1 200", "qdl_samples_total 0"],
    );
}

#[test]
fn a_taken_or_malformed_address_is_an_error_that_names_the_key() {
    let owner = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = owner.local_addr().expect("bound").to_string();
    for (metrics, words) in [
        (
            taken.as_str(),
            ["metrics: 127.0.0.1", "name another address or port"],
        ),
        (
            "here:9464",
            ["metrics", "a port, or an IP address with a port"],
        ),
    ] {
        let mut node = Node::start(metrics);
        let mut said = String::new();
        node.stderr.read_to_string(&mut said).expect("text");
        assert_eq!(
            node.program.wait().expect("it ends").code(),
            Some(2),
            "{said}"
        );
        assert_has(&said, &words);
    }
}
