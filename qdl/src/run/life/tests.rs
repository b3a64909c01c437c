//! One end alone, whose peer may say anything. The world has both ends.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Weak},
    time::Duration,
};

use fabric::tcp::ConnectionSecret;
use proptest::prelude::*;

use super::{
    Life, LifeError,
    accelerator_ends::AcceleratorEnds,
    frontend_end::{FrontendEnd, OpenAnswer, RetryPauses},
};

const SECRET: ConnectionSecret = ConnectionSecret {
    key: [7; 32],
    address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1),
};

/// An epoch's slots: number and epoch.
type Slots = Arc<(u16, u32)>;

/// An accelerator that does all that its frontend asks.
#[derive(Default)]
struct Served {
    ends: AcceleratorEnds<Slots>,
    /// Slots on a NIC thread, and those whose data connection is being welcomed.
    nic: Vec<Slots>,
    doors: Vec<Slots>,
    made: Vec<Weak<(u16, u32)>>,
}

impl Served {
    fn open(&mut self, wanted: &[(u16, u32)]) {
        if self.ends.ask(wanted).is_err() {
            return;
        }
        for &which in wanted {
            let alive = |s: &Weak<(u16, u32)>| s.upgrade().is_some_and(|s| s.0 == which.0);
            assert!(!self.made.iter().any(alive), "one user of the memory");
            let slots = Arc::new(which);
            self.made.push(Arc::downgrade(&slots));
            // The data connections of odd numbers come to a port, the others are there at once.
            let secret = (which.0 % 2 == 1).then_some(SECRET);
            if self.ends.grant(which, slots.clone(), 0, secret) && secret.is_none() {
                assert!(self.ends.up(which.0, which.1));
                self.nic.push(slots);
            }
        }
    }

    fn welcome(&mut self) {
        if let Some(slots) = self.doors.pop()
            && self.ends.up(slots.0, slots.1)
        {
            self.nic.push(slots);
        }
    }

    /// The NIC thread takes down what `which` selects.
    fn take_down(&mut self, which: impl Fn(&Slots) -> bool) {
        for slots in self.nic.extract_if(.., |s| which(s)) {
            let (number, epoch) = *slots;
            drop(slots);
            self.ends.lost_here(number, epoch);
        }
    }

    fn collect(&mut self) {
        self.ends.collect(|s| Arc::strong_count(s) == 1, drop);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever a frontend sends, no slots have two users, and none are used after its session.
    #[test]
    fn no_frontend_keeps_slots(
        words in prop::collection::vec((0u8..9, 0u16..3, 0u32..6), 0..200),
    ) {
        let mut served = Served::default();
        for (kind, number, epoch) in words {
            match kind {
                0 => served.open(&[(number, epoch)]),
                1 => served.open(&[(number, epoch), (number + 1, epoch + 1)]),
                2 => {
                    let actions = served.ends.lost_there(number, epoch);
                    served.take_down(|s| actions.give_up && **s == (number, epoch));
                }
                3 => served.ends.reset_there(number, epoch),
                4 => {
                    let shown = served.ends.take_proved(number, epoch);
                    served.doors.extend(shown.map(|(slots, _)| slots));
                }
                5 => served.welcome(),
                6 => served.take_down(|s| s.0 == number),
                7 => served.collect(),
                _ if epoch == 0 => served.ends.end(),
                _ => {}
            }
        }
        served.ends.end();
        served.take_down(|_| true);
        while !served.doors.is_empty() {
            served.welcome();
        }
        served.collect();
        prop_assert_eq!((served.ends.busy(), served.ends.awaited()), (0, 0));
        prop_assert!(served.made.iter().all(|s| s.strong_count() == 0));
    }
}

#[test]
fn requests_are_paced_and_the_pause_is_short_again_behind_a_connection() {
    let pauses = RetryPauses::default();
    let mut end = FrontendEnd::new(pauses);
    let mut now = Duration::from_secs(1);
    for doubled in [2, 4, 8, 16, 32, 64].map(|times| pauses.first * times) {
        let epoch = end.ask(now).expect("due");
        let _ = end.on_answer(epoch, OpenAnswer::Refused, now);
        let pause = doubled.min(pauses.last);
        assert_eq!(end.ask(now + pause - Duration::from_nanos(1)), None);
        now += pause;
    }
    let epoch = end.ask(now).expect("due");
    assert!(end.on_answer(epoch, OpenAnswer::Granted, now).go_on);
    assert!(end.on_connected(epoch).go_on);
    assert!(end.lost_here(epoch, now).tell_lost);
    assert_eq!(end.due(), None, "the peer may still use the memory");
    end.reset_there(epoch);
    assert_eq!(end.due(), Some(now + pauses.first));
}

#[test]
fn slots_are_quarantined_until_both_ends_have_let_go() {
    let mut life = Life::new();
    let up = |life: &mut Life, epoch| {
        life.ask(epoch).expect("free");
        assert!(life.grant(epoch) && life.connect(epoch));
    };
    up(&mut life, 1);
    assert_eq!(life.ask(2), Err(LifeError::InUse { epoch: 1 }));
    assert!(life.lost_there(1), "a NIC thread has it");
    assert!(!life.lost_there(1), "no news");
    let missing = |life: &mut Life| match life.ask(2) {
        Err(LifeError::Quarantined { missing, .. }) => missing,
        other => panic!("{other:?}"),
    };
    assert!(!life.let_go(), "the NIC thread still has it");
    assert_eq!(missing(&mut life), "this node");
    assert!(!life.lost_here(1), "the peer knows");
    assert!(life.let_go());
    assert_eq!(missing(&mut life), "the peer");
    life.reset_there(0);
    assert_eq!(missing(&mut life), "the peer");
    life.reset_there(1);
    let old = LifeError::OldEpoch { asked: 1, last: 1 };
    assert_eq!(life.ask(1), Err(old));
    up(&mut life, 2);
    // The peer learned of the loss first.
    life.reset_there(2);
    assert!(!life.let_go(), "it was not lost yet");
    assert!(life.lost_here(2), "news");
    assert!(life.let_go() && life.is_free());
}
