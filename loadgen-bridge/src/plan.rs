//! What LoadGen makes of the settings before a run: its own `TestSettingsInternal` is asked, and
//! the rest of its `GenerateQueries`, which no header declares, is [`Plan::generated`].

use loadgen_log::{Scenario, TestMode};

use crate::error::LoadgenError;
use crate::raw::{self, Said};
use crate::settings::TestSettings;

/// Server's arrival times are drawn up to this many, one after the other, as LoadGen draws them.
const DRAWN: f64 = 5e6;

/// LoadGen's `TestSettingsInternal`, the fields that decide how much it runs.
/// Its detailed log has them as `effective_*`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct Effective {
    /// Samples in each query; in Offline before they are padded.
    pub samples_per_query: u64,
    /// Queries per second, in Offline samples.
    pub target_qps: f64,
    /// The percentile that the scenario is judged by, as a fraction.
    pub target_latency_percentile: f64,
    /// Server: with more queries outstanding the run ends; 0 is no limit.
    pub max_async_queries: u64,
    /// Queries are made for so long, in ms: 0 in Offline.
    pub target_duration_ms: u64,
    /// The shortest valid run, in ms.
    pub min_duration_ms: u64,
    /// The longest run, in ms; 0 is no limit.
    pub max_duration_ms: u64,
    /// The fewest queries of a valid run: 1 in Offline.
    pub min_query_count: u64,
    /// The most queries of a run; 0 is no limit.
    pub max_query_count: u64,
    /// The fewest samples of a valid run.
    pub min_sample_count: u64,
    /// Samples that performance mode loads.
    pub performance_sample_count: u64,
    /// Samples that accuracy mode runs.
    pub accuracy_sample_count: u64,
}

/// Queries that LoadGen makes before it issues the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queries {
    /// How many.
    pub count: u64,
    /// Samples of all of them.
    pub samples: u64,
    /// Whether `count` is LoadGen's own figure to the last query. Server's random arrivals are an
    /// expectation where they are too many to draw.
    pub exact: bool,
}

/// What LoadGen will run with, and how much it will make for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// LoadGen's settings.
    pub effective: Effective,
    /// What accuracy mode makes, all sets of samples together.
    pub accuracy: Option<Queries>,
    /// What performance mode makes; in find-peak at its first rate.
    pub performance: Option<Queries>,
}

impl Plan {
    /// Of a run with `settings` over a QSL of `total` samples of which `performance` are loaded at
    /// once. An `audit.config` goes in before: [`TestSettings::as_run`].
    ///
    /// # Errors
    /// Settings that LoadGen would trip over.
    pub fn of(
        settings: &TestSettings,
        total: usize,
        performance: usize,
    ) -> Result<Self, LoadgenError> {
        settings.check(total, performance)?;
        let mut effective = Effective::default();
        let mut said = Said::new();
        // SAFETY: both structs have the shim's layout, and `said` has the size that is given.
        let threw = unsafe {
            raw::lg_effective_settings(
                std::ptr::from_ref(settings).cast(),
                performance,
                total,
                std::ptr::from_mut(&mut effective).cast(),
                said.pointer(),
                said.size(),
            )
        };
        if threw != 0 {
            return Err(LoadgenError::Exception(said.text()));
        }
        let (set, total) = (effective.performance_sample_count, total as u64);
        let accuracy = || {
            let all = effective.accuracy_sample_count.min(total);
            let of = |samples| Self::generated(settings, &effective, true, samples);
            let (full, rest) = (of(set), of(all % set));
            let (sets, rests) = (all / set, u64::from(!all.is_multiple_of(set)));
            let sum = |of: fn(&Queries) -> u64| sets * of(&full) + rests * of(&rest);
            Queries {
                count: sum(|q| q.count),
                samples: sum(|q| q.samples),
                exact: true,
            }
        };
        let mode = settings.mode;
        Ok(Self {
            effective,
            accuracy: mode.has_accuracy().then(accuracy),
            performance: (mode != TestMode::AccuracyOnly)
                .then(|| Self::generated(settings, &effective, false, set.min(total))),
        })
    }

    /// The most samples that LoadGen keeps records of at a time.
    pub fn samples(&self) -> u64 {
        let phases = [self.accuracy, self.performance];
        phases
            .iter()
            .flatten()
            .map(|q| q.samples)
            .max()
            .unwrap_or(0)
    }

    /// LoadGen's `GenerateQueries` (loadgen.cc) over a set of `set` samples.
    fn generated(t: &TestSettings, e: &Effective, accuracy: bool, set: u64) -> Queries {
        let mut per_query = e.samples_per_query;
        // The last query of a set in MultiStream goes on with the set's first samples.
        let loaded = match t.scenario {
            Scenario::MultiStream => set + per_query.saturating_sub(1),
            _ => set,
        };
        if accuracy && t.scenario == Scenario::Offline {
            per_query = set;
        }
        let once = accuracy || t.performance_issue_unique;
        let mut least = match once {
            true => loaded / per_query.max(1),
            false => e.min_query_count,
        };
        let (by_time, exact) = match once {
            true => (0, true),
            false => by_time(t, e),
        };
        let whole = |n: u64| n.div_ceil(loaded.max(1)).saturating_mul(loaded);
        let equal = t.sample_concatenate_permutation && !accuracy;
        match t.scenario {
            Scenario::Offline if equal => per_query = whole(per_query),
            Scenario::Offline => {}
            _ if equal => least = whole(least.max(by_time)),
            _ => {}
        }
        let count = least.max(by_time);
        Queries {
            count,
            samples: count.saturating_mul(per_query),
            exact,
        }
    }
}

/// Queries that fill the time for which LoadGen makes some, and whether that is exact.
fn by_time(t: &TestSettings, e: &Effective) -> (u64, bool) {
    // Where the next query waits for the last one's answer LoadGen makes twice as many.
    let times = if t.scenario == Scenario::Server { 1 } else { 2 };
    let ns = e.target_duration_ms.saturating_mul(times * 1_000_000);
    let expected = e.target_qps * ns as f64 / 1e9;
    match t.scenario {
        _ if ns == 0 => (0, true),
        Scenario::Server if expected > DRAWN => (expected as u64, false),
        Scenario::Server => {
            let seed = t.schedule_rng_seed;
            (raw::lg_arrivals(e.target_qps, seed, ns), true)
        }
        // LoadGen cuts the time between two queries off to whole ns.
        _ => {
            let between = (1.0 / e.target_qps * 1e9) as u64;
            (ns.div_ceil(between.max(1)) + 1, true)
        }
    }
}
