//! Engine `llm` on real graphs, with one origin per prompt. The tests fail without the files that
//! `cargo xtask setup` fetches.

use std::{
    cell::UnsafeCell,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use accelerator::engine::{
    Engine, EngineError, EngineKind, EngineParams, Sequence, Streaming, create,
    onnx::find_library,
    streaming::{OnFatal, Outcome, TOKEN_BYTES},
};
use fabric::clock;
use fabric::wire::Stream;
use qdl::{
    config::LlmConfig,
    model::{DType, ModelSpec},
    serve::{Arrival, Finished, Origin, Part},
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

/// Memory of a prompt and its answer, and the outcome.
struct Asked {
    input: Box<[u8]>,
    output: UnsafeCell<[u8; ROOM * TOKEN_BYTES]>,
    stream: Stream,
    gone: AtomicBool,
    parts: Mutex<Vec<Part>>,
    finished: Mutex<Option<Finished>>,
    refused: Mutex<Option<String>>,
    ended: Mutex<Option<Outcome>>,
    ends: AtomicUsize,
}

// SAFETY: at most one sequence exists at a time; it alone writes the output, and the test reads the
// output after the sequence has ended.
unsafe impl Sync for Asked {}

fn get<T: Clone>(of: &Mutex<T>) -> T {
    of.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn put<T>(to: &Mutex<T>, value: T) {
    *to.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

impl Asked {
    fn new(prompt: &[i32], stream: Stream) -> Arc<Self> {
        Self::bytes(
            prompt.iter().flat_map(|id| id.to_le_bytes()).collect(),
            stream,
        )
    }

    fn bytes(input: Box<[u8]>, stream: Stream) -> Arc<Self> {
        Arc::new(Asked {
            input,
            output: UnsafeCell::new([0xEE; ROOM * TOKEN_BYTES]),
            stream,
            gone: AtomicBool::new(false),
            parts: Mutex::default(),
            finished: Mutex::default(),
            refused: Mutex::default(),
            ended: Mutex::default(),
            ends: AtomicUsize::new(0),
        })
    }

    fn sequence(self: &Arc<Self>, output_bytes: usize) -> Sequence {
        let origin: Arc<dyn Origin> = self.clone();
        // SAFETY: the origin owns input and output while it lives, the input is never written, and
        // each test makes one sequence of it at a time.
        let arrival = unsafe {
            Arrival::new(
                self.input.as_ptr(),
                self.input.len() as u32,
                self.output.get().cast(),
                (ROOM * TOKEN_BYTES) as u32,
                7,
                clock::now_ns(),
                origin,
            )
        };
        let me = self.clone();
        Sequence::new(arrival, output_bytes, move |outcome| {
            // Incremented first: a thread that sees the outcome then reads this count.
            me.ends.fetch_add(1, SeqCst);
            put(&me.ended, Some(outcome));
        })
    }

    fn ended(&self) -> Option<Outcome> {
        get(&self.ended)
    }

    fn wait(&self) -> Outcome {
        eventually("its end", || self.ended().is_some());
        assert_eq!(self.ends.load(SeqCst), 1, "it ends once");
        self.ended().expect("it ended")
    }

    /// Returns the tokens of the answer.
    fn answer(&self) -> Vec<i32> {
        let outcome = self.wait();
        let finished = get(&self.finished).unwrap_or_else(|| panic!("{:?}", get(&self.refused)));
        // SAFETY: the sequence has ended, so no thread writes the output.
        let bytes = unsafe { &(&*self.output.get())[..finished.len as usize] };
        let ids: Vec<i32> = bytes
            .chunks_exact(TOKEN_BYTES)
            .map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")))
            .collect();
        assert!(matches!(outcome, Outcome::Answered { tokens, .. } if tokens == ids.len()));
        ids
    }
}

impl Origin for Asked {
    fn respond(&self, finished: &[Finished]) {
        assert!(get(&self.finished).is_none(), "answered twice");
        put(&self.finished, finished.first().copied());
    }

    fn refuse(&self, _: u64, why: &str) {
        put(&self.refused, Some(why.to_owned()));
    }

    fn part(&self, part: &Part) {
        self.parts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(*part);
    }

    fn stream(&self) -> Stream {
        self.stream
    }

    fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns prompts of many lengths, from a seed.
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
        (asked.answer(), get(&asked.parts), asked.wait())
    };
    let (whole, none, _) = ask(Stream::None);
    let (first, one, _) = ask(Stream::First);
    let (every, many, outcome) = ask(Stream::All);
    assert!(none.is_empty() && whole.len() == 24);
    assert_eq!((&first, &every), (&whole, &whole));
    let places = |parts: &[Part]| parts.iter().map(|p| (p.from, p.to)).collect::<Vec<_>>();
    assert_eq!(places(&one), [(0, 4)]);
    assert_eq!(
        places(&many),
        (0..23).map(|i| (4 * i, 4 * i + 4)).collect::<Vec<_>>()
    );
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
        let asked = Asked::bytes(input.into(), Stream::None);
        engine.streaming().submit(asked.sequence(1 << 10));
        assert_eq!(asked.wait(), Outcome::Unanswered);
        let why = get(&asked.refused).expect("refused");
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
    let why = get(&narrow.refused).expect("refused");
    assert!(why.contains("4 tokens and more, and room for 3"), "{why}");
    // SAFETY: the sequence has ended, so no thread writes the output.
    let behind = unsafe { &(&*narrow.output.get())[3 * TOKEN_BYTES..] };
    assert!(behind.iter().all(|b| *b == 0xEE), "nothing behind its room");
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
        asked.gone.store(true, SeqCst);
    }
    for (i, asked) in all.iter().enumerate() {
        match asked.wait() {
            Outcome::Answered { .. } => assert_eq!(asked.answer(), alone[i], "sequence {i}"),
            Outcome::Unanswered => assert!(i.is_multiple_of(3) && get(&asked.refused).is_none()),
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
