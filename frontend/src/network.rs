//! The backend over the network: the accelerators of a [`Cluster`].

use std::{
    sync::{Arc, Mutex, PoisonError, Weak, mpsc::Sender},
    time::{Duration, Instant},
};

use qdl::{
    config::{FrontendConfig, QslMode},
    dispatch::Sample,
    run::{
        Cluster, ClusterError, ClusterListener, ClusterReport, ConnectionReport, PeerReport,
        SampleMemory,
    },
    stats::{AcceleratorRecord, ConnectionRecord, Ledger, WarmUpRecord},
};

use crate::{
    backend::{Backend, Counts},
    completer::Completers,
    exit::{ExitCode, Verdict},
    qsl::Qsl,
};

/// How long a query that is being issued may keep the cluster from being taken down.
const LAST_QUERY: Duration = Duration::from_secs(1);

/// Hears of the cluster, on its threads.
struct Listener {
    completers: Completers,
    verdict: Verdict,
    notes: Mutex<Sender<String>>,
}

impl ClusterListener for Listener {
    fn complete_empty(&self, samples: &[Sample]) {
        self.completers.complete_empty(samples);
    }

    fn aborted(&self, cause: &str) {
        self.verdict.fail(ExitCode::Lost, cause);
    }

    fn note(&self, line: &str) {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody reads notes of a run that is over.
        let _ = notes.send(line.to_owned());
    }
}

/// See the module.
///
/// LoadGen holds its SUT for ever after an aborted test, so the SUT must not hold the cluster: it
/// borrows it for the length of a call, which costs one atomic operation.
pub struct Network {
    cluster: Weak<Cluster>,
    held: Mutex<Option<Arc<Cluster>>>,
    verdict: Verdict,
    /// The first name, given when every node was there.
    answered: Mutex<String>,
}

impl Network {
    /// Connects to every accelerator of the configuration.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn connect(
        config: &FrontendConfig,
        qsl: &Qsl,
        completers: &Completers,
        verdict: &Verdict,
        notes: Sender<String>,
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
        let listener = Arc::new(Listener {
            completers: completers.clone(),
            verdict: verdict.clone(),
            notes: Mutex::new(notes),
        });
        let mut make = |nic_index| Box::new(completers.make(nic_index)) as _;
        let cluster = Arc::new(Cluster::connect(config, memory, &mut make, listener)?);
        Ok(Network {
            cluster: Arc::downgrade(&cluster),
            held: Mutex::new(Some(cluster)),
            verdict: verdict.clone(),
            answered: Mutex::default(),
        })
    }

    /// The cluster alone, once nobody issues any more.
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
                // Its threads end with the process.
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
        // It is gone only once the test has ended or was aborted: LoadGen waits for none of these.
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.dispatcher().issue(samples);
        }
    }

    fn name(&self) -> (String, Option<Duration>) {
        let Some(cluster) = self.cluster.upgrade() else {
            return ("Network SUT: (the run is over)".to_owned(), None);
        };
        let (name, took) = match cluster.name() {
            Ok(answer) => answer,
            Err(e) => {
                let issued = cluster.completed() + cluster.outstanding() > 0;
                self.verdict.fail(without_name(issued), e.to_string());
                return (format!("Network SUT: ({e})"), None);
            }
        };
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.is_empty() {
            answered.clone_from(&name);
        }
        drop(answered);
        (name, Some(took))
    }

    fn outstanding(&self) -> u64 {
        self.cluster.upgrade().map_or(0, |c| c.outstanding())
    }

    fn completed(&self) -> u64 {
        self.cluster.upgrade().map_or(0, |c| c.completed())
    }

    fn abort(&self, cause: &str) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.abort(cause);
        }
    }

    fn finish(&self) -> Counts {
        let (completed, outstanding) = (self.completed(), self.outstanding());
        let Some(cluster) = self.take() else {
            return Counts {
                fabric: "unknown".to_owned(),
                ledger: Ledger {
                    issued: completed + outstanding,
                    answered: completed,
                    ..Ledger::default()
                },
                notes: vec![
                    "a query was still being issued: the connections are not in this summary"
                        .to_owned(),
                ],
                ..Counts::default()
            };
        };
        let (fabric, loopback) = (cluster.fabric(), cluster.loopback());
        let report = cluster.finish();
        let name = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        Counts {
            fabric: fabric.to_owned(),
            loopback,
            ..counts(&report, &name)
        }
    }
}

/// How a run ends whose system cannot be named: the rules want `Name()` answered by every node.
fn without_name(issued: bool) -> ExitCode {
    if issued {
        ExitCode::Lost
    } else {
        ExitCode::Setup
    }
}

/// The cluster's report in the summary's terms.
fn counts(report: &ClusterReport, name: &str) -> Counts {
    let d = &report.dispatch;
    Counts {
        ledger: Ledger {
            issued: d.issued,
            answered: d.completed,
            emptied: d.completed_empty,
            posted: d.posted,
            responses: d.completed,
            redispatched: d.again,
            late_dropped: 0,
            lost_connections: d.connections_lost,
            warmed: report.warm_up.as_ref().map_or(0, |w| w.samples),
        },
        accelerators: report
            .peers
            .iter()
            .map(|p| accelerator(p, &report.connections, name))
            .collect(),
        connections: connections(&report.connections),
        places: report.places.clone(),
        rails: report.rails.clone(),
        warm_up: report.warm_up.as_ref().map(|w| WarmUpRecord {
            samples: w.samples,
            took_ms: w.took_ns as f64 / 1e6,
            sizes: w.sizes.0,
            of_sizes: w.sizes.1,
            at_once: w.at_once,
        }),
        staged_copies: report.connections.iter().map(|l| l.counts.staged).sum(),
        staged_bytes: report
            .connections
            .iter()
            .map(|l| l.counts.staged_bytes)
            .sum(),
        backlog_max: d.backlog_max,
        backlogged: d.backlogged,
        waits: (d.sleeps, d.wakeups),
        ..Counts::default()
    }
}

