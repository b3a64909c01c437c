//! Refusals: the reason lands in the sample's own slot, and no other slot changes.

use std::sync::Arc;

use super::{
    parts::{Call, Far, Parts},
    rig::*,
    *,
};
use crate::{rails::Policy, response::Refusal, wire::Standing};
use fabric::Imm;

fn refusals(events: &[DispatchEvent]) -> Vec<&RefusedSample> {
    fn refused(event: &DispatchEvent) -> Option<&RefusedSample> {
        match event {
            DispatchEvent::Refused(r) => Some(r),
            _ => None,
        }
    }
    events.iter().filter_map(refused).collect()
}

fn nothing_was_lost(events: &[DispatchEvent]) {
    let lost =
        |e: &&DispatchEvent| !matches!(e, DispatchEvent::Refused(_) | DispatchEvent::Rail { .. });
    assert!(!events.iter().any(|e| lost(&e)), "something was lost");
}

#[test]
fn a_refused_sample_is_tried_again_and_nothing_else_is() {
    let policies = [
        Policy::LeastOutstanding,
        Policy::RoundRobin,
        Policy::HealthBestFit,
    ];
    for (policy, over) in policies
        .into_iter()
        .zip([Over::Memory, Over::Tcp, Over::Tcp])
    {
        let reason = format!("HTTP 500: overloaded by {}", "x".repeat(600));
        let (n, service) = (3_000, Arc::new(Picky::new(2, reason)));
        let cfgs = RigCfgs::new(4, 64).up_to(DEFAULT).policy(policy);
        let b = Bench::new(cfgs, service.clone());
        b.connect_all(over);
        b.issue_in_bursts(n);
        b.drain();
        let c = b.dispatcher.counts();
        let once = (0..n).filter(|id| Picky::minds(b.input(*id)));
        let once = once.count() as u64;
        assert_eq!(c.refused, [once, once, 0], "{policy:?}");
        assert_eq!((c.again, c.connections_lost), (0, 0), "{policy:?}");
        assert_eq!((c.issued, c.completed, c.posted), (n, n, n + 2 * once));
        let events = b.book.events.lock().expect("alive");
        nothing_was_lost(&events);
        // A slot of 8 bytes holds 8 bytes of the reason.
        let of_it = |r: &&RefusedSample| r.reason == "HTTP 500" && r.is_cut;
        assert!(refusals(&events).iter().all(of_it));
        drop(events);
        b.check_answers(n);
    }
}

#[test]
fn a_sample_that_is_refused_three_times_is_named_with_the_reason() {
    let rig = Parts::of_peers(1);
    let mut far = rig.connect(0, 1);
    rig.issue(7..8);
    rig.issue(8..9);
    for n in 1..=3 {
        let (a, b) = match n {
            1 => {
                let (a, b) = (far.request(), far.request());
                (a, Some(b))
            }
            _ => (far.request(), None),
        };
        far.refuse(a, "HTTP 400: no such token");
        if let Some(b) = b {
            far.whole(b, &[5]);
        }
        far.flush();
        if b.is_some() {
            assert_eq!(rig.next(), Call::Whole(8, vec![5], true));
        }
        let refused = rig.refused(n - 1);
        assert_eq!(
            (refused.index, refused.tries.refusals),
            (Some(107), n as u8)
        );
        assert_eq!(refused.reason, "HTTP 400: no such token");
        assert!(!refused.is_cut);
    }
    // The sample is not tried again, and is completed with the run.
    assert_eq!(rig.dispatcher.counts().refused, [1, 1, 1]);
    assert_eq!(rig.dispatcher.outstanding(), 1);
    rig.dispatcher.abort("a sample was refused three times");
    assert_eq!(rig.dispatcher.outstanding(), 0);
    assert_eq!(rig.dispatcher.counts().completed_empty, 1);
}

#[test]
fn the_next_try_goes_to_another_accelerator() {
    let rig = Parts::of_peers(2);
    let (mut one, mut two) = (rig.connect(0, 1), rig.connect(1, 1));
    for id in 0..20 {
        rig.issue(id..id + 1);
        let (imm, at_one) = either(&mut one, &mut two);
        let (from, to) = match at_one {
            true => (&mut one, &mut two),
            false => (&mut two, &mut one),
        };
        from.refuse(imm, "HTTP 503: full");
        from.flush();
        let imm = to.request();
        to.whole(imm, &[9]);
        assert_eq!(rig.next(), Call::Whole(id, vec![9], true));
    }
    rig.nothing_more();
}

