//! Sizes of a connection, derived from its endpoint within the provider's limits.

use std::time::Duration;

use super::{OfiDevice, OfiForm};
use crate::{Endpoint, OpenError, wire::Stream};

/// Longest time to wait for the goodbye to complete.
const LINGER: Duration = Duration::from_millis(20);

/// Sends beyond those for writes: the goodbye, the first message and its answer.
pub(super) const SPARE: usize = 3;

/// Receives and completions for control messages that arrive between two polls.
const CONTROL: usize = 16;

/// Most sends per write.
pub(super) const EACH: usize = 2;

/// Sizes and settings of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfiCfgs {
    /// Most writes in flight.
    pub writes: usize,
    /// Largest payload in bytes that `post` copies.
    pub inline_bytes: usize,
    /// Posted receives; 0 unless the provider's writes consume receives.
    pub receives: usize,
    /// Entries of the completion queue.
    pub completions: usize,
    /// Longest time to wait for the goodbye to complete.
    pub linger: Duration,
}

impl OfiCfgs {
    /// Derives queue sizes for one endpoint and checks them against the provider's limits. `post`
    /// copies payloads of up to `inline_bytes` bytes.
    ///
    /// # Errors
    /// [`OpenError::Local`] names the key and the limit.
    pub fn resolve(
        device: &OfiDevice,
        endpoint: &Endpoint,
        inline_bytes: u32,
    ) -> Result<OfiCfgs, OpenError> {
        let limits = device.info().limits();
        let refuse = |key, problem: String| Err(OpenError::setting(device.name(), key, problem));
        let streams = [endpoint.window.stream(), endpoint.peer_stream];
        if !device.keeps_order() && streams.iter().any(|s| *s != Stream::None) {
            return refuse(
                "stream",
                "answers in parts need a provider that keeps the order of writes, and this one \
                 keeps none: set `stream: none` on the frontend"
                    .to_owned(),
            );
        }
        if device.form() == OfiForm::Cell && streams.iter().any(|s| *s != Stream::None) {
            return refuse(
                "stream",
                "answers in parts need 8 bytes of data with each write, and this provider has 4: \
                 set `stream: none` on the frontend, or use the NIC by its `device`"
                    .to_owned(),
            );
        }
        let longest = endpoint.peer_stride.max(endpoint.window.stride());
        if longest > limits.longest {
            let most = limits.longest;
            return refuse(
                "model",
                format!("a slot has {longest} bytes, and the provider's longest write {most}"),
            );
        }
        let depth = limits.send_depth;
        if depth < EACH + SPARE {
            return refuse("ofi", format!("the provider takes {depth} sends at a time"));
        }
        let writes = endpoint.send_depth.clamp(1, (depth - SPARE) / EACH);
        let slots = endpoint.window.slots();
        let arrivals = slots.saturating_mul(endpoint.window.stream().writes()) + CONTROL;
        let receives = if limits.wants_receives { arrivals } else { 0 };
        if receives > limits.receive_depth {
            return refuse(
                "slots",
                format!(
                    "{slots} slots need {receives} receives, and the provider takes {}",
                    limits.receive_depth
                ),
            );
        }
        Ok(OfiCfgs {
            writes,
            inline_bytes: inline_bytes as usize,
            receives,
            completions: arrivals + writes * EACH + SPARE,
            linger: LINGER,
        })
    }
}
