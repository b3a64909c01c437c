//! Tests of the local backend with engines without requirements and recording completers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use accelerator::{
    engine::{
        EngineKind, EngineParams,
        tokens::{Answers, answer},
    },
    pipeline::Options,
    pipelines::{self, Pipelines},
};
use fabric::{Region, SourceId, wire::Stream};
use qdl::{
    config::TokensConfig,
    counters::Live,
    dispatch::{Completer, Part, Response, Sample, SampleTimes},
    model::ModelSpec,
};

use super::backend::{LocalBackend, Parts};
use crate::{backend::Backend, exit::Verdict, loadgen::completer::Completers};

const SAMPLES: usize = 600;
/// Tokens of the longest prompt; below, of the longest answer.
const PROMPT: usize = 32;
const ANSWER: usize = 24;

/// Records of one sample.
#[derive(Default)]
struct Came {
    /// Bytes of its parts; below, of its response, which holds the whole answer.
    parts: Vec<u8>,
    whole_answer: Vec<u8>,
    firsts: usize,
    handed_over: usize,
    whole: bool,
    completed: usize,
}

#[derive(Default)]
struct Book {
    by_id: BTreeMap<u64, Came>,
    times: Vec<SampleTimes>,
}

/// A completer that records its calls.
struct Writer(Arc<Mutex<Book>>);

impl Writer {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Completer for Writer {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for r in responses {
            let mut book = self.book();
            let came = book.by_id.entry(r.id).or_default();
            came.whole = r.whole;
            came.completed += 1;
            came.whole_answer = r.payload.to_vec();
        }
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        for p in parts {
            let mut book = self.book();
            let came = book.by_id.entry(p.id).or_default();
            assert_eq!(p.index, p.id - 1);
            assert_eq!(came.completed, 0, "a part after the last");
            assert_eq!(p.at as usize, came.parts.len(), "behind the one before");
            assert_eq!(p.first, p.at == 0);
            came.firsts += usize::from(p.first);
            came.handed_over += 1;
            came.parts.extend(p.payload);
        }
    }

    fn record(&mut self, times: &SampleTimes, alike: u64) {
        let times = (0..alike).map(|_| *times);
        self.book().times.extend(times);
    }
}

fn engine_params(settings: &TokensConfig) -> EngineParams {
    EngineParams {
        spec: Some(ModelSpec::of_tokens("m", PROMPT, ANSWER)),
        ..EngineParams::new(EngineKind::Tokens)
    }
    .with(|e| {
        e.tokens = Some(TokensConfig {
            sequences: 16,
            ..settings.clone()
        });
    })
}

/// The prompt of sample `i`: `1 + i % PROMPT` words.
fn prompt(i: usize) -> Vec<i32> {
    (0..=i % PROMPT).map(|at| (i * 31 + at) as i32).collect()
}

fn sample(i: usize) -> Sample {
    Sample {
        id: i as u64 + 1,
        index: i as u64,
        source: SourceId(0),
        offset: i * 4 * PROMPT,
        len: 4 * prompt(i).len() as u32,
        issued_ns: fabric::clock::now_ns(),
        first: None,
        tries: Default::default(),
    }
}

fn local(settings: &TokensConfig, stream: Stream, book: &Arc<Mutex<Book>>) -> Arc<LocalBackend> {
    let params = engine_params(settings);
    let engines = pipelines::create(&params, &[0]).expect("it needs nothing");
    let pipelines = Pipelines::start(engines, &Options::from(&params), |e| panic!("{e}"));
    let inputs = Region::new(SAMPLES * 4 * PROMPT).expect("memory");
    for i in 0..SAMPLES {
        let bytes: Vec<u8> = prompt(i).iter().flat_map(|id| id.to_le_bytes()).collect();
        // SAFETY: only this function uses the region so far.
        let place = unsafe { inputs.bytes_mut(i * 4 * PROMPT, bytes.len()) };
        place.expect("inside").copy_from_slice(&bytes);
    }
    let book = Arc::clone(book);
    LocalBackend::new(Parts {
        node: "n".to_owned(),
        model: "m".to_owned(),
        info: record::EngineInfo::default(),
        pipelines: pipelines.expect("starts"),
        inputs: Arc::new(inputs),
        slots: 48,
        output: 4 * ANSWER,
        stream,
        completers: Completers::new(Arc::new(Live::new(1)), None, None),
        make: Box::new(move |_| Box::new(Writer(Arc::clone(&book)))),
        threads: 2,
        verdict: Verdict::default(),
    })
    .expect("memory")
}

#[test]
fn tokens_come_in_parts_as_they_do_over_the_wire() {
    let settings = TokensConfig {
        min_tokens: 1,
        ..TokensConfig::default()
    };
    let answers = Answers::new(&settings, ANSWER).expect("sound");
    for stream in [Stream::None, Stream::First, Stream::All] {
        let book = Arc::default();
        let local = local(&settings, stream, &book);
        let samples: Vec<_> = (0..SAMPLES).map(sample).collect();
        for burst in samples.chunks(250) {
            local.issue(burst);
        }
        let began = Instant::now();
        while local.outstanding() > 0 {
            assert!(
                began.elapsed().as_secs() < 60,
                "{} left",
                local.outstanding()
            );
            std::thread::yield_now();
        }
        let record = local.finish();
        assert_eq!(record.ledger.answered, SAMPLES as u64);
        assert_eq!(record.accelerators[0].samples, Some(SAMPLES as u64));
        let book = book.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writes = 0;
        for i in 0..SAMPLES {
            let right = answer(&prompt(i), &answers);
            let bytes: Vec<u8> = right.iter().flat_map(|id| id.to_le_bytes()).collect();
            let came = &book.by_id[&(i as u64 + 1)];
            assert_eq!(
                (came.completed, &came.whole_answer),
                (1, &bytes),
                "sample {i}"
            );
            let before_the_last = match stream {
                Stream::None => 0,
                Stream::First => (right.len() - 1).min(1),
                Stream::All => right.len() - 1,
            };
            assert_eq!(came.handed_over, before_the_last, "sample {i}");
            assert_eq!(came.parts, bytes[..4 * before_the_last]);
            let begun = before_the_last > 0;
            assert_eq!((came.firsts, came.whole), (usize::from(begun), !begun));
            writes += 1 + before_the_last as u64;
        }
        assert_eq!(book.times.len(), SAMPLES);
        assert_eq!(
            book.times.iter().map(|t| u64::from(t.parts)).sum::<u64>(),
            writes
        );
        for t in &book.times {
            assert!(
                t.posted_ns <= t.first_ns && t.first_ns <= t.seen_ns,
                "{t:?}"
            );
            assert!(t.parts_residence_us <= t.parts_after_us + 1, "{t:?}");
        }
    }
}
