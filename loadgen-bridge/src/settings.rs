//! LoadGen's `TestSettings`, field by field.

use std::mem::MaybeUninit;

use loadgen_log::{Scenario, TestMode};
use serde::{Deserialize, Serialize};

use crate::error::LoadgenError;
use crate::raw;

/// Every field of LoadGen's `TestSettings`, under LoadGen's names. [`Default`] reads LoadGen's
/// values from the C++ struct.
///
/// A run ends when both minima are met, or earlier when it reaches a maximum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[repr(C)]
pub struct TestSettings {
    /// The scenario: how queries arrive.
    pub scenario: Scenario,
    /// The mode: accuracy, performance, both, or find-peak.
    pub mode: TestMode,

    /// SingleStream: expected latency of a sample, in ns. This latency determines how many queries
    /// LoadGen generates in advance.
    pub single_stream_expected_latency_ns: f64,
    /// SingleStream: percentile of the result, as a fraction (0.90).
    pub single_stream_target_latency_percentile: f64,

    /// MultiStream: expected latency of a query, in ns.
    pub multi_stream_expected_latency_ns: f64,
    /// MultiStream: percentile of the result, as a fraction (0.99).
    pub multi_stream_target_latency_percentile: f64,
    /// MultiStream: samples in each query.
    pub multi_stream_samples_per_query: u64,

    /// Server: mean queries per second; in find-peak the lower bound.
    pub server_target_qps: f64,
    /// Server: limit on latency, in ns.
    pub server_target_latency_ns: u64,
    /// Server: percentile of the latency that must keep the limit, as a fraction (0.99).
    pub server_target_latency_percentile: f64,
    /// Server: whether LoadGen issues overdue queries together, as one query of several samples.
    pub server_coalesce_queries: bool,
    /// Find-peak: decimal places of the peak rate.
    pub server_find_peak_qps_decimals_of_precision: i32,
    /// Find-peak: fraction by which the rate grows in the search for the upper bound.
    pub server_find_peak_qps_boundary_step_size: f64,
    /// Server: the run ends early if more queries are outstanding; 0 is no limit.
    pub server_max_async_queries: u64,
    /// Server: number of issue threads; with 0, LoadGen's thread issues.
    pub server_num_issue_query_threads: u64,

    /// Offline: expected samples per second. LoadGen generates 1.1 x this rate x minimum duration.
    pub offline_expected_qps: f64,
    /// Whether the order of samples is a chain of permutations of the data set.
    pub sample_concatenate_permutation: bool,

    /// Minimum duration of a run, in ms.
    pub min_duration_ms: u64,
    /// Maximum duration of a run, in ms; 0 is no limit.
    pub max_duration_ms: u64,
    /// Minimum number of queries (in Offline: samples) of a run.
    pub min_query_count: u64,
    /// Maximum number of queries of a run; 0 is no limit.
    pub max_query_count: u64,

    /// Seed of the choice of loaded samples.
    pub qsl_rng_seed: u64,
    /// Seed of the samples' order.
    pub sample_index_rng_seed: u64,
    /// Seed of Server's arrival times.
    pub schedule_rng_seed: u64,
    /// Seed of the choice of responses that performance mode logs in the accuracy log.
    pub accuracy_log_rng_seed: u64,
    /// Share of responses that performance mode logs in the accuracy log (0 to 1).
    pub accuracy_log_probability: f64,
    /// Approximate number of responses in a performance run's accuracy log; 0 uses the probability.
    pub accuracy_log_sampling_target: u64,

    /// Whether this is audit test 05, which uses the three seeds below.
    pub test05: bool,
    /// Test 05's seed of the choice of loaded samples.
    pub test05_qsl_rng_seed: u64,
    /// Test 05's seed of the samples' order.
    pub test05_sample_index_rng_seed: u64,
    /// Test 05's seed of Server's arrival times.
    pub test05_schedule_rng_seed: u64,