#[test]
fn a_sample_given_back_waits_for_an_accelerator_that_takes_it() {
    let rig = Parts::of_peers(2);
    rig.dispatcher.limit_slots(&[false, false]);
    let mut far = [rig.connect(0, 1), rig.connect(1, 1)];
    let [one, two] = &mut far;
    rig.issue(0..1);
    let (imm, at_one) = either(one, two);
    let (away, peer) = if at_one { (0, 1) } else { (1, 0) };
    let answer = |far: &mut Far, id: u64| {
        let imm = far.request();
        far.whole(imm, &[9]);
        assert_eq!(rig.next(), Call::Whole(id, vec![9], true));
    };
    let give_back = |far: &mut Far, imm| {
        far.refuse_as(imm, Refusal::Away, "gone");
        far.flush();
    };
    // It goes to the other, and so does each later sample.
    give_back(&mut far[away], imm);
    answer(&mut far[peer], 0);
    for id in 1..5 {
        rig.issue(id..id + 1);
        answer(&mut far[peer], id);
    }
    // A stale heartbeat lets it try once more.
    for n in 1..6 {
        rig.dispatcher.set_standing(away, &Standing::Takes);
        if n == 1 {
            rig.dispatcher
                .set_standing(peer, &Standing::Away("gone".to_owned()));
            rig.issue(5..6);
        }
        let imm = far[away].request();
        give_back(&mut far[away], imm);
        let refused = rig.refused(n);
        assert!(
            refused.is_away && refused.tries.refusals == 0,
            "{refused:?}"
        );
    }
    // Both are away: it waits, however often it was given back.
    std::thread::sleep(Duration::from_millis(20));
    assert!(far.iter_mut().all(|f| f.try_request().is_none()));
    assert_eq!(rig.dispatcher.counts().refused, [6, 0, 0]);
    // A busy one takes samples while no other does.
    rig.dispatcher.set_standing(peer, &Standing::Busy);
    answer(&mut far[peer], 5);
    rig.dispatcher.set_standing(away, &Standing::Takes);
    for id in 6..9 {
        rig.issue(id..id + 1);
        answer(&mut far[away], id);
    }
    rig.dispatcher.set_standing(peer, &Standing::Takes);
    // So long after one another that the thread does not stay with one connection.
    for (id, later_ms) in [(9, 1), (10, 2)] {
        let sample = rig.sample(id);
        let issued_ns = sample.issued_ns + later_ms * 1_000_000;
        rig.dispatcher.issue(&[Sample {
            issued_ns,
            ..sample
        }]);
    }
    for far in &mut far {
        let imm = far.request();
        far.whole(imm, &[9]);
        assert!(matches!(rig.next(), Call::Whole(9 | 10, ..)));
    }
    rig.nothing_more();
}

/// Waits for the next request; true if accelerator `one` received it.
fn either(one: &mut Far, two: &mut Far) -> (Imm, bool) {
    let mut next = None;
    eventually("a request comes to either", || {
        let at_one = one.try_request().map(|imm| (imm, true));
        next = at_one.or_else(|| two.try_request().map(|imm| (imm, false)));
        next.is_some()
    });
    next.expect("just seen")
}

#[test]
fn an_answer_that_is_refused_in_the_middle_keeps_its_first_token() {
    for same in [true, false] {
        let rig = Parts::of_peers(1);
        let mut far = rig.connect(0, 1);
        rig.issue(3..4);
        let imm = far.request();
        far.first(imm, &[10]);
        far.more(imm, &[11]);
        far.refuse_rest(imm, "the stream was cut", 3);
        far.flush();
        assert_eq!(rig.next(), Call::Part(3, 0, vec![10], true));
        assert_eq!(rig.next(), Call::Part(3, 4, vec![11], false));
        assert_eq!(rig.refused(0).reason, "the stream was cut");
        let imm = far.request();
        let again = if same { 10 } else { 20 };
        far.whole(imm, &[again, 12]);
        if !same {
            assert!(matches!(rig.next(), Call::Contradicted(c) if c.again == 20));
        }
        assert_eq!(rig.next(), Call::Whole(3, vec![again, 12], false));
        let t = rig.times();
        assert!(t.failed_ns > t.issued_ns && t.posted_ns >= t.failed_ns);
        rig.nothing_more();
    }
}
