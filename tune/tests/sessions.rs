//! Sessions on systems of known truth, with fixed seeds.

use std::collections::BTreeMap;

use fastrand::Rng;
use tune::{
    Halt, Knob, RateKind, Session, SessionPlan, TrialLimit, TrialRecord, TrialRunner, TrialSetting,
};

/// Queries per second.
const CAPACITY: f64 = 10_000.0;

/// A margin's logarithm (percentile over bound) by load, its noise, and the runs in a hundred with
/// three times the margin.
type Shape = (fn(f64) -> f64, f64, f64);

fn queue(load: f64) -> f64 {
    -(1.0 - load).max(0.002).ln() - 10_f64.ln() + 20.0 * (load - 0.998).max(0.0)
}

const QUEUE: Shape = (queue, 0.05, 0.0);
const NOISY: Shape = (queue, 0.2, 0.0);
const DISTURBED: Shape = (queue, 0.05, 4.0);
const WALL: Shape = (|load| if load <= 1.0 { -2.3 } else { 3.5 }, 0.2, 0.0);
const SQUARE: Shape = (|load| 2.0 * load.ln(), 0.05, 0.0);
/// Latencies hardly move up to eight tenths of the capacity.
const ENGINE: Shape = (|load| -2.3 + 20.0 * (load - 0.8).max(0.0), 0.5, 3.0);

/// A system of a shape. More `slots` double its capacity, too many do not start.
struct Pretended {
    shape: Shape,
    random: Rng,
    /// Queries that early stopping asks for.
    least: u64,
    tried: Vec<TrialSetting>,
}

impl Pretended {
    fn new(shape: Shape, seed: u64) -> Self {
        let (random, least, tried) = (Rng::with_seed(seed), 0, Vec::new());
        Pretended {
            shape,
            random,
            least,
            tried,
        }
    }

