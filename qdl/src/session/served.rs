//! One frontend being served: its lanes, their memory, and what its control session asks for.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use super::{
    lock,
    node::{EngineTotals, NodeParams, Shared},
    request_stride, response_stride,
    transport::ServerNic,
};
use crate::{
    control::{
        ControlError, Counters, ErrorCode, GrantTransport, LaneGrant, LaneRequest, RailScore,
        Refusal, RequestTransport, Scores, ServerHandle, SessionHandler, message::Hex,
    },
    fabric::{Broken, MAX_SLOTS, ib::check_memory, tcp::Preamble},
    quarantine::Quarantine,
    rails::{MAX_RAILS, Score},
    serve::{LaneLost, ServeLane, ServeLaneCfgs},
    stats::{BatchSizes, GpuRecord, ServedConnection, ServedReport},
    topology::LinkWatch,
};

/// How often quarantined lanes are looked at, while there are some.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// And at the latest, though none is known of.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// Writes queued on a connection before its doorbell must be rung.
pub(super) const SEND_DEPTH: usize = 256;

/// One lane of the session.
pub(super) struct LaneState {
    /// There while its memory is in use.
    lane: Option<Arc<ServeLane>>,
    quarantine: Quarantine,
    rail: usize,
    /// Its local side is destroyed (or was never made).
    down: bool,
}

/// One frontend being served.
pub(super) struct Session {
    pub id: u64,
    pub params: Arc<NodeParams>,
    pub shared: Weak<Shared>,
    pub handle: ServerHandle,
    /// The address of this node by which the frontend reached it.
    pub local: SocketAddr,
    pub nics: Arc<[ServerNic]>,
    pub lanes: Mutex<HashMap<u16, LaneState>>,
    /// Lanes granted whose data connection has not come yet, by key.
    pub waiting: Mutex<HashMap<[u8; 16], u16>>,
    pub arrived_before: u64,
    pub settled_before: (u64, u64),
    pub engine_before: EngineTotals,
    /// Sleeps of the rail threads, and how often they were woken, before it.
    pub waits_before: (u64, u64),
    /// A lane was lost.
    pub losses: tokio::sync::Notify,
    /// Lanes that are no more.
    pub ended: Mutex<Vec<ServedConnection>>,
    pub links: Arc<[LinkWatch]>,
}

impl Session {
    /// The lane a preamble names, once, if its key and epoch are right.
    pub fn take_waiting(&self, p: &Preamble) -> Option<(Arc<ServeLane>, usize)> {
        let lane = lock(&self.waiting).remove(&p.key)?;
        let mut lanes = lock(&self.lanes);
        let state = lanes.get_mut(&lane)?;
        let fits =
            p.lane == lane && state.quarantine.epoch() == p.epoch && state.quarantine.is_live();
        let serve = state.lane.clone().filter(|_| fits)?;
        state.down = false;
        Some((serve, state.rail))
    }

    /// The rail thread has destroyed this end of a lane.
    pub fn lost_here(&self, l: &LaneLost) {
        let mut lanes = lock(&self.lanes);
        if let Some(state) = lanes.get_mut(&l.lane)
            && state.quarantine.epoch() == l.epoch
        {
            state.down = true;
            self.losses.notify_one();
            if state.quarantine.lost(l.epoch) {
                self.handle.lane_lost(l.lane, l.epoch, &l.cause.to_string());
                let (lane, epoch, cause) = (l.lane, l.epoch, &l.cause);
                // At the end of a run the frontend closes its connections before it says so.
                if matches!(cause, Broken::Closed) {
                    tracing::debug!("connection {lane} (epoch {epoch}) closed by the frontend");
                } else {
                    tracing::info!("connection {lane} (epoch {epoch}) lost: {cause}");
                }
            }
        }
    }

    /// Confirms to the frontend when this end of a lost lane is down and no batch reads its slots.
    pub async fn watch(self: Arc<Self>) {
        loop {
            let quarantined = {
                let mut lanes = lock(&self.lanes);
                for (number, state) in lanes.iter_mut() {
                    self.let_go(*number, state);
                }
                let held = |s: &LaneState| s.lane.is_some() && !s.quarantine.is_live();
                lanes.values().any(held)
            };
            if quarantined {
                tokio::time::sleep(LOOK).await;
            } else {
                // Whoever lost a lane before this call has left a permit.
                let _ = tokio::time::timeout(LOOK_ANYWAY, self.losses.notified()).await;
            }
        }
    }

    fn let_go(&self, number: u16, state: &mut LaneState) {
        if state.quarantine.is_live() || !state.down {
            return;
        }
        if let Some(lane) = state.lane.take_if(|l| l.readers() == 0) {
            self.settle(&lane, true);
            drop(lane);
            let epoch = state.quarantine.epoch();
            state.quarantine.reset_here(epoch);
            self.handle.lane_reset(number, epoch);
        }
    }

