//! One frontend being served: its connections, their memory, and the requests of its control
//! session.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use record::{BatchSizes, GpuRecord, NodeUse, ServedConnection, ServedReport};

use super::{
    life::{
        LifeError,
        granted::{Granted, LostThere},
    },
    lock,
    node::{EngineTotals, NodeParams, Settled, Shared},
    places::places,
    side::Side,
    transport::ServerNic,
    usage::usage,
};
use crate::{
    config::{AcceleratorConfig, NicConfig},
    control::{
        ConnectionGrant, ConnectionRequest, ControlError, Counters, ErrorCode, RailScore, Refusal,
        Scores, ServerHandle, SessionHandler,
    },
    rails::{MAX_RAILS, Score},
    serve::{ConnectionLost, ServeConnection, ServeConnectionCfgs},
    topology::LinkWatch,
    wire::Description,
};
use fabric::wire::Stream;
use fabric::{Broken, Link, os::Near};

/// Interval of checks while connections are quarantined.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// Interval of checks otherwise.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// Session with one frontend.
pub(super) struct Session {
    pub id: u64,
    pub config: Arc<AcceleratorConfig>,
    pub params: Arc<NodeParams>,
    pub shared: Weak<Shared>,
    pub handle: ServerHandle,
    /// This node's address that the frontend reached.
    pub local: SocketAddr,
    /// Moments at which the frontend wants tokens to leave this node.
    pub stream: Stream,
    pub nics: Arc<[ServerNic]>,
    /// Connections granted to the frontend.
    pub connections: Mutex<Granted<Arc<ServeConnection>>>,
    pub arrived_before: u64,
    pub settled_before: Settled,
    pub engine_before: EngineTotals,
    /// Sleeps and wake-ups of the NIC threads before the session.
    pub waits_before: (u64, u64),
    /// Signals a lost connection.
    pub losses: tokio::sync::Notify,
    /// Records of connections that have ended.
    pub ended: Mutex<Vec<ServedConnection>>,
    /// Last epoch of each connection that was lost, without those that the frontend closed as it
    /// left.
    pub lost: Mutex<HashMap<u16, u32>>,
    /// Number of refusals logged, and number of full reasons sent.
    pub reasons: Arc<[AtomicU64; 2]>,
    /// Arrivals at the time of an answered drain.
    pub drained: Drained,
    pub links: Arc<[LinkWatch]>,
    /// Readings of this node, tick by tick.
    pub side: Side,
    /// Placement of each NIC.
    pub near: Arc<[Near]>,
}

/// Set once every arrival was answered on request, as it happens before the frontend leaves.
#[derive(Debug, Default)]
pub(super) struct Drained {
    done: AtomicBool,
    arrived: AtomicU64,
}

impl Drained {
    fn at(&self, arrived: u64) {
        self.arrived.store(arrived, Ordering::Relaxed);
        self.done.store(true, Ordering::Release);
    }

    /// Whether no sample has arrived since.
    fn holds(&self, arrived: u64) -> bool {
        self.done.load(Ordering::Acquire) && self.arrived.load(Ordering::Relaxed) == arrived
    }
}

impl Session {
    /// Number of samples that arrived in this session.
    fn arrived(&self) -> Option<u64> {
        let shared = self.shared.upgrade()?;
        Some(shared.server.counts().arrived - self.arrived_before)
    }

    /// Whether a drain was answered and no sample came since: its connections then end in good
    /// order, whatever their sockets report.
    fn is_leaving(&self) -> bool {
        self.arrived().is_some_and(|n| self.drained.holds(n))
    }

    /// Attaches a connection whose data connection has come to a NIC, unless it was given up
    /// meanwhile.
    pub fn attach(
        &self,
        shared: &Shared,
        nic_index: usize,
        connection: Arc<ServeConnection>,
        link: Link,
    ) -> Option<()> {
        // Under the lock, so that a later command to give up follows on its way to the NIC thread.
        let mut connections = lock(&self.connections);
        let ServeConnectionCfgs {
            connection: number,
            epoch,
            ..
        } = connection.cfgs();
        let wanted = connections.up(number, epoch);
        wanted.then(|| shared.server.attach(nic_index, connection, link))
    }

    /// Handles the loss of a connection whose local side the NIC thread has destroyed.
    pub fn lost_here(&self, l: &ConnectionLost) {
        // Under the lock, so that the frontend learns of the loss before it learns that this end
        // has let go.
        let mut connections = lock(&self.connections);
        let news = connections.lost_here(l.connection, l.epoch);
        self.losses.notify_one();
        // If the frontend lost the connection first, it still lacks the cause.
        if news || !matches!(l.cause, Broken::Closed | Broken::GivenUp(_)) {
            self.handle
                .connection_lost(l.connection, l.epoch, &l.cause.to_string());
        }
        if news {
            let (connection, epoch, cause) = (l.connection, l.epoch, &l.cause);
            // A leaving frontend closes its connections before its bye. After a drain, any end
            // except a protocol error counts as closed.
            let ended = match cause {
                Broken::Closed => true,
                Broken::BadFrame { .. } | Broken::OutOfBounds { .. } | Broken::Grant(_) => false,
                _ => self.is_leaving(),
            };
            if ended {
                tracing::debug!("connection {connection} (epoch {epoch}) closed: {cause}");
            } else {
                lock(&self.lost).insert(connection, epoch);
                tracing::info!("connection {connection} (epoch {epoch}) lost: {cause}");
            }
        }
    }

