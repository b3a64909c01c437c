//! The pipeline with engines that form their own batches.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::common::{
    Samples, eventually, failing, no_error, puppet_error, start, submit_in_bursts,
};
use engines::config::TokensConfig;
use engines::{
    Engine, EngineError, EngineKind, EngineParams, Sequence, Streaming, create,
    pipeline::{Options, Pipeline},
    streaming::{OnFatal, SequenceSource},
    tokens::{Answers, answer},
};
use fabric::wire::Stream;
use qdl::{model::ModelSpec, request::RequestOptions, serve::Service};

const STREAMS: [Stream; 3] = [Stream::None, Stream::First, Stream::All];
/// Maximum wait for any step of a test.
const PATIENCE: Duration = Duration::from_secs(60);

fn params(output: usize, most: usize, settings: &TokensConfig) -> EngineParams {
    EngineParams {
        spec: Some(ModelSpec::of_tokens("m", 64, output)),
        ..EngineParams::new(EngineKind::Tokens)
    }
    .with(|e| {
        e.tokens = Some(TokensConfig {
            sequences: most,
            ..settings.clone()
        });
    })
}

fn random_prompts(n: usize, seed: u64) -> Vec<Vec<i32>> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..n)
        .map(|_| (0..rng.usize(1..=64)).map(|_| rng.i32(..)).collect())
        .collect()
}

fn settings(min: usize, max: usize, step_us: u64) -> TokensConfig {
    TokensConfig {
        min_tokens: min,
        max_tokens: Some(max),
        step_us,
        ..TokensConfig::default()
    }
}

/// Checks that every prompt has one answer, its own, in the expected number of parts. Returns the
/// number of tokens.
fn assert_right(origin: &Samples, prompts: &[Vec<i32>], answers: &Answers, stream: Stream) -> u64 {
    let mut sum = 0;
    for (i, prompt) in prompts.iter().enumerate() {
        let right = answer(prompt, answers);
        let record = origin.record(i);
        assert_eq!(record.answer().as_ref(), Some(&right), "prompt {i}");
        let parts = match stream {
            Stream::None => 1,
            Stream::First => right.len().min(2),
            Stream::All => right.len(),
        };
        assert_eq!(record.parts.len() + 1, parts, "prompt {i}");
        sum += right.len() as u64;
    }
    sum
}

/// Two NIC threads submit ten thousand random prompts, while sequences join and leave.
#[test]
fn every_token_is_right_and_every_count() {
    const NICS: usize = 2;
    const EACH: usize = 5_000;
    for (stream, most) in STREAMS.into_iter().zip([64, 7, 1]) {
        let params = params(40, most, &settings(1, 40, 0));
        let pipeline = start(&params);
        let answers = Answers::new(&settings(1, 40, 0), 40).expect("sound");
        let prompts = [1, 2].map(|seed| random_prompts(EACH, seed));
        let origins = [0, 1].map(|i: usize| Samples::prompts(&prompts[i], 176, stream));
        thread::scope(|s| {
            for origin in &origins {
                s.spawn(|| submit_in_bursts(&pipeline, origin));
            }
        });
        eventually("all answered", || pipeline.idle());
        let each = origins.iter().zip(&prompts);
        let sum: u64 = each
            .map(|(origin, prompts)| assert_right(origin, prompts, &answers, stream))
            .sum();
        let c = pipeline.counters();
        assert_eq!(c.samples, (NICS * EACH) as u64);
        assert_eq!(c.tokens, sum, "{stream}");
        assert_eq!((c.batches, c.copies), (0, 0), "it makes its own batches");
        pipeline.stop(PATIENCE).expect("an idle engine ends");
        for o in &origins {
            assert_eq!(Arc::strong_count(o), 1, "nothing holds the memory");
        }
    }
}

