//! One sequence, with the engine's calls made by the test.

use std::sync::{Arc, Mutex};

use crate::common::{BLANK, Samples};
use engines::{
    Sequence, SizeCounts,
    streaming::{SequenceOutcome, TooLong},
};
use fabric::wire::Stream;

fn sequence(
    prompts: &Arc<Samples>,
    output_bytes: usize,
) -> (Sequence, Arc<Mutex<Vec<SequenceOutcome>>>) {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let (to, origin) = (Arc::clone(&ends), Arc::downgrade(prompts));
    let on_end = move |outcome| {
        assert_eq!(origin.strong_count(), 1, "its slot is released before");
        to.lock().expect("no panic").push(outcome);
    };
    let sequence = Sequence::new(prompts.arrival(0), output_bytes, Arc::new(on_end));
    (sequence, ends)
}

fn ended(ends: &Mutex<Vec<SequenceOutcome>>) -> Vec<SequenceOutcome> {
    ends.lock().expect("no panic").clone()
}

/// The slot has room for more than a trailer; the model's output ends before it.
#[test]
fn nothing_is_written_past_the_models_output() {
    let prompts = Samples::prompts(&[vec![1]], 64, Stream::All);
    let (mut s, ends) = sequence(&prompts, 16);
    s.push(&[1, 2, 3]).expect("room");
    s.push(&[]).expect("nothing");
    assert_eq!(prompts.record(0).parts, [(0, 12)], "no part is empty");
    assert_eq!(s.push(&[4, 5]), Err(TooLong { wanted: 5, room: 4 }));
    assert_eq!((s.tokens(), s.room()), (3, 4));
    assert_eq!(ended(&ends), [], "the engine still has it");
    s.finish(&[4, 5, 6]);
    assert_eq!(ended(&ends), [SequenceOutcome::Unanswered]);
    let words = "an answer of 6 tokens and more, and room for 4";
    assert_eq!(prompts.refused(), [(0, words.to_owned())]);
    assert_eq!((prompts.total(), prompts.dropped()), (0, 0));
    assert_eq!(prompts.output(0)[12..], [BLANK; 52]);

    let prompts = Samples::prompts(&[vec![1]], 64, Stream::All);
    let (mut s, _) = sequence(&prompts, 16);
    s.push(&[1, 2, 3]).expect("room");
    s.finish(&[4]);
    assert_eq!(prompts.total(), 1, "just enough");
    assert_eq!(prompts.output(0)[16..], [BLANK; 48]);
    // A slot shorter than the model's output limits the room.
    let prompts = Samples::prompts(&[vec![1]], 8, Stream::All);
    assert_eq!(sequence(&prompts, 64).0.room(), 2);
}

#[test]
fn queue_and_compute_times_are_measured() {
    let prompts = Samples::prompts(&[vec![1]], 64, Stream::All);
    let arrival = prompts.arrival(0);
    let arrived = arrival.arrived_ns();
    let wait = |until: u64| {
        while fabric::clock::now_ns() < until {
            std::hint::spin_loop();
        }
    };
    wait(arrived + 2_000_000);
    let mut s = Sequence::new(arrival, 64, Arc::new(|_| ()));
    assert_eq!(s.arrived_ns(), arrived);
    wait(fabric::clock::now_ns() + 1_000_000);
    s.push(&[1]).expect("room");
    s.finish(&[2]);
    let came = prompts.record(0);
    let finished = came.finished.expect("answered");
    assert!(finished.queue_us >= 2_000 && finished.compute_us >= 1_000);
    assert!(came.sum_us >= 3_000, "the part's own");
}

/// Whatever part of them leaves as parts, and whether the last event ends the answer.
#[test]
fn each_event_counts_with_its_tokens() {
    for stream in [Stream::None, Stream::First, Stream::All] {
        let events = Arc::new(SizeCounts::new(16));
        let prompts = Samples::prompts(&[vec![1], vec![1]], 64, stream);
        let on_end = Arc::new(|_: SequenceOutcome| ());
        let of = |i| Sequence::new(prompts.arrival(i), 64, on_end.clone()).counted(events.clone());
        let mut s = of(0);
        for tokens in [&[1, 2, 3][..], &[4], &[], &[5, 6, 7]] {
            s.push(tokens).expect("room");
        }
        s.finish(&[]);
        of(1).finish(&[1, 2]);
        let sizes = events.sizes();
        assert_eq!(sizes.iter().collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 2)]);
        assert_eq!(events.sum(), 9);
    }
}
