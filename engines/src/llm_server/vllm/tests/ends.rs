//! A core that fails during the run.

use fabric::wire::Stream;

use super::rig::{ROOM, Samples, eventually, folder_of, log, processes::pids, prompts, start};
use crate::{Streaming, streaming::TOKEN_BYTES};

#[test]
fn a_failed_core_ends_the_engine_with_its_last_words() {
    let table = "dead => it reports ENGINE_CORE_DEAD; it ended (exit status: 1)
         dead => the last error in it: RuntimeError: index out of range in self
         exits => it ended (exit status: 1)
         exits => vllm.log: INFO: shutting down
         deaf => core 0 takes no
         silent => no token from core 0 for 1 s while it has
         silent => vllm.log: Loading model
         garbled => its output is not understood
         unknown => it answers the unknown request `no hex`
         pings => it reports ENGINE_CORE_DEAD
         cache => it took 5 prompt tokens from its prefix cache";
    let mut fatal = (String::new(), String::new());
    for (habit, words) in table
        .lines()
        .filter_map(|line| line.trim().split_once(" => "))
    {
        if fatal.0 != habit {
            fatal = (habit.to_owned(), end_of(habit));
        }
        let fatal = &fatal.1;
        assert!(
            fatal.starts_with("vLLM's engine core: ") && fatal.contains(words),
            "{fatal}"
        );
    }
}

fn end_of(habit: &str) -> String {
    let started = match start(&["--habit", habit], |c| c.step_s = 1) {
        Ok(started) => started,
        // The request that tries the core at the start has found it.
        Err(error) => return error.to_string(),
    };
    // The core fails at its twentieth step: an answer has twelve.
    for _ in 0..2 {
        let samples = Samples::prompts(&prompts(40), ROOM * TOKEN_BYTES, Stream::First);
        started.submit(&samples, usize::MAX);
        eventually("all end", || samples.ended() == 40);
    }
    eventually("it is reported", || started.fatal().is_some());
    started.fatal().expect("reported")
}

#[test]
fn a_killed_core_ends_the_engine_and_a_stopped_one_goes_on() {
    let started = start(&["--step", "0.02"], |_| ()).expect("a core");
    // The parent, a worker and the core, in the order of their starts.
    let pids = pids(folder_of(&started));
    let log = log(&started);
    assert_eq!(pids.len(), 3, "{log}");
    let signal_all = |signal| {
        for pid in &pids {
            // SAFETY: a plain system call, for a process of this test.
            unsafe { libc::kill(*pid, signal) };
        }
    };
    let samples = Samples::prompts(&prompts(20), ROOM * TOKEN_BYTES, Stream::First);
    started.submit(&samples, usize::MAX);
    signal_all(libc::SIGSTOP);
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal_all(libc::SIGCONT);
    eventually("all end", || samples.ended() == 20);
    assert!((0..20).all(|i| samples.record(i).answer().is_some()));
    assert_eq!(started.fatal(), None);
    let samples = Samples::prompts(&prompts(20), ROOM * TOKEN_BYTES, Stream::First);
    started.submit(&samples, usize::MAX);
    signal_all(libc::SIGKILL);
    eventually("it is reported", || started.fatal().is_some());
    let fatal = started.fatal().expect("reported");
    assert!(fatal.contains("it ended (signal: 9 (SIGKILL))"), "{fatal}");
}

#[test]
fn a_stop_ends_all_processes_of_the_core() {
    let started = start(&[], |c| c.data_parallel = 2).expect("a core");
    let pids = pids(folder_of(&started));
    assert_eq!(pids.len(), 5);
    started.engine.stop(std::time::Duration::from_secs(5));
    eventually("all processes end", || {
        pids.iter()
            .all(|pid| !super::rig::processes::is_running(*pid))
    });
    assert_eq!(started.fatal(), None);
}
