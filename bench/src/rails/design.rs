//! Rail-only or rail-optimised: for which health is a spine above the rails worth having?
//!
//! In a *rail-only* network the rails meet nowhere but inside the nodes: a sample that starts at
//! one rail's NIC and belongs to another's GPU goes by rd, dr or drd. In a *rail-optimised* network
//! a spine joins the rails: out on s, across the spine, in on t, for `H(s) * H(spine) * H(t)`. The
//! spine is better exactly when
//!
//! ```text
//!   H(spine) > max( 1 / gamma(source), 1 / gamma(destination),
//!                   H(x) / (gamma(source) * gamma(destination)) )
//! ```
//!
//! with x the best rail of all; the three bounds are what it takes to beat rd, dr and drd.

use std::{cmp::Ordering, fmt::Write};

use qdl::rails::{RailId, Score};
use serde::Serialize;

use super::algebra::{Ends, Path, PathKind, PathScore};

/// Which network serves these two ends better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// Nodes' interiors alone join the rails.
    RailOnly,
    /// A spine joins them.
    RailOptimised,
    /// Neither is better.
    Equal,
}

/// What [`compare`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The better design.
    pub better: Design,
    /// Best path without the spine.
    pub rail_only: Path,
    /// Score across the spine; a rail that is own at both ends needs none.
    pub spine: PathScore,
    /// The health that a spine must exceed to be worth having; above 1 no spine is.
    pub needed: f64,
}

/// Compares the two designs for a sample between `ends`, with a spine of health `spine`.
pub fn compare(ends: &Ends, rails: &[(RailId, Score)], spine: Score) -> Comparison {
    let ((s, source), (t, destination)) = (ends.source, ends.destination);
    let rail_only = ends.best(rails);
    let across = if s == t {
        PathScore::of(source, Score::ONE, Score::ONE)
    } else {
        PathScore::of(source, spine, destination)
    };
    // A rail-optimised network has every path of a rail-only one besides: does the spine add any?
    let better = match across.cmp(&rail_only.score) {
        Ordering::Greater => Design::RailOptimised,
        Ordering::Equal => Design::Equal,
        Ordering::Less => Design::RailOnly,
    };
    let (gamma_s, gamma_t) = ends.ratios();
    let remote = rails.iter().map(|(_, h)| h.as_f64()).fold(0.0, f64::max);
    let needed = if s == t {
        f64::INFINITY
    } else {
        (1.0 / gamma_s)
            .max(1.0 / gamma_t)
            .max(remote / (gamma_s * gamma_t))
    };
    Comparison {
        better,
        rail_only,
        spine: across,
        needed,
    }
}

/// One comparison, with the health it is for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// H(near) and H(far), the two nodes' interiors.
    pub interiors: f64,
    /// H(x), the best of the other rails.
    pub remote: f64,
    /// H(spine).
    pub spine: f64,
    /// H(s), the source's own rail.
    pub source: f64,
    /// H(t), the destination's own rail.
    pub destination: f64,
    /// H(s) / H(near).
    pub gamma_source: f64,
    /// H(t) / H(far).
    pub gamma_destination: f64,
    /// The better of rd and dr, by the ratios.
    pub two_hop: PathKind,
    /// What a remote rail's health must exceed.
    pub m: f64,
    /// Whether the best remote rail's does.
    pub remote_wins: bool,
    /// The best path without a spine.
    pub rail_only: PathKind,
    /// Its score.
    pub rail_only_score: f64,
    /// Score across the spine.
    pub spine_score: f64,
    /// What the spine's health must exceed.
    pub spine_needed: f64,
    /// Which design is better.
    pub better: Design,
}

/// Health of the own rails in the grids.
const OWN: [u64; 5] = [100, 80, 60, 40, 20];
/// Interiors, best remote rail and spine of each grid, in hundredths.
const GRIDS: [[u64; 3]; 3] = [[90, 100, 80], [60, 100, 80], [60, 100, 30]];

