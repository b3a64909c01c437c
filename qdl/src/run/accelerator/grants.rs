//! Grants of connections that a frontend requests, within the memory budget.

use std::{
    error::Error,
    sync::{Arc, atomic::Ordering},
};

use super::session::Session;
use crate::{
    control::{ConnectionGrant, ConnectionRequest, ErrorCode, Refusal},
    request::MAX_OPTIONS,
    run::{lock, request_stride, response_stride_of, settings},
    serve::{ServeConnection, ServeConnectionCfgs},
};
use fabric::{
    Link, MAX_SLOTS, Made, OpenError,
    tcp::ConnectionSecret,
    wire::{End, Stream},
};
use record::NodeRole;

pub(crate) struct NewConnection {
    connection: Arc<ServeConnection>,
    /// Set where the accelerator makes the link itself.
    link: Option<Link>,
    /// Set where the frontend connects, and must prove it.
    secret: Option<ConnectionSecret>,
    grant: ConnectionGrant,
}

impl Session {
    /// Checks that all requested slots fit this machine's memory before the first connection is
    /// made, because slots that a NIC writes are pinned.
    pub(crate) fn check_memory(&self, requests: &[ConnectionRequest]) -> Result<(), Refusal> {
        let bytes = requests.iter().fold(0usize, |sum, r| {
            let slot = (r.request_stride as usize).saturating_add(r.response_stride as usize);
            sum.saturating_add(slot.saturating_mul(r.slots as usize))
        });
        let node = &self.node;
        // A total above the budget is refused later, with the connection that exceeds it.
        if bytes > node.config.memory() {
            return Ok(());
        }
        let refused = node.nics.iter().find_map(|n| n.check_memory(bytes).err());
        refused.map_or(Ok(()), |e| {
            let text = format!("{}: {e}", node.config.node);
            Err(Refusal::new(ErrorCode::Budget, text))
        })
    }

    /// Makes one connection without registering it anywhere.
    pub(crate) fn make_connection(&self, r: &ConnectionRequest) -> Result<NewConnection, Refusal> {
        let node = &self.node;
        let refusal =
            |code, text: String| Refusal::new(code, format!("connection {}: {text}", r.connection));
        let model = &node.params.model;
        let request = request_stride(model).unwrap_or(usize::MAX);
        let role = node.params.engine_info.role;
        let response = response_stride_of(model, role).unwrap_or(usize::MAX);
        let slots = r.slots as usize;
        if slots == 0 || slots > MAX_SLOTS {
            let text = format!("{slots} slots, 1 to {MAX_SLOTS} are possible");
            return Err(refusal(ErrorCode::Protocol, text));
        }
        let options = (r.request_stride as usize).checked_sub(request);
        let most = match model.answers_tokens() {
            true => MAX_OPTIONS,
            false => 0,
        };
        if r.response_stride as usize != response || options.is_none_or(|bytes| bytes > most) {
            let text = format!(
                "slots of {} and {} bytes, model {} has {request} (and up to {most} for options) \
                 and {response}",
                r.request_stride, r.response_stride, model.name
            );
            return Err(refusal(ErrorCode::Model, text));
        }
        let nic_index = usize::from(r.nic) % node.config.nics.len().max(1);
        let gpus: Vec<_> = node.config.nics.iter().map(|n| n.gpu).collect();
        let gpu = gpu_for(&gpus, nic_index, r.gpu_turn);
        let cfgs = ServeConnectionCfgs {
            gpu,
            session: self.id,
            connection: r.connection,
            epoch: r.epoch,
            slots,
            request_stride: r.request_stride as usize,
            takes_options: options != Some(0) && node.params.engine_info.tokens,
            response_stride: response,
            // A prefill node answers whole: its only token comes with the handle.
            stream: match role {
                NodeRole::Prefill => Stream::None,
                NodeRole::Both | NodeRole::Decode => self.stream,
            },
        };
        let bytes = cfgs.bytes().unwrap_or(usize::MAX);
        let budget = node.budget.reserve(bytes, node.config.memory());
        let reservation = budget.map_err(|in_use| {
            let text = format!(
                "{slots} slots take {} MiB, {} of {} MiB are in use: raise `memory_mib` of {}, or \
                 lower `slots` or `connections` of the frontend",
                bytes >> 20,
                in_use >> 20,
                node.config.memory_mib,
                node.config.node
            );
            refusal(ErrorCode::Budget, text)
        })?;
        let no_memory = |e: &dyn Error| refusal(ErrorCode::Budget, e.to_string());
        let slot_bytes = cfgs.request_stride.saturating_mul(slots);
        let nic = &node.nics[nic_index];
        let on_gpu = nic.device_slots(gpu, slot_bytes, &|bytes| node.service.slots(gpu, bytes));
        let make = |on_gpu| {
            let nodes = &node.near[nic_index].nodes;
            let connection = ServeConnection::on_nodes(cfgs, nodes, on_gpu);
            connection.map(Arc::new).map_err(|e| no_memory(&e))
        };
        let mut connection = make(on_gpu)?;
        let end = nic.end_of(&r.transport).map_err(|other| {
            let text = format!(
                "asks for the {other} fabric, and nics[{nic_index}] of {} is {}",
                node.config.node,
                nic.fabric()
            );
            refusal(ErrorCode::Protocol, text)
        })?;
        let accept = |connection: &ServeConnection| {
            nic.accept(
                connection.endpoint(settings::SEND_DEPTH),
                end,
                self.local.ip(),
            )
        };
        let mut accepted = accept(&connection);
        if let (Err(e), true) = (&accepted, connection.is_on_device()) {
            // A GPU may expose less memory to NICs than it has.
            nic.no_device_slots(gpu, &e.to_string());
            connection = make(None)?;
            accepted = accept(&connection);
        }
        let accepted = accepted.map_err(|e| {
            let code = match e {
                OpenError::Refused(_) => ErrorCode::Protocol,
                _ => ErrorCode::Budget,
            };
            refusal(
                code,
                format!("nics[{nic_index}] of {}: {e}", node.config.node),
            )
        })?;
        let (link, secret) = match accepted.made {
            Made::Link(link) => (Some(link), None),
            Made::Awaited(secret) => (None, Some(secret)),
        };
        reservation.tie_to(&connection);
        Ok(NewConnection {
            connection,
            link,
            secret,
            grant: ConnectionGrant {
                connection: r.connection,
                epoch: r.epoch,
                slots: r.slots,
                nic: nic_index as u16,
                gpu,
                transport: End::new(nic.fabric(), accepted.end),
            },
        })
    }

