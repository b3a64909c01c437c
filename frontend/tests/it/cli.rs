//! Wrong usage ends with exit code 2 and one clear message, and never hangs.

use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, path::Path, process::Command};

use crate::common::{
    Running, TestFolder, accelerator, accelerator_program, assert_has, free_ports, frontend,
    offline, on_a_terminal, one_of_digests, program_beside, refused, words,
};
use assert_cmd::assert::OutputAssertExt;

#[test]
fn wrong_usage_is_named_with_what_would_be_right() {
    let place = TestFolder::new();
    let good = place.digest_frontend(&[], "");
    let none = place.path("none.yaml");
    for (config, arguments, parts) in [
        (
            &good,
            "--scenario sever",
            &["sever", "server", "offline"][..],
        ),
        (&good, "", &["--scenario"]),
        (&none, "--scenario server", &["none.yaml", "No such file"]),
        (
            &good,
            "--scenario server --set min_qery_count=3",
            &["--set", "min_qery_count", "min_query_count"],
        ),
        (
            &good,
            "--scenario server --local --target-qps 0",
            &["server_target_qps"],
        ),
    ] {
        let command = place.frontend(config, "out", &words(arguments));
        assert_has(&refused(command), parts);
    }
    assert_has(&refused(frontend()), &["--config"]);
}

#[test]
fn a_setting_in_a_file_is_refused_at_its_line() {
    let place = TestFolder::new();
    let setting = "    min_duration_ms: 1.5\n";
    let more = format!("loadgen:\n  scenario: server\n  settings:\n{setting}");
    let config = place.digest_frontend(&[1], &more);
    let text = std::fs::read_to_string(&config).expect("read");
    let line = text.lines().count();
    let said = refused(place.frontend(&config, "out", &["--check"]));
    let at = format!("frontend.yaml:{line}:");
    assert_has(&said, &[&at, "it takes a whole number, 0 or more", "^"]);
}

#[test]
fn more_threads_than_cores_is_a_warning_of_a_check() {
    let place = TestFolder::new();
    let check = |threads: &str| {
        let config = place.digest_frontend(&[], "");
        let text = std::fs::read_to_string(&config).expect("read");
        std::fs::write(&config, text.replace("kind: digest", threads)).expect("written");
        let arguments = ["--check", "--local", "--scenario", "server"];
        let output = place
            .frontend(&config, "out", &arguments)
            .assert()
            .success();
        String::from_utf8_lossy(&output.get_output().stdout).into_owned()
    };
    assert_has(
        &check("kind: digest, threads: 512"),
        &["WARNING: threads 512 x"],
    );
    for quiet in ["kind: digest", "kind: digest, threads: 512, delay_us: 10"] {
        let said = check(quiet);
        assert!(!said.contains("that compute"), "{said}");
    }
}

#[test]
fn local_without_an_engine_and_without_a_runtime() {
    let place = TestFolder::new();
    let base = "node: front\n\
        model: {name: m, inputs: [{name: i, dtype: u8, shape: [64]}], output: {name: o, dtype: i64, shape: [1]}}\n\
        dataset: {kind: random, count: 4}\n\
        accelerators: [{control: \"127.0.0.1:1\"}]\n\
        nics: [{address: 127.0.0.1}]\n";
    let arguments = ["--scenario", "offline", "--local"];
    let none = place.write("none.yaml", base);
    assert_has(
        &refused(place.frontend(&none, "out", &arguments)),
        &["--local", "engine:"],
    );

    place.write("m.onnx", "no model");
    let onnx = format!("{base}engine: {{kind: onnx, library: absent.so}}\nmodel_file: m.onnx\n");
    let onnx = place.write("onnx.yaml", onnx);
    let text = refused(place.frontend(&onnx, "out", &arguments));
    assert_has(&text, &["absent.so", "cargo xtask setup"]);
}

#[test]
fn an_accelerator_that_is_not_there() {
    let place = TestFolder::new();
    let [port] = free_ports();
    let config = place.digest_frontend(&[port], "deadlines: {connect_ms: 300}\n");
    let text = refused(place.frontend(&config, "out", &["--scenario", "server"]));
    let parts = [
        "takes no connections yet",
        "tried for 0.3 s (deadlines.connect_ms)",
    ];
    assert_has(&text, &[&format!("127.0.0.1:{port}"), parts[0], parts[1]]);
}

