//! LoadGen's scenarios and modes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an enumeration of LoadGen's, whose variants have LoadGen's spelling and numbers.
macro_rules! loadgen_enum {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $number:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $number,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: [$name; [$($number),*].len()] = [$($name::$variant),*];

            /// LoadGen's spelling, as in `user.conf` and the logs.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => stringify!($variant),)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

loadgen_enum! {
/// How queries arrive, and what the result is.
pub enum Scenario {
    /// One sample at a time, after the previous answer; the result is a percentile of the latency.
    #[serde(
        alias = "single_stream",
        alias = "single-stream",
        alias = "singlestream"
    )]
    SingleStream = 0,
    /// N samples a query, each query after the previous answer; the result is a percentile of the
    /// query's latency.
    #[serde(alias = "multi_stream", alias = "multi-stream", alias = "multistream")]
    MultiStream = 1,
    /// Single samples at Poisson-distributed times; a percentile of the latency must keep a limit.
    #[serde(alias = "server")]
    Server = 2,
    /// All samples at once; the result is samples per second.
    #[serde(alias = "offline")]
    Offline = 3,
}
}

loadgen_enum! {
/// The mode of a run.
pub enum TestMode {
    /// An accuracy run, then a performance run.
    #[serde(alias = "submission_run", alias = "submission")]
    SubmissionRun = 0,
    /// Every sample once; LoadGen logs every response in the accuracy log.
    #[serde(alias = "accuracy_only", alias = "accuracy")]
    AccuracyOnly = 1,
    /// A measured run of the scenario.
    #[serde(alias = "performance_only", alias = "performance")]
    PerformanceOnly = 2,
    /// The search for the highest valid rate. Server only.
    #[serde(
        alias = "find_peak_performance",
        alias = "find_peak",
        alias = "find-peak"
    )]
    FindPeakPerformance = 3,
}
}

impl TestMode {
    /// Whether the mode issues every sample once and logs every response.
    pub fn has_accuracy(self) -> bool {
        matches!(self, TestMode::SubmissionRun | TestMode::AccuracyOnly)
    }
}