    /// Registers a connection and returns its grant. Drops one that the frontend gave up meanwhile.
    pub(crate) fn hand_out(&self, new: NewConnection) -> ConnectionGrant {
        let NewConnection {
            connection,
            link,
            secret,
            grant,
        } = new;
        let (number, epoch) = (grant.connection, grant.epoch);
        let nic_index = usize::from(grant.nic);
        let (handle, reasons) = (self.handle.clone(), self.reasons.clone());
        connection.on_reason(Box::new(move |imm, why, is_cut| {
            let [logged, sent] = &*reasons;
            if logged.fetch_add(1, Ordering::Relaxed) < LOGGED_REASONS {
                let slot = imm.slot();
                tracing::warn!("connection {number}, slot {slot}: refused: {why}");
            }
            // Above the limit no reasons are sent, and refusals are still counted.
            if is_cut && sent.fetch_add(1, Ordering::Relaxed) < MAX_REASONS {
                let use_of = (number, epoch, imm.slot(), imm.use_count());
                handle.refused_sample(use_of, why);
            }
        }));
        let wanted =
            lock(&self.connections).grant((number, epoch), connection.clone(), nic_index, secret);
        if let Some(link) = link.filter(|_| wanted) {
            let _ = self.attach(nic_index, connection, link);
        }
        grant
    }
}

const LOGGED_REASONS: u64 = 32;
/// Most full reasons of refused samples that a session sends.
const MAX_REASONS: u64 = 256;

/// GPU of a connection over NIC `nic_index` with `gpu_turn` `turn`, counted from the NIC's own GPU.
fn gpu_for(nics: &[Option<u32>], nic_index: usize, turn: u16) -> Option<u32> {
    let own = nics.get(nic_index).copied().flatten()?;
    let mut gpus: Vec<u32> = nics.iter().copied().flatten().collect();
    gpus.sort_unstable();
    gpus.dedup();
    let at = gpus.iter().position(|g| *g == own)?;
    gpus.get((at + usize::from(turn)) % gpus.len()).copied()
}
