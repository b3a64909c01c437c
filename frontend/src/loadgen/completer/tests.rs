//! Tests of the calls to LoadGen: which samples, and how often.

use std::cell::RefCell;

use loadgen_bridge::{Scenario, TestSettings};
use qdl::{
    counters::{SampleTimes, TokenSizes},
    model::ModelSpec,
};

use super::*;

#[test]
fn a_recycled_vector_keeps_its_memory() {
    let bytes = [1u8, 2, 3];
    // SAFETY: the id is never passed to LoadGen.
    let id = unsafe { ResponseId::from_bits(64) };
    let mut v: Vec<QuerySampleResponse<'_>> = Vec::with_capacity(100);
    v.push(QuerySampleResponse::new(id, &bytes));
    let at = v.as_ptr() as usize;
    let v: Vec<QuerySampleResponse<'static>> = recycled(v);
    assert_eq!((v.len(), v.capacity(), v.as_ptr() as usize), (0, 100, at));
}

#[test]
fn recorders_come_back_when_completers_are_dropped() {
    let completers = Completers::new(Arc::new(Live::new(2)), None, None, None);
    let (mut a, b) = (completers.make(0), completers.make(1));
    let times = SampleTimes {
        bytes_out: 9,
        completed_ns: 77,
        ..SampleTimes::default()
    };
    a.recorder(0).expect("a recorder").record(&times);
    a.tick(1);
    assert_eq!(completers.live.figures().bytes_out, 9);
    assert!(completers.left().is_empty());
    drop((a, b));
    let left = completers.left();
    let facts: Vec<_> = left
        .iter()
        .map(|l| (l.recorder.completed(), l.recorder.last_ns()))
        .collect();
    assert_eq!(facts, [(1, 77), (0, 0)]);
}

#[test]
fn a_sample_is_completed_once_whatever_comes_for_it() {
    let verifier = Arc::new(Verifier::new(4, &ModelSpec::opaque("m", 64, 8)));
    for id in [64, 128, 192] {
        verifier.issued(id);
    }
    let completers = Completers::new(Arc::new(Live::new(1)), Some(verifier.clone()), None, None);
    let ids = |batch: &[QuerySampleResponse<'_>]| -> Vec<u64> {
        batch.iter().map(|r| r.id().to_bits()).collect()
    };
    let response = |id| Response {
        index: 0,
        ..answer(id, &[7; 8], true)
    };
    let (mut first, mut batch) = (Vec::new(), Vec::new());
    let mut three = [64, 128, 64].map(response).into_iter();
    completers.gather(&mut three, &mut first, &mut batch);
    assert_eq!(ids(&batch), [64, 128]);
    assert!(first.is_empty(), "LoadGen measures no tokens");
    let rest = completers.unanswered(&[64, 192, 192].map(sample));
    assert_eq!(ids(&rest), [192]);
    assert_eq!(verifier.findings().counts.duplicates, 3);
    assert!(completers.unanswered(&[]).is_empty());
}

fn sample(id: u64) -> Sample {
    Sample {
        id,
        len: 8,
        ..Sample::default()
    }
}

/// Calls to LoadGen in order: function, sample id, bytes, number of tokens.
type Told = Vec<(&'static str, u64, Vec<u8>, i64)>;

thread_local! {
    static TOLD: RefCell<Told> = const { RefCell::new(Vec::new()) };
}

fn tell(call: &'static str, responses: &[QuerySampleResponse<'_>]) {
    let told = responses
        .iter()
        .map(|r| (call, r.id().to_bits(), r.data().to_vec(), r.n_tokens()));
    TOLD.with_borrow_mut(|t| t.extend(told));
}

fn told() -> Told {
    TOLD.take()
}

