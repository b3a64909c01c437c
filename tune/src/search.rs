//! The highest rate whose runs are VALID nine times in ten.
//!
//! Three steps: a bracket around the limit; trials near it, until the fit knows it to within a part
//! of the precision that is wanted; and a rate a little below, where the sequential test has the
//! last word. Every fourth trial near the limit is an anchor. Whatever trials say of the limit
//! counts in the fit, whyever they were run.

use crate::{
    drift::{self, shift},
    fit::{self, Estimate, Point},
    sprt::{self, Word},
    system::{Halt, Record, Why},
};

/// What is searched for.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// Where the search begins.
    pub first: f64,
    /// Nothing is tried below.
    pub least: f64,
    /// Nothing is tried above.
    pub most: f64,
    /// Only whole numbers are rates.
    pub whole: bool,
    /// Runs become VALID as the rate grows, and the lowest such rate is wanted: what Offline is
    /// told to expect.
    pub falling: bool,
    /// Near enough is this much of the rate.
    pub precision: f64,
    /// The fit alone will do, and to within a tenth of the rate: no rate is certified.
    pub rough: bool,
}

impl Goal {
    /// The highest rate, from `first` on.
    pub fn from(first: f64) -> Self {
        Goal {
            first,
            least: first / 1000.0,
            most: first * 1000.0,
            whole: false,
            falling: false,
            precision: 0.03,
            rough: false,
        }
    }

    /// Where a rate lies on the axis of the fit, on which runs fail further up.
    pub fn x(&self, rate: f64) -> f64 {
        if self.falling { -rate.ln() } else { rate.ln() }
    }

    /// The rate there, as people write one: of four figures, or whole.
    pub fn rate(&self, x: f64) -> f64 {
        let exact = if self.falling { -x } else { x }.exp();
        let rounded = if self.whole {
            exact.round().max(1.0)
        } else {
            let unit = 10_f64.powf(exact.log10().floor() - 3.0);
            // A tenth is written more exactly than as a multiple of itself.
            let inverse = (1.0 / unit).round();
            if inverse > 1.0 {
                (exact * inverse).round() / inverse
            } else {
                (exact / unit).round() * unit.round()
            }
        };
        rounded.clamp(self.least, self.most)
    }

    fn ends(&self) -> (f64, f64) {
        let (a, b) = (self.x(self.least), self.x(self.most));
        (a.min(b), a.max(b))
    }
}

/// One trial as the search sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its number in the session.
    pub number: usize,
    /// Where, and how far from the limit.
    pub point: Point,
    /// The rate.
    pub rate: f64,
    /// LoadGen's word.
    pub valid: bool,
    /// What for.
    pub why: Why,
    /// How often the search had begun again.
    pub epoch: usize,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a rate.
    Found,
    /// Runs are not VALID even at the least rate.
    Never,
    /// Runs are VALID even at the highest rate.
    Endless,
}

/// A time at which the system was found to have become another.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    /// After which trial.
    pub number: usize,
    /// What was seen.
    pub what: String,
}

/// What a search knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Its trials, in their order; those of earlier epochs are discarded.
    pub seen: Vec<Seen>,
    /// How often it has begun again.
    pub epoch: usize,
    /// Where the limit is.
    pub estimate: Option<Estimate>,
    /// The rate that it certifies.
    pub certified: Option<f64>,
    /// Why it began again.
    pub drifts: Vec<Drift>,
    /// How it ended; `None` before it has.
    pub outcome: Option<Outcome>,
}

impl State {
    /// Trials that count.
    pub fn counted(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(|s| s.epoch == self.epoch)
    }

    /// The points of the fit.
    pub fn points(&self) -> Vec<Point> {
        self.counted().map(|s| s.point).collect()
    }

    /// What trials at one rate say of it.
    pub fn word(&self, rate: f64) -> Word {
        let same = self.counted().filter(|s| s.rate == rate);
        sprt::judge(&same.map(|s| s.valid).collect::<Vec<_>>())
    }

