//! Number of slots in use with `slots: auto`.

use super::{front::*, rig::*, *};

const SLOTS: usize = 256;

/// Slots of 64 KiB that fit 2 MiB.
const LEAST: u64 = 32;

/// More samples than slots, which no accelerator answers.
fn stuck(connections: usize, auto: &[bool]) -> (Front, Vec<Far>) {
    let front = Front::new(RigCfgs {
        nics: 1,
        request: 64 << 10,
        ..RigCfgs::new(connections, SLOTS).up_to(0)
    });
    let all = (0..connections).map(|c| front.connect(c, 1)).collect();
    front.dispatcher.limit_slots(auto);
    (front, all)
}

fn allowed(front: &Front) -> Vec<u64> {
    let records = front.dispatcher.connection_records();
    records.iter().map(|c| c.allowed).collect()
}

#[test]
fn an_engine_has_some_batches_and_one_that_does_not_say_all_slots() {
    let (front, _far) = stuck(1, &[true]);
    front.issue(0..300);
    // The engine's number, of which three times as many are in use.
    for (works_on, used) in [(1, LEAST), (20, 60), (0, SLOTS as u64)] {
        front.dispatcher.engine_works_on(0, works_on);
        front.turn();
        assert_eq!(front.posted(), [used]);
        assert_eq!(allowed(&front), [used]);
    }
}

#[test]
fn a_lost_connections_slots_go_to_the_others() {
    let (front, _far) = stuck(2, &[true, true]);
    front.dispatcher.engine_works_on(0, 80);
    front.issue(0..300);
    front.turn();
    assert_eq!(allowed(&front), [120, 120]);
    front.dispatcher.give_up(0, 1, Broken::Closed);
    front.turn();
    assert_eq!(allowed(&front)[1], 240);
}

#[test]
fn slots_set_by_hand_are_all_in_use() {
    let (front, _far) = stuck(2, &[false, true]);
    front.dispatcher.engine_works_on(0, 1);
    assert_eq!(allowed(&front), [SLOTS as u64, LEAST]);
}