/// Completers of a run under `scenario`, with this test in the place of LoadGen.
fn of_tokens(scenario: Scenario, verifier: Option<Arc<Verifier>>) -> Completers {
    let test = TestSettings {
        scenario,
        use_token_latencies: true,
        ..TestSettings::default()
    };
    let sizes = TokenSizes {
        input: 4,
        output: 4,
    };
    let tokens = Arc::new(Tokens::new(sizes, &test));
    let live = Arc::new(Live::new(1));
    let mut completers = Completers::new(live, verifier, Some(tokens), limits(&test));
    completers.loadgen = LoadGen {
        first_token: |r| tell("first", r),
        complete: |r| tell("all", r),
    };
    completers
}

fn bytes(tokens: &[i32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

fn part(id: u64, offset: u32, payload: &[u8], has_first_token: bool) -> ResponsePart<'_> {
    ResponsePart {
        id,
        index: id,
        offset,
        payload,
        has_first_token,
        losses: 0,
    }
}

fn answer(id: u64, payload: &[u8], whole: bool) -> Response<'_> {
    Response {
        id,
        index: id,
        connection: 0,
        payload,
        whole,
    }
}

fn take(c: &mut LoadgenCompleter, parts: &[ResponsePart<'_>], responses: &[Response<'_>]) {
    c.parts(&mut parts.iter().copied());
    c.complete(&mut responses.iter().copied());
}

#[test]
fn loadgen_hears_of_each_first_token_once_and_alone() {
    let completers = of_tokens(Scenario::Server, None);
    let mut c = completers.make(0);
    let (five, three) = (bytes(&[7, 8, 9, 10, 11]), bytes(&[1, 2, 3]));
    // Two tokens at once: only the first is reported. A later part is not reported, nor is the
    // first part of a repeated sample.
    take(&mut c, &[part(64, 0, &five[..8], true)], &[]);
    take(&mut c, &[part(64, 8, &five[8..12], false)], &[]);
    take(&mut c, &[part(64, 0, &five[..8], false)], &[]);
    assert_eq!(told(), [("first", 64, bytes(&[7]), 0)]);
    // The last part of the sample, and the whole answer of another.
    take(
        &mut c,
        &[],
        &[answer(64, &five, false), answer(128, &three, true)],
    );
    assert_eq!(
        told(),
        [
            ("first", 128, bytes(&[1]), 0),
            ("all", 64, five, 5),
            ("all", 128, three, 3)
        ]
    );
    drop(c);
    let left = completers.left();
    assert_eq!(
        (left[0].first_tokens, left[0].recorder.parts_taken()),
        (2, 3)
    );
    assert_eq!(completers.live.figures().parts, 3);
}

#[test]
fn a_sample_that_begins_again_and_again_does_not_feed_the_watchdog() {
    let completers = of_tokens(Scenario::Server, None);
    let mut c = completers.make(0);
    let token = bytes(&[7]);
    for losses in 0..20 {
        let part = ResponsePart {
            losses,
            ..part(64, 0, &token, losses == 0)
        };
        take(&mut c, &[part], &[]);
    }
    assert_eq!(completers.live.figures().parts, 4);
    drop(c);
    assert_eq!(completers.left()[0].recorder.parts_taken(), 20);
    told();
}

#[test]
fn loadgen_hears_the_true_count_straight_from_the_slot() {
    let completers = of_tokens(Scenario::Server, None);
    let mut c = completers.make(0);
    for n in [2usize, 3, 100, 1024] {
        let payload = bytes(&vec![5; n]);
        take(&mut c, &[], &[answer(n as u64 * 64, &payload, false)]);
        let told = told();
        assert_eq!((told.len(), told[0].3), (1, n as i64));
    }
    let batch = &mut Vec::new();
    let payload = bytes(&[4, 5]);
    let mut one = [answer(64, &payload, true)].into_iter();
    let first = &mut Vec::new();
    completers.gather(&mut one, first, batch);
    assert_eq!(batch[0].data().as_ptr(), payload.as_ptr(), "no copy");
    assert_eq!(first[0].data().as_ptr(), payload.as_ptr(), "no copy");
}