    /// Each rate with what is said of it, its trials and those that were VALID; ascending.
    pub fn words(&self) -> Vec<(f64, Word, usize, usize)> {
        let mut rates: Vec<f64> = self.counted().map(|s| s.rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let row = |rate: f64| {
            let same = || self.counted().filter(move |s| s.rate == rate);
            let valid = same().filter(|s| s.valid).count();
            (rate, self.word(rate), same().count(), valid)
        };
        rates.into_iter().map(row).collect()
    }
}

/// What runs a trial; with the record comes the part of the budget that is spent.
pub type Run<'a> = dyn FnMut(Why, f64, &State) -> Result<(usize, Record, f64), Halt> + 'a;

/// A bracket is narrow enough when its ends are so far apart.
const NARROW: f64 = 0.12;
/// The first step of a search that knows nothing, and of one that begins again.
const STEP: f64 = std::f64::consts::LN_2;
const STEP_AGAIN: f64 = 0.06;
/// A margin whose logarithm is nearer to 0 is near the limit.
const CLOSE: f64 = 1.2;
/// Trials near the limit before the fit is trusted.
const ENOUGH: usize = 12;
/// Trials without a fit before it is asked whether anything is VALID.
const LOST: usize = 8;
/// A search that lost the limit begins again so often.
const MOST_EPOCHS: usize = 8;
/// Trials by which a word at one rate has to come.
const PATIENCE: usize = 40;
/// So many standard errors make sure.
const SURE: f64 = 1.7;
/// The part of the precision that the standard error may take.
const PART: f64 = 0.17;
/// Where in the width that is allowed the certified rate is to lie: above the limit is worse than
/// too far below it.
const AIM: f64 = 0.58;
/// The part of the budget behind which the search asks for less precision.
const LATE: f64 = 0.6;
/// One trial in so many is an anchor.
const ANCHOR_EVERY: usize = 4;
/// Margins that have moved are a drift when they are seen to have after so many more trials:
/// whatever disturbs a machine for some runs ends before.
const AGAIN: usize = 4;
/// A drift of less than this much of the rate is none.
const DRIFT: f64 = 0.008;
/// Below this rate whole numbers are tried one by one.
const ONE_BY_ONE: f64 = 64.0;

/// A search under way.
pub struct Search<'a, 'b> {
    goal: &'a Goal,
    state: &'a mut State,
    run: &'a mut Run<'b>,
    spent: f64,
    since_anchor: usize,
    anchors: Option<[f64; 2]>,
    /// Trials there were when margins were first seen to have moved, and are still.
    suspected: Option<usize>,
    turn: usize,
}

impl<'a, 'b> Search<'a, 'b> {
    /// A search for `goal`, which writes what it finds into `state`.
    pub fn new(goal: &'a Goal, state: &'a mut State, run: &'a mut Run<'b>) -> Self {
        Search {
            goal,
            state,
            run,
            spent: 0.0,
            since_anchor: 0,
            anchors: None,
            suspected: None,
            turn: 0,
        }
    }

    /// Searches until it is known, or the runs end.
    ///
    /// # Errors
    /// [`Halt`]: the state has what is known by then.
    pub fn go(mut self) -> Result<(), Halt> {
        let mut begin = (self.goal.x(self.goal.first), STEP);
        loop {
            let ended = match self.bracket(begin.0, begin.1)? {
                Some(outcome) => Some(outcome),
                None if self.goal.whole && self.middle() < ONE_BY_ONE.ln() => self.one_by_one()?,
                None => self.near()?,
            };
            if let Some(outcome) = ended {
                self.state.outcome = Some(outcome);
                return Ok(());
            }
            // It drifted: what came before counts no more.
            let at = self.state.estimate.take().map_or(begin.0, |e| e.x);
            self.state.epoch += 1;
            (self.anchors, self.suspected) = (None, None);
            begin = (at, STEP_AGAIN);
        }
    }

    fn middle(&self) -> f64 {
        let curve = fit::isotonic(&self.state.points());
        let (below, above) = fit::crossing(&curve);
        let ends = (below.or(above), above.or(below));
        ends.0
            .zip(ends.1)
            .map_or(0.0, |(b, a)| f64::midpoint(a.x, b.x))
    }

