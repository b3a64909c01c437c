//! Answers in parts: their times, contradictions after a retry, invalid parts, and samples that
//! lose every connection.

use std::time::Duration;

use super::{front::*, rig::*, *};
use crate::{
    control::block_on,
    model::{Lengths, ModelSpec},
    response::ResponseTrailer,
};
use fabric::{Imm, wire::Stream};

/// Connections of 8 slots, used in turn, whose answers come in parts.
fn streamed(connections: usize) -> Front {
    Front::new(RigCfgs {
        nics: 1,
        request: 64,
        response: 256,
        stream: Stream::All,
        policy: Policy::RoundRobin,
        ..RigCfgs::new(connections, 8)
    })
}

#[test]
fn times_of_an_answer_tell_its_first_part_and_all_of_them() {
    let front = streamed(1);
    let mut far = front.connect(0, 1);
    front.issue(0..3);
    let [a, b, c] = far.requests()[..] else {
        panic!("not three")
    };
    far.first(a, &[10]);
    far.first(b, &[20, 21]);
    far.more(a, &[11, 12]);
    far.last(b, &[], 2);
    far.last(a, &[13], 3);
    far.whole(c, &[30, 31, 32]);
    let times = front.turn().times;
    // Parts, bytes, bytes of the first part, and microseconds until the first and a mean part left.
    let mut came: Vec<_> = times.iter().map(|(t, _)| t).collect();
    came.sort_by_key(|t| (t.parts, t.bytes_in));
    let facts = came.iter().map(|t| {
        let residence = (t.queue_us, t.first_residence_us, t.parts_residence_us);
        (t.parts, t.bytes_in, t.first_bytes, residence)
    });
    let right = [
        (1, 12, 12, (1, 3, 3)),
        (2, 8, 8, (1, 3, 6)),
        (3, 16, 4, (1, 3, 6)),
    ];
    assert_eq!(facts.collect::<Vec<_>>(), right);
    for t in came {
        assert_eq!(t.first_ns, t.seen_ns, "one poll");
        let round_trip_us = (t.seen_ns - t.posted_ns) / 1000;
        assert_eq!(u64::from(t.parts_after_us), round_trip_us);
        assert_eq!(
            t.compute_us,
            if t.parts == 1 { 2 } else { 9 },
            "the last part's"
        );
    }
    assert_eq!(front.dispatcher.counts().answered, 3);
}

/// Sample 7, whose first token, 10, has been reported and whose connection is then lost; and its
/// next request.
fn lost_after_its_first_token() -> (Front, Far, Imm) {
    let front = streamed(2);
    let mut far = front.connect(0, 1);
    front.issue(7..8);
    let imm = far.request();
    far.first(imm, &[10]);
    far.flush();
    assert_eq!(front.turn().calls, [Call::Part(7, 0, vec![10], true)]);
    far.cut();
    let mut other = front.connect(1, 1);
    let imm = other.request();
    front.turn();
    (front, other, imm)
}

#[test]
fn the_first_token_of_a_sample_sent_again_came_when_it_was_reported() {
    for whole in [true, false] {
        let (front, mut far, imm) = lost_after_its_first_token();
        if whole {
            far.whole(imm, &[10, 11]);
        } else {
            far.first(imm, &[10]);
            far.last(imm, &[11], 2);
        }
        let reports = front.turn();
        let (t, _) = reports.times[0];
        assert!(
            t.issued_ns < t.first_ns && t.first_ns < t.posted_ns && t.posted_ns < t.seen_ns,
            "{t:?}"
        );
    }
}