    fn settle(&self, lane: &ServeLane, lost: bool) {
        let record = ServedConnection {
            lost,
            ..lane.record()
        };
        lock(&self.ended).push(record);
        if let Some(shared) = self.shared.upgrade() {
            let mut settled = lock(&shared.settled);
            settled.0 += lane.responded();
            settled.1 += lane.late();
        }
    }

    /// After the session: every lane goes, and with the last batch that reads it its memory.
    pub async fn release(&self, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            let busy = {
                let mut lanes = lock(&self.lanes);
                lanes.retain(|_, state| {
                    let gone = state.lane.take_if(|l| state.down && l.readers() == 0);
                    if let Some(lane) = &gone {
                        self.settle(lane, false);
                    }
                    state.lane.is_some()
                });
                lanes.len()
            };
            if busy == 0 {
                return;
            }
            if Instant::now() >= end {
                tracing::warn!(
                    "{busy} connections are still read by batches after {patience:?}; their slots stay out of use"
                );
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What its connections did, once they are released. `clean`: the frontend took its leave.
    pub fn report(&self, frontend: &str, clean: bool) -> ServedReport {
        let engine = (self.params.engine)();
        let mut report = ServedReport {
            frontend: frontend.to_owned(),
            // Where a batch still reads a connection, its counts are not complete.
            clean: clean && lock(&self.lanes).values().all(|s| s.lane.is_none()),
            connections: std::mem::take(&mut *lock(&self.ended)),
            batches: engine.batches.since(&self.engine_before.batches),
            engine_copies: engine.copies.saturating_sub(self.engine_before.copies),
            ..ServedReport::default()
        };
        report.connections.sort_by_key(|c| (c.lane, c.epoch));
        if let Some(shared) = self.shared.upgrade() {
            let counts = shared.rails.counts();
            report.sleeps = counts.sleeps - self.waits_before.0;
            report.woken = counts.wakeups - self.waits_before.1;
        }
        report.close();
        report
    }

    fn totals(&self) -> (Counters, bool) {
        let Some(shared) = self.shared.upgrade() else {
            return (Counters::default(), true);
        };
        let (mut responded, mut late) = *lock(&shared.settled);
        {
            let lanes = lock(&self.lanes);
            for lane in lanes.values().filter_map(|s| s.lane.as_ref()) {
                responded += lane.responded();
                late += lane.late();
            }
        }
        let mut counters = Counters {
            arrived: shared.rails.counts().arrived - self.arrived_before,
            responded: responded - self.settled_before.0,
            dropped_late: late - self.settled_before.1,
            ..Counters::default()
        };
        let engine = (self.params.engine)();
        counters.copies = engine.copies.saturating_sub(self.engine_before.copies);
        counters.batches = engine.batches.since(&self.engine_before.batches).batches();
        (
            counters,
            counters.arrived <= counters.responded + counters.dropped_late,
        )
    }

    /// Lanes that a NIC is to write are pinned: all of a request must fit into this machine's memory, before the first of
    /// them is made.
    fn room_for(&self, requests: &[LaneRequest]) -> Result<(), Refusal> {
        let bytes = requests.iter().fold(0usize, |sum, r| {
            let slot = (r.request_stride as usize).saturating_add(r.response_stride as usize);
            sum.saturating_add(slot.saturating_mul(r.slots as usize))
        });
        // More than the budget allows is refused with the lane that exceeds it.
        let nic = self.nics.iter().find_map(|n| match n {
            ServerNic::Ib(nic) if bytes <= self.params.memory => Some(nic.name()),
            _ => None,
        });
        match nic.map(|name| check_memory(name, bytes)) {
            Some(Err(e)) => Err(Refusal {
                code: ErrorCode::Budget,
                text: format!("{}: {e}", self.params.node),
            }),
            _ => Ok(()),
        }
    }

    fn grant(&self, shared: &Shared, r: &LaneRequest) -> Result<LaneGrant, Refusal> {
        let refuse = |code, text| Err(Refusal { code, text });
        let model = &self.params.model;
        let (request, response) = (
            request_stride(model).unwrap_or(usize::MAX),
            response_stride(model).unwrap_or(usize::MAX),
        );
        let slots = r.slots as usize;
        if slots == 0 || slots > MAX_SLOTS {
            let text = format!(
                "lane {}: {slots} slots, 1 to {MAX_SLOTS} are possible",
                r.lane
            );
            return refuse(ErrorCode::Protocol, text);
        }
        if (r.request_stride as usize, r.response_stride as usize) != (request, response) {
            let text = format!(
                "lane {}: slots of {} and {} bytes, model {} has {request} and {response}",
                r.lane, r.request_stride, r.response_stride, model.name
            );
            return refuse(ErrorCode::Model, text);
        }
        let rail = usize::from(r.rail) % self.params.nics.len().max(1);
        let gpu = gpu_for(
            &self.params.nics.iter().map(|n| n.gpu).collect::<Vec<_>>(),
            rail,
            r.gpu_turn,
        );
        let cfgs = ServeLaneCfgs {
            gpu,
            session: self.id,
            lane: r.lane,
            epoch: r.epoch,
            slots,
            request_stride: request,
            response_stride: response,
        };
        let bytes = cfgs.bytes().unwrap_or(usize::MAX);
        let in_use = shared.in_use();
        if in_use.saturating_add(bytes) > self.params.memory {
            let text = format!(
                "lane {}: {slots} slots take {} MiB, {} of {} MiB are in use: raise `memory_mib` of {}, or \
                 lower `slots` or `connections` of the frontend",
                r.lane,
                bytes >> 20,
                in_use >> 20,
                self.params.memory >> 20,
                self.params.node
            );
            return refuse(ErrorCode::Budget, text);
        }
        let no_random = |e: std::io::Error| Refusal {
            code: ErrorCode::ShuttingDown,
            text: e.to_string(),
        };
        let key = Hex::<16>::random().map_err(no_random)?;
        let no_memory = |e: &dyn std::error::Error| Refusal {
            code: ErrorCode::Budget,
            text: format!("lane {}: {e}", r.lane),
        };
        let slot_bytes = cfgs.request_stride.saturating_mul(slots);
        let on_gpu = match &self.nics[rail] {
            ServerNic::Ib(nic) => nic.gpu_slots(rail, gpu, slot_bytes, |bytes| {
                shared.service.slots(gpu, bytes)
            }),
            ServerNic::Tcp(_) => None,
        };
        let mut lane = Arc::new(
            match on_gpu {
                Some(region) => ServeLane::with_slots(cfgs, region),
                None => ServeLane::new(cfgs),
            }
            .map_err(|e| no_memory(&e))?,
        );
        let (transport, link) = match (&self.nics[rail], &r.transport) {
            (ServerNic::Tcp(address), RequestTransport::Tcp {}) => {
                let address = reachable(*address, self.local);
                (GrantTransport::Tcp { address }, None)
            }
            (ServerNic::Ib(nic), RequestTransport::Ib { end }) => {
                let mut accepted = nic.accept(lane.endpoint(SEND_DEPTH), end);
                if let (Err(e), true) = (&accepted, lane.is_on_device()) {
                    // A GPU may let NICs at less of its memory than it has.
                    nic.no_gpu_slots(rail, gpu, &e.to_string());
                    lane = Arc::new(ServeLane::new(cfgs).map_err(|e| no_memory(&e))?);
                    accepted = nic.accept(lane.endpoint(SEND_DEPTH), end);
                }
                let (end, link) = accepted.map_err(|e| no_memory(&e))?;
                (GrantTransport::Ib { end }, Some(link))
            }
            (nic, wanted) => {
                let text = format!(
                    "lane {}: asks for the {} fabric, and nics[{rail}] of {} is {}",
                    r.lane,
                    wanted.fabric(),
                    self.params.node,
                    nic.fabric()
                );
                return refuse(ErrorCode::Protocol, text);
            }
        };
        {
            let mut lanes = lock(&self.lanes);
            let state = lanes.entry(r.lane).or_insert_with(|| LaneState {
                lane: None,
                quarantine: Quarantine::new(),
                rail,
                down: true,
            });
            if let Err(e) = state.quarantine.open(r.epoch) {
                return refuse(ErrorCode::Protocol, format!("lane {}: {e}", r.lane));
            }
            lock(&shared.allocated).push((Arc::downgrade(&lane), bytes));
            *state = LaneState {
                lane: Some(lane.clone()),
                quarantine: state.quarantine.clone(),
                rail,
                // Until a data connection comes there is nothing to take down.
                down: link.is_none(),
            };
        }
        match link {
            Some(link) => shared.rails.attach(rail, lane, link),
            None => {
                lock(&self.waiting).insert(key.0, r.lane);
            }
        }
        Ok(LaneGrant {
            lane: r.lane,
            epoch: r.epoch,
            slots: r.slots,
            nic: rail as u16,
            gpu,
            key,
            transport,
        })
    }

    /// Takes grants back that were made for a request which failed as a whole.
    fn take_back(&self, shared: &Shared, grants: &[LaneGrant]) {
        let taken: Vec<_> = grants.iter().map(|g| (g.lane, g.epoch)).collect();
        let session = self.id;
        let cause = Broken::GivenUp("its request was refused as a whole".to_owned());
        // Those over a queue pair are up already.
        shared.rails.give_up(
            move |c: &ServeLaneCfgs| c.session == session && taken.contains(&(c.lane, c.epoch)),
            &cause,
        );
        let mut lanes = lock(&self.lanes);
        let mut waiting = lock(&self.waiting);
        for g in grants {
            lanes.remove(&g.lane);
            waiting.remove(&g.key.0);
        }
    }
}

/// The address by which the frontend reached the control plane serves for data too, where none is configured.
fn reachable(mut configured: SocketAddr, reached: SocketAddr) -> SocketAddr {
    if configured.ip().is_unspecified() {
        configured.set_ip(reached.ip());
    }
    configured
}

/// The GPU of a lane over NIC `rail` whose frontend asks for the `turn`th from the NIC's own.
fn gpu_for(nics: &[Option<u32>], rail: usize, turn: u16) -> Option<u32> {
    let own = nics.get(rail).copied().flatten()?;
    let mut gpus: Vec<u32> = nics.iter().copied().flatten().collect();
    gpus.sort_unstable();
    gpus.dedup();
    let at = gpus.iter().position(|g| *g == own)?;
    gpus.get((at + usize::from(turn)) % gpus.len()).copied()
}

impl SessionHandler for Session {
    fn scores(&self) -> Option<Scores> {
        let each = |(nic, link): (usize, &LinkWatch)| RailScore {
            nic: nic as u16,
            score: match link.is_down() {
                Some(true) => Score::MIN,
                _ => Score::ONE,
            },
        };
        Some(Scores {
            interior: (self.params.engine)().interior.unwrap_or(Score::ONE),
            rails: self
                .links
                .iter()
                .take(MAX_RAILS)
                .enumerate()
                .map(each)
                .collect(),
        })
    }

    fn open(&self, requests: &[LaneRequest]) -> Result<Vec<LaneGrant>, Refusal> {
        let Some(shared) = self.shared.upgrade() else {
            return Err(Refusal {
                code: ErrorCode::ShuttingDown,
                text: "this node is stopping".to_owned(),
            });
        };
        self.room_for(requests)?;
        let mut grants = Vec::with_capacity(requests.len());
        for r in requests {
            match self.grant(&shared, r) {
                Ok(g) => grants.push(g),
                Err(refusal) => {
                    self.take_back(&shared, &grants);
                    return Err(refusal);
                }
            }
        }
        Ok(grants)
    }

    fn lane_lost(&self, lane: u16, epoch: u32, cause: &str) {
        {
            let mut lanes = lock(&self.lanes);
            if let Some(state) = lanes.get_mut(&lane) {
                state.quarantine.lost(epoch);
                self.losses.notify_one();
            }
        }
        lock(&self.waiting).retain(|_, l| *l != lane);
        if let Some(shared) = self.shared.upgrade() {
            let session = self.id;
            let which =
                move |c: &ServeLaneCfgs| (c.session, c.lane, c.epoch) == (session, lane, epoch);
            let cause = Broken::GivenUp(format!("the frontend lost it: {cause}"));
            shared.rails.give_up(which, &cause);
        }
    }

    fn lane_reset(&self, lane: u16, epoch: u32) {
        if let Some(state) = lock(&self.lanes).get_mut(&lane) {
            state.quarantine.reset_there(epoch);
        }
    }

    fn drain(&self) -> Option<Counters> {
        let (counters, done) = self.totals();
        done.then_some(counters)
    }

    fn engine(&self) -> (BatchSizes, Vec<GpuRecord>) {
        let now = (self.params.engine)();
        let before = &self.engine_before;
        let gpus = now.gpus.into_iter().enumerate();
        let gpus = gpus.map(|(i, gpu)| match before.gpus.get(i) {
            Some(then) => gpu.since(then),
            None => gpu,
        });
        (now.batches.since(&before.batches), gpus.collect())
    }

    fn name(&self) -> String {
        self.params.sut_name.clone()
    }

    fn counters(&self) -> Counters {
        self.totals().0
    }

    fn gone(&self, cause: &ControlError) {
        lock(&self.waiting).clear();
        if let Some(shared) = self.shared.upgrade() {
            let session = self.id;
            let which = move |c: &ServeLaneCfgs| c.session == session;
            shared.rails.give_up(
                which,
                &Broken::GivenUp(format!("the session ended: {cause}")),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_where_the_frontend_found_the_control_plane() {
        let at = |s: &str| s.parse::<SocketAddr>().expect("an address");
        let reached = at("10.0.0.7:7400");
        assert_eq!(reachable(at("0.0.0.0:7410"), reached), at("10.0.0.7:7410"));
        assert_eq!(
            reachable(at("[::]:7410"), at("[fd00::7]:1")),
            at("[fd00::7]:7410")
        );
        assert_eq!(reachable(at("10.1.0.7:7411"), reached), at("10.1.0.7:7411"));
    }
}