    /// One trial; its margin.
    fn trial(&mut self, why: Why, x: f64) -> Result<f64, Halt> {
        let (low, high) = self.goal.ends();
        let rate = self.goal.rate(x.clamp(low, high));
        let (number, record, spent) = (self.run)(why, rate, self.state)?;
        self.spent = spent;
        let x = self.goal.x(rate);
        let y = record.log_margin();
        self.state.seen.push(Seen {
            number,
            point: Point { x, y },
            rate,
            valid: record.valid,
            why,
            epoch: self.state.epoch,
        });
        self.since_anchor += 1;
        Ok(y)
    }

    /// A rate below the limit and one above it, not far from each other.
    fn bracket(&mut self, start: f64, step: f64) -> Result<Option<Outcome>, Halt> {
        let (least, most) = self.goal.ends();
        let [mut low, mut high]: [Option<(f64, f64)>; 2] = [None; 2];
        let (mut x, mut step) = (start.clamp(least, most), step);
        loop {
            let y = self.trial(Why::Bracket, x)?;
            let place = if y < 0.0 { &mut low } else { &mut high };
            *place = Some((x, y));
            x = match (low, high) {
                (Some((l, _)), Some((h, _))) if h - l <= NARROW => return Ok(None),
                (Some((l, y0)), Some((h, y1))) => {
                    // Where the margins meet the limit, but never at the ends again.
                    let part = (-y0 / (y1 - y0)).clamp(0.25, 0.75);
                    l + part * (h - l)
                }
                (Some((l, _)), None) if l >= most => match self.settle(most)? {
                    Word::Refuted => return Ok(None),
                    _ => return Ok(Some(Outcome::Endless)),
                },
                (None, Some((h, _))) if h <= least => match self.settle(least)? {
                    Word::Refuted => return Ok(Some(Outcome::Never)),
                    _ => return Ok(None),
                },
                (Some((l, _)), None) => (l + step).min(most),
                (None, Some((h, _))) => (h - step).max(least),
                (None, None) => x,
            };
            if low.is_none() || high.is_none() {
                // Near the limit a long step ends far beyond it, where runs take long to end.
                let most = if y.abs() < CLOSE {
                    STEP / 3.0
                } else {
                    2.0 * STEP
                };
                step = (step * 1.5).min(most);
            }
        }
    }

    /// Trials at one rate until they say a word.
    fn settle(&mut self, x: f64) -> Result<Word, Halt> {
        let rate = self.goal.rate(x);
        for _ in 0..PATIENCE {
            let word = self.state.word(rate);
            if word != Word::Undecided {
                return Ok(word);
            }
            self.trial(Why::Certify, x)?;
        }
        Ok(self.state.word(rate))
    }

    /// Small whole numbers: the highest that is certified below one that is not.
    fn one_by_one(&mut self) -> Result<Option<Outcome>, Halt> {
        let (least, most) = (self.goal.least, self.goal.most);
        let below = fit::crossing(&fit::isotonic(&self.state.points())).0;
        let mut n = below.map_or(least, |step| step.x.exp().round());
        loop {
            self.state.estimate = fit::estimate(&self.state.points());
            if self.settle(n.ln())? == Word::Certified {
                self.state.certified = Some(n);
                if n >= most {
                    return Ok(Some(Outcome::Endless));
                }
                if self.state.word(n + 1.0) == Word::Undecided {
                    self.settle((n + 1.0).ln())?;
                }
                if self.state.word(n + 1.0) != Word::Certified {
                    return Ok(Some(Outcome::Found));
                }
                n += 1.0;
            } else if n <= least {
                return Ok(Some(Outcome::Never));
            } else {
                n -= 1.0;
            }
        }
    }

    /// The standard error at which the limit is known well enough.
    fn wanted(&self) -> f64 {
        if self.goal.rough {
            return 0.05;
        }
        let late = ((self.spent - LATE) / (1.0 - LATE)).clamp(0.0, 1.0);
        PART * self.goal.precision * (1.0 + 2.0 * late + 6.0 * late * late)
    }

