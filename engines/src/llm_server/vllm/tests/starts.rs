//! The start of a core, and what is refused there.

use std::{fs, os::unix::process::CommandExt, process::Command};

use crate::config::{MAX_IN_FLIGHT, VllmConfig};
use fabric::wire::Stream;

use super::rig::{EOS, Started, answer, folder, log, params, processes::free_port, start};
use crate::{EngineError, Streaming, llm_server::Vllm};

fn error(started: Result<Started, EngineError>) -> String {
    started.map(|_| ()).expect_err("refused").to_string()
}

#[test]
fn a_core_that_cannot_be_used_is_refused_at_the_start() {
    let table = "--version 0.99.0 => it is vLLM 0.99.0, and this engine knows 0.24 to 0.33
         --habit another-field => it answers with 14 fields, 0.24 has 13
         --habit experts => a mixture of experts cannot run on several
         --habit no-start => it ended (exit status: 1); the last line of its log
         --habit no-start => unrecognized arguments (before it was ready)
         --habit no-memory => the last error in it: torch.OutOfMemoryError: CUDA out of memory
         --habit never-ready => 1 of 1 cores load the model, 0 ready; the last line of its log
         --habit never-ready => see engine.vllm.ready_s
         --habit no-output => 1 of 1 cores load the model, 1 ready, 0 of 1 output connections
         --habit no-input => 1 of 1 cores load the model, 1 ready, no input connection of core 0
         --habit no-registration => 1 ready, no registration of core 0, 0 of 1 output
         --habit other-identity => a peer of its input was dropped: its identity [9, 9] is none
         --model-len 2 => its context has 2 tokens (max_model_len), and 3 are needed";
    let mut last = ("", String::new());
    for (option, words) in table
        .lines()
        .filter_map(|line| line.trim().split_once(" => "))
    {
        if last.0 != option {
            let options: Vec<&str> = option.split(' ').collect();
            last = (option, error(start(&options, |c| c.ready_s = 6)));
        }
        let error = &last.1;
        let is_whole = error.starts_with("vLLM's engine core: ") && error.contains(words);
        assert!(is_whole, "{option}: {error}");
    }
    let absent = error(start(&[], |c| c.command = vec!["/nowhere/vllm".to_owned()]));
    let words = "`/nowhere/vllm` of engine.vllm.command: No such file";
    assert!(absent.contains(words), "{absent}");
    let by_hand = error(start(&[], |c| {
        (c.listen, c.ready_s) = (Some(([127, 0, 0, 1], 0).into()), 1);
    }));
    let words = "not ready after 1 s (no core has connected)";
    assert!(by_hand.contains(words), "{by_hand}");
    let most = usize::MAX.to_string();
    let most = ["--max-num-seqs", &most];
    let started = start(&most, |_| ()).expect("a core");
    let limit = started.engine.in_flight();
    assert_eq!((limit, started.fatal()), (MAX_IN_FLIGHT, None));
}

/// Peers of this user that break the protocol at the port of the handshake, before the core comes:
/// each is dropped, and none delays the core.
#[test]
fn strangers_at_the_handshakes_port_neither_end_nor_delay_the_start() {
    for attack in [
        "garbage", "long", "status", "ready", "silent", "drip", "ping",
    ] {
        let options = ["--attack", attack];
        let started = start(&options, |c| c.ready_s = 30);
        let started = started.unwrap_or_else(|e| panic!("{attack}: {e}"));
        let prompt = vec![7, 5];
        let samples = started.run_prompts(std::slice::from_ref(&prompt), Stream::First);
        let answered = samples.record(0).answer();
        assert_eq!(answered, Some(answer(&prompt, 3)), "{attack}");
        let log = log(&started);
        assert!(log.contains(&format!("attack {attack} done")), "{log}");
    }
}

#[test]
fn a_configuration_that_does_not_fit_the_model_is_refused() {
    let with = |config: &str, change: fn(&mut VllmConfig)| {
        let folder = folder();
        fs::write(folder.path().join("config.json"), config).expect("written");
        let mut params = params(folder.path(), &[]);
        change(params.engine.vllm.as_mut().expect("vllm"));
        Vllm::open(&params)
            .map(|_| ())
            .expect_err("refused")
            .to_string()
    };
    let whole = r#"{"vocab_size": 100, "eos_token_id": 2}"#;
    let no_eos = r#"{"vocab_size": 100}"#;
    let far_eos = r#"{"vocab_size": 100, "eos_token_id": 100}"#;
    let experts = r#"{"num_experts": 8}"#;
    let none: fn(&mut VllmConfig) = |_| ();
    for (config, change, words) in [
        ("{}", none, "give engine.vllm.vocab"),
        (no_eos, none, "give engine.vllm.eos"),
        (far_eos, none, "id 100 of `eos` or `stop`"),
        (whole, |c| c.max_tokens = Some(13), "13 is more than the"),
        (whole, |c| c.min_tokens = 13, "more than max_tokens, 12"),
        (whole, |c| c.model.push("none"), "none/config.json: No"),
        (experts, |c| c.data_parallel = 2, "a mixture of experts"),
    ] {
        let error = with(config, change);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn the_core_gets_its_variables_gpus_and_processors() {
    let vars = tempfile::NamedTempFile::new().expect("a file");
    fs::write(vars.path(), "# secrets\n\nQDL_TEST=a=b\n").expect("written");
    let cpu = fabric::os::affinity().as_slice()[0];
    let started = start(&[], |c| {
        c.env_file = Some(vars.path().to_owned());
        c.gpus = vec![3, 1];
        c.cpus = Some(vec![cpu]);
    });
    let log = log(&started.expect("a core"));
    let words = format!("Loading model 3,1 a=b [{cpu}]");
    assert!(log.contains(&words), "{log}");
}

#[test]
fn a_core_that_is_started_by_hand_is_waited_for() {
    let port = free_port();
    let hand = folder();
    let script = hand.path().join("core.py");
    let mut core = Command::new("python3");
    core.arg(&script)
        .args(["serve", "m", "--data-parallel-rpc-port", &port.to_string()]);
    core.args(["--data-parallel-size-local", "1"])
        .process_group(0);
    let started = std::thread::scope(|scope| {
        let engine = scope.spawn(|| start(&[], |c| c.listen = Some(([127, 0, 0, 1], port).into())));
        // The script does not connect again, unlike a real core.
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let child = core.spawn().expect("python3");
        (engine.join().expect("no panic"), child)
    });
    let (started, mut child) = started;
    let started = started.expect("a core");
    let prompt = vec![7, 5];
    let samples = started.run_prompts(std::slice::from_ref(&prompt), Stream::First);
    assert_eq!(samples.record(0).answer(), Some(answer(&prompt, 3)));
    assert_eq!(answer(&prompt, 3).last(), Some(&EOS));
    drop(started);
    // The core ends by itself, for its input has ended; its worker does not.
    child.wait().expect("ended");
    // SAFETY: a plain system call, for processes of this test.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
}
