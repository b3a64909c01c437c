//! `rails`: compares the policies that choose connections, in a model of a large system.

mod model;

use std::path::PathBuf;

use anyhow::Result;
use qdl::rails::{Policy, RailsError, Score};
use serde::Serialize;
use serde_json::json;

use crate::{table::Table, write_json};
use model::{Outcome, Scenario};

/// Compares policies that choose rails, in a model of a large system.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Divisor of the length of each run; 1 is the full length.
    #[arg(long, default_value_t = 1)]
    shorten: u64,
    /// Numbers of rails to model, 1 to 256.
    #[arg(long, value_delimiter = ',', default_value = "8,64,256")]
    rails: Vec<usize>,
    /// File for the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct PolicyResult {
    rails: usize,
    policy: &'static str,
    /// The run with the congested rails.
    with: Outcome,
    /// The run without the congested rails, from its beginning.
    without: Outcome,
}

fn policies() -> [(&'static str, Policy); 5] {
    let spray = Policy::HealthSpray {
        delta: Score::from_ratio(1, 4),
        above_only: false,
    };
    [
        ("round_robin", Policy::RoundRobin),
        ("least_outstanding", Policy::LeastOutstanding),
        ("best", Policy::Best),
        ("health_best_fit", Policy::HealthBestFit),
        ("health_spray", spray),
    ]
}

/// Runs every policy over each number of rails, prints the table and writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    println!(
        "5 % of the rails at a tenth of their rate, 60 % load: p99 in us, in brackets without them"
    );
    let columns = policies().map(|(name, _)| (name, 17, name, 0));
    let columns = [&[("rails", 5, "rails", 0)], &columns[..]].concat();
    let table = Table::new(&columns);
    let mut rows = Vec::new();
    for rails in &args.rails {
        let cells = row(*rails, args.shorten.max(1))?;
        let mut shown = json!({ "rails": rails });
        for c in &cells {
            let p99 = format!("{:.0} ({:.0})", c.with.p99_us, c.without.p99_us);
            shown[c.policy] = json!(p99);
        }
        table.row(&shown);
        rows.extend(cells);
    }
    args.json
        .as_deref()
        .map_or(Ok(()), |path| write_json(path, &rows))
}

fn row(rails: usize, shorten: u64) -> Result<Vec<PolicyResult>, RailsError> {
    let cell = |(name, policy)| {
        let scenario = Scenario::new(rails, policy, shorten);
        Ok(PolicyResult {
            rails,
            policy: name,
            with: model::run(&scenario)?,
            without: model::run(&scenario.without_congested())?,
        })
    };
    policies().into_iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One simulated second on eight rails is enough to tell the policies apart.
    #[test]
    fn health_keeps_clear_of_congestion() {
        let cells = row(8, 8).expect("eight rails");
        let blind = &cells[0];
        for c in &cells[2..] {
            assert!(c.with.congested_share < 0.01, "{c:?}");
            assert!(c.with.p99_us <= 1.5 * c.without.p99_us, "{c:?}");
            assert!(5.0 * c.with.p99_us <= blind.with.p99_us, "{c:?} {blind:?}");
        }
    }
}