/// A grid over the own rails' health, row by row.
fn grid([interiors, remote, spine]: [u64; 3]) -> Vec<Row> {
    let score = |hundredths| Score::from_ratio(hundredths, 100);
    let pairs = OWN.iter().flat_map(|s| OWN.iter().map(move |t| (*s, *t)));
    pairs
        .map(|(s, t)| {
            let rails = [(RailId(0), score(s)), (RailId(1), score(t))];
            let ends = Ends {
                source: rails[0],
                destination: rails[1],
                near: score(interiors),
                far: score(interiors),
            };
            let rails = [rails[0], rails[1], (RailId(2), score(remote))];
            let found = compare(&ends, &rails, score(spine));
            let (gamma_source, gamma_destination) = ends.ratios();
            Row {
                interiors: ends.near.as_f64(),
                remote: rails[2].1.as_f64(),
                spine: score(spine).as_f64(),
                source: ends.source.1.as_f64(),
                destination: ends.destination.1.as_f64(),
                gamma_source,
                gamma_destination,
                two_hop: match ends.compare_ratios() {
                    Ordering::Greater => PathKind::Rd,
                    Ordering::Less | Ordering::Equal => PathKind::Dr,
                },
                m: gamma_source.max(gamma_destination),
                remote_wins: u64::from(rails[2].1.steps()) > ends.threshold(),
                rail_only: found.rail_only.kind,
                rail_only_score: found.rail_only.score.as_f64(),
                spine_score: found.spine.as_f64(),
                spine_needed: found.needed,
                better: found.better,
            }
        })
        .collect()
}

/// All grids.
pub fn rows() -> Vec<Row> {
    GRIDS.into_iter().flat_map(grid).collect()
}

/// The grids as text: the best rail-only path of each cell, and a mark where a spine beats it.
pub fn render(rows: &[Row]) -> String {
    let mut t = String::from(
        "rail-only and rail-optimised delivery: best path without a spine, * where one is better\n",
    );
    for grid in rows.chunks(OWN.len() * OWN.len()) {
        let Some(first) = grid.first() else { break };
        let _ = writeln!(
            t,
            "  interiors {:.2}, best remote rail {:.2}, spine {:.2}",
            first.interiors, first.remote, first.spine
        );
        let _ = write!(t, "    {:>18}", "H(s) \\ H(t)");
        for r in grid.iter().take(OWN.len()) {
            let _ = write!(t, " {:>7.2}", r.destination);
        }
        t.push('\n');
        for line in grid.chunks(OWN.len()) {
            let _ = write!(t, "    {:>18.2}", line[0].source);
            for r in line {
                let mark = match r.better {
                    Design::RailOptimised => "*",
                    Design::RailOnly | Design::Equal => "",
                };
                let _ = write!(t, " {:>7}", format!("{}{mark}", r.rail_only.name()));
            }
            t.push('\n');
        }
    }
    t
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::algebra::tests::{case, enumerate, score},
        *,
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// The answer is that of comparing every path with the one across the spine, and the
        /// inequality agrees with it.
        #[test]
        fn the_inequality_decides((rails, ends) in case(), spine in score()) {
            let found = compare(&ends, &rails, spine);
            let ((s, hs), (t, ht)) = (ends.source, ends.destination);
            if s == t {
                prop_assert_ne!(found.better, Design::RailOptimised);
                return Ok(());
            }
            let all = enumerate(&ends, &rails);
            let most = all.iter().map(|p| p.score).max().expect("there are rails");
            let across = PathScore::of(hs, spine, ht);
            prop_assert_eq!(found.better == Design::RailOptimised, across > most);
            prop_assert_eq!(found.better == Design::RailOnly, across < most);
            // The ratios are rounded: a hair's breadth from equality they say nothing.
            let spine = spine.as_f64();
            if (spine / found.needed - 1.0).abs() > 1e-9 {
                prop_assert_eq!(found.better == Design::RailOptimised, spine > found.needed);
            }
        }
    }

    #[test]
    fn the_grids_follow_the_ratios() {
        let rows = rows();
        assert_eq!(rows.len(), GRIDS.len() * OWN.len() * OWN.len());
        for r in &rows {
            // The path with the best score is the one that ratios and m name.
            let expected = if r.remote_wins {
                PathKind::Drd
            } else {
                r.two_hop
            };
            assert_eq!(r.rail_only, expected, "{r:?}");
        }
        let kinds = |kind| rows.iter().any(|r| r.rail_only == kind);
        assert!(kinds(PathKind::Rd) && kinds(PathKind::Dr) && kinds(PathKind::Drd));
        let designs = |design| rows.iter().any(|r| r.better == design);
        assert!(designs(Design::RailOnly) && designs(Design::RailOptimised));
        let text = render(&rows);
        assert!(text.contains("drd") && text.contains('*'), "{text}");
    }
}
