//! A core that fails during the run.

use fabric::wire::Stream;

use super::rig::{ROOM, Samples, eventually, processes::pids, prompts, start};
use crate::engine::{Streaming, streaming::TOKEN_BYTES};

#[test]
fn a_failed_core_ends_the_engine_with_its_last_words() {
    let log = |line: &str| format!("vllm.log: {line}");
    for (habit, words) in [
        (
            "dead",
            [
                "it reports ENGINE_CORE_DEAD; it ended (exit status: 1)".to_owned(),
                log(""),
            ],
        ),
        (
            "exits",
            [
                "it ended (exit status: 1)".to_owned(),
                log("Segmentation fault"),
            ],
        ),
        ("deaf", ["core 0 takes no".to_owned(), String::new()]),
        (
            "silent",
            [
                "no token from core 0 for 1 s while it has".to_owned(),
                log("Loading model"),
            ],
        ),
        (
            "garbled",
            [
                "its output is not understood".to_owned(),
                log("Loading model"),
            ],
        ),
        (
            "unknown",
            [
                "it answers the unknown request `no hex`".to_owned(),
                String::new(),
            ],
        ),
        (
            "cache",
            [
                "5 prompt tokens from its prefix cache".to_owned(),
                String::new(),
            ],
        ),
    ] {
        let started = start(&["--habit", habit], |c| c.step_s = 1);
        if habit == "cache" {
            // The request that tries the core at the start finds it.
            let error = started.map(|_| ()).expect_err(habit).to_string();
            assert!(error.contains(&words[0]), "{habit}: {error}");
            continue;
        }
        let started = started.unwrap_or_else(|e| panic!("{habit}: {e}"));
        let samples = Samples::prompts(&prompts(40), ROOM * TOKEN_BYTES, Stream::First);
        // The core fails at its twentieth step: an answer has twelve.
        started.submit(&samples);
        eventually("all end", || samples.ended() == 40);
        let more = Samples::prompts(&prompts(40), ROOM * TOKEN_BYTES, Stream::First);
        started.submit(&more);
        eventually("all end", || more.ended() == 40);
        eventually("it is reported", || started.fatal().is_some());
        let fatal = started.fatal().expect("reported");
        assert!(fatal.starts_with("vLLM's engine core: "), "{fatal}");
        for words in words {
            assert!(fatal.contains(&words), "{habit}: {fatal}");
        }
    }
}

#[test]
fn a_killed_core_ends_the_engine_and_a_stopped_one_goes_on() {
    let started = start(&["--step", "0.02"], |_| ()).expect("a core");
    // The parent, a worker and the core, in the order of their starts.
    let pids = pids(started.folder.path());
    let log = started.log();
    assert_eq!(pids.len(), 3, "{log}");
    let signal_all = |signal| {
        for pid in &pids {
            // SAFETY: a plain system call, for a process of this test.
            unsafe { libc::kill(*pid, signal) };
        }
    };
    let samples = Samples::prompts(&prompts(20), ROOM * TOKEN_BYTES, Stream::First);
    started.submit(&samples);
    signal_all(libc::SIGSTOP);
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal_all(libc::SIGCONT);
    eventually("all end", || samples.ended() == 20);
    assert!((0..20).all(|i| samples.record(i).answer().is_some()));
    assert_eq!(started.fatal(), None);
    started.submit(&Samples::prompts(
        &prompts(20),
        ROOM * TOKEN_BYTES,
        Stream::First,
    ));
    signal_all(libc::SIGKILL);
    eventually("it is reported", || started.fatal().is_some());
    let fatal = started.fatal().expect("reported");
    assert!(fatal.contains("it ended (signal: 9 (SIGKILL))"), "{fatal}");
}

#[test]
fn a_stop_ends_all_processes_of_the_core() {
    let started = start(&[], |c| c.data_parallel = 2).expect("a core");
    let pids = pids(started.folder.path());
    assert_eq!(pids.len(), 5);
    started.vllm.stop(std::time::Duration::from_secs(5));
    eventually("all processes end", || {
        pids.iter()
            .all(|pid| !super::rig::processes::is_running(*pid))
    });
    assert_eq!(started.fatal(), None);
}
