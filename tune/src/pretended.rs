//! Systems whose truth is known, to test searches against.
//!
//! Each has a curve, the logarithm of its margin over the logarithm of the rate (0 where its
//! capacity
//! is), and noise on it. The truth is the highest rate at which the chance of VALID is 0.9, worked
//! out from the same curve and the noise's own distribution.

use crate::{
    random::Random,
    system::{Halt, Limit, Record, Setting, System, Why},
};

/// How the margin grows with the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Curve {
    /// A queue: latencies grow as 1 / (1 - load), and without end where the load is above 1. The
    /// bound is so many times the latency of an idle system.
    Queue(f64),
    /// The margin is a power of the rate.
    Power(f64),
    /// Far below the limit until the capacity, and far above from there on.
    Wall,
    /// A queue of bound 10 which is beyond its limit from 0.40 to 0.55 of its capacity too.
    Hole,
    /// An engine of batches, as one was measured on two cores over loopback: latencies hardly move
    /// until nine tenths of its capacity and then jump, and beyond it a run's length decides.
    Engine,
    /// Never below the limit.
    Never,
}

/// Of [`Curve::Engine`]: loads and their margins' logarithms.
const ENGINE: [(f64, f64); 6] = [
    (0.1, -3.0),
    (0.5, -2.9),
    (0.8, -2.3),
    (0.9, 0.0),
    (1.0, 1.7),
    (1.3, 4.6),
];

impl Curve {
    fn at(self, load: f64) -> f64 {
        let queue = |bound: f64, load: f64| {
            let idle = (1.0 - load).max(0.002);
            let overload = (load - 0.998).max(0.0);
            (1.0 / idle).ln() - bound.ln() + 20.0 * overload
        };
        match self {
            Curve::Queue(bound) => queue(bound, load),
            Curve::Power(exponent) => exponent * load.ln(),
            Curve::Wall => {
                if load <= 1.0 {
                    -2.3 + 0.1 * load.ln()
                } else {
                    3.5 + load.ln()
                }
            }
            Curve::Hole => {
                if (0.40..0.55).contains(&load) {
                    0.8
                } else {
                    queue(10.0, load)
                }
            }
            Curve::Engine => {
                let after = ENGINE.iter().position(|(at, _)| load < *at);
                let after = after.unwrap_or(ENGINE.len() - 1).max(1);
                let ((a, y0), (b, y1)) = (ENGINE[after - 1], ENGINE[after]);
                y0 + (y1 - y0) * (load / a).ln() / (b / a).ln()
            }
            Curve::Never => 0.5 + 0.1 * load.max(1e-9).ln().max(-4.0),
        }
    }
}

/// What is on top of the curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Deviation of the margin's logarithm.
    pub margin: f64,
    /// Deviation of the capacity's logarithm, anew in each run.
    pub capacity: f64,
    /// How much the margin's deviation grows near the capacity: at load 1 it is so many times as
    /// large again.
    pub grows: f64,
    /// How many runs in a hundred the machine is disturbed in, which triples the margin.
    pub disturbed: f64,
}

/// How the capacity moves while a session goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moves {
    /// It does not.
    No,
    /// To this multiple of itself, behind so many runs.
    Step(f64, usize),
    /// To this multiple of itself, evenly over so many runs.
    Slope(f64, usize),
}

/// A system of known truth.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What it is, in a few words.
    pub name: &'static str,
    /// Its limits: each a curve and its capacity relative to [`CAPACITY`].
    pub limits: &'static [(Curve, f64)],
    /// The noise on each.
    pub noise: Noise,
    /// Drift.
    pub moves: Moves,
}

/// Queries per second, about.
pub const CAPACITY: f64 = 10_000.0;

const NOISE: Noise = Noise {
    margin: 0.0,
    capacity: 0.0,
    grows: 0.0,
    disturbed: 0.0,
};

const fn noise(margin: f64) -> Noise {
    Noise { margin, ..NOISE }
}

const fn kind(name: &'static str, limits: &'static [(Curve, f64)], noise: Noise) -> Kind {
    Kind {
        name,
        limits,
        noise,
        moves: Moves::No,
    }
}

const QUEUE: &[(Curve, f64)] = &[(Curve::Queue(10.0), 1.0)];

