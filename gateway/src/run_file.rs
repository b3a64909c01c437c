//! `gateway.json`: a gateway's run in figures, written at its end beside `requests.csv`.

use std::{io, path::Path, sync::atomic::Ordering};

use serde::{Deserialize, Serialize};

use crate::{gate::Gate, totals::Totals};

/// Name of the file.
pub const FILE: &str = "gateway.json";
/// Longest file that is read.
const LONGEST: u64 = 1 << 20;

/// A gateway's run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayRun {
    pub node: String,
    pub version: String,
    pub model: String,
    /// The accelerators, in the order of the configuration.
    pub accelerators: Vec<ServedBy>,
    /// Fabric between gateway and accelerators, as `tcp`.
    pub fabric: String,
    /// HTTP answers by their status.
    pub answers: Answers,
    /// Requests that reached an accelerator.
    pub requests: Totals,
    /// Answers that went on elsewhere with other tokens, and ended with an error event.
    pub diverged: u64,
    /// Samples dispatched again because their connection was lost.
    pub redispatched: u64,
    pub lost_connections: u64,
    pub stalled_clients: u64,
    /// Requests that are missing in `requests.csv` and in `requests`: the disk was too slow.
    pub dropped_records: u64,
}

/// An accelerator and its engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServedBy {
    pub node: String,
    pub engine: String,
}

/// Numbers of HTTP answers. `status_200` has the streams that ended with an error event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answers {
    pub status_200: u64,
    pub status_429: u64,
    pub status_4xx: u64,
    pub status_5xx: u64,
}

impl GatewayRun {
    /// Reads the figures of a gateway that has ended its requests, before it leaves its
    /// accelerators.
    pub fn of(gate: &Gate, requests: Totals, dropped_records: u64) -> Self {
        let engines = gate.cluster.engines().into_iter();
        let ledger = gate.cluster.dispatcher().counts();
        let answers = &gate.answers;
        GatewayRun {
            node: gate.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: gate.model.clone(),
            accelerators: engines
                .map(|(node, engine)| ServedBy {
                    node,
                    engine: engine.name,
                })
                .collect(),
            fabric: gate.cluster.fabric(),
            answers: Answers {
                status_200: answers.good.load(Ordering::Relaxed),
                status_429: answers.full.load(Ordering::Relaxed),
                status_4xx: answers.wrong.load(Ordering::Relaxed),
                status_5xx: answers.failed.load(Ordering::Relaxed),
            },
            requests,
            diverged: gate.diverged.load(Ordering::Relaxed),
            redispatched: ledger.redispatched,
            lost_connections: ledger.lost_connections,
            stalled_clients: gate.stalled.load(Ordering::Relaxed),
            dropped_records,
        }
    }

    /// Writes the file into a folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        disk::write(&folder.join(FILE), text)
    }

    /// Reads the file of a folder.
    ///
    /// # Errors
    /// Names the file, and what is wrong with it.
    pub fn read(folder: &Path) -> Result<Self, String> {
        read_json(&folder.join(FILE), LONGEST)
    }
}

/// Reads a JSON file of at most `most` bytes.
///
/// # Errors
/// Names the file, and what is wrong with it.
pub fn read_json<T: for<'de> Deserialize<'de>>(path: &Path, most: u64) -> Result<T, String> {
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|e| format!("{shown}: {e}"))?;
    if found.len() > most {
        let (bytes, mib) = (found.len(), most >> 20);
        return Err(format!(
            "{shown}: {bytes} bytes, and at most {mib} MiB are read"
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("{shown}: {e}"))?;
    serde_json::from_str(&text).map_err(|e| format!("{shown}: {e}"))
}
