//! The pictures of a run: parts of its report with a heading and a note on how to read them.
//!
//! | file | picture |
//! | --- | --- |
//! | [`facts`] | what ran, and what came of it |
//! | [`loadgen`] | LoadGen's latencies, and the distance to each of its limits |
//! | [`phases`] | rate and latency of each phase, and its stages |
//! | [`percentiles`] | each stage at each percentile |
//! | [`stages`] | mean time of each stage, and their sum beside LoadGen's mean |
//! | [`slowest`] | stages of the slowest thousandth |
//! | [`course`] | latency, throughput and samples in flight over time, with events |
//! | [`connections`] | each connection and each rail |
//! | [`engines`] | batches, computing and copying on each accelerator |
//! | [`threads`] | each thread's time on a core and waiting for one |
//! | [`ledger`] | samples issued, posted, arrived, answered, completed |
//! | [`settings`] | the settings, and where each value came from |

pub mod connections;
pub mod course;
pub mod engines;
pub mod facts;
pub mod ledger;
pub mod loadgen;
pub mod percentiles;
pub mod phases;
pub mod settings;
pub mod slowest;
pub mod stages;
pub mod threads;

use record::Stage;

/// Colour of the time before `issue_query`.
pub const SCHEDULED: &str = "sched";

/// A stage's colour: a variable of the style sheet.
pub fn colour(stage: Stage) -> &'static str {
    match stage {
        Stage::Failed => "bad",
        Stage::Prefill => "r5",
        Stage::IssueToPost => "post",
        Stage::Network => "net",
        Stage::Queue => "wait",
        Stage::Compute => "inf",
        Stage::Completion => "comp",
        Stage::RoundTrip | Stage::Transfer | Stage::Total => "all",
    }
}

/// A value, or a dash.
pub fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}
