//! Sessions against systems of known truth: the command in `docs/tune.md` runs 200 of each, this a
//! few of each with fixed seeds.

use std::collections::BTreeMap;

use tune::{
    Halt, Limit, Plan, Record, Replay, Session, Setting, System, Tell, Trial, Why,
    knobs::Knob,
    page::{self, Around},
    pretended::{ALL, CAPACITY, Kind, Pretended},
    random::seed,
    search::{Goal, Outcome},
    sprt::Word,
};

fn plan(first: f64) -> Plan {
    Plan {
        goal: Goal::from(first),
        seconds: 1.0,
        full_seconds: Some(1.0),
        budget_s: 400.0,
        seed: 5,
        knobs: Vec::new(),
        unit: "queries/s".to_owned(),
    }
}

fn kind(name: &str) -> Kind {
    *ALL.iter()
        .find(|k| k.name.contains(name))
        .expect("one of that name")
}

#[test]
fn nearly_all_sessions_end_right() {
    let (mut right, mut all, mut wrong) = (0, 0, Vec::new());
    for kind in ALL {
        for i in 0..2 {
            let mut system = Pretended::new(kind, seed(77, i));
            let first = CAPACITY * [0.05, 2.5][i as usize];
            let mut session = Session::new(plan(first));
            session.go(&mut system, &mut ());
            all += 1;
            if system.is_right(session.search.certified) {
                right += 1;
            } else {
                wrong.push((kind.name, session.line(), system.truths()));
            }
        }
    }
    assert!(right * 100 >= all * 95, "{right} of {all}: {wrong:?}");
}

#[test]
fn a_rate_is_certified_by_its_own_trials_and_confirmed_by_another() {
    let mut system = Pretended::new(kind("queue, noise 5 %"), 3);
    let mut session = Session::new(plan(CAPACITY / 3.0));
    session.go(&mut system, &mut ());
    let rate = session.search.certified.expect("a rate");
    assert_eq!(session.search.word(rate), Word::Certified);
    assert_eq!(session.search.outcome, Some(Outcome::Found));
    let last = session.trials.last().expect("trials");
    assert_eq!((last.why, last.setting.rate), (Why::Confirm, rate));
    let same = |t: &&Trial| t.setting.seed == last.setting.seed;
    assert_eq!(
        session.trials.iter().filter(same).count(),
        1,
        "seeds of its own"
    );
    // One trial in four near the limit is an anchor.
    let count = |why| session.trials.iter().filter(|t| t.why == why).count();
    let near = count(Why::Near) + count(Why::Certify) + count(Why::Anchor);
    assert!(
        count(Why::Anchor) >= near / 4 - 1,
        "{} of {near}",
        count(Why::Anchor)
    );
}

#[test]
fn drift_is_said_and_what_came_before_is_discarded() {
    let mut said = 0;
    for i in 0..4 {
        let mut system = Pretended::new(kind("8 % less"), seed(3, i));
        let mut session = Session::new(plan(CAPACITY / 2.0));
        session.go(&mut system, &mut ());
        said += usize::from(!session.search.drifts.is_empty());
        if session.search.epoch > 0 {
            let text = page::markdown(&session, &Around::default());
            assert!(
                text.contains("After trial") && text.contains("not in the fit"),
                "{text}"
            );
        }
    }
    assert!(said >= 2, "{said} of 4");
}

/// Fails behind so many trials.
struct Breaks<'a>(&'a mut Pretended, usize);

impl System for Breaks<'_> {
    fn run(&mut self, why: Why, setting: &Setting) -> Result<Record, Halt> {
        match self.1.checked_sub(1) {
            None => Err(Halt::Interrupted),
            Some(left) => {
                self.1 = left;
                self.0.run(why, setting)
            }
        }
    }
}