    /// Whether LoadGen prints start and end of the measurement to stdout.
    pub print_timestamps: bool,
    /// Performance mode issues every sample at most once.
    pub performance_issue_unique: bool,
    /// Performance mode issues only one sample (audit test 04).
    pub performance_issue_same: bool,
    /// With `performance_issue_same`: index of the sample among the loaded ones.
    pub performance_issue_same_index: u64,
    /// Number of samples that performance mode loads; 0 leaves the number to the QSL.
    pub performance_sample_count_override: u64,
    /// Number of samples that accuracy mode runs; 0 means all.
    pub accuracy_sample_count_override: u64,

    /// Whether LoadGen measures first tokens and time per token.
    pub use_token_latencies: bool,
    /// Server: limit on the time to the first token, in ns.
    pub server_ttft_latency: u64,
    /// Server: limit on the time per token after the first, in ns.
    pub server_tpot_latency: u64,
    /// Whether LoadGen infers tokens per second from samples per second.
    pub infer_token_latencies: bool,
    /// Tokens per sample for `infer_token_latencies`. LoadGen leaves it uninitialized; here 0.
    pub token_latency_scaling_factor: u64,
}

impl Default for TestSettings {
    fn default() -> Self {
        let mut settings = MaybeUninit::<Self>::zeroed();
        // SAFETY: the pointer is to a whole TestSettings in the shim's layout (a test compares all
        // fields).
        unsafe { raw::lg_default_test_settings(settings.as_mut_ptr().cast()) };
        // SAFETY: the shim wrote every field; enums and flags come from C++ enums and bools of the
        // same values. Padding needs no value.
        unsafe { settings.assume_init() }
    }
}

impl TestSettings {
    /// Checks whether LoadGen can run these settings over a QSL of `total` samples, of which
    /// `performance` are loaded at once.
    ///
    /// LoadGen checks none of these values. It divides by some values; with others it takes the
    /// first element of an empty list.
    ///
    /// # Errors
    ///
    /// [`LoadgenError::Settings`] names the first invalid field.
    pub fn check(&self, total: usize, performance: usize) -> Result<(), LoadgenError> {
        let require = |holds: bool, field: &'static str, why: &dyn Fn() -> String| match holds {
            true => Ok(()),
            false => Err(LoadgenError::Settings { field, why: why() }),
        };
        let positive = |field, value: f64| {
            let holds = value.is_finite() && value > 0.0;
            require(holds, field, &|| format!("{value} is not above 0"))
        };
        let fraction = |field, value: f64| {
            let holds = value > 0.0 && value < 1.0;
            require(holds, field, &|| format!("{value} is not between 0 and 1"))
        };
        // LoadGen truncates the time between two queries to whole ns, and generates queries until
        // the duration is full: with 0 ns the generation never ends.
        let apart = |field, ns: f64, value: f64| {
            positive(field, value)?;
            require(ns >= 1.0, field, &|| {
                format!("{value}: LoadGen cannot tell queries apart that are less than 1 ns apart")
            })
        };
        let text = |why: &'static str| move || why.to_owned();

