//! Comparison of all counts of a run that must be equal.

use std::fmt::Display;

use super::{AcceleratorRecord, RunRecord};

/// Collects one line for each pair of counts that differ.
#[derive(Default)]
pub(crate) struct Comparison(pub Vec<String>);

impl Comparison {
    pub(crate) fn same(&mut self, left: (impl Display, u64), right: (impl Display, u64)) {
        let ((left, l), (right, r)) = (left, right);
        if l != r {
            self.0.push(format!("{left} is {l}, but {right} is {r}"));
        }
    }
}

impl RunRecord {
    /// Computes the totals and mismatches. Returns whether all counts agree.
    pub fn close(&mut self) -> bool {
        self.system.connections_total = self.total();
        self.mismatches = mismatches(self);
        self.mismatches.is_empty()
    }
}

fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Compares the ledger with the histograms, the connections and the accelerators.
fn mismatches(run: &RunRecord) -> Vec<String> {
    let mut all = Comparison::default();
    let l = &run.system.ledger;
    let answered = ("samples answered", l.answered);
    let completed = sum([l.answered, l.emptied]);
    all.same(
        ("samples issued", l.issued),
        ("samples completed", completed),
    );
    all.same(("responses", l.responses), answered);
    all.same(("samples in the histograms", run.stages.count()), answered);
    if !run.phases.is_empty() {
        let samples = sum(run.phases.iter().map(|p| p.samples));
        all.same(("samples of all phases", samples), answered);
    }
    compare_tokens(run, &mut all);
    // A run that ended in its warm-up has connections, and none of LoadGen's samples to compare.
    if !run.system.connections.is_empty() && l.issued > 0 {
        compare_connections(run, &mut all);
    }
    all.0
}

/// Compares token counts: each answered sample reported one first token, and as many parts arrived
/// as the answers report.
fn compare_tokens(run: &RunRecord, all: &mut Comparison) {
    let (Some(t), l) = (&run.tokens, &run.system.ledger) else {
        return;
    };
    if let Some(first) = t.first_tokens {
        // A sample may report its first token and be completed empty later.
        if l.emptied == 0 || first < l.answered {
            let answered = ("samples answered", l.answered);
            all.same(("first tokens reported", first), answered);
        }
    }
    // After a lost connection or a refusal, parts of an answer arrive a second time.
    if (l.lost_connections, l.emptied, l.refused) == (0, 0, [0; 3]) {
        // A prefill node's first token is handed over as a part.
        let prefilled = match &*t.stream {
            "none" => 0,
            _ => l.prefilled,
        };
        let reported = "parts that the answers say they had before their last";
        all.same(
            ("parts handed over", t.parts_taken),
            (reported, sum([t.parts_before_last, prefilled])),
        );
    }
}

