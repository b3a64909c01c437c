//! A session: the search for the rate, the values of each key in turn, and one full run.

use std::collections::BTreeMap;

use crate::{
    highest::{Highest, Tally, four_figures},
    sprt::Decision,
    system::{FinishedTrial, Halt, TrialRecord, TrialRunner, TrialSetting},
};

/// The scenario, which gives the rate its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateKind {
    /// Queries per second.
    #[default]
    Server,
    /// LoadGen's expected samples per second, which determine the size of Offline's one query. If
    /// the query is too small, the run is INVALID, and the rate must rise.
    Offline,
}

impl RateKind {
    /// LoadGen's name of the scenario.
    pub fn name(self) -> &'static str {
        match self {
            RateKind::Server => "Server",
            RateKind::Offline => "Offline",
        }
    }

    /// The unit of the rate.
    pub fn unit(self) -> &'static str {
        match self {
            RateKind::Server => "queries/s",
            RateKind::Offline => "samples/s expected",
        }
    }
}

/// A configuration key and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Knob {
    /// The key, as `nics[].connections`.
    pub key: String,
    /// The key's value in the configuration.
    pub now: String,
    /// The values to try.
    pub values: Vec<String>,
}

/// The task of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionPlan {
    /// The scenario.
    pub kind: RateKind,
    /// Rate of the first trial.
    pub first: f64,
    /// The lowest rate to try.
    pub least: f64,
    /// The highest rate to try.
    pub most: f64,
    /// Resolution, a factor above 1. The search ends when a rate at most this factor above the
    /// result fails. The session keeps a key's new value if the rate rises by this factor.
    pub near: f64,
    /// Duration of a trial, in seconds.
    pub seconds: f64,
    /// Minimum number of queries of a trial.
    pub samples: u64,
    /// Duration of the full run in seconds; `None` for no full run.
    pub full_seconds: Option<f64>,
    /// Budget for the cost of all trials, in seconds.
    pub budget_s: f64,
    /// Seed from which each trial's seed derives.
    pub seed: u64,
    /// Keys whose values are compared.
    pub knobs: Vec<Knob>,
}

/// The result of one search for the highest rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchResult {
    /// Keys that differ from the configuration, with their values; empty in the first search.
    pub knobs: BTreeMap<String, String>,
    /// The tried rates.
    pub tallies: Vec<Tally>,
    /// The certified rate.
    pub found: Option<f64>,
    /// Offline: mean samples per second completed at the last rate.
    achieved: f64,
}

impl SearchResult {
    /// The highest rate that has a VALID trial and is not refuted.
    fn best(&self) -> Option<&Tally> {
        let holds = |t: &&Tally| t.word != Decision::Refuted && t.held() > 0;
        self.tallies.iter().rev().find(holds)
    }
}

/// A session and its results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// The session's task.
    pub plan: SessionPlan,
    /// The searches: first with the unchanged configuration, then with other values of the keys.
    pub searches: Vec<SearchResult>,
    best: Option<usize>,
    /// Rate and record of the last INVALID trial of the unchanged configuration.
    pub invalid: Option<(f64, TrialRecord)>,
    /// The trials so far, in order.
    pub finished: Vec<FinishedTrial>,
    /// Cost of all trials, in seconds.
    pub spent_s: f64,
    /// Why the session ended early.
    pub halt: Option<Halt>,
    last_cost_s: f64,
}

/// Estimated cost of the full run, as a multiple of the run's duration.
const FULL: f64 = 1.2;
/// First step of a search with a changed key, as a factor of the rate.
const STEP: f64 = 1.25;
/// Offline: next expected rate as a multiple of the completed rate, so that a run is long enough.
const EXPECT: f64 = 1.1;
/// How often a trial runs again with more queries.
const LENGTHENED: usize = 3;

impl Session {
    /// A session without trials.
    pub fn new(plan: SessionPlan) -> Self {
        let none = Session::default();
        Session { plan, ..none }
    }

    /// Runs the session until it ends or `system` halts it.
    pub fn go(&mut self, system: &mut dyn TrialRunner) {
        self.halt = self.search_all(system).err();
        let spent = matches!(self.halt, None | Some(Halt::Budget));
        if let (true, Some(at), Some(_)) = (spent, self.best, self.plan.full_seconds)
            && let Err(halt) = self.confirm(system, at)
        {
            self.halt = Some(halt);
        }
    }

    /// Full runs: the first at the certified rate, each further one a step away, until one is
    /// VALID.
    fn confirm(&mut self, system: &mut dyn TrialRunner, at: usize) -> Result<(), Halt> {
        let mut next = self.searches[at].found;
        while let Some(rate) = next {
            let record = self.trial(system, at, true, rate)?;
            next = self.step(rate, &record).filter(|_| !record.valid);
        }
        Ok(())
    }