    /// Trials near the limit until it is known and a rate below it is certified; `None` where the
    /// system has become another meanwhile.
    fn near(&mut self) -> Result<Option<Outcome>, Halt> {
        let mut away = 0.02;
        let mut lost = 0;
        loop {
            let estimate = fit::estimate(&self.state.points());
            let usable = |e: &Estimate| e.x.is_finite() && e.error < 0.5;
            let Some(e) = estimate.filter(usable) else {
                lost += 1;
                if lost > LOST {
                    // Margins that do not rise: is there a rate that is VALID at all?
                    lost = 0;
                    let valid = self.state.counted().filter(|s| s.valid).count();
                    let all = self.state.counted().count();
                    if valid * 4 >= all && self.state.epoch < MOST_EPOCHS {
                        // Many were: a machine that was disturbed for a while looks so.
                        self.is_another("margins no longer rise with the rate".to_owned());
                        return Ok(None);
                    }
                    let least = self.goal.ends().0;
                    if self.settle(least)? == Word::Refuted {
                        return Ok(Some(Outcome::Never));
                    }
                }
                self.reach_out(away)?;
                away = (away * 1.3).min(STEP);
                continue;
            };
            self.state.estimate = Some(e.clone());
            let trials = self.state.seen.len();
            match (self.drifted(&e), self.suspected) {
                (None, _) => self.suspected = None,
                // Nothing that disturbs a machine for some runs makes it better.
                (Some((by, what)), since)
                    if by < 0.0 || since.is_some_and(|since| trials >= since + AGAIN) =>
                {
                    self.is_another(what);
                    return Ok(None);
                }
                (Some(_), since) => self.suspected = since.or(Some(trials)),
            }
            let spread = (0.7 * e.scatter / e.slope).clamp(0.004, 0.05);
            self.place_anchors(&e, spread);
            if self.since_anchor + 1 >= ANCHOR_EVERY && !self.goal.rough {
                self.anchor()?;
                continue;
            }
            let settled = self.suspected.is_none();
            if settled && e.near.len() >= ENOUGH && e.error <= self.wanted() {
                if self.goal.rough {
                    return Ok(Some(Outcome::Found));
                }
                if let Some(rate) = self.acceptable(&e) {
                    self.state.certified = Some(rate);
                    return Ok(Some(Outcome::Found));
                }
                if let Some(x) = self.aim(&e) {
                    self.trial(Why::Certify, x)?;
                    continue;
                }
            }
            let side = [-1.0, 1.0][self.turn % 2];
            self.turn += 1;
            self.trial(Why::Near, e.x + side * spread)?;
        }
    }

    /// All trials are on one side, or fall: one further out on the side that is wanted.
    fn reach_out(&mut self, away: f64) -> Result<(), Halt> {
        let curve = fit::isotonic(&self.state.points());
        let (below, above) = fit::crossing(&curve);
        let x = match (below, above) {
            (Some(below), Some(above)) if self.turn.is_multiple_of(2) => {
                below.x.min(above.x) - away / 4.0
            }
            (Some(below), Some(above)) => below.x.max(above.x) + away / 4.0,
            (Some(below), None) => below.x + away,
            (None, Some(above)) => above.x - away,
            (None, None) => self.goal.x(self.goal.first),
        };
        self.turn += 1;
        self.trial(Why::Near, x).map(|_| ())
    }

    fn place_anchors(&mut self, e: &Estimate, spread: f64) {
        let away = spread.max(self.goal.precision / 2.0);
        let stale = |[low, high]: [f64; 2]| {
            let reach = 3.0 * away;
            self.goal.x(low) < e.x - reach - away || self.goal.x(high) > e.x + reach + away
        };
        if self.anchors.is_none_or(stale) {
            let at = [e.x - away, e.x + away].map(|x| self.goal.rate(x));
            self.anchors = Some(at);
        }
    }

    fn anchor(&mut self) -> Result<(), Halt> {
        let Some(anchors) = self.anchors else {
            return Ok(());
        };
        let done = self.counted_anchors(anchors).count();
        let x = self.goal.x(anchors[done % 2]);
        self.trial(Why::Anchor, x)?;
        self.since_anchor = 0;
        Ok(())
    }

    fn counted_anchors(&self, anchors: [f64; 2]) -> impl Iterator<Item = &Seen> {
        let is = move |s: &&Seen| s.why == Why::Anchor && anchors.contains(&s.rate);
        self.state.counted().filter(is)
    }

