//! Engine `llm` on real graphs, with one origin per prompt. The tests fail without the files that
//! `cargo xtask setup` fetches.

use std::{path::PathBuf, sync::Arc};

use crate::common::{Samples, Started, eventually, repository};
use engines::config::LlmConfig;
use engines::{
    Engine, EngineKind, EngineParams, create,
    streaming::{SequenceOutcome, TOKEN_BYTES},
};
use fabric::wire::Stream;
use qdl::{
    model::{DType, ModelSpec},
    testkit::assert_has,
};

/// Vocabulary and context of the tiny model, in tokens.
const VOCABULARY: i32 = 509;
const CONTEXT: usize = 256;

fn models(name: &str) -> PathBuf {
    let path = repository().join(".deps/models").join(name);
    assert!(path.is_file(), "{}: run cargo xtask setup", path.display());
    path
}

fn params(file: &str, sides: (usize, usize), llm: LlmConfig) -> EngineParams {
    EngineParams {
        model: "m".to_owned(),
        file: Some(models(file)),
        spec: Some(ModelSpec::of_tokens("m", sides.0, sides.1)),
        ..EngineParams::new(EngineKind::Llm)
    }
    .with(|e| e.llm = Some(llm))
}

/// The tiny model, with 24 tokens per answer.
fn tiny(sequences: usize) -> EngineParams {
    let llm = LlmConfig {
        sequences,
        min_tokens: 24,
        ..LlmConfig::default()
    };
    params("llm-tiny.onnx", (100, 24), llm)
}

fn running(params: &EngineParams) -> Started<dyn Engine> {
    let engine = create(params).unwrap_or_else(|e| panic!("{e}"));
    Started::new(engine, 24 * TOKEN_BYTES).unwrap_or_else(|e| panic!("{e}"))
}

fn answers_of(engine: &Started<dyn Engine>, prompts: &[Vec<i32>]) -> Vec<Vec<i32>> {
    let samples = samples(prompts, Stream::None);
    engine.run(&samples);
    assert_eq!(engine.fatal(), None);
    (0..prompts.len()).map(|i| answer(&samples, i)).collect()
}

const ROOM: usize = 64;

fn samples(prompts: &[Vec<i32>], stream: Stream) -> Arc<Samples> {
    Samples::prompts(prompts, ROOM * TOKEN_BYTES, stream)
}

fn wait(samples: &Samples) {
    eventually("all end", || samples.ended() == samples.len());
}

fn answer(samples: &Samples, i: usize) -> Vec<i32> {
    let record = samples.record(i);
    let ids = record.answer().unwrap_or_else(|| panic!("{record:?}"));
    let Some(SequenceOutcome::Answered { tokens }) = record.ended else {
        panic!("{record:?}")
    };
    assert_eq!(tokens, ids.len());
    ids
}

fn prompts(count: usize) -> Vec<Vec<i32>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut one = || {
        let len = rng.usize(1..=100);
        (0..len).map(|_| rng.i32(0..VOCABULARY)).collect()
    };
    (0..count).map(|_| one()).collect()
}

/// Checks that answers do not depend on order, nor on (sequences, threads), for `each` pair.
fn assert_same_in_any_company(base: &EngineParams, prompts: &[Vec<i32>], each: &[(usize, usize)]) {
    let at = |sequences, threads| {
        base.clone().with(|e| {
            e.intra_threads = threads;
            e.llm.as_mut().expect("llm").sequences = sequences;
        })
    };
    let alone = answers_of(&running(&at(1, 1)), prompts);
    assert!(alone.iter().any(|answer| *answer != alone[0]));
    let n = prompts.len();
    for (sequences, threads) in each {
        // 7 divides none of the counts used here, so the order contains every index.
        let order: Vec<usize> = (0..n).map(|i| (i * 7 + 3) % n).collect();
        let shuffled: Vec<_> = order.iter().map(|i| prompts[*i].clone()).collect();
        let answers = answers_of(&running(&at(*sequences, *threads)), &shuffled);
        for (i, answer) in order.iter().zip(&answers) {
            assert_eq!(*answer, alone[*i], "prompt {i} with {sequences} at once");
        }
    }
}

#[test]
fn tokens_do_not_depend_on_other_sequences() {
    let base = tiny(1).with(|e| e.llm.as_mut().expect("llm").min_tokens = 1);
    assert_same_in_any_company(&base, &prompts(60), &[(3, 1), (8, 1), (16, 2)]);
}

/// The demo's model has 8-bit weights, so its arithmetic is the one to test.
#[test]
fn tokens_of_the_demo_do_not_depend_on_other_sequences() {
    let bytes = std::fs::read(models("capitals.tokens")).expect("the questions");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    let count = word(16) as usize;
    let ids = 24 + 8 * (count + 1);
    let prompt = |i: usize| {
        let (from, to) = (word(24 + 8 * i) as usize, word(32 + 8 * i) as usize);
        bytes[ids + 4 * from..ids + 4 * to]
            .chunks_exact(4)
            .map(|b| i32::from_le_bytes(b.try_into().expect("four")))
            .collect()
    };
    let asked: Vec<Vec<i32>> = (0..count).step_by(12).map(prompt).collect();
    let llm = LlmConfig {
        min_tokens: 2,
        ..LlmConfig::default()
    };
    let base = params("smollm2-q8.onnx", (64, 12), llm);
    assert_same_in_any_company(&base, &asked[..20], &[(8, 1), (16, 2)]);
}