    /// Tells the frontend when this end of a lost connection is down and no batch reads its slots.
    pub async fn watch(self: Arc<Self>) {
        loop {
            if self.collect(true) {
                tokio::time::sleep(LOOK).await;
            } else {
                // A loss before this call has stored a permit.
                let _ = tokio::time::timeout(LOOK_ANYWAY, self.losses.notified()).await;
            }
        }
    }

    /// Lets go of lost connections without readers. True while some lost connections remain.
    fn collect(&self, lost: bool) -> bool {
        let mut connections = lock(&self.connections);
        for (connection, epoch) in
            connections.collect(|l| l.readers() == 0, |l| self.settle(&l, lost))
        {
            tracing::debug!("connection {connection} (epoch {epoch}) reset here");
            self.handle.connection_reset(connection, epoch);
        }
        connections.quarantined()
    }

    fn settle(&self, connection: &ServeConnection, lost: bool) {
        super::report::served(connection, lost).put_on(&mut lock(&self.ended));
        if let Some(shared) = self.shared.upgrade() {
            let mut settled = lock(&shared.settled);
            settled.responded += connection.responded();
            settled.refused += connection.refused();
            settled.late += connection.late();
            settled.parts += connection.parts();
        }
    }

    /// Releases every connection after the session; its memory is freed with the last batch that
    /// reads it.
    pub async fn release(&self, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            self.collect(false);
            let busy = lock(&self.connections).busy();
            if busy == 0 {
                return;
            }
            if Instant::now() >= end {
                tracing::warn!(
                    "{busy} connections are still opened, or read by batches, after {patience:?}; \
                     their slots are free once they are not"
                );
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Report of the session, once its connections are released. `clean`: the frontend ended with a
    /// bye. A frontend whose drain was answered counts as clean even if its bye did not come.
    pub fn report(&self, frontend: &str, clean: bool) -> ServedReport {
        let clean = clean || self.is_leaving();
        let engine = (self.params.engine)();
        let mut report = ServedReport {
            frontend: frontend.to_owned(),
            // Counts are not final while a batch still reads a connection.
            clean: clean && lock(&self.connections).busy() == 0,
            connections: std::mem::take(&mut *lock(&self.ended)),
            batches: engine.batches.since(&self.engine_before.batches),
            sequences: engine
                .sequences
                .map(|s| s.since(&self.engine_before.sequences.unwrap_or_default())),
            engine_copies: engine.copies.saturating_sub(self.engine_before.copies),
            decompressed: engine
                .used
                .decompressed
                .since(&self.engine_before.used.decompressed),
            ..ServedReport::default()
        };
        report.connections.sort_by_key(|c| (c.connection, c.epoch));
        if clean {
            closed(&mut report.connections, &lock(&self.lost));
        }
        if let Some(shared) = self.shared.upgrade() {
            let counts = shared.server.counts();
            report.sleeps = counts.sleeps - self.waits_before.0;
            report.woken = counts.wakeups - self.waits_before.1;
            let nics = self.config.nics.iter().map(NicConfig::label);
            let nics = nics.zip(&*self.near);
            report.places = places(nics, shared.server.placed());
        }
        report.close();
        report
    }

    /// Totals of the engines since the node started.
    pub fn engine_now(&self) -> EngineTotals {
        (self.params.engine)()
    }

    /// Totals of the session so far.
    pub fn counters_now(&self) -> Counters {
        self.totals().0
    }

    fn totals(&self) -> (Counters, bool) {
        let Some(shared) = self.shared.upgrade() else {
            return (Counters::default(), true);
        };
        let mut now;
        {
            // Lock in the order of `collect`, so that no connection is counted in neither or both.
            let connections = lock(&self.connections);
            now = *lock(&shared.settled);
            for connection in connections.slots() {
                now.responded += connection.responded();
                now.refused += connection.refused();
                now.late += connection.late();
                now.parts += connection.parts();
            }
        }
        let before = &self.settled_before;
        let mut counters = Counters {
            arrived: shared.server.counts().arrived - self.arrived_before,
            responded: now.responded - before.responded,
            refused: now.refused - before.refused,
            dropped_late: now.late - before.late,
            parts: now.parts - before.parts,
            ..Counters::default()
        };
        let engine = (self.params.engine)();
        counters.copies = engine.copies.saturating_sub(self.engine_before.copies);
        counters.batches = engine.batches.since(&self.engine_before.batches).batches();
        (
            counters,
            counters.arrived <= counters.responded + counters.refused + counters.dropped_late,
        )
    }
}

/// Marks the connections of a cleanly ended session as lost or closed. The last epoch of a number
/// is closed unless `lost` contains it; earlier epochs were lost. `connections` are in the order of
/// numbers and epochs.
fn closed(connections: &mut [ServedConnection], lost: &HashMap<u16, u32>) {
    for i in 0..connections.len() {
        let number = connections[i].connection;
        let next = connections.get(i + 1);
        let again = next.is_some_and(|next| next.connection == number);
        let c = &mut connections[i];
        c.lost = again || lost.get(&number) == Some(&c.epoch);
    }
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

    fn open(&self, requests: &[ConnectionRequest]) -> Result<Vec<ConnectionGrant>, Refusal> {
        let Some(shared) = self.shared.upgrade() else {
            return Err(Refusal {
                code: ErrorCode::ShuttingDown,
                text: "this node is stopping".to_owned(),
            });
        };
        let wanted: Vec<_> = requests.iter().map(|r| (r.connection, r.epoch)).collect();
        lock(&self.connections)
            .ask(&wanted)
            .map_err(|(connection, e)| Refusal {
                code: match e {
                    LifeError::Over => ErrorCode::ShuttingDown,
                    _ => ErrorCode::Protocol,
                },
                text: format!("connection {connection}: {e}"),
            })?;
        let made = self.room_for(requests).and_then(|()| {
            let each = requests.iter().map(|r| self.make(&shared, r));
            each.collect::<Result<Vec<_>, _>>()
        });
        let granted = match made {
            Ok(made) => Ok(made
                .into_iter()
                .map(|m| self.hand_out(&shared, m))
                .collect()),
            Err(refusal) => {
                lock(&self.connections).refused(&wanted);
                Err(refusal)
            }
        };
        // The frontend may have given some up meanwhile.
        self.losses.notify_one();
        granted
    }

    fn connection_lost(&self, connection: u16, epoch: u32, cause: &str) {
        let LostThere {
            give_up,
            tell_reset,
        } = lock(&self.connections).lost_there(connection, epoch);
        if !self.is_leaving() {
            lock(&self.lost).insert(connection, epoch);
        }
        self.losses.notify_one();
        if tell_reset {
            tracing::debug!("connection {connection} (epoch {epoch}) reset here");
            self.handle.connection_reset(connection, epoch);
        }
        if give_up && let Some(shared) = self.shared.upgrade() {
            let session = self.id;
            let which = move |c: &ServeConnectionCfgs| {
                (c.session, c.connection, c.epoch) == (session, connection, epoch)
            };
            let cause = Broken::GivenUp(format!("the frontend lost it: {cause}"));
            if !self.is_leaving() {
                tracing::info!("connection {connection} (epoch {epoch}) lost: {cause}");
            }
            shared.server.give_up(which, &cause);
        }
    }

    fn connection_reset(&self, connection: u16, epoch: u32) {
        tracing::debug!("connection {connection} (epoch {epoch}) reset there");
        lock(&self.connections).reset_there(connection, epoch);
    }

    fn drain(&self) -> Option<Counters> {
        let (counters, done) = self.totals();
        if done {
            self.drained.at(counters.arrived);
        }
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

    fn used(&self) -> NodeUse {
        let nics = self.shared.upgrade().map(|s| s.server.nic_use());
        NodeUse {
            engine: (self.params.engine)().used,
            ..usage(&[], super::report::nic_use(nics.unwrap_or_default()))
        }
    }

    fn side(&self, at: u64) -> (u64, String) {
        if at == 0 {
            // Includes the time since the last reading.
            self.side.read_now(self);
        }
        self.side.tell(&self.config.node, at)
    }

    fn name(&self) -> String {
        self.params.sut_name.clone()
    }

    fn describe(&self) -> Result<Description, Refusal> {
        (self.params.describe)().map_err(|text| Refusal {
            code: ErrorCode::Protocol,
            text,
        })
    }

    fn counters(&self) -> Counters {
        self.totals().0
    }

    fn gone(&self, cause: &ControlError) {
        lock(&self.connections).end();
        if let Some(shared) = self.shared.upgrade() {
            let session = self.id;
            let which = move |c: &ServeConnectionCfgs| c.session == session;
            shared.server.give_up(
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
    fn what_the_frontend_closed_as_it_left_was_not_lost() {
        let mut connections: Vec<_> = [(0, 1), (0, 2), (1, 1), (2, 1), (2, 3)]
            .map(|(connection, epoch)| ServedConnection {
                connection,
                epoch,
                // Closed before the bye came, as most connections are.
                lost: true,
                ..ServedConnection::default()
            })
            .into();
        // (0, 1) was lost and opened again.
        closed(&mut connections, &HashMap::from([(2, 3)]));
        let lost = connections.iter().map(|c| c.lost).collect::<Vec<_>>();
        assert_eq!(lost, [true, false, false, true, true]);
    }
}
