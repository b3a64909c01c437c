//! Two NICs that share a thread, and one NIC whose connections use two threads.

use super::{everything::all_come_back, rig::*, *};

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

/// Threads that wait so; no connection is lost for being slow.
fn bench(connections: usize, crew: CrewPlan, up_to: u64, wait: Wait) -> Bench {
    let wait = Wait {
        echo: Wait::asleep().echo,
        ..wait
    };
    let mut cfgs = RigCfgs::new(connections, 16).up_to(up_to).wait(wait);
    cfgs.crew = Some(crew);
    Bench::digests(cfgs)
}

#[test]
fn everything_comes_back_by_one_thread_and_where_one_nic_is_on_two() {
    for crew in [shared(), parted()] {
        for (over, up_to) in [
            (Over::Memory, 1 << 20),
            (Over::Tcp, 1 << 20),
            (Over::Tcp, 0),
        ] {
            all_come_back(&bench(4, crew.clone(), up_to, Wait::default()), over);
        }
    }
}

#[test]
fn a_nics_connections_are_shared_out_and_go_with_its_link() {
    let b = bench(4, parted(), 1 << 20, Wait::default());
    b.connect_all(Over::Memory);
    let share = |connection: usize| b.dispatcher.shared.connections[connection].share;
    assert_eq!([0, 1, 2, 3].map(share), [0, 2, 1, 2]);
    assert_eq!(b.dispatcher.placed().len(), 2, "one place a NIC");
    let cause = Broken::GivenUp("its link is down".to_owned());
    b.dispatcher.give_up_nic(0, &cause);
    eventually_or(
        || format!("{}", b.dispatcher.connections_up()),
        || b.dispatcher.connections_up() == 2,
    );
    let up = |connection: &usize| {
        let c = &b.dispatcher.shared.connections[*connection];
        c.up.load(Ordering::SeqCst)
    };
    let left: Vec<_> = (0..4).filter(up).collect();
    assert_eq!(left, [1, 3], "those of the other NIC");
}
