//! Prefill and decode on different nodes: the handles of vLLM, `kv_transfer_params`.
//!
//! A handle is a JSON value, written as MessagePack: the ids of blocks take 1 to 3 bytes each. It
//! goes from a prefill node to a decode node as the server gave it, whichever transport either has.
//!
//! Source: `vllm/distributed/kv_transfer/kv_connector/v1/nixl` of vLLM 0.24 to 0.32.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    rmp_serde::from_slice(handle).map_err(|e| format!("the request's handle is no map: {e}"))
}

/// The handle of `kv_transfer_params`.
/// Error text: there are none.
pub(super) fn handle_of(params: Option<&Value>) -> Result<Vec<u8>, String> {
    let written = params.and_then(|params| rmp_serde::to_vec(params).ok());
    written.ok_or_else(|| NO_HANDLE.to_owned())
}

/// Counts of prompts with a handle.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    handles: AtomicU64,
    tokens: AtomicU64,
}

impl Fetched {
    /// Counts the prompt of an answer, and its tokens whose KV cache was fetched.
    pub fn add(&self, tokens: u64) {
        self.handles.fetch_add(1, Relaxed);
        self.tokens.fetch_add(tokens, Relaxed);
    }

    pub fn counts(&self) -> ServerCounts {
        ServerCounts {
            handles: self.handles.load(Relaxed),
            fetched_tokens: self.tokens.load(Relaxed),
            ..ServerCounts::default()
        }
    }
}
