//! Engine `llm` on real graphs, with one origin per prompt. The tests fail without the files that
//! `cargo xtask setup` fetches.

mod common;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use accelerator::engine::{
    Engine, EngineError, EngineKind, EngineParams, Sequence, Streaming, create,
    onnx::find_library,
    streaming::{OnFatal, Outcome, TOKEN_BYTES},
};
use common::{
    eventually,
    prompts::{BLANK, Prompts},
};
use fabric::wire::Stream;
use qdl::{
    config::LlmConfig,
    model::{DType, ModelSpec},
    testkit::assert_has,
};

/// Vocabulary and context of the tiny model, in tokens.
const VOCABULARY: i32 = 509;
const CONTEXT: usize = 256;

fn models(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = root.join(".deps/models").join(name);
    assert!(path.is_file(), "{}: run cargo xtask setup", path.display());
    path
}

fn params(file: &str, sides: (usize, usize), llm: LlmConfig) -> EngineParams {
    find_library(None).unwrap_or_else(|e| panic!("{e}"));
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

fn never() -> OnFatal {
    Arc::new(|e| panic!("{e}"))
}

/// A running engine; dropping this value stops it.
struct Running(Arc<dyn Engine>);

impl Running {
    fn of(params: &EngineParams) -> Self {
        let engine = create(params).unwrap_or_else(|e| panic!("{e}"));
        assert!(engine.counts_tokens());
        let running = Running(engine);
        let started = running.streaming().start(never());
        started.unwrap_or_else(|e| panic!("{e}"));
        running
    }

    fn streaming(&self) -> &dyn Streaming {
        self.0.streaming().expect("it batches by itself")
    }

    /// Returns the answers to all prompts; at most the engine's maximum is in flight.
    fn all(&self, prompts: &[Vec<i32>]) -> Vec<Vec<i32>> {
        let places = self.streaming().in_flight();
        let asked: Vec<_> = prompts
            .iter()
            .map(|p| Asked::new(p, Stream::None))
            .collect();
        for (i, one) in asked.iter().enumerate() {
            eventually("a place", || {
                asked[..i].iter().filter(|a| a.ended().is_none()).count() < places
            });
            self.streaming().submit(one.sequence(1 << 20));
        }
        asked.iter().map(|a| a.answer()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.streaming().stop(Duration::from_secs(60));
    }
}

const ROOM: usize = 64;

/// A prompt, and how its sequences ended.
struct Asked {
    prompt: Arc<Prompts>,
    ends: Arc<Mutex<Vec<Outcome>>>,
}

impl Asked {
    fn new(prompt: &[i32], stream: Stream) -> Self {
        let bytes = prompt.iter().flat_map(|id| id.to_le_bytes());
        Self::bytes(bytes.collect(), stream)
    }

    fn bytes(input: Vec<u8>, stream: Stream) -> Self {
        Asked {
            prompt: Prompts::of_bytes(vec![input], ROOM * TOKEN_BYTES, stream),
            ends: Arc::default(),
        }
    }

    fn sequence(&self, output_bytes: usize) -> Sequence {
        let ends = self.ends.clone();
        Sequence::new(self.prompt.arrival(0), output_bytes, move |outcome| {
            ends.lock().expect("no panic").push(outcome);
        })
    }

    fn ended(&self) -> Option<Outcome> {
        let ends = self.ends.lock().expect("no panic");
        assert!(ends.len() <= 1, "it ends once");
        ends.first().cloned()
    }

    fn wait(&self) -> Outcome {
        eventually("its end", || self.ended().is_some());
        self.ended().expect("it ended")
    }

    /// Why it was refused.
    fn refused(&self) -> Option<String> {
        self.prompt.refused().pop().map(|(_, why)| why)
    }

    /// The tokens of its answer.
    fn answer(&self) -> Vec<i32> {
        let outcome = self.wait();
        let answered = self.prompt.came(0).answered;
        assert_eq!(answered, 1, "{:?}", self.refused());
        let ids = self.prompt.tokens(0);
        assert!(matches!(outcome, Outcome::Answered { tokens, .. } if tokens == ids.len()));
        ids
    }
}

/// Prompts of many lengths from a seed.
fn prompts(count: usize) -> Vec<Vec<i32>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut one = || {
        let len = rng.usize(1..=100);
        (0..len).map(|_| rng.i32(0..VOCABULARY)).collect()
    };
    (0..count).map(|_| one()).collect()
}

/// Checks that answers do not depend on order, nor on (sequences, threads), for `each` pair.
fn same_whoever_is_beside(base: &EngineParams, prompts: &[Vec<i32>], each: &[(usize, usize)]) {
    let at = |sequences, threads| {
        base.clone().with(|e| {
            e.intra_threads = threads;
            e.llm.as_mut().expect("llm").sequences = sequences;
        })
    };
    let alone = Running::of(&at(1, 1)).all(prompts);
    assert!(alone.iter().any(|answer| *answer != alone[0]));
    let n = prompts.len();
    for (sequences, threads) in each {
        // 7 divides none of the counts used here, so the order contains every index.
        let order: Vec<usize> = (0..n).map(|i| (i * 7 + 3) % n).collect();
        let shuffled: Vec<_> = order.iter().map(|i| prompts[*i].clone()).collect();
        let answers = Running::of(&at(*sequences, *threads)).all(&shuffled);
        for (i, answer) in order.iter().zip(&answers) {
            assert_eq!(*answer, alone[*i], "prompt {i} with {sequences} at once");
        }
    }
}

#[test]
fn tokens_do_not_depend_on_who_else_is_there() {
    let base = tiny(1).with(|e| e.llm.as_mut().expect("llm").min_tokens = 1);
    same_whoever_is_beside(&base, &prompts(60), &[(3, 1), (8, 1), (16, 2)]);
}

/// The demo's model has 8-bit weights, so its arithmetic is the one to test.
#[test]
fn tokens_of_the_demo_do_not_depend_on_who_else_is_there() {
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
    same_whoever_is_beside(&base, &asked[..20], &[(8, 1), (16, 2)]);
}

#[test]
fn the_end_is_kept_and_put_off() {
    let base = tiny(1).with(|e| e.llm.as_mut().expect("llm").min_tokens = 1);
    let all = prompts(50);
    let answers = Running::of(&base).all(&all);
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
        Running::of(&params).all(&asked).remove(0)
    };
    assert_eq!(with(1), free[..=at], "the end is the last token");
    assert_eq!(with(at + 1), free[..=at], "just long enough");
    let later = with(at + 2);
    assert!(later.len() > at + 1 && later[..at] == free[..at]);
    assert_ne!(later[at], free[at], "the second best took its place");
}