/// The first two words of these prompts are a block of options.
#[test]
fn a_limit_ends_the_answer_and_an_unknown_option_refuses_its_sample_alone() {
    let long = settings(500, 500, 0);
    let pipeline = start(&params(500, 8, &long));
    let prompts = [vec![8, 2, 7], vec![16, 2, 9, 0, 7], vec![8, 0, 7]];
    let origin = Samples::prompts(&prompts, 2016, Stream::First);
    let each = origin.all().into_iter().zip([8, 16, 8]);
    let mut arrivals = each.map(|(a, block)| a.behind_options(block)).collect();
    pipeline.arrived(&mut arrivals);
    eventually("all ended", || pipeline.idle());
    let limited = origin.answer(0).expect("answered");
    let whole = origin.answer(2).expect("answered");
    assert_eq!((limited.len(), whole.len()), (2, 500));
    assert_eq!((limited[0], limited[1]), (whole[0], whole[499]));
    let refused = origin.refused();
    assert_eq!((refused.len(), refused[0].0), (1, 1));
    assert!(refused[0].1.contains("option 9"), "{refused:?}");
    assert_eq!(pipeline.counters().samples, 2);
}

/// A prompt behind the block of its options, and the block's length.
fn behind(options: &RequestOptions, prompt: &[i32]) -> (Vec<i32>, u16) {
    let mut block = Vec::new();
    options.encode(&mut block).expect("sound");
    let (words, _) = block.as_chunks::<4>();
    let words = words.iter().map(|b| i32::from_le_bytes(*b));
    (
        words.chain(prompt.iter().copied()).collect(),
        block.len() as u16,
    )
}

#[test]
fn an_engine_acts_on_its_options_and_refuses_others_by_name() {
    let short = settings(2, 2, 0);
    let pipeline = start(&params(50, 8, &short));
    let none = RequestOptions::default();
    let whole = answer(
        &[7],
        &Answers::new(&settings(50, 50, 0), 50).expect("sound"),
    );
    let requests = [
        none.clone(),
        RequestOptions {
            min_tokens: Some(9),
            ..none.clone()
        },
        RequestOptions {
            ignore_eos: true,
            seed: Some(1),
            ..none.clone()
        },
        RequestOptions {
            ignore_eos: true,
            stop_ids: vec![whole[5]],
            ..none.clone()
        },
        RequestOptions {
            temperature: Some(0.5),
            top_p: Some(0.5),
            ..none.clone()
        },
        RequestOptions {
            temperature: Some(0.0),
            top_p: Some(1.0),
            ..none.clone()
        },
    ];
    let (prompts, blocks): (Vec<_>, Vec<_>) = requests.iter().map(|o| behind(o, &[7])).unzip();
    let origin = Samples::prompts(&prompts, 200, Stream::First);
    let each = origin.all().into_iter().zip(blocks);
    pipeline.arrived(&mut each.map(|(a, block)| a.behind_options(block)).collect());
    eventually("all ended", || pipeline.idle());
    let answers: Vec<_> = (0..6).map(|i| origin.record(i).answer()).collect();
    let len = |i: usize| answers[i].as_ref().map(Vec::len);
    assert_eq!(
        (len(0), len(1), len(2), len(5)),
        (Some(2), Some(9), Some(50), Some(2))
    );
    let eos = whole.last().expect("one");
    let [_, _, Some(seeded), Some(stopped), None, _] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert!(!seeded.contains(eos) && seeded[..9] != whole[..9]);
    assert_eq!(stopped[..], whole[..6]);
    let words = "engine `tokens` has no option `temperature, top_p`".to_owned();
    assert_eq!(origin.refused(), [(4, words)]);
}

#[test]
fn tokens_that_have_not_left_are_progress() {
    let pipeline = start(&params(4000, 8, &settings(4000, 4000, 500)));
    let origin = Samples::prompts(&[vec![7]], 16_016, Stream::None);
    pipeline.arrived(&mut origin.all());
    for more in [1, 3] {
        eventually("tokens are made", || pipeline.counters().made >= more);
    }
    let c = pipeline.counters();
    assert_eq!(
        (c.samples, c.tokens, origin.record(0).parts.len()),
        (0, 0, 0)
    );
    origin.leave();
    eventually("dropped", || pipeline.idle());
}

