//! A session: rough searches and knobs in turns, the search itself, and one full run.

use std::collections::BTreeMap;

use crate::{
    fit,
    knobs::{self, Compared, Knob},
    random,
    search::{Goal, Outcome, Search, State},
    sprt::Word,
    system::{Halt, Record, Setting, System, Tell, Trial, Why},
};

/// What a session is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What is searched for.
    pub goal: Goal,
    /// Seconds of a trial.
    pub seconds: f64,
    /// Seconds of the run that confirms; none: nothing is confirmed.
    pub full_seconds: Option<f64>,
    /// What all trials may cost, in seconds.
    pub budget_s: f64,
    /// Of all random numbers.
    pub seed: u64,
    /// Knobs that may be turned.
    pub knobs: Vec<Knob>,
    /// How the rate is called: `queries/s`.
    pub unit: String,
}

/// What a session knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// What it is to do.
    pub plan: Plan,
    /// Everything that ran.
    pub trials: Vec<Trial>,
    /// Rough searches.
    pub rough: Vec<State>,
    /// Rounds of comparing knobs.
    pub compared: Vec<Vec<Compared>>,
    /// Knobs that are better turned.
    pub chosen: BTreeMap<String, String>,
    /// The search.
    pub search: State,
    /// The full run.
    pub confirmed: Option<Record>,
    /// What all of it has cost, in seconds.
    pub spent_s: f64,
    /// What ended it before its time.
    pub halt: Option<Halt>,
}

/// The part of the budget that knobs may take.
const KNOBS: f64 = 0.6;
/// Rounds of comparing knobs.
const ROUNDS: usize = 6;
/// A full run costs so much more than its seconds, at most.
const FULL: f64 = 1.2;

impl Session {
    /// Nothing has run.
    pub fn new(plan: Plan) -> Self {
        Session {
            plan,
            trials: Vec::new(),
            rough: Vec::new(),
            compared: Vec::new(),
            chosen: BTreeMap::new(),
            search: State::default(),
            confirmed: None,
            spent_s: 0.0,
            halt: None,
        }
    }

    /// Runs all of it, or as much as there is time for.
    pub fn go(&mut self, system: &mut dyn System, tell: &mut dyn Tell) {
        let full = self.plan.full_seconds.map_or(0.0, |s| s * FULL);
        let all = self.plan.budget_s;
        let mut outcome = Ok(());
        if !self.plan.knobs.is_empty() {
            let until = (all - full) * KNOBS;
            outcome = self.turn_knobs(system, tell, until);
        }
        if !matches!(outcome, Err(Halt::Interrupted | Halt::Unmeasured(_))) {
            let goal = Goal {
                first: self.roughly().unwrap_or(self.plan.goal.first),
                ..self.plan.goal.clone()
            };
            let mut state = State::default();
            outcome = self.search(system, tell, &goal, &mut state, (all - full).max(1.0));
            self.search = state;
        }
        if outcome == Err(Halt::Budget) {
            self.search.certified = self.search.certified.or_else(|| self.next_best());
        }
        if !matches!(outcome, Err(Halt::Interrupted | Halt::Unmeasured(_)))
            && let (Some(rate), Some(seconds)) = (self.search.certified, self.plan.full_seconds)
        {
            let confirmed = self.confirm(system, tell, rate, seconds);
            outcome = outcome.and(confirmed);
        }
        self.halt = outcome.err();
    }

    /// Where the last rough search saw the limit.
    fn roughly(&self) -> Option<f64> {
        let estimate = self.rough.last()?.estimate.as_ref()?;
        Some(self.plan.goal.rate(estimate.x))
    }

    /// Where the budget came first: the best rate that trials certify and the fit does not
    /// contradict.
    fn next_best(&self) -> Option<f64> {
        let x = |rate: f64| self.plan.goal.x(rate);
        let most = self
            .search
            .estimate
            .as_ref()
            .map_or(f64::MAX, |e| e.x - 2.0 * e.error);
        let words = self.search.words();
        let sound = words
            .iter()
            .filter(|w| w.1 == Word::Certified && x(w.0) <= most);
        sound.map(|w| w.0).max_by(|a, b| x(*a).total_cmp(&x(*b)))
    }

