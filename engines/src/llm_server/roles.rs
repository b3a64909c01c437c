//! Prefill and decode on different nodes: the handles of vLLM, `kv_transfer_params`.
//!
//! A handle is a JSON value, written as MessagePack: the ids of blocks take 1 to 3 bytes each. It
//! goes from a prefill node to a decode node as the server gave it, whichever transport either has.
//!
//! Source: `vllm/distributed/kv_transfer/kv_connector/v1/nixl` of vLLM 0.24 to 0.32.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde_json::{Value, json};

use crate::streaming::ServerCounts;

/// The error of a prefill node whose server gives no handle.
pub(super) const NO_HANDLE: &str = "it gives no `kv_transfer_params` to a prefill node: start it \
                                    with `--kv-transfer-config`, as docs/roles.md says";

/// Asks a server to keep the prompt's KV cache for another one.
pub(super) fn remote_decode() -> Value {
    json!({
        "do_remote_decode": true,
        "do_remote_prefill": false,
        "remote_engine_id": null,
        "remote_block_ids": null,
        "remote_host": null,
        "remote_port": null,
    })
}

/// The `kv_transfer_params` of a handle.
/// Error text: the handle is malformed.
pub(super) fn params_of(handle: &[u8]) -> Result<Value, String> {
    let wrong = |e| format!("the request's handle is no map: {e}");
    let params: Value = rmp_serde::from_slice(handle).map_err(wrong)?;
    // A core of vLLM ends, with all its sequences, if it is to fetch a KV cache from nowhere.
    let missing = |field: &&&str| params.get(**field).is_none_or(Value::is_null);
    match REMOTE.iter().find(missing) {
        Some(field) if params["do_remote_prefill"] != false => {
            Err(format!("the request's handle has no `{field}`"))
        }
        _ => Ok(params),
    }
}

/// Fields of a handle without which no KV cache can be fetched.
const REMOTE: [&str; 4] = [
    "remote_engine_id",
    "remote_block_ids",
    "remote_host",
    "remote_port",
];

/// The handle of `kv_transfer_params`.
/// Error text: there are none.
pub(super) fn handle_of(params: Option<&Value>) -> Result<Vec<u8>, String> {
    let written = params.and_then(|params| rmp_serde::to_vec(params).ok());
    written.ok_or_else(|| NO_HANDLE.to_owned())
}

/// Says once what carries KV caches to this node, as UCX names it in the core's log
/// (`UCX_LOG_LEVEL=info`): `cfg#1 rma_am(tcp/lo)` is of the first peer.
pub(super) fn say_transport(log: &Path) {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match transport(&text) {
        Some(by) if by.contains("tcp") => tracing::warn!(
            "KV caches come over TCP (UCX: {by}): a prompt takes long; `UCX_TLS` and docs/roles.md \
             say what else could carry them"
        ),
        Some(by) => tracing::info!("KV caches come by {by} (UCX)"),
        None => {}
    }
}

fn transport(log: &str) -> Option<&str> {
    let is_of_peer = |line: &&str| line.contains("cfg#") && !line.contains("cfg#0");
    let (_, rest) = log.lines().rfind(is_of_peer)?.split_once("rma")?;
    Some(rest.split_once('(')?.1.split_once(')')?.0)
}

/// Counts of prompts with a handle.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    handles: AtomicU64,
    tokens: AtomicU64,
    transfer_bytes: AtomicU64,
    transfer_us: AtomicU64,
}

/// Transfers of KV caches that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Transfers {
    pub bytes: u64,
    /// Microseconds of all transfers together.
    pub us: u64,
}

impl Transfers {
    /// Transfers in the statistics of a connector: lists of bytes and of seconds, an element for
    /// each transfer. Several connectors have an object each.
    pub fn of(stats: &Value) -> Self {
        let sum = |key| sum_of(stats, key);
        Transfers {
            // A conversion to an integer saturates.
            bytes: sum("bytes_transferred") as u64,
            us: (sum("transfer_duration") * 1e6).round() as u64,
        }
    }
}

/// Sum of the lists under `key`, in `stats` and the objects in it.
fn sum_of(stats: &Value, key: &str) -> f64 {
    let fields = stats.as_object().into_iter().flatten();
    let each = fields.map(|(name, value)| match value {
        Value::Array(all) if name == key => all.iter().filter_map(Value::as_f64).sum(),
        Value::Object(_) => sum_of(value, key),
        _ => 0.0,
    });
    each.sum()
}

impl Fetched {
    /// Counts the prompt of an answer, and its tokens whose KV cache was fetched.
    pub fn add(&self, tokens: u64) {
        self.handles.fetch_add(1, Relaxed);
        self.tokens.fetch_add(tokens, Relaxed);
    }

    pub fn add_transfers(&self, transfers: Transfers) {
        self.transfer_bytes.fetch_add(transfers.bytes, Relaxed);
        self.transfer_us.fetch_add(transfers.us, Relaxed);
    }

    pub fn counts(&self) -> ServerCounts {
        ServerCounts {
            handles: self.handles.load(Relaxed),
            fetched_tokens: self.tokens.load(Relaxed),
            transfer_bytes: self.transfer_bytes.load(Relaxed),
            transfer_us: self.transfer_us.load(Relaxed),
            ..ServerCounts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of vLLM 0.32 with NIXL 1.5.1.
    #[test]
    fn the_transport_to_a_peer_is_the_last_that_ucx_names() {
        let own = "UCX  INFO    a self|intra-node cfg#0 rma_am(tcp/lo)  amo_am(tcp/lo)";
        let peer = "UCX  INFO    a inter-node cfg#1 rma(rc_mlx5/mlx5_0:1)  am(rc_mlx5/mlx5_0:1)";
        assert_eq!(transport(own), None);
        let log = format!("{own}\n{peer}\nother");
        assert_eq!(transport(&log), Some("rc_mlx5/mlx5_0:1"));
    }

    #[test]
    fn a_handle_survives_and_one_that_would_end_a_core_is_refused() {
        let mut params = json!({
            "do_remote_prefill": true, "remote_engine_id": "a", "remote_block_ids": [[1, 200]],
            "remote_host": "h", "remote_port": 5600, "tp_size": 1,
        });
        let handle = handle_of(Some(&params)).expect("a handle");
        assert_eq!(params_of(&handle), Ok(params.clone()));
        params["remote_port"] = Value::Null;
        let handle = handle_of(Some(&params)).expect("a handle");
        let why = params_of(&handle).expect_err("no port");
        assert!(why.contains("`remote_port`"), "{why}");
        for garbled in [&[][..], &[7], &[0xc1; 9]] {
            assert!(params_of(garbled).is_err(), "{garbled:?}");
        }
        assert_eq!(handle_of(None), Err(NO_HANDLE.to_owned()));
    }
}