#[test]
fn a_prompt_of_a_wrong_length_is_refused() {
    let pipeline = start(&params(8, 8, &settings(2, 8, 0)));
    let spans = [0, 6, 65 * 4, 4, 64 * 4].map(|len| (0, len));
    let origin = Samples::new(&[5; 65 * 4], spans.to_vec(), 64, None);
    pipeline.arrived(&mut origin.all());
    eventually("done with", || pipeline.idle());
    let refused = origin.refused();
    let (tickets, words): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
    assert_eq!((tickets, origin.total()), (vec![0, 1, 2], 2));
    assert_eq!(origin.dropped(), 0);
    for (words, bytes) in words.iter().zip([0, 6, 260]) {
        let right =
            format!("a sample of {bytes} bytes arrived; the model takes 1 to 64 times 4 bytes");
        assert_eq!(*words, right);
    }
}

/// A sequence with hours of tokens left, whose connection ends.
#[test]
fn an_unwanted_sequence_frees_its_place_within_a_step() {
    const LONG: usize = 1 << 20;
    let times = settings(2, LONG, 50);
    let pipeline = start(&params(LONG, 1, &times));
    let answers = Answers::new(&times, LONG).expect("sound");
    let len = |i: &i32| answers.len(Answers::seed(&i.to_le_bytes()));
    let long = (0..).find(|i| len(i) > LONG / 2).expect("one is long");
    let short = (0..).find(|i| len(i) < 2_000).expect("one is short");
    let after = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&after);
    let hung_up = Samples::acting(
        &[vec![long], vec![long]],
        4 * LONG,
        Stream::All,
        move |o, part| {
            if part.to >= 40 {
                counted.fetch_add(1, SeqCst);
                o.leave();
            }
        },
    );
    let other = Samples::prompts(&[vec![short]], 4 * LONG, Stream::All);
    let mut burst = hung_up.all();
    burst.push(other.arrival(0));
    pipeline.arrived(&mut burst);
    eventually("the other's turn has come", || pipeline.idle());
    assert_eq!(after.load(SeqCst), 1, "no step more");
    assert_eq!((hung_up.total(), other.total()), (0, 1));
    let dropped = (hung_up.dropped(), other.dropped());
    assert_eq!(dropped, (2, 0), "each is reported once");
    assert_eq!(Arc::strong_count(&hung_up), 1);
    assert_eq!(hung_up.record(1), Default::default(), "it never joined");
}

#[test]
fn stopping_a_busy_engine_lets_go_of_everything() {
    let times = settings(2, 8, 10_000_000);
    let pipeline = start(&params(8, 4, &times));
    let origin = Samples::prompts(&random_prompts(100, 3), 64, Stream::All);
    let mut all = origin.all();
    let late = all.split_off(90);
    pipeline.arrived(&mut all);
    assert_eq!(pipeline.in_flight(), 90);
    pipeline
        .stop(Duration::from_millis(30))
        .expect("it lets go in mid-step");
    assert!(pipeline.idle());
    pipeline.arrived(&mut { late });
    assert_eq!((Arc::strong_count(&origin), origin.total()), (1, 0));
    assert_eq!(
        origin.dropped(),
        100,
        "in the engine, before it and too late"
    );
    pipeline.stop(PATIENCE).expect("once more changes nothing");
}

#[test]
fn a_stop_waits_for_pending_sequences() {
    let times = settings(2, 8, 300);
    let pipeline = start(&params(8, 4, &times));
    let prompts = random_prompts(40, 4);
    let origin = Samples::prompts(&prompts, 64, Stream::First);
    pipeline.arrived(&mut origin.all());
    pipeline.stop(PATIENCE).expect("it ends when all is done");
    assert_eq!(origin.total(), prompts.len());
}

#[test]
fn a_panic_in_the_engine_ends_it_by_name() {
    let params = params(8, 4, &settings(8, 8, 0));
    let engine = create(&params).expect("the engine needs nothing");
    let (pipeline, errors) = failing(engine, &Options::from(&params));
    let parts = AtomicUsize::new(0);
    let origin = Samples::acting(&random_prompts(300, 5), 64, Stream::All, move |_, _| {
        assert!(parts.fetch_add(1, SeqCst) < 70, "asked to");
    });
    let mut all = origin.all();
    let late = all.split_off(200);
    for arrival in all {
        pipeline.arrived(&mut vec![arrival]);
    }
    eventually("reported and all let go", || {
        let reported = !errors.all().is_empty();
        reported && pipeline.idle() && Arc::strong_count(&origin) == 1 + late.len()
    });
    pipeline.arrived(&mut { late });
    assert_eq!(Arc::strong_count(&origin), 1);
    pipeline.stop(PATIENCE).expect("its thread has ended");
    assert_eq!(
        errors.all(),
        ["worker 0 of engine tokens panicked: asked to"]
    );
    assert!(origin.total() < 200);
}

