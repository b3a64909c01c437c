//! What real sessions leave behind: nothing, however they end. (The world cuts sessions at any
//! moment, and counts memory and links; it has no sockets, threads or queue pairs.)

use std::{fmt::Debug, fs, sync::Arc};

use qdl::{
    config::NicConfig,
    run::{request_stride, response_stride},
    testkit::{eventually, eventually_or},
};
use verbs::stub;

use super::{alone, harness::*};

const CONNECTIONS: usize = 2;
const SLOTS: usize = 16;

/// The process's descriptors and threads, without the threads that a runtime keeps in reserve.
fn held() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("there").count();
    let threads = fs::read_dir("/proc/self/task").expect("there").flatten();
    let names = threads.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok());
    let own = names.filter(|name| !name.starts_with("tokio-"));
    (descriptors, own.count())
}

fn wait_for<T: Debug>(what: &str, now: impl Fn() -> T, holds: impl Fn(&T) -> bool) {
    eventually_or(|| format!("{what}: {:?} are left", now()), || holds(&now()));
}

fn nothing_is_left_of_sessions(accelerator: NicConfig, nic: &str) {
    let _alone = alone();
    let m = model();
    let slot = request_stride(&m).expect("small") + response_stride(&m).expect("small");
    let node = Running::start(NodeSetup {
        // Just enough for one frontend: any leak refuses the next.
        memory: CONNECTIONS * SLOTS * slot,
        nics: vec![accelerator],
        ..NodeSetup::default()
    });
    let nics = format!("  - {{{nic}: {CONNECTIONS}, slots: {SLOTS}}}\n");
    let config = config_with(&[&node], &nics, "");
    let session = |end: fn(Front)| {
        let mut front = None;
        // The accelerator may still release the previous session.
        eventually("a session", || {
            front = Front::try_connect(&config, 4, 100).ok();
            front.is_some()
        });
        let front = front.expect("just made");
        let book = Arc::downgrade(&front.book);
        let samples = Arc::downgrade(&front.book.samples.region);
        end(front);
        assert_eq!((book.strong_count(), samples.strong_count()), (0, 0));
    };
    let whole = |front: Front| {
        front.issue(0..100);
        front.wait_done();
        front.check();
    };
    let cut_short: fn(Front) = |front| {
        front.issue(0..100);
        drop(front.cluster);
    };
    // The first session allocates what exists only once.
    session(whole);
    wait_for("queue pairs", stub::live, |l| l.queue_pairs == 0);
    let (before, live) = (held(), stub::live());
    for end in [
        cut_short,
        |front| drop(front.cluster.finish()),
        cut_short,
        whole,
    ] {
        session(end);
    }
    wait_for("queue pairs and registrations", stub::live, |l| *l == live);
    // Some descriptors of the first session may have still been open.
    wait_for("descriptors and threads", held, |h| {
        h.0 <= before.0 && h.1 <= before.1
    });
}

#[test]
fn nothing_is_left_of_sessions_over_tcp() {
    let listen = "127.0.0.1:0".parse().expect("address");
    nothing_is_left_of_sessions(NicConfig::tcp(listen), "address: 127.0.0.1, connections");
}

#[test]
fn nothing_is_left_of_sessions_over_queue_pairs() {
    nothing_is_left_of_sessions(NicConfig::ib("stub1"), "device: stub0, queue_pairs");
}