    fn margin(&mut self, rate: f64) -> f64 {
        let (curve, noise, disturbed) = self.shape;
        // The sum of twelve is near enough to a normal distribution.
        let normal = (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0;
        let disturbed = self.random.f64() * 100.0 < disturbed;
        (curve(rate / CAPACITY) + noise * normal).exp() * if disturbed { 3.0 } else { 1.0 }
    }

    /// The highest rate at which so many of a hundred runs are VALID.
    fn limit(&mut self, percent: usize) -> f64 {
        let (mut low, mut high) = (CAPACITY / 20.0, CAPACITY * 2.0);
        for _ in 0..12 {
            let rate = (low * high).sqrt();
            let valid = (0..2000).filter(|_| self.margin(rate) <= 1.0).count();
            let end = if valid >= 20 * percent {
                &mut low
            } else {
                &mut high
            };
            *end = rate;
        }
        low
    }
}

impl TrialRunner for Pretended {
    fn run(&mut self, setting: &TrialSetting, _: &str) -> Result<TrialRecord, Halt> {
        self.tried.push(setting.clone());
        let slots = setting.knobs.get("slots").map(String::as_str);
        if slots == Some("512") {
            return Ok(TrialRecord::default());
        }
        let mut record = TrialRecord::default();
        let was = self.margin(setting.rate / if slots == Some("128") { 2.0 } else { 1.0 });
        let queries = setting.samples.max((setting.rate * setting.seconds) as u64);
        let short = was <= 1.0 && queries < self.least;
        let name = "p99 latency".to_owned();
        record.limits.push(TrialLimit {
            name,
            was,
            bound: 1.0,
        });
        record.valid = was <= 1.0 && !short;
        record.needs = short.then_some(self.least);
        record.cost_s = (queries as f64 / setting.rate).max(1.0);
        Ok(record)
    }
}

fn plan(first: f64) -> SessionPlan {
    SessionPlan {
        first,
        least: first / 1000.0,
        most: first * 1000.0,
        near: 1.03,
        seconds: 1.0,
        samples: 1,
        full_seconds: Some(1.0),
        budget_s: 400.0,
        ..SessionPlan::default()
    }
}

fn session(plan: SessionPlan, system: &mut dyn TrialRunner) -> Session {
    let mut session = Session::new(plan);
    session.go(system);
    session
}

#[test]
fn nearly_all_sessions_end_where_most_runs_are_valid_and_not_far_below() {
    let (mut all, mut wrong) = (0, Vec::new());
    let shapes = [QUEUE, NOISY, DISTURBED, WALL, SQUARE, ENGINE];
    for (i, shape) in shapes.into_iter().enumerate() {
        let mut system = Pretended::new(shape, 1);
        let (sure, poor) = (system.limit(90), system.limit(60));
        for seed in 0..20 {
            let plan = plan(CAPACITY * [0.05, 0.6, 2.5][seed as usize % 3]);
            let session = session(plan, &mut Pretended::new(shape, seed));
            let found = session.found().unwrap_or(0.0);
            all += 1;
            if found < sure / 1.05 || found > poor * 1.01 {
                wrong.push((i, found, sure, poor));
            }
        }
    }
    assert!(
        wrong.len() * 20 <= all,
        "{} of {all}: {wrong:?}",
        wrong.len()
    );
}

#[test]
fn a_trial_that_is_too_short_is_lengthened_and_the_search_never_goes_down_for_it() {
    let mut system = Pretended::new(QUEUE, 3);
    system.least = 459;
    let mut plan = plan(100.0);
    (plan.seconds, plan.samples) = (0.1, 100);
    let session = session(plan, &mut system);
    let tried = system.tried;
    assert!(tried.iter().all(|t| t.rate >= 100.0), "{}", session.line());
    assert_eq!((tried[0].samples, tried[1].samples), (100, 573));
    let rate = session.found().expect("a rate");
    assert!((0.85 * CAPACITY..0.93 * CAPACITY).contains(&rate), "{rate}");
    let last = tried.last().expect("trials");
    assert_eq!((last.full, last.rate), (true, rate));
    let same = tried.iter().filter(|t| t.seed == last.seed);
    assert_eq!(same.count(), 1, "a seed of its own");
}

#[test]
fn a_budget_ends_with_the_certified_rate_or_with_the_best_so_far() {
    for (budget_s, certified) in [(6.0, false), (24.0, true)] {
        let mut plan = plan(CAPACITY / 3.0);
        plan.budget_s = budget_s;
        let session = session(plan, &mut Pretended::new(QUEUE, 2));
        let line = session.line();
        let begin = if certified {
            "certified"
        } else {
            "best so far: 6667 queries/s, VALID 1"
        };
        assert!(
            line.starts_with(begin) && line.contains("--budget-min 1 with"),
            "{line}"
        );
        assert_eq!(session.full().is_some(), certified, "{line}");
        // The full run may begin after the last certifying trial.
        assert!(session.spent_s <= budget_s + 1.0, "{}", session.spent_s);
    }
}

#[test]
fn a_value_that_gives_a_higher_rate_is_kept_and_others_are_left() {
    let knob = |key: &str, values: [&str; 3]| Knob {
        key: key.to_owned(),
        now: "auto".to_owned(),
        values: values.map(str::to_owned).to_vec(),
    };
    let mut plan = plan(CAPACITY / 8.0);
    plan.knobs.push(knob("slots", ["auto", "128", "512"]));
    plan.knobs.push(knob("spin", ["auto", "0", "9"]));
    let session = session(plan, &mut Pretended::new(QUEUE, 4));
    let changed = BTreeMap::from([("slots".to_owned(), "128".to_owned())]);
    assert_eq!(session.changed(), changed);
    let rate = session.found().expect("a rate");
    assert!((1.7 * CAPACITY..1.86 * CAPACITY).contains(&rate), "{rate}");
    let mut searches = session.searches.iter();
    let best = searches.find(|s| s.knobs == changed).expect("a search");
    assert_eq!(best.found, Some(rate));
    let mut tallies = best.tallies.iter();
    assert!(tallies.any(|t| t.word.as_str() == "refuted" && t.held() == 0));
}

/// VALID up to 1,000 queries/s, the full run up to `full`. Offline: 5,000 samples/s, give or take
/// 1 %, in the full run `full`.
struct FullRunDiffers {
    kind: RateKind,
    full: f64,
    random: Rng,
}

impl FullRunDiffers {
    fn new(kind: RateKind, full: f64) -> Self {
        let random = Rng::with_seed(1);
        FullRunDiffers { kind, full, random }
    }
}

impl TrialRunner for FullRunDiffers {
    fn run(&mut self, setting: &TrialSetting, _: &str) -> Result<TrialRecord, Halt> {
        let limit = match self.kind {
            _ if setting.full => self.full,
            RateKind::Server => 1000.0,
            RateKind::Offline => 4950.0 + 100.0 * self.random.f64(),
        };
        let mut record = TrialRecord::default();
        (record.achieved, record.cost_s) = (limit, 1.0);
        record.reason = "too slow".to_owned();
        record.valid = match self.kind {
            RateKind::Server => setting.rate <= limit,
            RateKind::Offline => setting.rate >= limit,
        };
        Ok(record)
    }
}

#[test]
fn full_runs_step_away_from_a_rate_that_fails_until_one_is_valid() {
    for (kind, first, full, range) in [
        (RateKind::Server, 700.0, 930.0, 902.0..930.1),
        (RateKind::Server, 700.0, 1000.0, 970.0..1000.1),
        (RateKind::Offline, 6000.0, 7000.0, 7000.0..7702.0),
        (RateKind::Offline, 100.0, 5000.0, 5000.0..6200.0),
        (RateKind::Offline, 50_000.0, 5000.0, 5000.0..6200.0),
    ] {
        let mut plan = plan(first);
        (plan.kind, plan.least) = (kind, 1.0);
        let session = session(plan, &mut FullRunDiffers::new(kind, full));
        let line = session.line();
        let confirmed = session.confirmed().unwrap_or(0.0);
        assert!(range.contains(&confirmed), "{kind:?} from {first}: {line}");
        let found = session.found().expect("a certified rate");
        let words = format!("certified: {confirmed} {}", kind.unit());
        assert!(line.starts_with(&words), "{line}");
        let fails = line.ends_with(&format!("at {found} INVALID"));
        assert_eq!(fails, found != confirmed, "{line}");
    }
}

#[test]
fn a_rate_is_not_confirmed_where_the_budget_or_the_bounds_end_the_full_runs() {
    for (least, budget_s, words) in [(900.0, 400.0, "at 90"), (1.0, 30.0, "--budget-min 1")] {
        let mut plan = plan(910.0);
        (plan.least, plan.budget_s) = (least, budget_s);
        let session = session(plan, &mut FullRunDiffers::new(RateKind::Server, 0.0));
        let line = session.line();
        assert_eq!(session.confirmed(), None, "{line}");
        assert!(session.found().is_some_and(|rate| rate > 900.0), "{line}");
        let begin = "not confirmed: the full run at ";
        assert!(line.starts_with(begin) && line.contains(words), "{line}");
        assert!(line.contains("too slow"), "{line}");
        assert!(session.spent_s <= budget_s + 1.0, "{}", session.spent_s);
        let full = session.finished.iter().filter(|t| t.setting.full);
        assert!(full.count() > 2, "{line}");
    }
}

#[test]
fn an_offline_run_that_a_higher_rate_does_not_mend_ends_the_search_with_its_reason() {
    struct Broken;
    impl TrialRunner for Broken {
        fn run(&mut self, _: &TrialSetting, _: &str) -> Result<TrialRecord, Halt> {
            let mut record = TrialRecord::default();
            (record.achieved, record.reason) = (90.0, "an error".to_owned());
            Ok(record)
        }
    }
    let mut plan = plan(100.0);
    plan.kind = RateKind::Offline;
    let session = session(plan, &mut Broken);
    assert_eq!(session.finished.len(), 1);
    let why = "the last trial that failed, at 100: INVALID: an error";
    assert_eq!(session.limit(), [why]);
}