#[test]
fn another_first_token_after_a_loss_or_a_refusal_is_a_contradiction() {
    let other = |repeated, connection| {
        Call::Contradicted(Contradiction {
            index: 107,
            reported: 10,
            repeated,
            connection,
        })
    };
    let (front, mut far, imm) = lost_after_its_first_token();
    far.first(imm, &[11]);
    far.last(imm, &[12], 2);
    let right = [
        other(11, 1),
        Call::Part(7, 0, vec![11], false),
        Call::Whole(7, vec![11, 12], false),
    ];
    assert_eq!(front.turn().calls, right);
    // An answer in one piece, also one without tokens.
    for (tokens, repeated) in [(vec![9, 10], 9), (vec![], 0)] {
        let (front, mut far, imm) = lost_after_its_first_token();
        far.whole(imm, &tokens);
        let right = [other(repeated, 1), Call::Whole(7, tokens, false)];
        assert_eq!(front.turn().calls, right);
    }
    // After a refusal of the rest, over the same connection.
    let front = streamed(1);
    let mut far = front.connect(0, 1);
    front.issue(7..8);
    let imm = far.request();
    far.first(imm, &[10]);
    far.refuse_rest(imm, "the stream was cut", 2);
    let reports = front.turn();
    let DispatchEvent::Refused(refused) = &reports.events[0] else {
        panic!("{reports:?}")
    };
    assert_eq!(refused.reason, "the stream was cut");
    let imm = far.request();
    far.whole(imm, &[20]);
    let reports = front.turn();
    let right = [other(20, 0), Call::Whole(7, vec![20], false)];
    assert_eq!(reports.calls, right);
    let (t, _) = reports.times[0];
    assert!(
        t.failed_ns > t.issued_ns && t.posted_ns >= t.failed_ns,
        "{t:?}"
    );
}

/// Writes invalid parts after a request has come.
type Nonsense = fn(&mut Far, Imm);

#[test]
fn parts_that_contradict_themselves_end_the_connection_and_the_sample_goes_again() {
    let cases: [(&str, Nonsense); 8] = [
        ("response header", |far, imm| {
            // The following parts arrive with it, and are invalid too.
            far.post(imm.with_more(), &Far::header(imm, &[10, 11])[..20]);
            far.more(imm, &[11]);
            far.last(imm, &[12], 3);
        }),
        ("response header", |far, imm| {
            // As above, with a trailer whose counts match the parts.
            far.post(imm.with_more(), &Far::header(imm, &[]));
            far.last(imm, &[12], 2);
        }),
        ("response header", |far, imm| {
            // A header that promises more bytes than arrived.
            far.post(imm.with_more(), &Far::header(imm, &[10, 11])[..20]);
        }),
        ("response header", |far, imm| {
            // A first part without a token.
            far.post(imm.with_more(), &Far::header(imm, &[]));
        }),
        ("response header", |far, imm| {
            let other = Imm::new(imm.slot(), imm.use_count() + 1);
            far.post(imm.with_more(), &Far::header(other, &[10]));
        }),
        ("response trailer", |far, imm| {
            far.first(imm, &[10]);
            far.last(imm, &[11], 3);
        }),
        ("response trailer", |far, imm| {
            far.first(imm, &[10]);
            // Too short for a trailer.
            far.post(imm, &[1; 15]);
        }),
        ("response trailer", |far, imm| {
            far.first(imm, &[10]);
            let trailer = ResponseTrailer {
                len: 9,
                parts: 2,
                ..ResponseTrailer::default()
            };
            far.post(imm, &trailer.encode());
        }),
    ];
    for (i, (field, nonsense)) in cases.into_iter().enumerate() {
        let front = streamed(2);
        let mut far = front.connect(0, 1);
        front.issue(7..8);
        let imm = far.request();
        nonsense(&mut far, imm);
        far.flush();
        let reports = front.turn();
        let [DispatchEvent::ConnectionLost { cause, .. }] = &reports.events[..] else {
            panic!("case {i}: {reports:?}")
        };
        assert!(
            matches!(cause, Broken::BadFrame { what, .. } if *what == field),
            "case {i}: {cause}"
        );
        let is_reported = field == "response trailer";
        let first = is_reported.then(|| Call::Part(7, 0, vec![10], true));
        assert_eq!(reports.calls, Vec::from_iter(first), "case {i}");
        let mut far = front.connect(1, 1);
        let imm = far.request();
        far.whole(imm, &[10, 11]);
        let right = [Call::Whole(7, vec![10, 11], !is_reported)];
        assert_eq!(front.turn().calls, right, "case {i}");
    }
}

