//! Predicts how much LoadGen will run. LoadGen's `TestSettingsInternal` gives the settings;
//! [`Plan::generated`] reimplements the rest of `GenerateQueries`, which no header declares.

use loadgen_log::{Scenario, TestMode};

use crate::error::LoadgenError;
use crate::raw::{self, Said};
use crate::settings::TestSettings;

/// Maximum number of Server arrivals that [`Plan`] draws one by one, as LoadGen does.
const DRAWN: f64 = 5e6;

/// The fields of LoadGen's `TestSettingsInternal` that decide how much LoadGen runs. The detailed
/// log has these fields as `effective_*`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct Effective {
    /// Samples in each query; in Offline before padding.
    pub samples_per_query: u64,
    /// Queries per second; in Offline samples per second.
    pub target_qps: f64,
    /// The percentile that judges the scenario, as a fraction.
    pub target_latency_percentile: f64,
    /// Server: the run ends if more queries are outstanding; 0 is no limit.
    pub max_async_queries: u64,
    /// Duration for which LoadGen generates queries, in ms; 0 in Offline.
    pub target_duration_ms: u64,
    /// Minimum duration of a valid run, in ms.
    pub min_duration_ms: u64,
    /// Maximum duration of a run, in ms; 0 is no limit.
    pub max_duration_ms: u64,
    /// Minimum number of queries of a valid run; 1 in Offline.
    pub min_query_count: u64,
    /// Maximum number of queries of a run; 0 is no limit.
    pub max_query_count: u64,
    /// Minimum number of samples of a valid run.
    pub min_sample_count: u64,
    /// Number of samples that performance mode loads.
    pub performance_sample_count: u64,
    /// Number of samples that accuracy mode runs.
    pub accuracy_sample_count: u64,
}

/// The queries that LoadGen generates before it issues the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queries {
    /// Number of queries.
    pub count: u64,
    /// Number of samples in all queries.
    pub samples: u64,
    /// Whether `count` is exact; for very many Server arrivals it is the expected value.
    pub exact: bool,
}

/// LoadGen's settings of a run, and the queries that it will generate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// LoadGen's settings.
    pub effective: Effective,
    /// Queries of accuracy mode, over all sets of samples.
    pub accuracy: Option<Queries>,
    /// Queries of performance mode; in find-peak those of the first rate.
    pub performance: Option<Queries>,
}

impl Plan {
    /// Plans a run with `settings` over a QSL of `total` samples, of which `performance` are loaded
    /// at once. Apply an `audit.config` first: [`TestSettings::as_run`].
    ///
    /// # Errors
    /// The settings are invalid ([`TestSettings::check`]), or LoadGen throws an exception.
    pub fn of(
        settings: &TestSettings,
        total: usize,
        performance: usize,
    ) -> Result<Self, LoadgenError> {
        settings.check(total, performance)?;
        let mut effective = Effective::default();
        let mut said = Said::new();
        // SAFETY: both structs have the shim's layout, and `said` has the given size.
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

    /// Maximum number of samples that LoadGen keeps records of at once.
    pub fn samples(&self) -> u64 {
        let phases = [self.accuracy, self.performance];
        phases
            .iter()
            .flatten()
            .map(|q| q.samples)
            .max()
            .unwrap_or(0)
    }

    /// Reimplements LoadGen's `GenerateQueries` (loadgen.cc) for a set of `set` samples.
    fn generated(t: &TestSettings, e: &Effective, accuracy: bool, set: u64) -> Queries {
        let mut per_query = e.samples_per_query;
        // In MultiStream the last query of a set continues with the set's first samples.
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

/// Number of queries that fill the target duration, and whether the number is exact.
fn by_time(t: &TestSettings, e: &Effective) -> (u64, bool) {
    // LoadGen generates twice as many queries in scenarios that wait for each answer.
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
        // LoadGen truncates the time between two queries to whole ns.
        _ => {
            let between = (1.0 / e.target_qps * 1e9) as u64;
            (ns.div_ceil(between.max(1)) + 1, true)
        }
    }
}