/// All of them.
pub const ALL: [Kind; 21] = [
    kind("queue, noise 1 %", QUEUE, noise(0.01)),
    kind("queue, noise 5 %", QUEUE, noise(0.05)),
    kind("queue, noise 10 %", QUEUE, noise(0.10)),
    kind("queue, noise 20 %", QUEUE, noise(0.20)),
    kind(
        "queue, bound far off, noise 20 %",
        &[(Curve::Queue(100.0), 1.0)],
        noise(0.20),
    ),
    kind("wall, noise 1 %", &[(Curve::Wall, 1.0)], noise(0.01)),
    kind("wall, noise 20 %", &[(Curve::Wall, 1.0)], noise(0.20)),
    kind(
        "wall that moves by 1 % from run to run",
        &[(Curve::Wall, 1.0)],
        Noise {
            capacity: 0.01,
            ..noise(0.05)
        },
    ),
    kind(
        "shallow (power 1), noise 1 %",
        &[(Curve::Power(1.0), 1.0)],
        noise(0.01),
    ),
    kind(
        "shallow (power 1), noise 3 %",
        &[(Curve::Power(1.0), 1.0)],
        noise(0.03),
    ),
    kind(
        "shallow (power 2), noise 5 %",
        &[(Curve::Power(2.0), 1.0)],
        noise(0.05),
    ),
    kind(
        "steep (power 30), noise 20 %",
        &[(Curve::Power(30.0), 1.0)],
        noise(0.20),
    ),
    kind(
        "queue, noise 5 %, 4 runs in 100 disturbed",
        QUEUE,
        Noise {
            disturbed: 4.0,
            ..noise(0.05)
        },
    ),
    kind(
        "queue whose noise grows towards the limit",
        QUEUE,
        Noise {
            grows: 2.0,
            ..noise(0.05)
        },
    ),
    kind(
        "two limits, one far off",
        &[(Curve::Queue(10.0), 1.0), (Curve::Power(2.0), 1.3)],
        noise(0.05),
    ),
    kind(
        "two limits at nearly one rate",
        &[(Curve::Queue(10.0), 1.0), (Curve::Power(4.0), 0.91)],
        noise(0.05),
    ),
    Kind {
        moves: Moves::Step(0.92, 15),
        ..kind("drift: 8 % less behind 15 runs", QUEUE, noise(0.05))
    },
    Kind {
        moves: Moves::Slope(1.06, 24),
        ..kind("drift: 6 % more within 24 runs", QUEUE, noise(0.05))
    },
    kind(
        "a hole from 40 to 55 % of the capacity",
        &[(Curve::Hole, 1.0)],
        noise(0.05),
    ),
    kind(
        "engine of batches, noise 50 %, 6 runs in 100 disturbed",
        &[(Curve::Engine, 1.0)],
        Noise {
            disturbed: 6.0,
            ..noise(0.5)
        },
    ),
    kind("never VALID", &[(Curve::Never, 1.0)], noise(0.10)),
];

/// One system, with the runs that it has done.
#[derive(Clone, Debug)]
pub struct Pretended {
    kind: Kind,
    random: Random,
    /// Runs so far.
    pub runs: usize,
}

impl Pretended {
    /// A system of this kind.
    pub fn new(kind: Kind, seed: u64) -> Self {
        Pretended {
            kind,
            random: Random(seed),
            runs: 0,
        }
    }

    /// Its capacity now, as a multiple of [`CAPACITY`].
    fn moved(&self) -> f64 {
        match self.kind.moves {
            Moves::No => 1.0,
            Moves::Step(to, behind) => {
                if self.runs >= behind {
                    to
                } else {
                    1.0
                }
            }
            Moves::Slope(to, over) => {
                let part = (self.runs as f64 / over as f64).min(1.0);
                1.0 + (to - 1.0) * part
            }
        }
    }

    /// The margins of one run at this rate.
    fn margins(&mut self, rate: f64) -> Vec<f64> {
        let noise = self.kind.noise;
        let capacity = CAPACITY * self.moved() * (noise.capacity * self.random.normal()).exp();
        let disturbed = self.random.unit() * 100.0 < noise.disturbed;
        let random = &mut self.random;
        let margin = |(curve, part): &(Curve, f64)| {
            let load = rate / (capacity * part);
            let deviation = noise.margin * (1.0 + noise.grows * load.min(1.5));
            let disturbed = if disturbed { 3.0_f64.ln() } else { 0.0 };
            curve.at(load) + deviation * random.normal() + disturbed
        };
        self.kind.limits.iter().map(margin).collect()
    }