#[test]
fn an_accelerator_that_is_still_loading_is_waited_for() {
    let place = TestFolder::new();
    let [first, late] = free_ports();
    let there = accelerator(&place, &place.digest_accelerator("there", first, ""));
    let config = place.digest_frontend(&[first, late], "");
    let run = |quiet: &[&str]| {
        let arguments = [&offline("20")[..], quiet].concat();
        Running::start(
            &place,
            "frontend",
            place.frontend(&config, "out", &arguments),
        )
    };
    let mut waiting = run(&["--live", "0.0.0.0:0"]);
    waiting.wait_until_it_says(&format!("127.0.0.1:{late} takes no connections yet"));
    assert!(place.path("out/live.url").is_file());
    waiting.signal(libc::SIGINT);
    let ended = waiting.end().with_code(130);
    assert_has(&ended.stderr, &["for 60 s more", "nothing was measured"]);
    assert!(!place.path("out").exists());
    let mut waiting = run(&[]);
    waiting.wait_until_it_says("takes no connections yet");
    let _late = accelerator(&place, &place.digest_accelerator("late", late, ""));
    waiting.end().judged();
    drop(there);
}

#[test]
fn a_peer_that_never_answers_ends_a_start_however_long_one_that_loads_is_waited_for() {
    let place = TestFolder::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let [absent] = free_ports();
    let config = place.digest_frontend(&[absent, port], "");
    let text = refused(place.frontend(&config, "out", &["--scenario", "server"]));
    assert_has(&text, &[&format!("127.0.0.1:{port}"), "within 5s"]);
}

#[test]
fn a_signal_ends_each_program_in_order_whatever_it_does_at_the_time() {
    let place = TestFolder::new();
    // Whoever opens the pipe waits for a writer.
    let pipe = place.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    let qdl = program_beside("qdl");
    for (program, command, code) in [
        (
            Path::new(env!("CARGO_BIN_EXE_frontend")),
            "--scenario server --config",
            130,
        ),
        (accelerator_program(), "--config", 0),
        (qdl, "tune --config", 130),
        (qdl, "describe --output tree --config", 130),
        (qdl, "submit --output tree --form", 130),
    ] {
        let mut started = Command::new(program);
        started
            .args(words(command))
            .arg(&pipe)
            .current_dir(place.path(""));
        let mut running = Running::start(&place, "program", started);
        let mut writer = OpenOptions::new();
        writer.write(true).custom_flags(libc::O_NONBLOCK);
        let mut held = None;
        running.wait_until("the pipe's reader", || {
            held = writer.open(&pipe).ok();
            held.is_some()
        });
        running.signal(libc::SIGTERM);
        running.end().with_code(code);
        assert!(!place.path("tree").exists());
    }
}

#[test]
fn a_run_that_is_interrupted_in_its_warm_up_leaves_no_folder() {
    let place = TestFolder::new();
    let slow = "engine: {kind: digest, delay_us: 3000000}";
    let (config, _acc) = one_of_digests(&place, slow, "warm_up: {budget_ms: 60000}\n");
    let command = place.frontend(&config, "out", &offline("20"));
    let mut running = Running::start(&place, "frontend", command);
    running.wait_until("begun", || place.path("out/run.json").is_file());
    running.signal(libc::SIGTERM);
    let ended = running.end().with_code(130);
    assert_has(
        ended.error(),
        &["interrupted by SIGTERM", "nothing was measured"],
    );
    assert!(!place.path("out").exists());
}

fn said(program: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect("runs");
    let texts = [&output.stdout, &output.stderr];
    let [out, error] = texts.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code(), out, error)
}

fn programs() -> [&'static Path; 2] {
    [program_beside("qdl"), accelerator_program()]
}

#[test]
fn the_short_help_lists_the_commands_and_a_typo_is_answered_with_the_nearest() {
    for program in programs() {
        let (code, help, _) = said(program, &["-h"]);
        assert_eq!(code, Some(0));
        assert_has(
            &help,
            &words("Commands: topology describe completions man help"),
        );
        let flags = ["-q, --quiet", "-v, --verbose", "--color <WHEN>"];
        assert_has(&help, &flags);
        let (code, _, error) = said(program, &["topolgy"]);
        assert_eq!(code, Some(2));
        assert_has(&error, &["'topolgy'", "similar", "'topology'"]);
        let (code, of, _) = said(program, &["help", "topology"]);
        assert_eq!(code, Some(0));
        assert_has(&of, &["--yaml", "--root", "-q, --quiet"]);
        let (_, version, _) = said(program, &["--version"]);
        assert!(
            version.contains("0.1.0 (") && version.contains("commit") || version.contains(" at "),
            "{version}"
        );
    }
}