#[test]
fn parts_are_sent_as_they_are_wanted() {
    let engine = Running::of(&tiny(4));
    let prompt = &prompts(1)[0];
    let ask = |stream| {
        let asked = Asked::new(prompt, stream);
        engine.streaming().submit(asked.sequence(24 * TOKEN_BYTES));
        (asked.answer(), asked.prompt.came(0).parts, asked.wait())
    };
    let (whole, none, _) = ask(Stream::None);
    let (first, one, _) = ask(Stream::First);
    let (every, many, outcome) = ask(Stream::All);
    assert!(none.is_empty() && whole.len() == 24);
    assert_eq!((&first, &every), (&whole, &whole));
    assert_eq!(one, [(0, 4)]);
    let each: Vec<_> = (0..23).map(|i| (4 * i, 4 * i + 4)).collect();
    assert_eq!(many, each);
    let answered = Outcome::Answered {
        tokens: 24,
        parts: 24,
    };
    assert_eq!(outcome, answered);
}

#[test]
fn what_cannot_be_run_is_refused_by_name_and_the_others_go_on() {
    let engine = Running::of(&tiny(4));
    let good = Asked::new(&[3, 5, 7], Stream::None);
    engine.streaming().submit(good.sequence(1 << 10));
    let refused = |input: Vec<u8>, words: &str| {
        let asked = Asked::bytes(input, Stream::None);
        engine.streaming().submit(asked.sequence(1 << 10));
        assert_eq!(asked.wait(), Outcome::Unanswered);
        let why = asked.refused().expect("refused");
        assert!(why.contains(words), "{why}");
    };
    let ids = |ids: &[i32]| {
        ids.iter()
            .flat_map(|id| id.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    refused(
        ids(&[1, 2, VOCABULARY]),
        "id 509 at position 2; model `m` has tokens 0 to 508",
    );
    refused(ids(&[-1]), "id -1 at position 0");
    refused(ids(&[i32::MIN, 1]), "position 0");
    refused(vec![1; 7], "a sample of 7 bytes arrived");
    refused(Vec::new(), "a sample of 0 bytes");
    refused(ids(&[1; 101]), "1 to 100 times 4 bytes");
    assert_eq!(good.answer().len(), 24);
    // An answer that does not fit into its slot.
    let narrow = Asked::new(&[3, 5, 7], Stream::All);
    engine.streaming().submit(narrow.sequence(3 * TOKEN_BYTES));
    assert_eq!(narrow.wait(), Outcome::Unanswered);
    let why = narrow.refused().expect("refused");
    assert!(why.contains("4 tokens and more, and room for 3"), "{why}");
    let behind = narrow.prompt.output(0, 3 * TOKEN_BYTES, ROOM * TOKEN_BYTES);
    assert!(
        behind.iter().all(|b| *b == BLANK),
        "nothing behind its room"
    );
}

#[test]
fn a_sequence_that_is_not_wanted_leaves_and_the_others_stay() {
    let engine = Running::of(&tiny(4));
    let all: Vec<_> = prompts(40)
        .iter()
        .map(|p| Asked::new(p, Stream::None))
        .collect();
    let alone = engine.all(&prompts(40));
    for asked in &all {
        engine.streaming().submit(asked.sequence(1 << 10));
    }
    for asked in all.iter().step_by(3) {
        asked.prompt.leave();
    }
    for (i, asked) in all.iter().enumerate() {
        match asked.wait() {
            Outcome::Answered { .. } => assert_eq!(asked.answer(), alone[i], "sequence {i}"),
            Outcome::Unanswered => assert!(i.is_multiple_of(3) && asked.refused().is_none()),
        }
    }
    let left = all.iter().filter(|a| a.wait() == Outcome::Unanswered);
    assert!(left.count() > 0, "nobody left");
}

#[test]
fn a_stop_drops_what_is_there_and_it_starts_again() {
    let engine = Running::of(&tiny(2));
    let all: Vec<_> = prompts(30)
        .iter()
        .map(|p| Asked::new(p, Stream::None))
        .collect();
    for asked in &all {
        engine.streaming().submit(asked.sequence(1 << 10));
    }
    engine.streaming().stop(Duration::from_secs(60));
    let late = Asked::new(&[1], Stream::None);
    engine.streaming().submit(late.sequence(1 << 10));
    for asked in all.iter().chain([&late]) {
        asked.wait();
    }
    assert_eq!(late.wait(), Outcome::Unanswered);
    engine.streaming().start(never()).expect("once more");
    assert_eq!(engine.all(&[vec![1]])[0].len(), 24);
}

#[test]
fn what_does_not_fit_the_model_is_named_at_the_start() {
    let complaint = |params: &EngineParams| match create(params) {
        Ok(_) => panic!("it was taken"),
        Err(e) => {
            assert!(matches!(
                e,
                EngineError::Param { .. }
                    | EngineError::ModelUnsupported { .. }
                    | EngineError::ModelMissing { .. }
                    | EngineError::TokenModel { .. }
            ));
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
    assert_has(&other, &["tensor `input_ids`", "export_llm.py"]);
    of.file = Some("/nowhere.onnx".into());
    assert!(complaint(&of).contains("/nowhere.onnx"));
}