#[test]
fn the_end_is_kept_and_put_off() {
    let base = tiny(1).with(|e| e.llm.as_mut().expect("llm").min_tokens = 1);
    let all = prompts(50);
    let answers = answers_of(&running(&base), &all);
    let long = answers
        .iter()
        .position(|a| a.len() == 24 && a[5..] != [a[0]; 19]);
    let (asked, free) = long
        .map(|i| (vec![all[i].clone()], &answers[i]))
        .expect("a long one");
    // Choose as end a token whose first appearance is late.
    let at = (1..23)
        .rfind(|i| !free[..*i].contains(&free[*i]))
        .expect("a new one");
    let with = |min_tokens| {
        let params = tiny(1).with(|e| {
            let llm = e.llm.as_mut().expect("llm");
            (llm.eos, llm.min_tokens) = (Some(free[at] as u32), min_tokens);
        });
        answers_of(&running(&params), &asked).remove(0)
    };
    assert_eq!(with(1), free[..=at], "the end is the last token");
    assert_eq!(with(at + 1), free[..=at], "just long enough");
    let later = with(at + 2);
    assert!(later.len() > at + 1 && later[..at] == free[..at]);
    assert_ne!(later[at], free[at], "the second best took its place");
}

#[test]
fn a_prompt_that_cannot_run_is_refused_and_the_others_go_on() {
    let engine = running(&tiny(4));
    let all = [
        vec![3, 5, 7],
        vec![1, 2, VOCABULARY],
        vec![-1],
        vec![i32::MIN, 1],
    ];
    let mixed = samples(&all, Stream::None);
    engine.run(&mixed);
    assert_eq!(answer(&mixed, 0).len(), 24);
    for (i, words) in [
        (1, "id 509 at position 2; model `m` has tokens 0 to 508"),
        (2, "id -1 at position 0"),
        (3, "position 0"),
    ] {
        let record = mixed.record(i);
        assert_eq!(record.ended, Some(SequenceOutcome::Unanswered));
        assert_has(&record.refused.expect("refused"), &[words]);
    }
}

#[test]
fn a_sequence_that_is_not_wanted_leaves_and_the_others_stay() {
    let engine = running(&tiny(4));
    let (stays, leaves) = (prompts(26), prompts(14));
    let alone = answers_of(&engine, &stays);
    let (stays, leaves) = (
        samples(&stays, Stream::None),
        samples(&leaves, Stream::None),
    );
    for i in 0..26 {
        engine.submit_one(&stays, i);
        if i < 14 {
            engine.submit_one(&leaves, i);
        }
    }
    leaves.leave();
    wait(&stays);
    wait(&leaves);
    (0..26).for_each(|i| assert_eq!(answer(&stays, i), alone[i], "sequence {i}"));
    assert!(leaves.total() < 14 && leaves.refused().is_empty());
}

#[test]
fn a_key_that_does_not_fit_the_model_is_named() {
    let complaint = |params: &EngineParams| match create(params) {
        Ok(_) => panic!("it was taken"),
        Err(e) => {
            let text = e.to_string();
            assert!(!text.contains('\n'), "{text}");
            text
        }
    };
    let with =
        |sides: (usize, usize), llm: LlmConfig| complaint(&params("llm-tiny.onnx", sides, llm));
    let plain = LlmConfig::default();
    let long = with((CONTEXT, 24), plain);
    assert!(long.contains("engine.llm.context: 280 positions") && long.contains("has 256"));
    let context = Some(99);
    let short = with((80, 24), LlmConfig { context, ..plain });
    assert_has(&short, &["99 positions are too few for prompts of 80"]);
    let max_tokens = Some(25);
    let most = with(
        (80, 24),
        LlmConfig {
            max_tokens,
            ..plain
        },
    );
    assert_has(&most, &["llm.max_tokens: 25 tokens do not fit"]);
    let eos = Some(509);
    let end = with((80, 24), LlmConfig { eos, ..plain });
    assert!(end.contains("llm.eos: 509, and the model has 509"), "{end}");
    let mut of = tiny(1);
    of.spec.as_mut().expect("spec").inputs[0].dtype = DType::I64;
    let numbers = complaint(&of);
    assert_has(&numbers, &["engine `llm` takes and gives token ids"]);
    let mut of = tiny(1);
    of.file = Some(models("digits.onnx"));
    let other = complaint(&of);
    assert_has(&other, &["tensor `vocabulary`", "export_llm.py"]);
    of.file = Some("/nowhere.onnx".into());
    assert!(complaint(&of).contains("/nowhere.onnx"));
}
