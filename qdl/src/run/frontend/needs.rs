//! Connections and memory that a frontend's run needs, computed from its configuration alone.

use std::sync::Arc;

use super::cluster::plan;
use crate::{
    config::FrontendConfig,
    run::{error::RunError, nics, settings},
};
use fabric::{Endpoint, Grants, OpenError, Region, RegionError, Window, wire::Stream};

/// Connections and slots of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotNeeds {
    /// Slots of a connection of each NIC.
    pub nic_slots: Vec<usize>,
    /// Number of accelerators.
    pub accelerators: usize,
    /// Number of connections in all.
    pub connections: usize,
    /// Number of slots of all connections.
    pub slots: usize,
    /// Bytes of a request slot, on an accelerator.
    pub request_bytes: usize,
    /// Bytes of a response slot, on either side.
    pub response_bytes: usize,
}

impl SlotNeeds {
    /// Computes the needs of a configuration.
    ///
    /// # Errors
    /// [`RunError`] where the model's sizes are invalid for slots.
    pub fn of(config: &FrontendConfig) -> Result<Self, RunError> {
        let connections = plan(config)?;
        let first = connections.first();
        let slots_of = |nic| connections.iter().find(|c| c.nic_index == nic);
        let slots = (0..config.nics.len()).map(|nic| slots_of(nic).map_or(0, |c| c.slots));
        Ok(SlotNeeds {
            nic_slots: slots.collect(),
            accelerators: config.accelerators.len(),
            connections: connections.len(),
            slots: connections.iter().map(|c| c.slots).sum(),
            request_bytes: first.map_or(0, |c| c.request_stride),
            response_bytes: first.map_or(0, |c| c.response_stride),
        })
    }

    /// Bytes of slots on the frontend.
    pub fn frontend_bytes(&self) -> usize {
        self.slots.saturating_mul(self.response_bytes)
    }

    /// Bytes of slots on each accelerator, taken from its `memory_mib`.
    pub fn accelerator_bytes(&self) -> usize {
        let slot = self.request_bytes.saturating_add(self.response_bytes);
        (self.slots / self.accelerators.max(1)).saturating_mul(slot)
    }

    /// Checks that the token is readable, each address is local, each device opens, and its slots
    /// can be locked. Sends nothing.
    ///
    /// # Errors
    /// [`RunError`], as a run would report it.
    pub fn check_node(&self, config: &FrontendConfig) -> Result<(), RunError> {
        settings::auth(config.auth())?;
        for (index, (nic, slots)) in config.nics.iter().zip(&self.nic_slots).enumerate() {
            let connections = self.accelerators * nic.facts().connections;
            let nic = nics::open(index, nic, &config.deadlines, connections)?;
            let check = || -> Result<_, OpenError> {
                nic.check_memory(self.frontend_bytes())?;
                nic.check(self.endpoint(*slots, config.stream.unwrap_or_default())?)
            };
            check().map_err(RunError::of_nic(index))?;
        }
        Ok(())
    }

    /// One connection's endpoint, as a run makes it.
    fn endpoint(&self, slots: usize, stream: Stream) -> Result<Endpoint, RegionError> {
        let region = Arc::new(Region::new(slots.saturating_mul(self.response_bytes))?);
        let grants = Arc::new(Grants::new(slots));
        let window = Window::new(region, 0, self.response_bytes, grants)?;
        Ok(Endpoint {
            window: window.in_parts(stream),
            sources: Vec::new(),
            peer_slots: slots,
            peer_stride: self.request_bytes,
            peer_stream: Stream::None,
            send_depth: settings::SEND_DEPTH,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::parse_frontend;

    fn config(nics: &str) -> FrontendConfig {
        let text = format!(
            "node: f\nmodel: {{name: m, inputs: [{{name: i, dtype: u8, shape: [100]}}], \
             output: {{name: o, dtype: u8, shape: [8]}}}}\ndataset: {{kind: random}}\nauth: none\n\
             accelerators: [{{control: 127.0.0.1:7400}}, {{control: 127.0.0.1:7401}}]\nnics: [{nics}]\n"
        );
        parse_frontend(&text, "f.yaml", Path::new("/")).expect("sound")
    }

    #[test]
    fn slots_are_counted_once_for_each_connection() {
        let config =
            config("{address: 127.0.0.1, connections: 3, slots: 10}, {address: 127.0.0.1}");
        let needs = SlotNeeds::of(&config).expect("it has slots");
        assert_eq!(needs.nic_slots, [10, 2048]);
        assert_eq!((needs.connections, needs.slots), (10, 2 * (30 + 4096)));
        assert_eq!((needs.request_bytes, needs.response_bytes), (100, 64));
        assert_eq!(needs.frontend_bytes(), 8252 * 64);
        assert_eq!(needs.accelerator_bytes(), 4126 * 164);
        needs.check_node(&config).expect("loopback is everybody's");
    }

    #[test]
    fn an_address_of_another_machine_is_named() {
        let config = config("{address: 127.0.0.1}, {address: 192.0.2.77}");
        let needs = SlotNeeds::of(&config).expect("it has slots");
        let error = needs.check_node(&config).expect_err("not here").to_string();
        assert!(
            error.starts_with("nics[1]: 192.0.2.77 is no address"),
            "{error}"
        );
    }
}
