//! `--local`: real LoadGen runs in one process, and the page that every run writes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::common::{
    LLM, PROMPTS, ProgramEnd, Running, TestFolder, assert_has, frontend, offline, run, words,
};
use serde_json::Value;

const SHORT: [&str; 2] = ["--duration-s", "0.3"];

fn local<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["--local"], &SHORT[..], more].concat()
}

/// Starts a Server run of this many seconds in one process, and waits until LoadGen runs.
fn serving(place: &TestFolder, config: &Path, seconds: &str) -> Running {
    let server = words("--local --scenario server --target-qps 1000 --duration-s");
    let command = place.frontend(config, "out", &[&server[..], &[seconds]].concat());
    let mut running = Running::start(place, "frontend", command);
    running.wait_until_loadgen_runs(place, "out");
    running
}

#[test]
fn each_run_has_a_folder_of_its_own_and_its_last_line_is_the_page() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    let command = |more: &[&str]| {
        let mut command = frontend();
        command.arg("--config").arg(&config);
        command.args(local(&offline("500"))).args(more);
        command.current_dir(place.path(""));
        command
    };
    let page = |ended: &ProgramEnd| {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let page = PathBuf::from(ended.stdout.lines().last().expect("a line"));
        let folder = place.path("").join(page.parent().expect("a folder"));
        assert!(folder.join("latency.hlog").is_file());
        page
    };
    let first = page(&run(&place, command(&[])));
    assert!(first.starts_with("results") && place.path("").join(&first).is_file());
    let second = page(&run(&place, command(&[])));
    assert_ne!(first, second);
    let folder = first.parent().and_then(Path::to_str).expect("a folder");
    let before = fs::read(place.path("").join(&first)).expect("a page");
    for more in [&["--output", folder][..], &["--check", "--output", folder]] {
        let ended = run(&place, command(more)).with_code(2);
        assert_has(&ended.stderr, &["summary.json is there", "--force"]);
    }
    assert_eq!(fs::read(place.path("").join(&first)).ok(), Some(before));
    page(&run(&place, command(&["--force", "--output", folder])));
}

#[test]
fn a_start_removes_temporary_folders_of_ended_processes_and_a_signal_its_own() {
    let place = TestFolder::new();
    let at = |name: &str| place.path(name);
    fs::create_dir_all(at("tmp/qdl-node-9999999-0/in")).expect("made");
    place.write("config.json", r#"{"vocab_size": 1000, "eos_token_id": 2}"#);
    // It never connects.
    let engine = format!(
        "engine: {{kind: vllm, vllm: {{model: {}, command: [sh, -c, sleep 600]}}}}\n",
        at("").display()
    );
    let nics = "nics: [{address: 127.0.0.1}]\n";
    let config = place.frontend_of(&[], &[LLM, &engine, PROMPTS, nics].concat());
    let mut command = place.frontend(&config, "out", &local(&offline("500")));
    command.env("TMPDIR", at("tmp"));
    let mut running = Running::start(&place, "frontend", command);
    let own = at(&format!("tmp/qdl-node-{}-0", running.id()));
    running.wait_until("folder", || {
        own.exists() && !at("tmp/qdl-node-9999999-0").exists()
    });
    running.signal(libc::SIGTERM);
    running.end().with_code(130);
    assert_eq!(fs::read_dir(at("tmp")).expect("there").count(), 0);
}

#[test]
fn an_interrupted_run_leaves_the_finished_one_that_it_was_to_replace() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    place
        .run(&config, "out", &local(&offline("500")))
        .with_code(0);
    let arguments = "--local --scenario server --target-qps 1000 --duration-s 50";
    let command = place.frontend(&config, "out", &words(arguments));
    let mut running = Running::start(&place, "frontend", command);
    running.wait_until_loadgen_runs(&place, "out/unfinished-run");
    running.signal(libc::SIGTERM);
    let ended = running.end().with_code(130);
    assert_eq!(place.summary("out")["valid"], true);
    assert_eq!(place.summary("out/unfinished-run")["exit"]["code"], 130);
    assert!(!place.path("out").join("INVALID").exists());
    let page = ended.stdout.lines().last().expect("a line");
    assert!(page.ends_with("out/unfinished-run/report.html"), "{page}");
}

