//! What limited a run: a plain function of its record.
//!
//! What "limited" means differs by scenario. *Server* has an aim: where the scheduled rate came
//! back and LoadGen's percentile kept its bound with a fifth to spare, nothing limited it.
//! *Offline* measures a rate and *SingleStream* and *MultiStream* a latency: something always sets
//! those, and the line says what, where one thing does.
//!
//! It goes by shares and ratios, so that a machine that is slow, or has other things to do, is
//! judged like any other. The rules stand in the order of [`ROWS`](super::limits::ROWS), nearly:
//! what a rule finds explains what later ones would find as its consequence. An engine that
//! computes all the time fills all slots; a line that is full leaves the engine idle.

use super::{
    EarlyStopping, LimitUnit, Mode, PhaseKind, RunRecord, Stage,
    limits::{Finding, Limits, LoadgenView},
    text,
};

/// A share from which on something is in use all the time.
pub(super) const BUSY: f64 = 0.85;
/// The same of NIC threads and cores, which are shared by more.
pub(super) const ALWAYS: f64 = 0.9;
/// A share of its time in which a thread that is not the limit may be at work.
pub(super) const EASY: f64 = 0.7;
/// A stage that is the most of something.
pub(super) const MOST: f64 = 0.5;
/// Of the scheduled rate, what must come back for it to have been reached.
const REACHED: f64 = 0.95;
/// Of LoadGen's bound, what may be used with room left.
const ROOM: f64 = 0.8;
/// Shorter runs are not judged, in seconds.
const SHORTEST_S: f64 = 0.3;

/// What limited the run, by what is on its record.
pub fn judge<'a>(run: &'a RunRecord) -> Limits {
    let view = View::of(run);
    let aim = view.aim();
    // Nobody asks how long an accuracy run takes: its losses stand where losses stand.
    let timed = run.mode != Mode::Accuracy;
    let away = view.accelerator(&aim).filter(|_| timed);
    let mut findings: Vec<Finding> = away.into_iter().collect();
    if let Aim::Open = aim {
        let rules: [fn(&View<'a>) -> Option<Finding>; 12] = [
            View::link,
            View::slots_of_engine,
            View::engine,
            View::issue,
            View::cores,
            View::nic_thread,
            View::send_buffer,
            View::wake_ups,
            View::slots,
            View::posting,
            View::completion,
            View::network,
        ];
        findings.extend(rules.iter().filter_map(|rule| rule(&view)));
        // One line for each cause; an engine's share of the time is a finding of its own.
        let mut seen = Vec::new();
        findings.retain(|f| {
            !seen.contains(&f.cause) && {
                seen.push(f.cause);
                true
            }
        });
    }
    let line = match (findings.first(), aim) {
        (Some(first), _) => first.line(),
        (None, Aim::Kept(how)) => match view.too_short() {
            Some(short) => format!("nothing, but {short} ({how})"),
            None => format!("nothing: {how}"),
        },
        (None, Aim::Unmeasured(why)) => format!("nothing is said: {why}"),
        (None, Aim::Open) => {
            let short = view.too_short();
            let but = short.map_or_else(String::new, |short| format!("; but {short}"));
            format!(
                "nothing stands out: no engine, thread, slot, line or core was in use all the \
                 time{but}"
            )
        }
    };
    Limits { line, findings }
}

/// What the run was to come to.
pub(super) enum Aim {
    /// It had an aim and kept it with room, in words.
    Kept(String),
    /// There is nothing to judge, in words.
    Unmeasured(String),
    /// Something was the limit.
    Open,
}

pub(super) struct View<'a> {
    pub(super) run: &'a RunRecord,
    pub(super) seconds: f64,
    pub(super) loadgen: LoadgenView,
    pub(super) server: bool,
    /// One sample, or one query, at a time.
    pub(super) by_latency: bool,
    pub(super) slots: u64,
    /// Those that were in use or to be had at the end: fewer than there are where more were of no
    /// use.
    pub(super) allowed: u64,
    /// Samples in flight, on average: rate x round trip.
    pub(super) in_flight: f64,
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", (share * 100.0).min(100.0))
}

