//! Two NICs that share a thread, and one NIC whose connections use two threads.

use std::time::Instant;

use super::{losses::cut_and_make_again, rig::*, *};

fn shared() -> CrewPlan {
    CrewPlan {
        nic_of: vec![0, 1],
        thread_of: vec![0, 0],
    }
}

/// Two shares of the first NIC on two threads, and the second NIC on one of them.
fn parted() -> CrewPlan {
    CrewPlan {
        nic_of: vec![0, 0, 1],
        thread_of: vec![0, 1, 1],
    }
}

/// Makes a bench by `wait` in which no connection is lost for being slow.
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

fn everything_comes_back(crew: &CrewPlan) {
    for (over, up_to) in [
        (Over::Memory, 1 << 20),
        (Over::Tcp, 1 << 20),
        (Over::Tcp, 0),
    ] {
        all_come_back(crew.clone(), &over, up_to);
    }
}

fn all_come_back(crew: CrewPlan, over: &Over, up_to: usize) {
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
    everything_comes_back(&shared());
}

#[test]
fn everything_comes_back_where_one_nic_is_on_two_threads() {
    everything_comes_back(&parted());
}

#[test]
fn a_nics_connections_are_shared_out_and_go_with_its_link() {
    let b = bench(4, parted(), 1 << 20, Wait::default());
    (0..4).for_each(|connection| {
        b.connect(connection, 1, &Over::Memory);
    });
    b.wait_up(4);
    let share = |connection: usize| b.dispatcher.shared.connections[connection].share;
    assert_eq!([0, 1, 2, 3].map(share), [0, 2, 1, 2]);
    assert_eq!(b.dispatcher.placed().len(), 2, "one place a NIC");
    let cause = Broken::GivenUp("its link is down".to_owned());
    b.dispatcher.give_up_nic(0, &cause);
    let end = Instant::now() + Duration::from_secs(20);
    while b.dispatcher.connections_up() != 2 {
        assert!(Instant::now() < end, "{}", b.dispatcher.connections_up());
        std::thread::yield_now();
    }
    let up = |connection: &usize| {
        let c = &b.dispatcher.shared.connections[*connection];
        c.up.load(Ordering::SeqCst)
    };
    let left: Vec<_> = (0..4).filter(up).collect();
    assert_eq!(left, [1, 3], "those of the other NIC");
}

/// Samples come one at a time without a tick, so each must wake the thread.
#[test]
fn a_sample_alone_wakes_the_thread_that_its_nics_share() {
    let b = bench(2, shared(), 0, Wait::asleep());
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
fn connections_are_lost_and_made_again_where_threads_are_shared() {
    cut_and_make_again(&bench(3, shared(), 1 << 20, Wait::default()));
    cut_and_make_again(&bench(3, parted(), 1 << 20, Wait::default()));
}