#[test]
fn one_thing_has_one_name_in_each_command() {
    let [qdl, _] = programs();
    let output = frontend().arg("-h").output().expect("runs");
    let all = String::from_utf8_lossy(&output.stdout);
    assert_has(&all, &["-o, --output", "-c, --config", "--json"]);
    let (_, commands, _) = said(qdl, &["--help"]);
    for command in ["init", "describe", "tune", "report", "submit", "demo"] {
        assert!(commands.contains(&format!("\n  {command} ")), "{commands}");
        let (code, help, error) = said(qdl, &[command, "--help"]);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{command}");
        assert_has(
            &help,
            &["-o, --output", "-q, --quiet", "-v, --verbose", "--color"],
        );
    }
}

#[test]
fn a_flag_of_a_run_in_front_of_a_command_is_named() {
    let [qdl, accelerator] = programs();
    let (code, _, error) = said(accelerator, &["--once", "topology"]);
    assert_eq!(code, Some(2));
    assert_has(&error, &["--once", "`topology`"]);
    // Global flags may come before the command.
    let (code, _, error) = said(qdl, &["-q", "report", "none"]);
    assert_eq!(code, Some(2));
    assert_has(&error, &["none"]);
}

#[test]
fn what_is_asked_for_as_json_is_all_that_is_printed() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = place
            .frontend(&config, "out", arguments)
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
        serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
    };
    let arguments = [&offline("20")[..], &["--local", "--json"]].concat();
    for more in [&[][..], &["-q"]] {
        let printed = json(&[&arguments[..], more].concat());
        assert_eq!(printed, place.summary("out"));
    }
    let checked = json(&[&arguments[..], &["--check"]].concat());
    assert_eq!(checked["scenario"][0], "Offline, performance", "{checked}");
    let (code, printed, _) = said(programs()[1], &["topology", "--json"]);
    assert_eq!(code, Some(0));
    let machine: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    assert!(machine["nics"].is_array(), "{machine}");
    // A run that never starts prints no JSON.
    let arguments = words("--json --scenario server --local --target-qps 0");
    refused(place.frontend(&config, "out", &arguments));
}

#[test]
fn a_summary_is_coloured_on_a_terminal_alone_and_there_as_one_likes() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], "");
    let coloured = |terminal: bool, color: &str, variable: (&str, &str)| {
        let arguments = [&offline("20")[..], &["--local", "--color", color]].concat();
        let mut command = place.frontend(&config, "out", &arguments);
        command
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .env(variable.0, variable.1);
        let path = place.path("screen");
        let screen = std::fs::File::create(&path).expect("a file");
        let text = if terminal {
            on_a_terminal(command)
        } else {
            command.stdout(screen).status().expect("runs");
            std::fs::read_to_string(&path).expect("read")
        };
        assert!(text.contains("VALID"), "{text}");
        text.contains("\u{1b}[")
    };
    let nothing = ("QDL_NOTHING", "1");
    assert!(coloured(true, "auto", nothing) && !coloured(false, "auto", nothing));
    assert!(coloured(false, "always", ("NO_COLOR", "1")));
    assert!(!coloured(true, "never", nothing));
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        assert!(!coloured(true, "auto", variable), "{variable:?}");
    }
}

#[test]
fn completions_and_manual_pages_know_each_command() {
    let place = TestFolder::new();
    for program in programs() {
        for shell in ["bash", "zsh", "fish"] {
            let (code, text, _) = said(program, &["completions", shell]);
            assert_eq!(code, Some(0), "{shell}");
            assert_has(&text, &["topology", "output", "yaml"]);
        }
        let (_, page, _) = said(program, &["man"]);
        assert_has(&page, &[".TH ", "topology", "quiet"]);
        let folder = place.path("man");
        let pages = ["man", "-o", folder.to_str().expect("a path")];
        assert_eq!(said(program, &pages).0, Some(0));
        let name = program.file_name().expect("a name").to_string_lossy();
        assert!(folder.join(format!("{name}-topology.1")).exists());
    }
}
