//! Refusals: how often and where a sample is tried again, and what is reported.

use super::{front::*, rig::*, *};
use crate::{response::Refusal, wire::Standing};
use fabric::Imm;

/// So many accelerators with one connection each.
fn accelerators(n: usize) -> Front {
    Front::new(RigCfgs {
        nics: 1,
        peers: true,
        response: 128,
        policy: Policy::RoundRobin,
        ..RigCfgs::new(n, 8)
    })
}

#[track_caller]
fn refusal(reports: &Reports) -> &RefusedSample {
    match &reports.events[..] {
        [DispatchEvent::Refused(refused)] => refused,
        other => panic!("{other:?}"),
    }
}

/// The accelerators with a request, each with that request.
fn asked(all: &mut [Far]) -> Vec<(usize, Imm)> {
    let of_one = |(i, far): (usize, &mut Far)| {
        let of_one = far.requests().into_iter();
        of_one.map(move |imm| (i, imm)).collect::<Vec<_>>()
    };
    all.iter_mut().enumerate().flat_map(of_one).collect()
}

#[test]
fn a_sample_that_is_refused_three_times_is_named_with_the_reason() {
    let front = accelerators(1);
    let mut far = front.connect(0, 1);
    front.issue(7..9);
    let [a, b] = far.requests()[..] else {
        panic!("not two")
    };
    far.whole(b, &[5]);
    far.refuse(a, Refusal::Cut, "HTTP 400:\u{7}no such token");
    for n in 1..=3 {
        let reports = front.turn();
        let refused = refusal(&reports);
        assert_eq!((refused.index, refused.tries.refusals), (Some(107), n));
        assert_eq!(refused.reason, "HTTP 400: no such token");
        assert_eq!(refused.is_cut, n == 1);
        if n < 3 {
            let imm = far.request();
            far.refuse(imm, Refusal::Whole, "HTTP 400: no such token");
        }
    }
    // The sample is not tried again, and is completed with the run.
    assert_eq!(far.requests(), []);
    let counts = front.dispatcher.counts();
    assert_eq!((counts.refused, counts.answered), ([1, 1, 1], 1));
    front.dispatcher.abort("a sample was refused three times");
    assert_eq!(front.turn().empty, [7]);
    assert_eq!(front.dispatcher.outstanding(), 0);
}

#[test]
fn the_next_try_goes_to_another_accelerator() {
    let front = accelerators(2);
    let mut all = [0, 1].map(|c| front.connect(c, 1));
    for id in 0..20 {
        front.issue(id..id + 1);
        front.turn();
        let [(first, imm)] = asked(&mut all)[..] else {
            panic!("not one")
        };
        all[first].refuse(imm, Refusal::Whole, "HTTP 503: full");
        front.turn();
        let imm = all[1 - first].request();
        all[1 - first].whole(imm, &[9]);
        assert_eq!(front.turn().calls, [Call::Whole(id, vec![9], true)]);
    }
}

#[test]
fn a_sample_given_back_waits_for_an_accelerator_that_takes_it() {
    let front = accelerators(2);
    front.dispatcher.limit_slots(&[false, false]);
    let mut all = [0, 1].map(|c| front.connect(c, 1));
    front.issue(0..1);
    let [(away, imm)] = asked(&mut all)[..] else {
        panic!("not one")
    };
    all[away].refuse(imm, Refusal::Away, "gone");
    front.turn();
    // The sample goes to the other accelerator, which goes away too.
    let takes = 1 - away;
    let imm = all[takes].request();
    all[takes].refuse(imm, Refusal::Away, "gone");
    front.turn();
    // However often a stale heartbeat lets it try: this is no refusal of the sample.
    for _ in 0..5 {
        assert_eq!(asked(&mut all), [], "no accelerator takes it");
        front.dispatcher.set_standing(away, &Standing::Takes);
        front.turn();
        let imm = all[away].request();
        all[away].refuse(imm, Refusal::Away, "gone");
        let reports = front.turn();
        let refused = refusal(&reports);
        assert!(
            refused.is_away && refused.tries.refusals == 0,
            "{refused:?}"
        );
    }
    assert_eq!(front.dispatcher.counts().refused, [7, 0, 0]);
    // A busy one takes samples while no other does.
    front.dispatcher.set_standing(takes, &Standing::Busy);
    front.turn();
    let imm = all[takes].request();
    all[takes].whole(imm, &[9]);
    assert_eq!(front.turn().calls, [Call::Whole(0, vec![9], true)]);
    front.dispatcher.set_standing(away, &Standing::Takes);
    for id in 1..4 {
        front.issue(id..id + 1);
        front.turn();
        let asked: Vec<_> = asked(&mut all).into_iter().map(|(i, _)| i).collect();
        assert_eq!(asked, [away], "the other one is busy");
    }
}

/// The cancels that have been reported, as slot and use count.
fn cancels(reports: &Reports) -> Vec<Imm> {
    let lines = reports.events.iter().map(|event| match event {
        DispatchEvent::Cancelled {
            connection: 0,
            epoch: 1,
            imm,
        } => *imm,
        other => panic!("{other:?}"),
    });
    lines.collect()
}

#[test]
fn a_cancelled_sample_ends_once_wherever_it_is() {
    let front = accelerators(1);
    let mut far = front.connect(0, 1);
    // Eight slots: the rest waits.
    front.issue(0..12);
    let posted = far.requests();
    assert_eq!(posted.len(), 8);
    for id in [11, 9, 99] {
        front.dispatcher.cancel(id);
    }
    let reports = front.turn();
    assert_eq!(
        (&reports.empty[..], cancels(&reports)),
        (&[11, 9][..], vec![])
    );
    // In flight: refused, answered although cancelled, and given back.
    for id in [2, 3, 4, 2] {
        front.dispatcher.cancel(id);
    }
    let reports = front.turn();
    assert_eq!(
        (&reports.empty[..], cancels(&reports)),
        (&[][..], posted[2..5].to_vec())
    );
    far.refuse(posted[2], Refusal::Whole, "cancelled");
    far.whole(posted[3], &[7]);
    far.refuse(posted[4], Refusal::Away, "gone");
    let reports = front.turn();
    assert_eq!(
        (&reports.empty[..], &reports.calls[..]),
        (&[2, 4][..], &[Call::Whole(3, vec![7], true)][..],)
    );
    assert!(reports.events.is_empty(), "{:?}", reports.events);
    // A late cancel does not concern the slots' next samples.
    front.dispatcher.cancel(3);
    assert_eq!(cancels(&front.turn()), []);
    // Lost with its connection: not sent again.
    front.dispatcher.cancel(5);
    far.cut();
    assert_eq!(front.turn().empty, [5]);
    let mut far = front.connect(0, 2);
    let mut again = 0;
    while front.dispatcher.outstanding() > 0 {
        far.answer_all();
        again += front.turn().calls.len();
    }
    assert_eq!((again, front.dispatcher.counts().emptied), (6, 5));
}

#[test]
fn a_sample_refused_for_good_ends_when_it_is_cancelled() {
    let front = accelerators(1);
    let mut far = front.connect(0, 1);
    front.issue(7..8);
    for _ in 0..3 {
        let imm = far.request();
        far.refuse(imm, Refusal::Whole, "no");
        assert!(front.turn().empty.is_empty());
    }
    front.dispatcher.cancel(7);
    assert_eq!(
        (front.turn().empty, front.dispatcher.outstanding()),
        (vec![7], 0)
    );
}