    /// The rate to try after an INVALID trial; `None` without a rate that may hold.
    fn step(&self, rate: f64, record: &TrialRecord) -> Option<f64> {
        let plan = &self.plan;
        match plan.kind {
            RateKind::Server => Some(four_figures(rate / plan.near)).filter(|r| *r >= plan.least),
            // LoadGen makes a tenth more samples than expected, so a run at or above the completed
            // rate is long enough: a higher rate does not mend it.
            RateKind::Offline if record.achieved <= rate => None,
            RateKind::Offline => {
                let next = (EXPECT * record.achieved).ceil().min(plan.most);
                Some(next).filter(|next| *next > rate)
            }
        }
    }

    /// The last full run.
    pub fn full(&self) -> Option<&FinishedTrial> {
        self.finished.iter().rfind(|trial| trial.setting.full)
    }

    /// The rate of the VALID full run; in a plan without a full run, the certified rate.
    pub fn confirmed(&self) -> Option<f64> {
        let full = self.full().filter(|full| full.record.valid);
        match self.plan.full_seconds {
            Some(_) => full.map(|full| full.setting.rate),
            None => self.found(),
        }
    }

    /// The certified rate.
    pub fn found(&self) -> Option<f64> {
        self.searches[self.best?].found
    }

    /// The changed keys and values of the best search.
    pub fn changed(&self) -> BTreeMap<String, String> {
        let best = self.best.map(|best| self.searches[best].knobs.clone());
        best.unwrap_or_default()
    }

    fn search_all(&mut self, system: &mut dyn TrialRunner) -> Result<(), Halt> {
        self.search(system, BTreeMap::new())?;
        for knob in self.plan.knobs.clone() {
            for value in knob.values.iter().filter(|value| **value != knob.now) {
                if self.found().is_none_or(|rate| rate >= self.plan.most) {
                    return Ok(());
                }
                let mut knobs = self.changed();
                knobs.insert(knob.key.clone(), value.clone());
                self.search(system, knobs)?;
            }
        }
        Ok(())
    }

    fn search(
        &mut self,
        system: &mut dyn TrialRunner,
        knobs: BTreeMap<String, String>,
    ) -> Result<(), Halt> {
        let at = self.searches.len();
        let new = SearchResult::default();
        self.searches.push(SearchResult { knobs, ..new });
        let offline = self.plan.kind == RateKind::Offline;
        let ended = match offline {
            true => self.expected(system, at),
            false => self.highest(system, at),
        };
        let new = &self.searches[at];
        let best = self.best.map(|best| &self.searches[best]);
        // Except in Offline, any result is better: the search began above the best rate.
        let beats = |best: &SearchResult| !offline || new.achieved > best.achieved * self.plan.near;
        if new.found.is_some() && best.is_none_or(beats) {
            self.best = Some(at);
        }
        ended
    }

    fn highest(&mut self, system: &mut dyn TrialRunner, at: usize) -> Result<(), Halt> {
        let plan = &self.plan;
        let beat = self.found();
        let beat = beat.map(|rate| four_figures(rate * plan.near).min(plan.most));
        let (first, least) = (beat.unwrap_or(plan.first), beat.unwrap_or(plan.least));
        let mut search = Highest {
            least,
            most: plan.most,
            near: plan.near,
            ..Highest::new(first)
        };
        if beat.is_some() {
            search.step = STEP;
        }
        while let Some(rate) = search.next() {
            let record = self.trial(system, at, false, rate)?;
            search.tell(record.valid);
            self.searches[at].tallies = search.tallies.clone();
            self.searches[at].found = search.found();
        }
        Ok(())
    }

    /// Offline: sets LoadGen's expected rate by the completed rate, until runs are long enough.
    fn expected(&mut self, system: &mut dyn TrialRunner, at: usize) -> Result<(), Halt> {
        let mut tally = Tally::at(self.found().unwrap_or(self.plan.first));
        loop {
            let rate = tally.rate;
            let record = self.trial(system, at, false, rate)?;
            tally.add(record.valid);
            let searched = &mut self.searches[at];
            searched.achieved += (record.achieved - searched.achieved) / tally.trials.len() as f64;
            searched.tallies.retain(|t| t.rate != rate);
            searched.tallies.push(tally.clone());
            searched.found = (tally.word == Decision::Certified).then_some(rate);
            if searched.found.is_some() {
                return Ok(());
            }
            let enough = (EXPECT * record.achieved).ceil();
            let is_first = searched.tallies.len() == 1;
            if !record.valid {
                let Some(next) = self.step(rate, &record) else {
                    return Ok(());
                };
                tally = Tally::at(next);
            } else if is_first && rate > 2.0 * enough {
                tally = Tally::at(enough.max(self.plan.least));
            }
        }
    }

