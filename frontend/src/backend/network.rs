//! The backend over the network: the accelerators of a [`Cluster`].

use std::{
    sync::{Arc, Mutex, PoisonError, Weak, mpsc::Sender},
    time::{Duration, Instant},
};

use qdl::{
    config::{FrontendConfig, QslMode},
    dispatch::Sample,
    run::{Cluster, ClusterError, ClusterEvent, Described, SampleMemory},
};
use record::{
    EngineInfo, Ledger, LossRecord, NicUse, NodeFacts, SystemRecord, timeline::ConnectionTick,
    timeline::Event,
};

use crate::{
    backend::Backend,
    exit::{ExitCode, Verdict},
    loadgen::{completer::Completers, qsl::Qsl},
};

/// Maximum time to wait for a query in issue before the cluster is taken down.
const LAST_QUERY: Duration = Duration::from_secs(1);

/// A cluster of accelerators as the backend.
///
/// LoadGen holds its SUT forever after an aborted test, so the SUT must not own the cluster. It
/// borrows the cluster for each call, at the cost of one atomic operation.
pub struct Network {
    cluster: Weak<Cluster>,
    held: Mutex<Option<Arc<Cluster>>>,
    verdict: Verdict,
    fabric: (&'static str, Vec<String>),
    links: Vec<String>,
    facts: (NodeFacts, Vec<(String, NodeFacts)>),
}

impl Network {
    /// Connects to every accelerator of the configuration; `waiting` reports each awaited one.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn connect(
        config: &FrontendConfig,
        qsl: &Qsl,
        completers: &Completers,
        verdict: &Verdict,
        notes: Sender<String>,
        waiting: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Self, ClusterError> {
        let region = qsl.region().clone();
        let memory = match config.qsl {
            QslMode::Registered => SampleMemory {
                sources: vec![region],
                staged_from: None,
            },
            QslMode::Staged => SampleMemory {
                sources: Vec::new(),
                staged_from: Some(region),
            },
        };
        let (completers_of_empty, verdict_of_abort) = (completers.clone(), verdict.clone());
        let notes = Mutex::new(notes);
        // Called on the cluster's threads.
        let on_event = move |event: ClusterEvent<'_>| match event {
            ClusterEvent::CompleteEmpty(samples) => completers_of_empty.complete_empty(samples),
            ClusterEvent::Aborted(cause) => verdict_of_abort.fail(ExitCode::Lost, cause),
            ClusterEvent::Note(line) => {
                let notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                // Ignore the error: no thread reads notes after the run.
                let _ = notes.send(line.to_owned());
            }
            ClusterEvent::Waiting(line) => waiting(line),
        };
        let mut make = |share| Box::new(completers.make(share)) as _;
        let cluster = Arc::new(Cluster::connect(
            config,
            memory,
            &mut make,
            Arc::new(on_event),
        )?);
        Ok(Network {
            cluster: Arc::downgrade(&cluster),
            fabric: (
                cluster.fabric(),
                [cluster.link_notes(), cluster.machine_notes()].concat(),
            ),
            links: cluster.link_notes(),
            facts: cluster.facts(),
            held: Mutex::new(Some(cluster)),
            verdict: verdict.clone(),
        })
    }

