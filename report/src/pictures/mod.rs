//! What each picture shows of a run, as HTML with its heading and how to read it.
//!
//! | file | picture |
//! | --- | --- |
//! | [`limits`] | how far the run is from each of LoadGen's limits |
//! | [`percentiles`] | each stage at each percentile |
//! | [`stages`] | means of the stages, and that they add up to LoadGen's |
//! | [`slowest`] | where the time of the slowest thousandth went |
//! | [`course`] | latency, throughput and samples in flight over time, and what happened |
//! | [`diagram`] | nodes, NICs and what went between them |
//! | [`connections`] | each connection, each rail |
//! | [`engines`] | batches, computing and copying of each accelerator |
//! | [`threads`] | what each thread ran and waited for a core |
//! | [`ledger`] | samples issued, posted, arrived, answered, completed |

pub mod connections;
pub mod course;
pub mod diagram;
pub mod engines;
pub mod ledger;
pub mod limits;
pub mod percentiles;
pub mod slowest;
pub mod stages;
pub mod threads;

use record::Stage;

/// The class of what comes before `issue_query`.
pub const SCHEDULED: &str = "k-sched";

/// The class of a stage's colour.
pub fn colour(stage: Stage) -> &'static str {
    match stage {
        Stage::Failed => "k-fail",
        Stage::IssueToPost => "k-post",
        Stage::Network => "k-net",
        Stage::Queue => "k-wait",
        Stage::Compute => "k-inf",
        Stage::Completion => "k-comp",
        Stage::RoundTrip | Stage::Total => "k-all",
    }
}

/// A share of 1 as a percentage.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => "?".to_owned(),
        p if p != 0.0 && p.abs() < 0.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}
