//! The end of a run: stops the backend and collects the data of the run.

use std::time::{Duration, SystemTime};

use frontend_config::FrontendFile;
use loadgen_bridge::{TestMode, TestOutcome};
use qdl::counters::Recorder;
use record::{Accuracy, CarriedPayload, Evidence, LossRecord, PhaseKind, RunRecord, SystemRecord};

use super::{readings::Readings, watch::Watch};
use crate::{
    accuracy,
    loadgen::exit::ExitCode,
    loadgen::{
        phases::{self, Share},
        verify::Verifier,
    },
    outcome::{
        report::{FinishedRun, TokenCounts},
        timeline,
    },
    settings::Settings,
};

/// Removes losses that this node's own abort caused; `before` holds the losses before the abort.
fn own_end(system: &mut SystemRecord, before: Vec<LossRecord>) {
    for a in &mut system.accelerators {
        if !before
            .iter()
            .any(|l| l.node == a.node && l.whole && !l.back)
        {
            a.lost = None;
        }
    }
    system.losses = before;
}

impl Watch {
    /// Stops the backend and collects the data of the run: counts, latencies, throughput, accuracy
    /// and timeline.
    pub(super) fn end<'a>(
        mut self,
        config: &'a FrontendFile,
        settings: &'a Settings,
        outcome: Option<TestOutcome>,
        started: SystemTime,
        verifier: Option<&Verifier>,
    ) -> FinishedRun<'a> {
        let mut system = self.backend.finish();
        if let Some(before) = self.lost_before.take() {
            own_end(&mut system, before);
        }
        for note in self.notes.try_iter().chain(system.notes.iter().cloned()) {
            self.progress.note(&note);
        }
        let found = self.tokens.as_ref().map(|t| t.findings());
        let found = found.unwrap_or_default();
        system.notes.extend(found.notes.iter().cloned());
        let mut left = self.completers.left();
        // The other side of the reconciliation, `responses`, is the backend's own count.
        system.ledger.answered = left.iter().map(|l| l.answered).sum();
        let latencies: Vec<_> = left.iter_mut().map(|l| l.recorder.take_ticks()).collect();
        let last_ns = left.iter().map(|l| l.recorder.last_ns()).max().unwrap_or(0);
        let first_ns = self.sut.first_query_ns().unwrap_or(last_ns);
        let throughput = self
            .throughput
            .take()
            .unwrap_or_else(|| Readings::new(first_ns))
            .end(last_ns, system.ledger.answered);
        let sum = |of: fn(&Recorder) -> u64| left.iter().map(|l| of(&l.recorder)).sum();
        let answered_tokens = sum(Recorder::tokens);
        let carried = (sum(Recorder::bytes_out), sum(Recorder::bytes_in));
        let (accuracy, mut accuracy_note) = self.accuracy(&mut system, outcome.as_ref());
        let scored = outcome.as_ref().and_then(|o| o.detail.mode());
        let scored = scored.unwrap_or(settings.runs.mode).has_accuracy();
        if self.labels.is_none() && scored {
            accuracy_note = Some(accuracy::no_figure(config.run.dataset.kind));
        }
        // Hide token counts unless the engines count tokens.
        let counts = self.tokens.as_ref().filter(|_| self.counted);
        let tokens = counts.map(|t| TokenCounts {
            stream: self.stream,
            first_tokens: t.first.then(|| left.iter().map(|l| l.first_tokens).sum()),
            parts_taken: sum(Recorder::parts_taken),
            found,
        });
        self.progress.clear();
        let phases = &self.completers.phases;
        let gathered = phases.end(left.into_iter().map(Share::from));
        let histograms = phases.total(&gathered);
        let ran = outcome.as_ref();
        let logged = ran.map_or(&[][..], |o| &o.detail.phases);
        let mode = ran.and_then(|o| o.detail.mode());
        let measured = mode.unwrap_or(settings.runs.mode);
        let mut clock_fault = None;
        for (record, phase) in phases::records(&gathered, logged, measured)
            .iter()
            .zip(&gathered)
        {
            match self.clocks.fault(phase.share.first_ns, phase.share.last_ns) {
                Some(fault) if record.kind == PhaseKind::Accuracy || settings.own_length => {
                    self.progress.note(&fault);
                }
                fault => clock_fault = clock_fault.or(fault),
            }
        }
        let timeline = self.gather.end(&timeline::TimelineEnd {
            node: &config.cluster.node,
            answered: system.ledger.answered,
            tokens: answered_tokens,
            system: &system,
            latencies: &latencies.iter().collect::<Vec<_>>(),
            first_ns,
            last_ns,
            phases: phases::starts(&gathered, logged, measured),
        });
        let duration = Duration::from_nanos(last_ns.saturating_sub(first_ns));
        let (fabric, fabric_notes) = self.backend.fabric();
        FinishedRun {
            node: &config.cluster.node,
            settings,
            outcome,
            failure: self.verdict.failure(),
            counted: RunRecord {
                fabric,
                fabric_notes,
                accuracy: accuracy.map(|a| a.share),
                labelled: accuracy,
                accuracy_note,
                carried: CarriedPayload::new(carried.0, carried.1, duration.as_secs_f64()),
                evidence: Evidence {
                    node: self.meter.used(),
                    stood_still_s: self.clocks.stood_ns as f64 / 1e9,
                },
                duration_s: duration.as_secs_f64(),
                system,
                ..RunRecord::default()
            },
            histograms,
            phases: gathered,
            throughput,
            name: self.sut.name_answer(),
            clock_fault,
            verified: verifier.map(Verifier::findings),
            tokens,
            timeline,
            started,
        }
    }

    /// Scores the answers in LoadGen's log, in total and per accelerator, with a note on outliers.
    /// Labels that do not fit the log fail the run.
    fn accuracy(
        &self,
        system: &mut SystemRecord,
        outcome: Option<&TestOutcome>,
    ) -> (Option<Accuracy>, Option<String>) {
        let (Some((labels, origins)), Some(outcome)) = (&self.labels, outcome) else {
            return (None, None);
        };
        // Use the mode in LoadGen's log: audit.config may override the settings. A performance run
        // logs some answers too, but their share of right ones is no accuracy.
        let mode = outcome.detail.mode().filter(|m| m.has_accuracy());
        let Some(mode) = mode else {
            return (None, None);
        };
        let sampled = [
            "effective_accuracy_log_probability",
            "effective_accuracy_log_sampling_target",
        ];
        let sampled = sampled.map(|name| outcome.detail.number(name));
        if mode == TestMode::SubmissionRun && sampled.iter().flatten().any(|n| *n > 0.0) {
            let note = "no figure: the performance phase logged some of its answers too, random \
                 repeats; run --mode accuracy, or without accuracy_log_probability and \
                 accuracy_log_sampling_target";
            return (None, Some(note.to_owned()));
        }
        let (all, by_connection) = match labels.score(&outcome.files.accuracy, origins) {
            Ok(scores) => scores,
            Err(error) => {
                self.verdict.fail(ExitCode::Setup, error.to_string());
                return (None, None);
            }
        };
        let by = accuracy::by_accelerator(&by_connection, &self.connections);
        for a in &mut system.accelerators {
            a.accuracy = by.get(&a.node).copied();
        }
        let unreadable = (all.unreadable > 0).then(|| {
            let (n, of) = (all.unreadable, all.answers);
            format!("{n} of {of} answers name no class: not whole, or scores that are NaN")
        });
        (Some(all), unreadable)
    }
}

#[cfg(test)]
mod tests {
    use record::AcceleratorRecord;

    use super::*;

    #[test]
    fn a_run_that_this_node_gives_up_has_lost_only_what_was_lost_before() {
        let loss = |node: &str, back| LossRecord {
            node: node.to_owned(),
            whole: true,
            back,
            ..LossRecord::default()
        };
        let lost = |node: &str| AcceleratorRecord {
            node: node.to_owned(),
            lost: Some("interrupted by SIGINT".to_owned()),
            ..AcceleratorRecord::default()
        };
        let mut system = SystemRecord {
            accelerators: ["gone", "back", "well"].map(lost).into(),
            losses: ["gone", "back", "well"].map(|n| loss(n, false)).into(),
            ..SystemRecord::default()
        };
        own_end(&mut system, vec![loss("gone", false), loss("back", true)]);
        let lost = system.accelerators.iter().map(|a| a.lost.is_some());
        assert_eq!(Vec::from_iter(lost), [true, false, false]);
        assert_eq!(system.losses.len(), 2);
    }
}