    /// The chance that a run at this rate is VALID.
    pub fn chance(&self, rate: f64) -> f64 {
        let noise = self.kind.noise;
        let given = |capacity: f64, extra: f64| {
            let kept = |(curve, part): &(Curve, f64)| {
                let load = rate / (CAPACITY * self.moved() * capacity * part);
                let deviation = noise.margin * (1.0 + noise.grows * load.min(1.5));
                below(-(curve.at(load) + extra) / deviation.max(1e-9))
            };
            self.kind.limits.iter().map(kept).product::<f64>()
        };
        let disturbed = noise.disturbed / 100.0;
        let both = |capacity: f64| {
            (1.0 - disturbed) * given(capacity, 0.0) + disturbed * given(capacity, 3.0_f64.ln())
        };
        if noise.capacity == 0.0 {
            return both(1.0);
        }
        // Over what the capacity may be, in steps of a fiftieth of its deviation.
        let (mut sum, mut all) = (0.0, 0.0);
        for i in -200..=200 {
            let z = f64::from(i) / 50.0;
            let weight = (-z * z / 2.0).exp();
            sum += weight * both((noise.capacity * z).exp());
            all += weight;
        }
        sum / all
    }

    /// The rates up to which the chance of VALID is at least 0.9 now, and above which it is not:
    /// one for most, two where there is a hole, none where nothing is ever VALID. Ascending.
    pub fn truths(&self) -> Vec<f64> {
        let good = |x: f64| self.chance(x.exp()) >= 0.9;
        let steps = 2000;
        let (from, to) = ((CAPACITY / 50.0).ln(), (CAPACITY * 2.0).ln());
        let at = |i: i32| from + (to - from) * f64::from(i) / f64::from(steps);
        let edges = (0..steps).filter(|i| good(at(*i)) && !good(at(i + 1)));
        let exact = |i: i32| {
            let (mut low, mut high) = (at(i), at(i + 1));
            for _ in 0..40 {
                let x = f64::midpoint(low, high);
                *(if good(x) { &mut low } else { &mut high }) = x;
            }
            low.exp()
        };
        edges.map(exact).collect()
    }

    /// Whether a rate is what is asked for: not above the truth and at most 3 % below it. With
    /// several truths it is judged by the next one; without one nothing is right but `None`.
    pub fn is_right(&self, rate: Option<f64>) -> bool {
        let truths = self.truths();
        match rate {
            None => truths.is_empty(),
            Some(rate) => {
                let next = truths.into_iter().find(|truth| rate <= *truth);
                next.is_some_and(|truth| rate >= 0.97 * truth)
            }
        }
    }
}

/// The part of a normal distribution that is below `z`.
fn below(z: f64) -> f64 {
    if z.abs() > 8.0 {
        return if z > 0.0 { 1.0 } else { 0.0 };
    }
    // Simpson's rule over the density.
    let steps = 64;
    let h = z / f64::from(steps);
    let density = |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let inner: f64 = (1..steps)
        .map(|i| density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 })
        .sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(z))
}

impl System for Pretended {
    fn run(&mut self, _why: Why, setting: &Setting) -> Result<Record, Halt> {
        let margins = self.margins(setting.rate);
        self.runs += 1;
        let limit = |(i, margin): (usize, &f64)| Limit {
            name: ["p99 TTFT", "p99 TPOT"][i.min(1)].to_owned(),
            was: margin.exp(),
            bound: 1.0,
        };
        Ok(Record {
            valid: margins.iter().all(|m| *m <= 0.0),
            limits: margins.iter().enumerate().map(limit).collect(),
            achieved: setting.rate,
            cost_s: 1.0,
            ..Record::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_truth_is_where_nine_runs_in_ten_are_valid() {
        for kind in ALL {
            let mut system = Pretended::new(kind, 1);
            system.runs = 100;
            for truth in system.truths() {
                let valid = |system: &mut Pretended, rate: f64| {
                    let runs = 2000;
                    let valid = |_: &i32| system.margins(rate).iter().all(|m| *m <= 0.0);
                    (0..runs).filter(valid).count() as f64 / f64::from(runs)
                };
                let at = valid(&mut system, truth);
                assert!(at > 0.87, "{}: {at} at its truth {truth}", kind.name);
                let above = valid(&mut system, truth * 1.03);
                assert!(above < 0.88, "{}: {above} above {truth}", kind.name);
            }
        }
    }

    #[test]
    fn a_hole_has_two_edges_and_never_has_none() {
        let truths = |name: &str| {
            let kind = ALL.iter().find(|k| k.name.contains(name)).expect("one");
            Pretended::new(*kind, 1).truths()
        };
        let hole = truths("hole");
        assert_eq!(hole.len(), 2);
        assert!((3900.0..4000.0).contains(&hole[0]), "{hole:?}");
        assert_eq!(truths("never"), [0.0; 0]);
        let system = Pretended::new(ALL[1], 1);
        let truth = system.truths()[0];
        assert!(system.is_right(Some(truth * 0.98)));
        assert!(!system.is_right(Some(truth * 0.96)));
        assert!(!system.is_right(Some(truth * 1.001)));
        assert!(!system.is_right(None));
    }
}