#[test]
fn offline_has_no_first_tokens() {
    let completers = of_tokens(Scenario::Offline, None);
    let mut c = completers.make(0);
    let two = bytes(&[1, 2]);
    take(
        &mut c,
        &[part(64, 0, &two[..4], true)],
        &[answer(64, &two, false)],
    );
    take(&mut c, &[], &[answer(128, &two, true)]);
    assert_eq!(told(), [("all", 64, two.clone(), 2), ("all", 128, two, 2)]);
}

#[test]
fn loadgen_hears_of_no_empty_answer_where_it_would_look_for_a_first_token() {
    for scenario in [Scenario::Server, Scenario::Offline] {
        let verifier = Arc::new(Verifier::tokens(200, true, |prompt| prompt.to_vec()));
        [64, 128].iter().for_each(|id| verifier.issued(*id));
        let completers = of_tokens(scenario, Some(verifier.clone()));
        completers.complete_empty(&[64, 128].map(sample));
        let empty = match scenario {
            Scenario::Offline => vec![("all", 64, vec![], 0), ("all", 128, vec![], 0)],
            _ => vec![],
        };
        assert_eq!(told(), empty, "{scenario:?}");
        assert_eq!(verifier.findings().counts.lost, 0, "they are accounted for");
    }
}

#[test]
fn only_server_limits_a_samples_token_times() {
    let mut test = TestSettings::default();
    (test.server_ttft_latency, test.server_tpot_latency) = (8, 9);
    let (ttft_ns, tpot_ns) = (8, 9);
    for measured in [false, true] {
        test.use_token_latencies = measured;
        for scenario in Scenario::ALL {
            test.scenario = scenario;
            let has_limits = measured && scenario == Scenario::Server;
            let expected = has_limits.then_some(TokenLimits { ttft_ns, tpot_ns });
            assert_eq!(limits(&test), expected, "{scenario:?}");
        }
    }
}

#[test]
fn loadgen_gets_an_answer_of_no_two_tokens_unchanged_and_after_a_first_token() {
    let completers = of_tokens(Scenario::Server, None);
    let mut c = completers.make(0);
    let one = bytes(&[9]);
    take(
        &mut c,
        &[],
        &[answer(64, &[], true), answer(128, &one, true)],
    );
    assert_eq!(
        told(),
        [
            ("first", 64, vec![], 0),
            ("first", 128, one.clone(), 0),
            ("all", 64, vec![], 0),
            ("all", 128, one, 1)
        ]
    );
    let tokens = completers.tokens.as_ref().expect("tokens");
    assert_eq!(tokens.findings().too_short, 2);
}

#[test]
fn loadgen_gets_no_second_first_token_where_answers_are_verified() {
    let verifier = Arc::new(Verifier::tokens(200, true, |prompt| prompt.to_vec()));
    verifier.loaded(64, &bytes(&[7, 8]));
    verifier.issued(64);
    let completers = of_tokens(Scenario::Server, Some(verifier.clone()));
    let mut c = completers.make(0);
    let two = bytes(&[7, 8]);
    let first = part(64, 0, &two[..4], true);
    take(&mut c, &[first, first], &[answer(64, &two, true)]);
    assert_eq!(told().len(), 2, "one first token and one answer");
    assert_eq!(verifier.findings().counts.duplicates, 2);
}

#[test]
fn nothing_is_allocated_for_parts_and_answers_once_there_is_room() {
    let completers = of_tokens(Scenario::Server, None);
    let mut c = completers.make(0);
    let two = bytes(&[1, 2]);
    let room = |c: &LoadgenCompleter| {
        let (a, b) = (&c.first_scratch, &c.scratch);
        (
            a.as_ptr() as usize,
            a.capacity(),
            b.as_ptr() as usize,
            b.capacity(),
        )
    };
    let before = room(&c);
    for _ in 0..10 {
        take(
            &mut c,
            &[part(64, 0, &two[..4], true)],
            &[answer(64, &two, false)],
        );
    }
    assert_eq!(room(&c), before, "the vectors keep their memory");
    told();
}