    fn search(
        &mut self,
        system: &mut dyn System,
        tell: &mut dyn Tell,
        goal: &Goal,
        state: &mut State,
        until: f64,
    ) -> Result<(), Halt> {
        let knobs = self.chosen.clone();
        let mut drifts = 0;
        let mut run = |why, rate, state: &State| {
            for drift in &state.drifts[drifts..] {
                tell.note(&format!(
                    "drift: {}; what came before is discarded",
                    drift.what
                ));
            }
            drifts = state.drifts.len();
            let seed = random::seed(self.plan.seed, self.trials.len() as u64);
            let believes = believes(goal, state, &self.plan.unit);
            let setting = self.setting(rate, &knobs, seed);
            let record = self.trial(system, tell, why, setting, until, &believes)?;
            let part = record.part.unwrap_or(1.0);
            Ok((self.trials.len(), record, part))
        };
        Search::new(goal, state, &mut run).go()
    }

    fn setting(&self, rate: f64, knobs: &BTreeMap<String, String>, seed: u64) -> Setting {
        Setting {
            rate,
            knobs: knobs.clone(),
            seconds: self.plan.seconds,
            seed,
        }
    }

    fn trial(
        &mut self,
        system: &mut dyn System,
        tell: &mut dyn Tell,
        why: Why,
        setting: Setting,
        until: f64,
        believes: &str,
    ) -> Result<Record, Halt> {
        let costs = self.trials.last().map_or(0.0, |t| t.record.cost_s);
        if self.spent_s + costs > until {
            return Err(Halt::Budget);
        }
        let mut record = system.run(why, &setting)?;
        self.spent_s += record.cost_s;
        record.part.get_or_insert(self.spent_s / until);
        let trial = Trial {
            number: self.trials.len() + 1,
            why,
            setting,
            record: record.clone(),
        };
        tell.trial(&trial, believes);
        self.trials.push(trial);
        Ok(record)
    }

