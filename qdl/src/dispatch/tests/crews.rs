//! Two NICs that share a thread, and two that change threads all the time.

use super::{losses::cut_and_make_again, rig::*, *};

fn shared() -> CrewPlan {
    CrewPlan {
        thread_of: vec![0, 0],
        group_of: vec![0],
        moves: Moves::Never,
    }
}

/// Each NIC goes to the other thread after some milliseconds, at both ends.
fn restless() -> CrewPlan {
    CrewPlan {
        thread_of: vec![0, 1],
        group_of: vec![0, 0],
        moves: Moves::Restless,
    }
}

/// Threads that wait so; no connection is lost for being slow.
fn bench(connections: usize, crew: CrewPlan, up_to: usize, mut wait: Wait) -> Bench {
    wait.crew = crew;
    wait.echo = Wait::asleep().echo;
    let policy = Policy::default();
    Bench::with(
        connections,
        16,
        Arc::new(Digest),
        false,
        up_to,
        policy,
        wait,
    )
}

fn everything_comes_back(crew: CrewPlan, over: &Over, up_to: usize) {
    let b = bench(4, crew, up_to, Wait::default());
    (0..4).for_each(|connection| {
        b.connect(connection, 1, over);
    });
    b.wait_up(4);
    let n = 20_000;
    b.issue_in_bursts(n);
    let all = b.dispatcher.drain(Duration::from_secs(60));
    assert!(all, "{:?}", b.dispatcher.counts());
    b.dispatcher.stop();
    b.check(n);
    assert_eq!(b.dispatcher.counts().connections_lost, 0);
}

#[test]
fn everything_comes_back_by_one_thread() {
    everything_comes_back(shared(), &Over::Memory, 1 << 20);
    everything_comes_back(shared(), &Over::Tcp, 1 << 20);
    everything_comes_back(shared(), &Over::Tcp, 0);
}

#[test]
fn everything_comes_back_by_threads_that_change() {
    everything_comes_back(restless(), &Over::Memory, 1 << 20);
    everything_comes_back(restless(), &Over::Tcp, 1 << 20);
    everything_comes_back(restless(), &Over::Tcp, 0);
}

/// One at a time, and no tick: each has to wake a thread that sleeps, whichever has its NIC by now.
#[test]
fn a_sample_alone_wakes_whoever_has_its_nic() {
    let b = bench(2, restless(), 0, Wait::asleep());
    (0..2).for_each(|connection| {
        b.connect(connection, 1, &Over::Tcp);
    });
    b.wait_up(2);
    for id in 0..1_000 {
        b.dispatcher.issue(&[b.sample(id)]);
        assert!(b.dispatcher.drain(Duration::from_secs(30)), "sample {id}");
    }
    b.check(1_000);
}

#[test]
fn connections_are_lost_and_made_again_under_threads_that_change() {
    cut_and_make_again(&bench(3, shared(), 1 << 20, Wait::default()));
    cut_and_make_again(&bench(3, restless(), 1 << 20, Wait::default()));
}