#[test]
fn an_answer_of_a_length_that_the_model_cannot_have_is_none() {
    let model = ModelSpec::opaque("m", 64, 8);
    assert!(!model.output.ragged && model.max_output_bytes() == Some(8));
    for tokens in [0, 1, 3] {
        let front = Front::new(RigCfgs {
            nics: 1,
            response: 48,
            answers: Lengths::of_outputs(&model).ok(),
            ..RigCfgs::new(1, 8)
        });
        let mut far = front.connect(0, 1);
        front.issue(0..1);
        let imm = far.request();
        far.whole(imm, &vec![5; tokens]);
        let reports = front.turn();
        let [DispatchEvent::ConnectionLost { cause, .. }] = &reports.events[..] else {
            panic!("{reports:?}")
        };
        let words = format!("an answer of {} bytes, where the model's", 4 * tokens);
        assert!(cause.to_string().contains(&words), "{cause}");
        assert_eq!(reports.calls, [], "{tokens} tokens were completed");
    }
}

/// The sample that is named as worn out: index, losses, and the last connection.
fn too_often_lost(reports: &Reports) -> Option<(u64, u16, usize)> {
    reports.events.iter().find_map(|e| match e {
        DispatchEvent::TooManyLosses {
            index,
            losses,
            connection,
            ..
        } => Some((*index, *losses, *connection)),
        _ => None,
    })
}

/// Loses connection 0 in these epochs with the sample that it carries. Returns the last reports.
fn lose(front: &Front, epochs: std::ops::Range<u32>) -> Reports {
    let mut last = Reports::default();
    for epoch in epochs {
        assert_eq!(too_often_lost(&last), None, "before epoch {epoch}");
        let mut far = front.connect(0, epoch);
        let _ = far.request();
        far.cut();
        last = front.turn();
    }
    last
}

#[test]
fn a_sample_that_every_connection_is_lost_with_is_named() {
    let front = streamed(2);
    front.issue(7..8);
    let reports = lose(&front, 1..65);
    assert_eq!(too_often_lost(&reports), Some((107, 64, 0)));
    // The owner may let the sample go on.
    let mut far = front.connect(1, 1);
    let imm = far.request();
    far.whole(imm, &[10, 11]);
    assert_eq!(front.turn().calls, [Call::Whole(7, vec![10, 11], true)]);
}

#[test]
fn losses_without_the_sample_in_flight_do_not_count() {
    let front = streamed(2);
    front.issue(7..8);
    lose(&front, 1..64);
    let mut far = front.connect(1, 1);
    let imm = far.request();
    // The sample stays in flight while the other connection is lost again and again.
    for epoch in 64..70 {
        front.connect(0, epoch).cut();
        assert_eq!(too_often_lost(&front.turn()), None);
    }
    far.whole(imm, &[10, 11]);
    assert_eq!(front.turn().calls, [Call::Whole(7, vec![10, 11], true)]);
    // The next sample begins anew.
    front.issue(8..9);
    let _ = far.request();
    far.cut();
    assert_eq!(too_often_lost(&front.turn()), None);
}

#[test]
fn parts_of_a_warm_up_reach_no_completer() {
    let front = streamed(1);
    let mut far = front.connect(0, 1);
    let cfgs = WarmUpCfgs {
        samples: vec![front.sample(0)],
        budget: Duration::ZERO,
        deadline: Duration::from_secs(10),
        is_repeated: false,
    };
    let play = || {
        for imm in far.requests() {
            far.first(imm, &[1]);
            far.last(imm, &[2], 2);
        }
    };
    let report = front.while_calling(|d| block_on(d.warm_up(&cfgs)), play);
    let report = report.expect("warm");
    assert_eq!(report.samples, 1);
    assert_eq!(front.turn().calls, []);
}
