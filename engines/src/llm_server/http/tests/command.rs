//! The server as a program that the engine starts, watches and stops.

use std::path::Path;

use crate::config::Dialect;
use fabric::wire::Stream;
use qdl::testkit::assert_has;

use super::rig::{
    eventually, params,
    processes::{free_port, is_running, pids},
    prompts, samples, start,
};
use crate::EngineParams;

/// A server in Python. It answers queries. It answers prompts with the ids 5 and 6 (`good`), or
/// with only the first one and then silence (`hangs`). SIGTERM ends it, except with `deaf`;
/// `tests/server.rs` starts and stops it with the node.
const SERVER: &str = include_str!("server.py");

fn with_server(folder: &Path, habit: &str) -> EngineParams {
    let script = folder.join("server.py");
    std::fs::write(&script, SERVER).expect("a script");
    let port = free_port();
    let mut params = params(&format!("http://127.0.0.1:{port}"), Dialect::Vllm);
    let http = params.engine.http.as_mut().expect("http");
    let text = |path: &Path| path.to_str().expect("a path").to_owned();
    http.command = vec![
        "python3".to_owned(),
        text(&script),
        habit.to_owned(),
        text(&folder.join("pids")),
        port.to_string(),
    ];
    http.log = folder.join("server.log");
    http.ready_s = 60;
    http.stop_s = 1;
    params
}

#[test]
fn a_killed_server_ends_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let started = start(&with_server(folder.path(), "hangs")).expect("a server");
    let samples = samples(&prompts(8), Stream::First);
    started.submit(&samples, 8);
    eventually("first tokens", || {
        (0..8).all(|i| !samples.record(i).parts.is_empty())
    });
    let pids = pids(folder.path());
    // SAFETY: a plain system call, for a process of this test.
    unsafe { libc::kill(pids[0], libc::SIGKILL) };
    eventually("all end", || samples.ended() == 8);
    eventually("it is reported", || started.fatal().is_some());
    let line = started.fatal().expect("reported");
    let log = folder.path().join("server.log");
    let words = format!(
        "it ended (signal: 9 (SIGKILL)); the last line of its log {}: token 5 is out",
        log.display()
    );
    assert!(
        line.starts_with("server http://127.0.0.1:") && line.contains(&words),
        "{line}"
    );
    assert!(samples.total() == 0 && samples.refused().is_empty());
    eventually("what it started is gone", || {
        pids.iter().all(|pid| !is_running(*pid))
    });
}

#[test]
fn a_server_that_is_never_ready_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut params = with_server(folder.path(), "good");
    let http = params.engine.http.as_mut().expect("http");
    let file = folder.path().join("pids");
    let script = "echo $$ > \"$0\"; echo loading; sleep 99";
    let command = ["sh", "-c", script, file.to_str().expect("a path")];
    http.command = command.map(str::to_owned).to_vec();
    http.ready_s = 1;
    let error = start(&params).err().expect("not ready").to_string();
    assert!(error.contains("not ready after 1 s"), "{error}");
    assert!(error.contains("server.log: loading"), "{error}");
    assert!(error.contains("engine.http.ready_s"), "{error}");
    let pid = pids(folder.path())[0];
    eventually("it is gone", || !is_running(pid));
}

#[test]
fn the_server_gets_its_variables_from_a_file_of_its_user_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let vars = folder.path().join("vars");
    let key = "sk-0123456789abcdef";
    std::fs::write(&vars, format!("# keys\n\nOPENAI_API_KEY={key}\n")).expect("written");
    let mut params = with_server(folder.path(), "good");
    let http = params.engine.http.as_mut().expect("http");
    // It prints its variable and ends: its last line is in the error, without the key.
    let script = "echo len ${#OPENAI_API_KEY}, OPENAI_API_KEY=$OPENAI_API_KEY; exit 7";
    http.command = ["sh", "-c", script].map(str::to_owned).to_vec();
    http.env_file = Some(vars.clone());
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&vars, mode).expect("set");
    };
    let error = || start(&params).err().expect("it ends").to_string();
    for mode in [0o600, 0o400] {
        set_mode(mode);
        let error = error();
        assert!(error.contains("len 19, OPENAI_API_KEY=(masked)"), "{error}");
    }
    for mode in [0o640, 0o604, 0o700] {
        set_mode(mode);
        let words = format!("vars: its mode is {mode:04o}, not 0600 or 0400: chmod 600");
        assert!(error().contains(&words), "{}", error());
    }
    set_mode(0o600);
    std::fs::write(&vars, format!("A=1\n{key}\n")).expect("written");
    let error = error();
    let words = ["engine.http.env_file", "vars: line 2 is not `NAME=value`"];
    assert_has(&error, &words);
    assert!(!error.contains(key), "{error}");
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut params = with_server(folder.path(), "good");
    let http = params.engine.http.as_mut().expect("http");
    http.log = folder.path().join("no/such/folder/server.log");
    let error = start(&params).err().expect("no log").to_string();
    assert!(error.contains("its log"), "{error}");
}

#[test]
fn no_program_is_started_where_somebody_listens_already() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut params = with_server(folder.path(), "good");
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let http = params.engine.http.as_mut().expect("http");
    http.url = format!("http://{}", other.local_addr().expect("an address"));
    let why = start(&params)
        .err()
        .expect("a port that is taken")
        .to_string();
    assert!(why.contains("something listens there already"), "{why}");
    assert!(!folder.path().join("pids").exists(), "it was started");
}