/// Behaviour of [`Puppet`] for each sequence; `Start` is its behaviour at the start.
type Act = Box<dyn Fn(&Puppet, Sequence) + Send + Sync>;
type Start = Box<dyn Fn(OnFatal) -> Result<(), EngineError> + Send + Sync>;

struct Puppet {
    model: ModelSpec,
    most: usize,
    held: Mutex<VecDeque<Sequence>>,
    act: Act,
    start: Start,
    lets_go: bool,
}

impl Puppet {
    fn new(most: usize, act: impl Fn(&Puppet, Sequence) + Send + Sync + 'static) -> Self {
        Puppet {
            model: ModelSpec::of_tokens("m", 64, 8),
            most,
            held: Mutex::default(),
            act: Box::new(act),
            start: Box::new(|_| Ok(())),
            lets_go: true,
        }
    }

    fn hold(&self, s: Sequence) -> usize {
        let mut held = self.held.lock().expect("no panic");
        held.push_back(s);
        held.len()
    }

    fn let_go(&self) -> Option<Sequence> {
        self.held.lock().expect("no panic").pop_front()
    }
}

impl Engine for Puppet {
    fn name(&self) -> &'static str {
        "puppet"
    }
    fn model(&self) -> &ModelSpec {
        &self.model
    }
    fn streaming(&self) -> Option<&dyn Streaming> {
        Some(self)
    }
}

impl Streaming for Puppet {
    fn start(&self, _: Arc<dyn SequenceSource>, fatal: OnFatal) -> Result<(), EngineError> {
        (self.start)(fatal)
    }
    fn in_flight(&self) -> usize {
        self.most
    }
    fn wake(&self, source: &dyn SequenceSource) {
        while let Some(s) = source.next() {
            (self.act)(self, s);
        }
    }
    fn stop(&self, _: Duration) {
        while self.lets_go
            && let Some(s) = self.let_go()
        {
            drop(s);
        }
    }
}

fn run(puppet: Arc<Puppet>) -> Pipeline {
    let options = Options::from(&EngineParams::new(EngineKind::Tokens));
    Pipeline::start(puppet, &options, no_error).expect("starts")
}

/// Three threads end sequences while two threads submit more. The engine never holds more than its
/// maximum, and every sequence ends.
#[test]
fn no_more_are_inside_than_the_engine_takes_and_none_is_left_behind() {
    for most in [1, 5] {
        let puppet = Arc::new(Puppet::new(most, move |p, s| {
            assert!(p.hold(s) <= most, "too many");
        }));
        let pipeline = run(Arc::clone(&puppet));
        let origins =
            [6, 7].map(|seed| Samples::prompts(&random_prompts(4_000, seed), 32, Stream::None));
        // Between two arrivals, the engine may briefly hold no sequence.
        let bring = AtomicUsize::new(origins.len());
        thread::scope(|s| {
            for origin in &origins {
                s.spawn(|| {
                    for i in 0..origin.len() {
                        pipeline.arrived(&mut vec![origin.arrival(i)]);
                    }
                    bring.fetch_sub(1, SeqCst);
                });
            }
            for _ in 0..3 {
                s.spawn(|| {
                    eventually("all are answered or dropped", || {
                        while let Some(mut s) = puppet.let_go() {
                            if s.input()[0].is_multiple_of(5) {
                                continue;
                            }
                            s.push(&[1]).expect("room");
                            s.finish(&[2]);
                        }
                        bring.load(SeqCst) == 0 && origins.iter().all(|o| Arc::strong_count(o) == 1)
                    });
                });
            }
        });
        assert!(pipeline.idle());
        let total: usize = origins.iter().map(|o| o.total()).sum();
        assert_eq!(pipeline.counters().samples, total as u64);
        assert!(total > 4_000 && total < 8_000);
    }
}