    /// Searches roughly, compares, turns what is better, and again until nothing is.
    fn turn_knobs(
        &mut self,
        system: &mut dyn System,
        tell: &mut dyn Tell,
        until: f64,
    ) -> Result<(), Halt> {
        let mut knobs = self.plan.knobs.clone();
        for _ in 0..ROUNDS {
            let goal = Goal {
                first: self.roughly().unwrap_or(self.plan.goal.first),
                rough: true,
                ..self.plan.goal.clone()
            };
            let mut state = State::default();
            let outcome = self.search(system, tell, &goal, &mut state, until);
            let known = state.estimate.clone();
            self.rough.push(state);
            outcome?;
            let Some(known) = known else {
                return Ok(());
            };
            let mut found = Vec::new();
            let outcome = self.compare(system, tell, &knobs, &known, until, &mut found);
            let better: Vec<Compared> = found.iter().filter(|c| c.better).cloned().collect();
            self.compared.push(found);
            outcome?;
            if better.is_empty() {
                tell.note("knobs: nothing else makes a difference; the rest stays as it is");
                return Ok(());
            }
            for c in better {
                tell.note(&format!(
                    "knobs: {} {} is better than {} in {} of {} pairs",
                    c.key,
                    c.value,
                    c.with,
                    c.wins(),
                    c.gains.len()
                ));
                self.chosen.insert(c.key.clone(), c.value.clone());
                knobs
                    .iter_mut()
                    .filter(|k| k.key == c.key)
                    .for_each(|k| k.now.clone_from(&c.value));
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        system: &mut dyn System,
        tell: &mut dyn Tell,
        knobs: &[Knob],
        known: &fit::Estimate,
        until: f64,
        found: &mut Vec<Compared>,
    ) -> Result<(), Halt> {
        // A little above the limit: there margins tell most.
        let rate = self.plan.goal.rate(known.x + 0.02);
        let held = self.chosen.clone();
        let round = self.compared.len() as u64;
        let mut run = |turned: &BTreeMap<String, String>, block: usize| {
            let mut knobs = held.clone();
            knobs.extend(turned.clone());
            let seed = random::seed(self.plan.seed ^ 0x7061_6972, round * 100 + block as u64);
            let setting = self.setting(rate, &knobs, seed);
            let words: Vec<_> = turned.iter().map(|(k, v)| format!("{k} {v}")).collect();
            let as_is = words.is_empty();
            let believes = format!(
                "knobs at {rate}: block {}, {}",
                block + 1,
                if as_is {
                    "as it is".to_owned()
                } else {
                    words.join(", ")
                }
            );
            let record = self.trial(system, tell, Why::Pair, setting, until, &believes)?;
            Ok(record.log_margin())
        };
        knobs::compare(knobs, known.slope.min(20.0), found, &mut run)
    }

    /// One full run with a seed of its own.
    fn confirm(
        &mut self,
        system: &mut dyn System,
        tell: &mut dyn Tell,
        rate: f64,
        seconds: f64,
    ) -> Result<(), Halt> {
        let seed = random::seed(self.plan.seed ^ 0x0066_756c_6c00, 1);
        let setting = Setting {
            seconds,
            ..self.setting(rate, &self.chosen.clone(), seed)
        };
        let believes = format!("the full run at {rate} {}", self.plan.unit);
        let record = self.trial(system, tell, Why::Confirm, setting, f64::MAX, &believes)?;
        self.confirmed = Some(record);
        Ok(())
    }

    /// How it came out, in one line.
    pub fn line(&self) -> String {
        let unit = &self.plan.unit;
        let s = &self.search;
        let mut text = match (s.certified, s.outcome) {
            (Some(rate), _) => format!("certified: {rate} {unit}"),
            (None, Some(Outcome::Never)) => {
                format!(
                    "not VALID even at {} {unit}: refuted there",
                    self.plan.goal.least
                )
            }
            (None, Some(Outcome::Endless)) => {
                format!(
                    "VALID even at {} {unit}, above which nothing was tried",
                    self.plan.goal.most
                )
            }
            (None, _) => "no rate is certified".to_owned(),
        };
        if let Some(e) = s.estimate.as_ref().filter(|_| s.certified.is_none()) {
            text += &format!("; {}", limit(&self.plan.goal, e, unit));
        }
        if s.certified.is_some() && s.outcome.is_none() {
            text += "; the budget did not let the limit be found as near as was wanted";
        }
        match &self.confirmed {
            Some(record) if record.valid => text += "; the full run is VALID",
            Some(_) => text += "; the full run is INVALID: the rate is not confirmed",
            None => {}
        }
        match &self.halt {
            None => {}
            Some(Halt::Interrupted) => text += "; interrupted",
            Some(Halt::Budget) => text += "; the budget is spent",
            Some(Halt::Unmeasured(why)) => {
                text += &format!("; ended by a trial that did not measure: {why}")
            }
        }
        text
    }
}

/// Where the limit is, with what it may be off.
pub fn limit(goal: &Goal, e: &fit::Estimate, unit: &str) -> String {
    format!(
        "limit near {} {unit} +- {:.1} %",
        goal.rate(e.x),
        200.0 * e.error
    )
}

/// What a search believes, in one line.
fn believes(goal: &Goal, state: &State, unit: &str) -> String {
    let Some(e) = state
        .estimate
        .as_ref()
        .filter(|e| e.x.is_finite() && e.error < 0.5)
    else {
        let curve = fit::isotonic(&state.points());
        let shown =
            |step: Option<fit::Step>| step.map_or("?".to_owned(), |s| goal.rate(s.x).to_string());
        let (below, above) = fit::crossing(&curve);
        return format!("limit between {} and {} {unit}", shown(below), shown(above));
    };
    let last = state.seen.last().filter(|s| s.why == Why::Certify);
    let word = last.map_or(String::new(), |s| {
        format!("; {} {}", s.rate, state.word(s.rate).as_str())
    });
    limit(goal, e, unit) + &word
}