        let none = text("the QSL has no samples");
        require(total > 0, "total_sample_count", &none)?;
        let loaded = match self.performance_sample_count_override {
            0 => performance,
            some => some as usize,
        };
        let none = text("the QSL loads no samples");
        require(loaded > 0, "performance_sample_count", &none)?;
        let none = text("0: a run has at least one query");
        require(self.min_query_count > 0, "min_query_count", &none)?;
        let probability = self.accuracy_log_probability;
        let holds = (0.0..=1.0).contains(&probability);
        require(holds, "accuracy_log_probability", &|| {
            format!("{probability} is not from 0 to 1")
        })?;
        match self.scenario {
            Scenario::SingleStream => {
                let expected = self.single_stream_expected_latency_ns;
                apart("single_stream_expected_latency_ns", expected, expected)?;
                let percentile = self.single_stream_target_latency_percentile;
                fraction("single_stream_target_latency_percentile", percentile)?;
            }
            Scenario::MultiStream => {
                let expected = self.multi_stream_expected_latency_ns;
                apart("multi_stream_expected_latency_ns", expected, expected)?;
                let percentile = self.multi_stream_target_latency_percentile;
                fraction("multi_stream_target_latency_percentile", percentile)?;
                let none = text("0: a query has at least one sample");
                let holds = self.multi_stream_samples_per_query > 0;
                require(holds, "multi_stream_samples_per_query", &none)?;
            }
            Scenario::Server => {
                let qps = self.server_target_qps;
                apart("server_target_qps", 1e9 / qps, qps)?;
                let percentile = self.server_target_latency_percentile;
                fraction("server_target_latency_percentile", percentile)?;
            }
            // With a rate of 0, LoadGen makes one query of the minimum count.
            Scenario::Offline if self.offline_expected_qps == 0.0 => {}
            Scenario::Offline => positive("offline_expected_qps", self.offline_expected_qps)?,
        }
        let server = self.scenario == Scenario::Server;
        let holds = server || self.server_num_issue_query_threads == 0;
        require(holds, "server_num_issue_query_threads", &|| {
            format!("{} has one issue thread", self.scenario)
        })?;
        let find_peak = self.mode == TestMode::FindPeakPerformance;
        require(server || !find_peak, "mode", &|| {
            format!("{} has no find-peak, only Server does", self.scenario)
        })?;
        if find_peak {
            let step = self.server_find_peak_qps_boundary_step_size;
            positive("server_find_peak_qps_boundary_step_size", step)?;
            let holds = (0..=9).contains(&self.server_find_peak_qps_decimals_of_precision);
            let why = text("not from 0 to 9");
            require(holds, "server_find_peak_qps_decimals_of_precision", &why)?;
        }
        let unique = self.performance_issue_unique;
        if unique && self.scenario == Scenario::Offline {
            require(
                loaded <= total,
                "performance_sample_count_override",
                &|| format!("{loaded}, and performance_issue_unique, of {total} samples"),
            )?;
        }
        if unique && self.scenario == Scenario::MultiStream {
            let why = text("sample_concatenate_permutation is set too");
            let holds = !self.sample_concatenate_permutation;
            require(holds, "performance_issue_unique", &why)?;
        }
        if self.performance_issue_same {
            let why = text("performance_issue_unique is set too");
            require(!unique, "performance_issue_same", &why)?;
            let (index, limit) = (self.performance_issue_same_index, loaded.min(total));
            require(
                index < limit as u64,
                "performance_issue_same_index",
                &|| format!("{index} of {limit} loaded samples"),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::mem::offset_of;

    use super::*;

    macro_rules! fields {
        ($($name:ident)*) => {
            [$((stringify!($name), offset_of!(TestSettings, $name), {
                fn size<T>(_: impl Fn(&TestSettings) -> &T) -> usize {
                    size_of::<T>()
                }
                size(|settings| &settings.$name)
            })),*]
        };
    }

    #[test]
    fn every_field_lies_where_the_shim_has_it() {
        let ours = fields!(
            scenario mode single_stream_expected_latency_ns
            single_stream_target_latency_percentile multi_stream_expected_latency_ns
            multi_stream_target_latency_percentile multi_stream_samples_per_query
            server_target_qps server_target_latency_ns server_target_latency_percentile
            server_coalesce_queries server_find_peak_qps_decimals_of_precision
            server_find_peak_qps_boundary_step_size server_max_async_queries
            server_num_issue_query_threads offline_expected_qps sample_concatenate_permutation
            min_duration_ms max_duration_ms min_query_count max_query_count qsl_rng_seed
            sample_index_rng_seed schedule_rng_seed accuracy_log_rng_seed accuracy_log_probability
            accuracy_log_sampling_target test05 test05_qsl_rng_seed test05_sample_index_rng_seed
            test05_schedule_rng_seed print_timestamps performance_issue_unique
            performance_issue_same performance_issue_same_index performance_sample_count_override
            accuracy_sample_count_override use_token_latencies server_ttft_latency
            server_tpot_latency infer_token_latencies token_latency_scaling_factor
        );
        let mut table = std::ptr::null();
        // SAFETY: the shim points `table` at a static array with as many entries as it returns.
        let theirs = unsafe {
            let count = raw::lg_test_settings_layout(&mut table);
            std::slice::from_raw_parts(table, count)
        };
        let theirs: Vec<_> = theirs
            .iter()
            .map(|field| {
                // SAFETY: the names are string literals.
                let name = unsafe { CStr::from_ptr(field.name) };
                (name.to_str().unwrap(), field.offset, field.size)
            })
            .collect();
        assert_eq!(ours.to_vec(), theirs);
    }

    #[test]
    fn defaults_are_loadgens() {
        let settings = TestSettings::default();
        assert_eq!(
            (settings.scenario, settings.mode),
            (Scenario::SingleStream, TestMode::PerformanceOnly)
        );
        assert_eq!(settings.server_target_latency_ns, 100_000_000);
        assert_eq!(settings.single_stream_target_latency_percentile, 0.9);
        assert_eq!(
            (settings.min_duration_ms, settings.min_query_count),
            (10_000, 100)
        );
        assert_eq!(settings.token_latency_scaling_factor, 0);
    }

    #[test]
    fn yaml_sets_any_field_and_no_other() {
        let settings: TestSettings = serde_saphyr::from_str(
            "scenario: offline\nmode: AccuracyOnly\nserver_coalesce_queries: true\n",
        )
        .unwrap();
        assert_eq!(
            (settings.scenario, settings.mode),
            (Scenario::Offline, TestMode::AccuracyOnly)
        );
        assert!(settings.server_coalesce_queries);
        assert_eq!(settings.min_query_count, 100);
        let error = serde_saphyr::from_str::<TestSettings>("server_target_qsp: 3\n").unwrap_err();
        assert!(error.to_string().contains("server_target_qsp"), "{error}");
    }

    #[test]
    fn what_loadgen_would_trip_over_is_refused() {
        type Change = fn(&mut TestSettings);
        let cases: &[(&str, Change)] = &[
            ("min_query_count", |s| s.min_query_count = 0),
            ("server_target_qps", |s| s.server_target_qps = 0.0),
            ("server_target_qps", |s| s.server_target_qps = f64::NAN),
            ("server_target_latency_percentile", |s| {
                s.server_target_latency_percentile = 1.0
            }),
            ("server_num_issue_query_threads", |s| {
                s.scenario = Scenario::Offline;
                s.server_num_issue_query_threads = 2;
            }),
            ("mode", |s| {
                s.scenario = Scenario::SingleStream;
                s.mode = TestMode::FindPeakPerformance;
            }),
            ("offline_expected_qps", |s| {
                s.scenario = Scenario::Offline;
                s.offline_expected_qps = -1.0;
            }),
            ("performance_issue_same_index", |s| {
                s.performance_issue_same = true;
                s.performance_issue_same_index = 10;
            }),
            ("multi_stream_samples_per_query", |s| {
                s.scenario = Scenario::MultiStream;
                s.multi_stream_samples_per_query = 0;
            }),
        ];
        let server = TestSettings {
            scenario: Scenario::Server,
            ..TestSettings::default()
        };
        server.check(20, 10).unwrap();
        assert!(server.check(0, 0).is_err());
        assert!(server.check(20, 0).is_err());
        for (field, change) in cases {
            let mut settings = server.clone();
            change(&mut settings);
            let error = settings.check(20, 10).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