    /// Writes down that the system has become another, and why that is thought.
    fn is_another(&mut self, what: String) {
        let number = self.state.seen.last().map_or(0, |s| s.number);
        self.state.drifts.push(Drift { number, what });
    }

    /// By how much margins have moved since the beginning, and what that was seen by.
    fn drifted(&self, e: &Estimate) -> Option<(f64, String)> {
        let enough = |by: f64| by.abs() / e.slope >= DRIFT;
        let errors = self.suspected.map_or(drift::WEIGHT, |_| drift::STILL);
        let floor = if e.wall { e.scatter } else { 0.0 };
        let anchors = self.anchors.map(|anchors| {
            let all: Vec<&Seen> = self.counted_anchors(anchors).collect();
            let middle = |rate: f64| {
                let same = all.iter().filter(|s| s.rate == rate);
                fit::median(&mut same.map(|s| s.point.y).collect::<Vec<_>>())
            };
            let middles = anchors.map(middle);
            let above = |s: &&Seen| s.point.y - middles[usize::from(s.rate == anchors[1])];
            let values: Vec<f64> = all.iter().map(above).collect();
            (shift(&values, 2, e.scatter, errors), values.len())
        });
        let (shift, whose, since) = match anchors {
            Some((Some(shift), n)) if enough(shift.by) => (
                shift,
                "the anchors' margins",
                format!("their trial {} of {n}", shift.at + 1),
            ),
            _ => {
                let n = e.residuals.len();
                let shift = shift(&e.residuals, 4, floor, errors).filter(|s| enough(s.by))?;
                let since = format!("the trial {} of {n} there", shift.at + 1);
                (shift, "margins near the limit", since)
            }
        };
        let percent = (shift.by.exp() - 1.0) * 100.0;
        let what = format!(
            "{whose} have moved by {percent:+.1} % since {since} ({:.1} standard errors)",
            shift.weight
        );
        Some((shift.by, what))
    }

    /// The width that the certified rate may lie below the limit.
    fn width(&self) -> f64 {
        -(1.0 - self.goal.precision).ln()
    }

    /// A rate that is certified, surely not above the limit, and surely not too far below it.
    fn acceptable(&self, e: &Estimate) -> Option<f64> {
        let sure = SURE * e.error;
        // Where the budget did not let the limit be known so well, it must still not be above.
        let lowest = (e.x + sure - self.width()).min(e.x - 2.0 * sure - 0.003);
        let fits = |rate: &f64| {
            let x = self.goal.x(*rate);
            x <= e.x - sure.max(0.4 * self.width()) && x >= lowest
        };
        let mut rates: Vec<f64> = self.state.counted().map(|s| s.rate).collect();
        rates.retain(|rate| fits(rate) && self.state.word(*rate) == Word::Certified);
        rates.sort_by(|a, b| self.goal.x(*a).total_cmp(&self.goal.x(*b)));
        rates.pop()
    }

    /// Where to certify: behind the middle of what the precision allows, below all that was
    /// refuted, and at a rate that was tried before where one is as good.
    fn aim(&self, e: &Estimate) -> Option<f64> {
        let sure = SURE * e.error;
        let mut x = e.x - (AIM * self.width()).max(sure + 0.001);
        let words = self.state.words();
        let near = |rate: f64, within: f64| (self.goal.x(rate) - x).abs() <= within;
        let known = words
            .iter()
            .filter(|w| w.1 == Word::Undecided && near(w.0, (e.error / 2.0).max(0.002)));
        let known = known.max_by_key(|w| w.2).map(|w| self.goal.x(w.0));
        x = known.unwrap_or(x);
        let refuted = words.iter().filter(|w| w.1 == Word::Refuted);
        let refuted = refuted.map(|w| self.goal.x(w.0)).fold(f64::MAX, f64::min);
        if x >= refuted - 0.001 && refuted > e.x - 2.0 * self.width() {
            x = refuted - 0.004;
        }
        let word = self.state.word(self.goal.rate(x));
        (word == Word::Undecided).then_some(x)
    }
}