    /// Takes the cluster out, once no thread issues any more.
    fn take(&self) -> Option<Cluster> {
        let mut cluster = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        let end = Instant::now() + LAST_QUERY;
        loop {
            match Arc::try_unwrap(cluster) {
                Ok(cluster) => return Some(cluster),
                Err(shared) if Instant::now() < end => cluster = shared,
                // Leak the cluster: its threads end with the process.
                Err(shared) => {
                    std::mem::forget(shared);
                    return None;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Backend for Network {
    fn warm_up(&self, samples: &[Sample]) -> Result<Option<String>, String> {
        let Some(cluster) = self.cluster.upgrade() else {
            return Ok(None);
        };
        let report = cluster
            .warm_up(samples.to_vec())
            .map_err(|e| e.to_string())?;
        Ok(report.map(|r| {
            let (connections, ms) = (r.connections.len(), r.took_ns / 1_000_000);
            format!(
                "{} samples warmed {connections} connections up in {ms} ms",
                r.samples
            )
        }))
    }

    fn warm_up_again(&self, samples: &[Sample], idle: Duration) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.warm_up_again(samples.to_vec(), idle);
        }
    }

    fn issue(&self, samples: &[Sample]) {
        // Without a cluster the test has ended or is aborted, and LoadGen awaits no answer.
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.dispatcher().issue(samples);
        }
    }

    fn fabric(&self) -> (&'static str, Vec<String>) {
        self.fabric.clone()
    }

    fn link_notes(&self) -> Vec<String> {
        self.links.clone()
    }

    fn describe(&self) -> Vec<Described> {
        let cluster = self.cluster.upgrade();
        cluster.map(|c| c.describe()).unwrap_or_default()
    }

    fn facts(&self) -> (NodeFacts, Vec<(String, NodeFacts)>) {
        self.facts.clone()
    }

    fn name(&self) -> (String, Option<Duration>) {
        let Some(cluster) = self.cluster.upgrade() else {
            return ("Network SUT: (the run is over)".to_owned(), None);
        };
        match cluster.name() {
            Ok((name, took)) => (name, Some(took)),
            Err(e) => {
                let dispatcher = cluster.dispatcher();
                let issued = dispatcher.counts().completed + dispatcher.outstanding() > 0;
                self.verdict.fail(without_name(issued), e.to_string());
                (format!("Network SUT: ({e})"), None)
            }
        }
    }

    fn engines(&self) -> Vec<(String, EngineInfo)> {
        let cluster = self.cluster.upgrade();
        cluster.map(|c| c.engines()).unwrap_or_default()
    }

    fn connections(&self) -> Vec<String> {
        let cluster = self.cluster.upgrade();
        cluster.map(|c| c.connection_names()).unwrap_or_default()
    }

    fn nic_use(&self) -> NicUse {
        let cluster = self.cluster.upgrade();
        cluster.map(|c| c.nic_use()).unwrap_or_default()
    }

    fn readings(&self) -> Vec<ConnectionTick> {
        let cluster = self.cluster.upgrade();
        cluster.map(|c| c.readings()).unwrap_or_default()
    }

    fn happened(&self) -> (Vec<Event>, Vec<LossRecord>) {
        let cluster = self.cluster.upgrade();
        cluster.map(|c| c.happened()).unwrap_or_default()
    }

    fn outstanding(&self) -> u64 {
        self.cluster
            .upgrade()
            .map_or(0, |c| c.dispatcher().outstanding())
    }

    fn completed(&self) -> u64 {
        self.cluster
            .upgrade()
            .map_or(0, |c| c.dispatcher().counts().completed)
    }

    fn abort(&self, cause: &str) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.abort(cause);
        }
    }

    fn finish(&self) -> SystemRecord {
        let (completed, outstanding) = (self.completed(), self.outstanding());
        let Some(cluster) = self.take() else {
            return SystemRecord {
                ledger: Ledger {
                    issued: completed + outstanding,
                    answered: completed,
                    ..Ledger::default()
                },
                notes: vec![
                    "a query was still being issued: the connections are not in this summary"
                        .to_owned(),
                ],
                ..SystemRecord::default()
            };
        };
        cluster.finish()
    }
}

/// Exit code of a run whose system has no name: the rules require `Name()` from every node.
fn without_name(issued: bool) -> ExitCode {
    if issued {
        ExitCode::Lost
    } else {
        ExitCode::Setup
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_name_nothing_is_measured_or_the_run_is_lost() {
        assert_eq!(without_name(false), ExitCode::Setup);
        assert_eq!(without_name(true), ExitCode::Lost);
    }
}
