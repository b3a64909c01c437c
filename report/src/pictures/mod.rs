//! What each picture shows of a run, as HTML with its heading and how to read it.
//!
//! | file | picture |
//! | --- | --- |
//! | [`limits`] | how far the run is from each of LoadGen's limits |
//! | [`percentiles`] | each stage at each percentile |
//! | [`stages`] | means of the stages, and that they add up to LoadGen's |
//! | [`slowest`] | where the time of the slowest thousandth went |
//! | [`course`] | latency, throughput and samples in flight over time, and what happened |
//! | [`nodes`] | the nodes, their NICs, and the traffic with each |
//! | [`connections`] | each connection, each rail |
//! | [`engines`] | batches, computing and copying of each accelerator |
//! | [`threads`] | what each thread ran, and waited for a core |
//! | [`ledger`] | samples issued, posted, arrived, answered, completed |

pub mod connections;
pub mod course;
pub mod engines;
pub mod ledger;
pub mod limits;
pub mod nodes;
pub mod percentiles;
pub mod slowest;
pub mod stages;
pub mod threads;

use record::Stage;

/// The colour of what comes before `issue_query`.
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

/// A share of 1 as a percentage.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => "?".to_owned(),
        p if p != 0.0 && p.abs() < 0.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}