    /// Runs a trial of search number `at`, again with more queries while the trial is too short.
    fn trial(
        &mut self,
        system: &mut dyn TrialRunner,
        at: usize,
        full: bool,
        rate: f64,
    ) -> Result<TrialRecord, Halt> {
        let seconds = self.plan.full_seconds.filter(|_| full);
        let mut setting = TrialSetting {
            full,
            rate,
            knobs: self.searches[at].knobs.clone(),
            seconds: seconds.unwrap_or(self.plan.seconds),
            samples: self.plan.samples,
            seed: 0,
        };
        let known = self.known(at);
        let mut lengthened = 0;
        loop {
            // Both parts fit into the 53 bits of a float, so JSON keeps the number.
            let number = match full {
                true => 0,
                false => self.finished.len() as u64 + 1,
            };
            setting.seed = ((self.plan.seed & 0xffff_ffff) << 20) + number;
            let issuing = match self.plan.kind {
                RateKind::Server => setting.samples as f64 / rate,
                RateKind::Offline => 0.0,
            };
            let certified = self.searches.iter().any(|s| s.found.is_some());
            // The budget has a reserve for the first full run.
            let first_full = full && self.full().is_none();
            let reserve = self.plan.full_seconds.filter(|_| certified && !full);
            let left = self.plan.budget_s - self.spent_s - reserve.unwrap_or(0.0) * FULL;
            if !first_full && self.last_cost_s.max(issuing) > left {
                return Err(Halt::Budget);
            }
            let record = system.run(&setting, &known)?;
            self.finished.push(FinishedTrial {
                setting: setting.clone(),
                record: record.clone(),
            });
            self.spent_s += record.cost_s;
            self.last_cost_s = record.cost_s;
            match record.needs {
                Some(needs) if needs > setting.samples && lengthened < LENGTHENED => {
                    setting.samples = needs + needs / 4;
                    lengthened += 1;
                }
                _ => {
                    if !record.valid && at == 0 && !full {
                        self.invalid = Some((rate, record.clone()));
                    }
                    return Ok(record);
                }
            }
        }
    }

    /// One line for the user: the changed keys, and the rates between which the limit lies.
    fn known(&self, at: usize) -> String {
        let searched = &self.searches[at];
        let refuted = searched
            .tallies
            .iter()
            .find(|t| t.word == Decision::Refuted);
        let rate = |t: Option<&Tally>| t.map_or("?".to_owned(), |t| t.rate.to_string());
        let (low, high) = (rate(searched.best()), rate(refuted));
        let mut text = String::new();
        for (key, value) in &searched.knobs {
            text += &format!("{key} {value}, ");
        }
        match self.plan.kind {
            RateKind::Offline => text.trim_end_matches(", ").to_owned(),
            RateKind::Server => text + &format!("limit between {low} and {high}"),
        }
    }

    /// The result in one line.
    pub fn line(&self) -> String {
        let unit = self.plan.kind.unit();
        let best = self.searches.first().and_then(SearchResult::best);
        let mut text = match (self.confirmed(), self.found(), self.full()) {
            (Some(rate), Some(found), Some(_)) if rate != found => {
                format!("certified: {rate} {unit}; the full run is VALID, at {found} INVALID")
            }
            (Some(rate), _, Some(_)) => format!("certified: {rate} {unit}; the full run is VALID"),
            (None, _, Some(full)) => {
                let (rate, why) = (full.setting.rate, full.record.text());
                format!("not confirmed: the full run at {rate} {unit} is {why}")
            }
            (_, Some(rate), None) => format!("certified: {rate} {unit}"),
            (..) => match best {
                Some(t) => {
                    let (rate, held, trials) = (t.rate, t.held(), t.trials.len());
                    format!("best so far: {rate} {unit}, VALID {held} of {trials}")
                }
                None => format!("no rate held ({unit})"),
            },
        };
        if self.confirmed().is_some_and(|rate| rate == self.plan.most) {
            text += ", the highest rate allowed (--most)";
        }
        let more = (self.plan.budget_s / 30.0).ceil();
        text + &match &self.halt {
            Some(Halt::Budget) => {
                format!("; the budget is spent: --budget-min {more} with the same flags goes on")
            }
            Some(Halt::Interrupted) => "; interrupted: the same flags go on".to_owned(),
            Some(Halt::Unmeasured(why)) => format!("; a trial did not measure: {why}"),
            None => String::new(),
        }
    }

    /// Lines that say why no higher rate is the result: the last INVALID trial, and what limited
    /// it.
    pub fn limit(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some((rate, record)) = &self.invalid {
            let why = record.text();
            lines.push(format!("the last trial that failed, at {rate}: {why}"));
            lines.push(record.limited_by.clone());
        }
        lines.retain(|line| !line.is_empty());
        lines
    }
}