#[test]
fn a_panic_while_a_sequence_is_taken_is_the_engines_end() {
    let puppet = Puppet::new(2, |p, s| {
        assert!(s.input()[0] != 9, "no nines");
        p.hold(s);
    });
    let options = Options::from(&EngineParams::new(EngineKind::Tokens));
    let (pipeline, errors) = failing(Arc::new(puppet), &options);
    let origin = Samples::prompts(&[vec![1], vec![9], vec![2]], 32, Stream::None);
    pipeline.arrived(&mut origin.all());
    assert_eq!(
        errors.first(),
        "worker 0 of engine puppet panicked: no nines"
    );
    assert_eq!(pipeline.in_flight(), 1, "what the engine holds");
    pipeline.stop(PATIENCE).expect("it lets go");
    assert!(pipeline.idle() && Arc::strong_count(&origin) == 1);
    assert_eq!(errors.all().len(), 1, "reported once");
}

#[test]
fn a_late_error_of_an_engine_ends_the_pipeline_once() {
    let callback: Arc<Mutex<Option<OnFatal>>> = Arc::default();
    let keep = Arc::clone(&callback);
    let mut puppet = Puppet::new(1, |p, s| {
        p.hold(s);
    });
    puppet.start = Box::new(move |fatal| {
        *keep.lock().expect("no panic") = Some(fatal);
        Ok(())
    });
    let options = Options::from(&EngineParams::new(EngineKind::Tokens));
    let (pipeline, errors) = failing(Arc::new(puppet), &options);
    let origin = Samples::prompts(&random_prompts(20, 8), 32, Stream::None);
    pipeline.arrived(&mut origin.all());
    let fatal = callback.lock().expect("no panic").clone().expect("kept");
    for words in ["the server died", "again"] {
        fatal(puppet_error(1, words));
    }
    assert_eq!(
        errors.all(),
        ["engine puppet failed on a batch of 1: the server died"]
    );
    assert_eq!(pipeline.in_flight(), 1, "what the engine holds");
    pipeline.stop(PATIENCE).expect("it lets go");
    assert_eq!((Arc::strong_count(&origin), origin.total()), (1, 0));
    // The engine keeps the callback after the pipeline is dropped.
    drop(pipeline);
    fatal(puppet_error(1, "too late"));
}

#[test]
fn an_engine_that_keeps_sequences_is_named() {
    let mut puppet = Puppet::new(2, |p, s| {
        p.hold(s);
    });
    puppet.lets_go = false;
    let puppet = Arc::new(puppet);
    let pipeline = run(Arc::clone(&puppet));
    let origin = Samples::prompts(&random_prompts(5, 9), 32, Stream::None);
    pipeline.arrived(&mut origin.all());
    let error = pipeline
        .stop(Duration::from_millis(20))
        .expect_err("it keeps two");
    assert!(
        error.starts_with("engine puppet still holds 2 sequence(s) after "),
        "{error}"
    );
    assert_eq!(
        Arc::strong_count(&origin),
        3,
        "those that wait are let go of"
    );
    while let Some(s) = puppet.let_go() {
        drop(s);
    }
    assert!(pipeline.idle());
}

#[test]
fn an_engine_that_does_not_start_keeps_the_pipeline_from_starting() {
    let fails: Start = Box::new(|_| Err(puppet_error(1, "no driver")));
    let panics: Start = Box::new(|_| panic!("cannot"));
    let (release, hold) = mpsc::channel::<()>();
    let hold = Mutex::new(hold);
    let hangs: Start = Box::new(move |_| {
        let _ = hold.lock().expect("no panic").recv_timeout(PATIENCE);
        Ok(())
    });
    let short = Duration::from_millis(1);
    for (start, start_timeout, words) in [
        (
            fails,
            PATIENCE,
            "engine puppet failed on a batch of 1: no driver",
        ),
        (
            panics,
            PATIENCE,
            "worker 0 of engine puppet panicked: cannot",
        ),
        (hangs, short, "engine puppet was not ready after 0 s"),
    ] {
        let mut puppet = Puppet::new(2, |_, _| ());
        puppet.start = start;
        let options = Options {
            start_timeout,
            ..Options::from(&EngineParams::new(EngineKind::Tokens))
        };
        let started = Pipeline::start(Arc::new(puppet), &options, no_error);
        let error = started.expect_err("it cannot").to_string();
        assert!(error.starts_with(words), "{error}");
    }
    drop(release);
}
