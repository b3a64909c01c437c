//! The backend over the network: the accelerators of a [`Cluster`].

use std::{
    sync::{Arc, Mutex, Weak, mpsc::Sender},
    time::{Duration, Instant},
};

use fabric::os::lock;
use frontend_config::{FrontendFile, QslMode};
use qdl::{
    config::Auth,
    dispatch::Sample,
    run::{Cluster, ClusterEvent, Described, RunError, SampleMemory},
};
use record::{
    EngineInfo, Ledger, LossRecord, NicUse, NodeFacts, SystemRecord, timeline::ConnectionTick,
    timeline::Event,
};

use crate::{
    backend::Backend,
    loadgen::exit::{ExitCode, Verdict},
    loadgen::{completer::Completers, qsl::Qsl},
};

/// Maximum time to wait at the run's end for calls that still use the cluster.
const LAST_QUERY: Duration = Duration::from_secs(1);

/// A cluster of accelerators as the backend.
///
/// LoadGen holds its SUT forever after an aborted test, so the SUT must not own the cluster. Each
/// call borrows the cluster, at the cost of one atomic operation.
pub struct Network {
    cluster: Weak<Cluster>,
    held: Mutex<Option<Arc<Cluster>>>,
    verdict: Verdict,
    fabric: (String, Vec<String>),
    links: Vec<String>,
    /// Protection of the control plane, as text.
    control: &'static str,
    facts: (NodeFacts, Vec<(String, NodeFacts)>),
}

impl Network {
    /// Connects to every accelerator of the configuration; `show_waiting` gets a line on each
    /// accelerator that is not ready yet.
    pub fn connect(
        config: &FrontendFile,
        qsl: &Qsl,
        completers: &Completers,
        verdict: &Verdict,
        notes: Sender<String>,
        show_waiting: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, RunError> {
        let region = qsl.region().clone();
        let memory = match config.run.qsl {
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
        // The cluster's threads call this closure.
        let on_event = move |event: ClusterEvent<'_>| match event {
            ClusterEvent::CompleteEmpty(samples) => completers_of_empty.complete_empty(samples),
            ClusterEvent::Aborted(cause) => verdict_of_abort.fail(ExitCode::Lost, cause),
            ClusterEvent::Note(line) => {
                let notes = lock(&notes);
                // Ignore the error: no thread reads notes after the run.
                let _ = notes.send(line.to_owned());
            }
            ClusterEvent::Waiting(line) => show_waiting(line),
        };
        let mut make = |share| Box::new(completers.make(share)) as _;
        let cluster = Arc::new(Cluster::connect(
            &config.cluster,
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
            control: match config.cluster.auth() {
                Auth::Token(_) => "encrypted, authenticated by the token",
                Auth::None => "encrypted, not authenticated (auth: none)",
                Auth::LoopbackOnly => "encrypted, not authenticated (loopback alone)",
            },
            facts: cluster.facts(),
            held: Mutex::new(Some(cluster)),
            verdict: verdict.clone(),
        })
    }

    /// Reads from the cluster; returns the default after the run.
    fn read<T: Default>(&self, read: impl FnOnce(&Cluster) -> T) -> T {
        let cluster = self.cluster.upgrade();
        cluster.map(|c| read(&c)).unwrap_or_default()
    }

    /// Takes the cluster once no other thread uses it; `None` after [`LAST_QUERY`].
    fn take(&self) -> Option<Cluster> {
        let mut cluster = lock(&self.held).take()?;
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
            let (samples, connections, ms) = (r.samples, r.connections, r.took_ms as u64);
            format!("{samples} samples warmed {connections} connections up in {ms} ms")
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

    fn fabric(&self) -> (String, Vec<String>) {
        self.fabric.clone()
    }

    fn link_notes(&self) -> Vec<String> {
        self.links.clone()
    }

    fn describe(&self) -> Vec<Described> {
        self.read(|c| c.describe())
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
                // The rules require `Name()` from every node.
                let dispatcher = cluster.dispatcher();
                let code = match dispatcher.counts().answered + dispatcher.outstanding() {
                    0 => ExitCode::Setup,
                    _ => ExitCode::Lost,
                };
                self.verdict.fail(code, e.to_string());
                (format!("Network SUT: ({e})"), None)
            }
        }
    }

    fn engines(&self) -> Vec<(String, EngineInfo)> {
        self.read(|c| c.engines())
    }

    fn connections(&self) -> Vec<String> {
        self.read(|c| c.connection_names())
    }

    fn nic_use(&self) -> NicUse {
        self.read(|c| c.nic_use())
    }

    fn readings(&self) -> Vec<ConnectionTick> {
        self.read(|c| c.readings())
    }

    fn happened(&self) -> (Vec<Event>, Vec<LossRecord>) {
        self.read(|c| c.happened())
    }

    fn figures(&self) -> (Ledger, [u64; 2]) {
        self.read(|c| c.figures())
    }

    fn waits_for_server(&self) -> bool {
        self.read(|c| c.waits_for_server())
    }

    fn outstanding(&self) -> u64 {
        self.read(|c| c.dispatcher().outstanding())
    }

    fn completed(&self) -> u64 {
        self.read(|c| c.dispatcher().counts().answered)
    }

    fn steps(&self) -> u64 {
        self.read(|c| c.dispatcher().steps())
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
        SystemRecord {
            control: self.control.to_owned(),
            payloads: "in clear".to_owned(),
            ..cluster.finish()
        }
    }
}
