//! Answers, refusals and aborts.

use fabric::wire::Stream;

use super::rig::{ROOM, Samples, answer, eventually, log, prompts, start};
use crate::{Engine, Streaming, streaming::TOKEN_BYTES};

#[test]
fn every_sample_gets_its_own_tokens_from_one_core_or_several() {
    for (cores, stream) in [(1, Stream::None), (1, Stream::All), (2, Stream::First)] {
        let started = start(&[], |c| c.data_parallel = cores).expect("a core");
        assert_eq!(started.engine.in_flight(), 512 * cores);
        let prompts = prompts(120);
        let samples = started.run_prompts(&prompts, stream);
        for (i, prompt) in prompts.iter().enumerate() {
            let record = samples.record(i);
            let expected = answer(prompt, ROOM);
            assert_eq!(
                record.answer().as_ref(),
                Some(&expected),
                "{i}: {:?}",
                record.refused
            );
        }
        assert_eq!(started.fatal(), None);
    }
}

#[test]
fn a_sample_that_a_core_must_not_get_is_refused_alone() {
    let started = start(&["--model-len", "40"], |c| c.min_tokens = 3).expect("a core");
    let sound = vec![20, 1, 2];
    // The last answer ends at the model's length.
    let all = [vec![-1], vec![13, 1], sound.clone(), vec![20; 38]];
    let samples = started.run_prompts(&all, Stream::All);
    for (i, words) in ["is -1, beyond", "the core could not run this prompt"]
        .into_iter()
        .enumerate()
    {
        let refused = samples.record(i).refused.expect(words);
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(samples.record(2).answer(), Some(answer(&sound, ROOM)));
    assert_eq!(samples.record(3).answer(), Some(answer(&all[3], 2)));
    assert_eq!(started.fatal(), None);
}

#[test]
fn the_reason_and_the_nans_of_a_later_core_are_counted_and_reported() {
    let options = ["--version", "0.33.0", "--habit", "nans"];
    let started = start(&options, |_| ()).expect("a core");
    let version = started.engine.server().expect("known");
    assert_eq!((&*version.version, version.has_run), ("vLLM 0.33", false));
    let sound = vec![20, 1, 2];
    let samples = started.run_prompts(&[vec![13, 1], sound.clone()], Stream::All);
    let refused = samples.record(0).refused.expect("refused");
    let words = "the core could not run this prompt: prompt too long";
    assert!(refused.contains(words), "{refused}");
    assert_eq!(samples.record(1).answer(), Some(answer(&sound, ROOM)));
    // Three in each output: the trial's two, the refusal, and the answer's.
    let nans = 3 * (2 + 1 + ROOM as u64);
    assert_eq!(started.engine.server_counts().nans, nans);
}

#[test]
fn an_unwanted_sequence_is_aborted_and_late_tokens_are_dropped() {
    let started = start(&["--step", "0.05"], |_| ()).expect("a core");
    // No answer of these ends before the model's output is full.
    let long: Vec<_> = (0..8).map(|i| vec![20, i]).collect();
    let samples = Samples::prompts(&long, ROOM * TOKEN_BYTES, Stream::All);
    started.submit(&samples, usize::MAX);
    eventually("first tokens", || {
        (0..8).all(|i| !samples.record(i).parts.is_empty())
    });
    samples.leave();
    eventually("all end", || samples.ended() == 8);
    eventually("the core aborts", || log(&started).contains("aborted"));
    // The slots of the aborted requests are used again, beside tokens that come late.
    let prompts = prompts(30);
    let samples = started.run_prompts(&prompts, Stream::First);
    for (i, prompt) in prompts.iter().enumerate() {
        assert_eq!(
            samples.record(i).answer(),
            Some(answer(prompt, ROOM)),
            "{i}"
        );
    }
    assert_eq!(started.fatal(), None);
}