#[test]
fn a_folder_has_one_run_at_a_time() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    let server = words("--local --scenario server --target-qps 1000 --duration-s 60");
    let start = |name| Running::start(&place, name, place.frontend(&config, "out", &server));
    // Both start at the same moment.
    let [a, b] = ["a", "b"].map(start);
    let said = |name: &str| fs::read_to_string(place.path(name)).unwrap_or_default();
    let is_refused = |name: &str| said(name).contains("error");
    while !is_refused("a.stderr") && !is_refused("b.stderr") {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (refused, mut running) = if is_refused("a.stderr") {
        (a, b)
    } else {
        (b, a)
    };
    let refused = refused.end().with_code(2);
    assert_has(refused.error(), &["--output", "process", "writes there"]);
    running.wait_until_loadgen_runs(&place, "out");
    let files = || fs::read_dir(place.path("out")).expect("a folder").count();
    let before = files();
    for command in ["tune --scenario server --config frontend.yaml", "demo"] {
        let arguments = [&words(command)[..], &["--output", "out"]].concat();
        let ended = place.qdl(&arguments).end().with_code(2);
        assert_has(&ended.stderr, &["writes there"]);
    }
    assert_eq!(files(), before);
    running.signal(libc::SIGTERM);
    running.end().with_code(130);
    assert_eq!(place.summary("out")["exit"]["code"], 130);
}

#[test]
fn a_run_without_room_for_its_files_is_lost_and_leaves_none_that_is_cut() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    for (kib, file) in [
        ("12", "mlperf_log_detail.txt"),
        ("30", "mlperf_log_accuracy.json"),
    ] {
        let arguments = ["--local", "--mode", "accuracy", "--scenario", "offline"];
        let run = place.frontend(&config, "out", &arguments);
        let mut limited = Command::new("bash");
        // The sizes of files have a limit, where a disk would be full.
        limited.args(["-c", "ulimit -f $0; exec \"$@\"", kib]);
        limited.arg(run.get_program()).args(run.get_args());
        let ended = Running::start(&place, "limited", limited)
            .end()
            .with_code(3);
        assert_has(&ended.stderr, &["error: ", file, "file too large"]);
        assert!(place.path("out/INVALID").is_file());
        if let Ok(text) = fs::read(place.path("out/summary.json")) {
            let json: Value = serde_json::from_slice(&text).expect("a whole file");
            assert_eq!(json["exit"]["code"], 3);
        }
    }
}

#[test]
fn a_run_whose_log_is_gone_is_lost_and_its_folder_says_so() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    let log = |name: &str| place.path("out").join(format!("mlperf_log_{name}.txt"));
    let running = serving(&place, &config, "1");
    // LoadGen continues to write into a deleted file.
    fs::remove_file(log("summary")).expect("a log");
    let ended = running.end().with_code(3);
    assert_has(&ended.stderr, &["log_summary.txt"]);
    let s = place.summary("out");
    assert_eq!(s["valid"], false);
    assert_eq!(s["exit"]["code"], 3);
    assert!(s["ledger"]["answered"].as_u64() > Some(0), "{s}");
    assert!(place.path("out").join("INVALID").is_file());

    // The next run fails before it starts, and leaves this run folder unchanged.
    place
        .run(&config, "out", &words("--scenario server --connect-ms 100"))
        .with_code(2);
    assert_eq!(place.summary("out")["exit"]["code"], 3);
    assert!(!place.path("out/unfinished-run").exists());
}

#[test]
fn a_run_leaves_its_page_and_the_page_is_its_record() {
    let place = TestFolder::new();
    for (out, rate) in [("one", "1200"), ("two", "2400")] {
        let config = place.digest_frontend(&[], "");
        let server = "--local --scenario server --duration-s 0.5 --set target_latency=1000";
        let arguments = [&words(server)[..], &["--target-qps", rate]].concat();
        let ended = place.run(&config, out, &arguments).with_code(0);
        assert!(!ended.stderr.contains("no page"), "{}", ended.stderr);
    }
    let left = place.path("one").join("report.html");
    let page = fs::read_to_string(&left).expect("the page");
    assert!(page.contains("<b>VALID</b>") && page.contains("id=\"percentiles\""));

    // The run folder and the page alone both give the same page again.
    for from in ["one", "one/report.html"] {
        let report = place.qdl(&["report", from, "--output", "again.html"]);
        assert_eq!(report.end().with_code(0).stdout.trim(), "again.html");
        let again = fs::read_to_string(place.path("again.html")).expect("the page");
        assert!(again == page, "made of {from} it is another page");
    }

    let report = place.qdl(&["report", "one", "two"]).end().with_code(0);
    assert_eq!(report.stdout.trim(), "compare.html");
    let page = fs::read_to_string(place.path("compare.html")).expect("the page");
    assert_has(&page, &["server_target_qps", "<td>1200</td><td>2400</td>"]);
}
