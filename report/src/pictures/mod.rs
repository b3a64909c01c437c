//! The pictures of a run, as HTML with a heading and a note on how to read them.
//!
//! | file | picture |
//! | --- | --- |
//! | [`limits`] | distance to each of LoadGen's limits |
//! | [`percentiles`] | each stage at each percentile |
//! | [`stages`] | mean time of each stage, and their sum beside LoadGen's mean |
//! | [`slowest`] | stages of the slowest thousandth |
//! | [`course`] | latency, throughput and samples in flight over time, with events |
//! | [`connections`] | each connection and each rail |
//! | [`engines`] | batches, computing and copying on each accelerator |
//! | [`threads`] | each thread's time on a core and waiting for one |
//! | [`ledger`] | samples issued, posted, arrived, answered, completed |

pub mod connections;
pub mod course;
pub mod engines;
pub mod ledger;
pub mod limits;
pub mod percentiles;
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
        Stage::IssueToPost => "post",
        Stage::Network => "net",
        Stage::Queue => "wait",
        Stage::Compute => "inf",
        Stage::Completion => "comp",
        Stage::RoundTrip | Stage::Total => "all",
    }
}

pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => "?".to_owned(),
        p if p != 0.0 && p.abs() < 0.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}