fn accelerator(
    peer: &PeerReport,
    connections: &[ConnectionReport],
    name: &str,
) -> AcceleratorRecord {
    AcceleratorRecord {
        node: peer.node.clone(),
        engine: engine_of(name, &peer.node).unwrap_or_default().to_owned(),
        connections: connections.iter().filter(|l| l.peer == peer.node).count(),
        samples: peer.counters.map(|c| c.responded),
        arrived: peer.counters.map(|c| c.arrived),
        dropped_late: peer.counters.map_or(0, |c| c.dropped_late),
        copies: peer.counters.map_or(0, |c| c.copies),
        batches: peer.batches.clone(),
        gpus: peer.gpus.clone(),
        lost: peer.lost.clone(),
    }
}

/// The engine's name in a node's part of the SUT's name: `NODE (MODEL on ENGINE)`.
fn engine_of<'a>(name: &'a str, node: &str) -> Option<&'a str> {
    let at = name.find(&format!("{node} ("))?;
    let inside = name[at + node.len() + 2..].split(')').next()?;
    Some(inside.rsplit_once(" on ")?.1)
}

/// Connections by the node they lead to, counted from 0 at each.
fn connections(connections: &[ConnectionReport]) -> Vec<ConnectionRecord> {
    let mut records = Vec::with_capacity(connections.len());
    for (i, connection) in connections.iter().enumerate() {
        let index = connections[..i]
            .iter()
            .filter(|l| l.peer == connection.peer)
            .count();
        records.push(ConnectionRecord {
            name: format!("{}/{index}", connection.peer),
            samples: connection.counts.taken,
            posted: connection.counts.posted,
            blocked: connection.counts.blocked,
            tx: connection.counts.sent,
            rx: connection.counts.received,
            in_flight_max: connection.counts.in_flight_max,
            wakeups: connection.counts.wakeups,
            warmed: connection.counts.warmed,
            cold_us: connection.warm_up.map(|w| w.cold_ns.div_ceil(1000)),
            warm_us: connection
                .warm_up
                .and_then(|w| Some(w.warm_ns?.div_ceil(1000))),
            lost: connection.lost.clone(),
        });
    }
    records
}

#[cfg(test)]
mod tests {
    use qdl::{
        control::Counters,
        dispatch::{ConnectionCounts, DispatchCounts},
        fabric::FabricCounts,
        stats::{BatchSizes, Places},
    };

    use super::*;

    fn connection(peer: &str, connection: usize, writes: u64) -> ConnectionReport {
        let half = FabricCounts {
            writes,
            ..FabricCounts::default()
        };
        ConnectionReport {
            peer: peer.to_owned(),
            nic_index: 0,
            connection,
            counts: ConnectionCounts {
                sent: half,
                received: half,
                staged: 1,
                staged_bytes: 64,
                posted: writes,
                taken: writes,
                ..ConnectionCounts::default()
            },
            warm_up: None,
            lost: Vec::new(),
        }
    }

    fn peer(node: &str, responded: u64) -> PeerReport {
        PeerReport {
            node: node.to_owned(),
            address: "127.0.0.1:1".to_owned(),
            counters: Some(Counters {
                arrived: responded,
                responded,
                ..Counters::default()
            }),
            batches: BatchSizes::from_counts(&[0, responded]),
            gpus: Vec::new(),
            lost: None,
        }
    }

    #[test]
    fn a_report_becomes_counts_that_agree() {
        let report = ClusterReport {
            dispatch: DispatchCounts {
                issued: 10,
                completed: 10,
                posted: 10,
                backlog_max: 3,
                ..DispatchCounts::default()
            },
            connections: vec![
                connection("a", 0, 4),
                connection("b", 1, 1),
                connection("a", 2, 5),
            ],
            peers: vec![peer("a", 9), peer("b", 1)],
            rails: vec![],
            places: Places::default(),
            warm_up: None,
        };
        let counts = counts(
            &report,
            "Network SUT: a (digits on onnx) + b (digits on digest)",
        );
        let names: Vec<_> = counts.connections.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["a/0", "b/0", "a/1"]);
        let a = &counts.accelerators[0];
        assert_eq!(
            (a.connections, a.samples, a.engine.as_str()),
            (2, Some(9), "onnx")
        );
        assert_eq!(a.batches.samples(), 9);
        assert_eq!(counts.accelerators[1].engine, "digest");
        assert_eq!((counts.staged_copies, counts.staged_bytes), (3, 192));
        assert_eq!(counts.ledger.responses, 10);
    }

    #[test]
    fn without_a_name_nothing_is_measured_or_the_run_is_lost() {
        assert_eq!(without_name(false), ExitCode::Setup);
        assert_eq!(without_name(true), ExitCode::Lost);
    }

    #[test]
    fn an_engine_is_found_only_where_it_stands() {
        assert_eq!(engine_of("Network SUT: a (what it is)", "a"), None);
        assert_eq!(engine_of("", "a"), None);
    }
}
