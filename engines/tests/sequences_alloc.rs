//! An engine that forms its own batches allocates no memory for a token, part or answer. A separate
//! test binary, because the test counts the allocations of the whole process.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use common::{eventually, start};
use engines::config::TokensConfig;
use engines::{EngineKind, EngineParams};
use fabric::wire::Stream;
use fabric::{
    clock,
    testkit::counting::{Counting, of_process},
};
use qdl::{
    model::ModelSpec,
    serve::{Arrival, Finished, Origin, OutputPart, Service},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Default)]
struct CountingOrigin {
    parts: AtomicUsize,
    answers: AtomicUsize,
}

impl Origin for CountingOrigin {
    fn parts(&self, parts: &[OutputPart]) {
        self.parts.fetch_add(parts.len(), SeqCst);
    }
    fn respond(&self, finished: &[Finished]) {
        self.answers.fetch_add(finished.len(), SeqCst);
    }
    fn refuse(&self, _: u64, why: &str) {
        panic!("{why}");
    }
    fn stream(&self) -> Stream {
        Stream::All
    }
}

#[test]
fn a_token_allocates_nothing() {
    const N: usize = 2_000;
    const TOKENS: usize = 32;
    let params = EngineParams {
        spec: Some(ModelSpec::of_tokens("m", TOKENS, TOKENS)),
        ..EngineParams::new(EngineKind::Tokens)
    }
    .with(|e| {
        e.tokens = Some(TokensConfig {
            min_tokens: TOKENS,
            ..TokensConfig::default()
        });
    });
    let pipeline = start(&params);
    let input = [7u8; 4 * TOKENS];
    let mut outputs = vec![0u8; 4 * TOKENS * N];
    let origin = Arc::new(CountingOrigin::default());
    let mut run = |n: usize| {
        let mut all: Vec<Arrival> = outputs
            .chunks_exact_mut(4 * TOKENS)
            .take(n)
            .map(|output| {
                let bytes = input.len() as u32;
                let now = clock::now_ns();
                // SAFETY: inputs and outputs outlive the run, each output belongs to one arrival,
                // and the next run begins after all arrivals have ended.
                unsafe {
                    let origin = origin.clone();
                    Arrival::new(
                        input.as_ptr(),
                        bytes,
                        output.as_mut_ptr(),
                        bytes,
                        0,
                        now,
                        origin,
                    )
                }
            })
            .collect();
        let before = of_process();
        pipeline.arrived(&mut all);
        eventually("all answered", || pipeline.idle());
        of_process() - before
    };
    // The first sleep and wake-up of a thread allocate.
    run(100);
    let asked = run(N);
    assert_eq!(asked, 0, "allocations of {} tokens", N * TOKENS);
    let counts = (origin.parts.load(SeqCst), origin.answers.load(SeqCst));
    assert_eq!(counts, ((N + 100) * (TOKENS - 1), N + 100));
    assert!(of_process() > 0, "the counter counts");
}