/// `part` of `whole`; 0 of nothing.
pub(super) fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl<'a> View<'a> {
    fn of(run: &'a RunRecord) -> Self {
        let seconds = run.duration_s;
        let per_s = share(run.samples as f64, seconds);
        let round_trip = run.stages.get(Stage::RoundTrip);
        let total = run.total();
        let round_trip_s = round_trip.map_or(0.0, |r| r.mean_us / 1e6);
        View {
            run,
            seconds,
            loadgen: run.evidence.loadgen.unwrap_or_default(),
            server: run.scenario == "Server",
            by_latency: matches!(run.scenario.as_str(), "SingleStream" | "MultiStream"),
            slots: total.slots,
            allowed: match total.allowed {
                0 => total.slots,
                n => n,
            },
            in_flight: per_s * round_trip_s,
        }
    }

    /// A stage's share of the mean total.
    pub(super) fn stage(&self, stage: Stage) -> f64 {
        self.stage_of(stage, Stage::Total)
    }

    pub(super) fn stage_of(&self, stage: Stage, whole: Stage) -> f64 {
        let mean = |s| self.run.stages.get(s).map_or(0.0, |r| r.mean_us);
        share(mean(stage), mean(whole))
    }

    pub(super) fn wanted_per_s(&self) -> Option<f64> {
        let wanted = self.loadgen.scheduled_per_s.or(self.run.target_qps);
        wanted.filter(|_| self.server)
    }

    pub(super) fn rate_reached(&self) -> bool {
        self.wanted_per_s()
            .is_none_or(|wanted| self.run.per_s >= REACHED * wanted)
    }

    /// What was used of LoadGen's bounds, the worst of them, with the figure in words.
    fn of_bound(&self) -> Option<(f64, String)> {
        let said = |what: &str, us: f64, bound: f64| {
            let (us, limit) = (text::time_us(us), text::time_us(bound));
            format!("{what} {us} of the {limit} allowed")
        };
        let own = self.loadgen.bound_us.map(|bound| {
            let us = self.loadgen.bounded_us;
            (share(us, bound), said("latency", us, bound))
        });
        let tokens = self.run.tokens.iter().flat_map(|t| t.bounded());
        let tokens = tokens.map(|(name, us, bound)| (share(us, bound), said(name, us, bound)));
        own.into_iter()
            .chain(tokens)
            .max_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn aim(&self) -> Aim {
        if self.run.mode == Mode::Accuracy {
            return Aim::Unmeasured("an accuracy run is not timed".to_owned());
        }
        if self.run.mode == Mode::FindPeak {
            return Aim::Unmeasured(self.of_find_peak());
        }
        if self.seconds < SHORTEST_S || self.run.samples == 0 {
            let took = text::time_us(self.seconds * 1e6);
            return Aim::Unmeasured(format!("{took} are too short to say"));
        }
        if !self.server || !self.rate_reached() {
            return Aim::Open;
        }
        let asked = self.wanted_per_s().unwrap_or(self.run.per_s);
        let (came, asked) = (text::rate(self.run.per_s), text::rate(asked));
        let asked = format!("{came}/s came back of {asked}/s scheduled");
        match self.of_bound() {
            Some((used, _)) if used > ROOM => Aim::Open,
            Some((_, figure)) => Aim::Kept(format!("{asked}, {figure}")),
            None if self.loadgen == LoadgenView::default() => Aim::Open,
            None => Aim::Kept(asked),
        }
    }

    /// Why find-peak is not judged.
    fn of_find_peak(&self) -> String {
        let steps = self.run.phases.iter().filter(|p| p.kind == PhaseKind::Step);
        let asked: Vec<_> = steps.map(|p| p.asked_per_s).collect();
        match asked[..] {
            [one] => {
                let at = one.map_or_else(String::new, |r| format!(", {}/s", text::rate(r)));
                format!(
                    "find-peak came no further than its first rate{at}; run Server at it to see \
                     what limits it"
                )
            }
            _ => "find-peak runs at many rates; run Server at its peak to see".to_owned(),
        }
    }

    /// LoadGen calls the run invalid for its length and for nothing else: in words.
    fn too_short(&self) -> Option<String> {
        let l = self.run.loadgen.as_ref()?;
        if self.run.valid != Some(false) || l.limits.iter().any(|l| l.at_most && !l.met) {
            return None;
        }
        let more = "`--duration-s` and `min_query_count` make it longer";
        let unmet = |e: &&EarlyStopping| !e.met;
        if let Some(e) = l.early_stopping.as_ref().filter(unmet) {
            let had = e.queries.or(l.queries).map(text::grouped);
            let had = had.map_or_else(String::new, |n| format!(", there were {n}"));
            let needs = match e.needs {
                Some(n) => format!("wants {} queries at least{had}", text::grouped(n)),
                None => format!("wants more queries{had}"),
            };
            return Some(format!(
                "the run was too short: early stopping {needs}; {more}"
            ));
        }
        let short = l.limits.iter().find(|l| !l.met)?;
        let said = |value: f64| match short.unit {
            LimitUnit::Us => text::time_us(value),
            _ => text::grouped(value.max(0.0) as u64),
        };
        let was = short
            .was
            .map_or_else(String::new, |was| format!(", it was {}", said(was)));
        let (name, limit) = (&short.name, said(short.limit));
        Some(format!(
            "the run was too short: LoadGen wants {name} of {limit} at least{was}; {more}"
        ))
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "judge_tests_causes.rs"]
mod tests_of_causes;