fn compare_connections(run: &RunRecord, all: &mut Comparison) {
    let l = &run.system.ledger;
    let warm_up = if l.warmed > 0 { " and warm-up" } else { "" };
    let total = run.total();
    let refused = sum(l.refused);
    // The dispatcher does not send a sample again after its third refusal.
    let again = refused - l.refused[2].min(refused);
    let due = sum([l.issued, l.redispatched, again, l.prefilled]);
    // A run that was given up may have left samples in the backlog.
    if l.emptied == 0 || l.posted > due {
        all.same(
            ("writes posted", l.posted),
            ("samples issued and sent again", due),
        );
    }
    let posted = format!("writes posted{warm_up}");
    let posted = (posted.as_str(), sum([l.posted, l.warmed]));
    let arrivals = format!("responses and refusals{warm_up}");
    let arrived = sum([l.responses, l.prefilled, refused, l.warmed]);
    let arrivals = (arrivals.as_str(), arrived);
    let ends = total.rx.writes.saturating_sub(total.rx.parts);
    let refusals = ("samples refused", refused);
    let warmed = ("samples of the warm-up", l.warmed);
    let responses = ("responses", sum([l.responses, l.prefilled]));
    // A lost connection may have carried samples of a warm-up, which no other count has.
    if l.lost_connections == 0 || total.tx.writes < posted.1 {
        all.same(("writes of the connections", total.tx.writes), posted);
    }
    all.same(("refusals of the connections", total.refused), refusals);
    all.same(("arrivals of the connections", ends), arrivals);
    let words = "samples that warmed the connections up";
    all.same((words, total.warmed), warmed);
    all.same(("samples of the connections", total.samples), responses);

    for c in run.system.connections.iter().filter(|c| c.lost.is_empty()) {
        let name = &c.name;
        let own = (
            format!("samples posted on it{warm_up}"),
            sum([c.posted, c.warmed]),
        );
        all.same((format!("writes of {name}"), c.tx.writes), own);
        let taken = sum([c.samples, c.refused]);
        let ends = c.rx.writes.saturating_sub(c.rx.parts);
        let own = (
            format!("responses taken from it{warm_up}"),
            sum([taken, c.warmed]),
        );
        all.same((format!("arrivals of {name}"), ends), own);
        if l.emptied == 0 {
            let own = ("responses taken from it", taken);
            all.same((format!("samples posted on {name}"), c.posted), own);
        }
    }

    let accelerators = &run.system.accelerators;
    for a in accelerators {
        let Some(samples) = a.samples else { continue };
        // A node may report how many samples it answered, but no batch sizes.
        if a.batches.batches() == 0 {
            continue;
        }
        // Batches may hold samples the node refused, or dropped when their connection was lost.
        let ran = a.batches.samples();
        if ran < samples || ran > sum([samples, a.dropped_late, a.refused]) {
            let answered = (format!("samples answered by {}", a.node), samples);
            all.same(
                (format!("samples in the batches of {}", a.node), ran),
                answered,
            );
        }
    }
    // Accelerators may have answered samples of a lost connection without reporting them.
    if (l.lost_connections, l.emptied) != (0, 0) {
        return;
    }
    let total_of = |of: fn(&AcceleratorRecord) -> Option<u64>| {
        let mut each = accelerators.iter();
        each.try_fold(0u64, |sum, a| Some(sum.saturating_add(of(a)?)))
    };
    if let Some(n) = total_of(|a| a.arrived) {
        all.same(("samples that arrived at the accelerators", n), posted);
    }
    if let Some(n) = total_of(|a| Some(sum([a.samples?, a.refused]))) {
        all.same(("samples answered by the accelerators", n), arrivals);
    }
    if let Some(n) = total_of(|a| a.parts) {
        let received = ("parts that came over the connections", total.rx.parts);
        all.same(("parts posted by the accelerators", n), received);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{BatchSizes, PhaseRecord, Stage, StageRow, StageTable, TokenRecord};

    /// A run of `n` samples over two connections, all of whose counts agree.
    fn good(n: u64) -> RunRecord {
        let connection = |name: &str, n: u64| {
            let writes = json!({"writes": n});
            json!({"name": name, "samples": n, "posted": n, "tx": writes, "rx": writes})
        };
        let row = StageRow {
            count: n,
            ..StageRow::default()
        };
        let run = json!({
            "stages": StageTable::new([(Stage::Total, row)]),
            "ledger": {"issued": n, "answered": n, "posted": n, "responses": n},
            "connections": [connection("a/0", n / 2), connection("a/1", n - n / 2)],
            "accelerators": [
                {"node": "acc-01", "samples": n, "arrived": n, "batches": {"1": n, "4": 0}},
            ],
        });
        serde_json::from_value(run).expect("a record")
    }

    fn complaints(run: &RunRecord) -> String {
        mismatches(run).join("; ")
    }

    #[test]
    fn a_good_run_agrees() {
        assert_eq!(complaints(&good(11)), "");
        assert_eq!(complaints(&RunRecord::default()), "");
    }

    #[test]
    fn each_count_that_is_off_is_named() {
        type Spoil = fn(&mut RunRecord);
        let cases: [(Spoil, &str); 11] = [
            (
                |r| r.system.ledger.issued += 1,
                "samples issued is 12, but samples completed is 11; \
                 writes posted is 11, but samples issued and sent again is 12",
            ),
            (
                |r| r.system.ledger.responses -= 1,
                "responses is 10, but samples answered is 11; \
                 arrivals of the connections is 11, but responses and refusals is 10; \
                 samples of the connections is 11, but responses is 10; \
                 samples answered by the accelerators is 11, but responses and refusals is 10",
            ),
            (
                |r| r.stages = StageTable::default(),
                "samples in the histograms is 0, but samples answered is 11",
            ),
            (
                |r| r.phases.push(PhaseRecord::default()),
                "samples of all phases is 0, but samples answered is 11",
            ),
            (
                |r| r.system.connections[1].tx.writes += 1,
                "writes of the connections is 12, but writes posted is 11; \
                 writes of a/1 is 7, but samples posted on it is 6",
            ),
            (
                |r| r.system.connections[0].rx.writes += 1,
                "arrivals of the connections is 12, but responses and refusals is 11; \
                 arrivals of a/0 is 6, but responses taken from it is 5",
            ),
            (
                |r| r.system.connections[0].posted -= 1,
                "writes of a/0 is 5, but samples posted on it is 4; \
                 samples posted on a/0 is 4, but responses taken from it is 5",
            ),
            (
                |r| r.system.accelerators[0].arrived = Some(9),
                "samples that arrived at the accelerators is 9, but writes posted is 11",
            ),
            (
                |r| r.system.connections[0].samples -= 1,
                "samples of the connections is 10, but responses is 11; \
                 arrivals of a/0 is 5, but responses taken from it is 4; \
                 samples posted on a/0 is 5, but responses taken from it is 4",
            ),
            (
                |r| r.system.accelerators[0].batches.record(2),
                "samples in the batches of acc-01 is 13, but samples answered by acc-01 is 11",
            ),
            (
                |r| {
                    r.system.accelerators[0].samples = Some(12);
                    r.system.accelerators[0].batches.record(1);
                },
                "samples answered by the accelerators is 12, but responses and refusals is 11",
            ),
        ];
        for (spoil, expected) in cases {
            let mut run = good(11);
            spoil(&mut run);
            assert_eq!(complaints(&run), expected);
        }
    }

    #[test]
    fn a_prefilled_sample_is_posted_and_answered_once_more() {
        let with_roles = |stream: &str| {
            let mut run = good(11);
            let system = &mut run.system;
            (system.ledger.posted, system.ledger.prefilled) = (22, 11);
            let more = [5, 6].into_iter().zip(&mut system.connections);
            for (n, c) in more {
                (c.posted, c.samples) = (c.posted + n, c.samples + n);
                (c.tx.writes, c.rx.writes) = (c.tx.writes + n, c.rx.writes + n);
            }
            let a = &mut system.accelerators[0];
            (a.samples, a.arrived, a.batches) = (Some(22), Some(22), BatchSizes::default());
            run.tokens = Some(TokenRecord {
                parts_taken: if stream == "none" { 0 } else { 11 },
                stream: stream.to_owned(),
                ..TokenRecord::default()
            });
            run
        };
        for stream in ["none", "first", "all"] {
            assert_eq!(complaints(&with_roles(stream)), "", "{stream}");
            let mut run = with_roles(stream);
            run.system.ledger.prefilled -= 1;
            assert!(complaints(&run).contains("samples issued and sent again"));
        }
    }

    #[test]
    fn first_tokens_and_parts_are_counted_on_both_sides() {
        let streamed = || {
            let mut run = good(11);
            run.tokens = Some(TokenRecord {
                parts_before_last: 22,
                parts_taken: 22,
                first_tokens: Some(11),
                ..TokenRecord::default()
            });
            for (c, parts) in run.system.connections.iter_mut().zip([10, 12]) {
                c.rx.parts = parts;
                c.rx.writes += parts;
            }
            run.system.accelerators[0].parts = Some(22);
            run
        };
        fn tokens(run: &mut RunRecord) -> &mut TokenRecord {
            run.tokens.as_mut().expect("tokens")
        }
        type Spoil = fn(&mut RunRecord);
        let cases: [(Spoil, &str); 6] = [
            (|_| {}, ""),
            (
                |r| tokens(r).first_tokens = Some(12),
                "first tokens reported is 12, but samples answered is 11",
            ),
            (
                |r| tokens(r).parts_taken -= 1,
                "parts handed over is 21, but parts that the answers say they had before their last \
                 is 22",
            ),
            (
                |r| r.system.accelerators[0].parts = Some(23),
                "parts posted by the accelerators is 23, but parts that came over the connections \
                 is 22",
            ),
            (
                |r| r.system.connections[0].rx.writes -= 1,
                "arrivals of the connections is 10, but responses and refusals is 11; \
                 arrivals of a/0 is 4, but responses taken from it is 5",
            ),
            (
                // Parts of a lost connection arrive again when their samples are sent again.
                |r| {
                    r.system.ledger.lost_connections = 1;
                    tokens(r).parts_taken += 3;
                },
                "",
            ),
        ];
        for (spoil, expected) in cases {
            let mut run = streamed();
            spoil(&mut run);
            assert_eq!(complaints(&run), expected);
        }
        // Offline reports no first tokens.
        let mut run = streamed();
        tokens(&mut run).first_tokens = None;
        assert_eq!(complaints(&run), "");
    }

    #[test]
    fn a_lost_connection_agrees() {
        let mut run = good(11);
        run.system.ledger.redispatched = 3;
        run.system.ledger.posted += 3;
        run.system.ledger.lost_connections = 1;
        run.system.connections[0].tx.writes += 3;
        run.system.connections[0].posted += 3;
        run.system.connections[0].lost.push("reset".to_owned());
        assert_eq!(complaints(&run), "");
        // The accelerator dropped two answers, because their connection was lost.
        run.system.accelerators[0].dropped_late = 2;
        run.system.accelerators[0].batches.record(2);
        assert_eq!(complaints(&run), "");
        run.system.accelerators[0].batches.record(1);
        assert_eq!(
            complaints(&run),
            "samples in the batches of acc-01 is 14, but samples answered by acc-01 is 11"
        );
    }

    /// The run of `good`, each of whose connections was warmed up by three samples.
    fn warmed() -> RunRecord {
        let mut run = good(11);
        run.system.ledger.warmed = 6;
        for c in &mut run.system.connections {
            c.warmed = 3;
            c.tx.writes += 3;
            c.rx.writes += 3;
        }
        let a = &mut run.system.accelerators[0];
        (a.samples, a.arrived) = (Some(17), Some(17));
        (0..6).for_each(|_| a.batches.record(1));
        run
    }

    #[test]
    fn a_warm_up_has_counts_of_its_own() {
        assert_eq!(complaints(&warmed()), "");
        let mut run = warmed();
        run.system.connections[0].warmed -= 1;
        assert_eq!(
            complaints(&run),
            "samples that warmed the connections up is 5, but samples of the warm-up is 6; \
             writes of a/0 is 8, but samples posted on it and warm-up is 7; \
             arrivals of a/0 is 8, but responses taken from it and warm-up is 7"
        );
        let mut run = warmed();
        run.system.accelerators[0].arrived = Some(11);
        assert_eq!(
            complaints(&run),
            "samples that arrived at the accelerators is 11, but writes posted and warm-up is 17"
        );
    }

    #[test]
    fn a_run_that_was_given_up_agrees() {
        let mut run = good(11);
        run.system.ledger.issued += 5;
        run.system.ledger.emptied = 5;
        run.system.ledger.posted += 2;
        run.system.connections[1].tx.writes += 2;
        run.system.connections[1].posted += 2;
        assert_eq!(complaints(&run), "");
    }

    #[test]
    fn a_silent_accelerator_is_not_held_against_the_run() {
        let mut run = good(11);
        run.system.accelerators[0].samples = None;
        run.system.accelerators[0].batches = BatchSizes::default();
        assert_eq!(complaints(&run), "");
    }
}