#[test]
fn a_session_that_was_broken_off_goes_on_as_if_it_had_not_been() {
    let kind = kind("queue, noise 10 %");
    let mut whole = Session::new(plan(CAPACITY / 3.0));
    whole.go(&mut Pretended::new(kind, 9), &mut ());
    let mut system = Pretended::new(kind, 9);
    let mut first = Session::new(plan(CAPACITY / 3.0));
    first.go(&mut Breaks(&mut system, 17), &mut ());
    assert_eq!(
        (first.halt.clone(), first.trials.len()),
        (Some(Halt::Interrupted), 17)
    );
    // It goes on with a larger budget: what has run keeps the part that it was.
    let mut second = Session::new(Plan {
        budget_s: 500.0,
        ..plan(CAPACITY / 3.0)
    });
    let mut replay = Replay::new(first.trials, &mut system);
    second.go(&mut replay, &mut ());
    assert_eq!(replay.replayed, 17);
    assert_eq!(second.trials[..17], whole.trials[..17]);
    let settings = |s: &Session| {
        s.trials
            .iter()
            .map(|t| t.setting.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(settings(&second), settings(&whole));
    assert_eq!(second.search.certified, whole.search.certified);
    // Another session's journal is no way on.
    let mut other = Session::new(plan(CAPACITY / 2.0));
    other.go(&mut Replay::new(second.trials, &mut system), &mut ());
    assert!(
        matches!(other.halt, Some(Halt::Unmeasured(_))),
        "{:?}",
        other.halt
    );
}

#[test]
fn a_budget_ends_it_with_what_is_known() {
    let mut session = Session::new(Plan {
        budget_s: 12.0,
        ..plan(CAPACITY / 3.0)
    });
    session.go(
        &mut Pretended::new(kind("shallow (power 1), noise 3 %"), 2),
        &mut (),
    );
    assert_eq!(session.halt, Some(Halt::Budget));
    assert!(session.spent_s <= 13.0, "{}", session.spent_s);
    assert!(session.line().contains("budget"), "{}", session.line());
}

/// A machine that does something else for so many runs: margins are sixty times as large then.
struct Elsewhere(Pretended, std::ops::Range<usize>);

impl System for Elsewhere {
    fn run(&mut self, why: Why, setting: &Setting) -> Result<Record, Halt> {
        let busy = self.1.contains(&self.0.runs);
        let mut record = self.0.run(why, setting)?;
        if busy {
            record.limits.iter_mut().for_each(|l| l.was *= 60.0);
            record.valid = record.limits.iter().all(|l| l.log_margin() <= 0.0);
        }
        Ok(record)
    }
}

#[test]
fn a_machine_that_was_busy_for_a_while_is_not_one_that_is_never_valid() {
    let mut right = 0;
    for i in 0..20 {
        let begins = 6 + i as usize;
        let kind = kind("engine of batches");
        let mut system = Elsewhere(Pretended::new(kind, seed(31, i)), begins..begins + 18);
        let mut session = Session::new(plan(CAPACITY / 5.0));
        session.go(&mut system, &mut ());
        assert_eq!(
            session.search.outcome,
            Some(Outcome::Found),
            "{}",
            session.line()
        );
        right += i32::from(system.0.is_right(session.search.certified));
    }
    assert!(right >= 18, "{right} of 20");
}

/// Small whole numbers: VALID up to 11, nearly always.
struct Whole;

impl System for Whole {
    fn run(&mut self, _: Why, setting: &Setting) -> Result<Record, Halt> {
        assert_eq!(setting.rate.fract(), 0.0);
        let limit = Limit {
            name: "p99 query latency".to_owned(),
            was: setting.rate,
            bound: 11.4,
        };
        Ok(Record {
            valid: limit.log_margin() <= 0.0,
            limits: vec![limit],
            cost_s: 1.0,
            ..Record::default()
        })
    }
}

#[test]
fn whole_numbers_are_found_exactly() {
    for first in [1.0, 8.0, 40.0] {
        let goal = Goal {
            whole: true,
            least: 1.0,
            ..Goal::from(first)
        };
        let mut session = Session::new(Plan { goal, ..plan(8.0) });
        session.go(&mut Whole, &mut ());
        assert_eq!(
            session.search.certified,
            Some(11.0),
            "from {first}: {}",
            session.line()
        );
        assert_eq!(session.search.word(12.0), Word::Refuted);
    }
}

/// Offline's expected rate: runs are long enough from 5000 on, give or take 1 %.
struct Expected(u64);

impl System for Expected {
    fn run(&mut self, _: Why, setting: &Setting) -> Result<Record, Halt> {
        self.0 += 1;
        let noise = tune::random::Random(seed(1, self.0)).normal() * 0.01;
        let limit = Limit {
            name: "duration".to_owned(),
            was: 5000.0 * noise.exp(),
            bound: setting.rate,
        };
        Ok(Record {
            valid: limit.log_margin() <= 0.0,
            limits: vec![limit],
            cost_s: 1.0,
            ..Record::default()
        })
    }
}

#[test]
fn the_least_rate_to_expect_is_found_from_either_side() {
    for first in [100.0, 50_000.0] {
        let goal = Goal {
            falling: true,
            ..Goal::from(first)
        };
        let mut session = Session::new(Plan { goal, ..plan(8.0) });
        session.go(&mut Expected(0), &mut ());
        let rate = session
            .search
            .certified
            .unwrap_or_else(|| panic!("{}", session.line()));
        let truth = 5000.0 * (1.2816_f64 * 0.01).exp();
        assert!((truth..truth * 1.033).contains(&rate), "{rate} for {truth}");
    }
}

/// A queue whose capacity goes by one knob, and not by another.
struct Knobs(Pretended);

impl System for Knobs {
    fn run(&mut self, why: Why, setting: &Setting) -> Result<Record, Halt> {
        let slots = setting
            .knobs
            .get("slots")
            .map_or(4.0, |s| s.parse().unwrap_or(4.0));
        let part = if slots < 16.0 { 0.25 } else { 1.0 };
        let setting = Setting {
            rate: setting.rate / part,
            ..setting.clone()
        };
        self.0.run(why, &setting)
    }
}

#[derive(Default)]
struct Notes(Vec<String>);

impl Tell for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

#[test]
fn a_knob_that_matters_is_turned_and_the_rate_is_that_of_the_turned_one() {
    let knob = |key: &str, values: [&str; 3]| Knob {
        key: key.to_owned(),
        now: values[0].to_owned(),
        values: values.map(str::to_owned).to_vec(),
    };
    let mut session = Session::new(Plan {
        knobs: vec![
            knob("slots", ["4", "8", "16"]),
            knob("spin", ["50", "0", "200"]),
        ],
        ..plan(CAPACITY / 8.0)
    });
    let mut notes = Notes::default();
    let mut system = Knobs(Pretended::new(kind("queue, noise 5 %"), 4));
    session.go(&mut system, &mut notes);
    let chosen = BTreeMap::from([("slots".to_owned(), "16".to_owned())]);
    assert_eq!(session.chosen, chosen, "{:?}", notes.0);
    assert!(
        system.0.is_right(session.search.certified),
        "{}",
        session.line()
    );
    let text = page::markdown(&session, &Around::default());
    assert!(
        text.contains("Left as they are") && text.contains("spin (50)"),
        "{text}"
    );
    let html = page::html(&session, &Around::default());
    assert!(html.contains("<svg") && !html.contains("<script"));
}
