//! One frontend being served: its connections, their memory, and its control requests.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use record::{BatchSizes, GpuRecord, NicWaits, NodeUse, ServedConnection, ServedReport};
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    node_state::{EngineTotals, NodeFigures, NodeState},
    readings::NodeReadings,
};
use crate::{
    control::{
        ConnectionGrant, ConnectionRequest, ControlError, Counters, ErrorCode, RailScore, Refusal,
        Scores, ServerHandle, ServerSession, SessionHandler, message::clip,
    },
    counters::ticks::FIRST_TICK_NS,
    rails::{MAX_RAILS, Score},
    run::{
        life::{
            LifeError,
            accelerator_ends::{AcceleratorEnds, LossActions},
        },
        lock,
        places::places,
        usage::usage,
    },
    serve::{ConnectionLost, ServeConnection, ServeConnectionCfgs},
    topology::LinkWatch,
    wire::{Description, Standing},
};
use fabric::{Broken, Imm, Link, clock::now_ns, wire::Stream};

/// Interval of checks while connections are quarantined.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_ANYWAY: Duration = Duration::from_secs(1);
/// Interval of readings; each is one tick.
const READ_EVERY: Duration = Duration::from_nanos(FIRST_TICK_NS);

pub(crate) type CurrentSession = Mutex<Option<Arc<Session>>>;

/// Session with one frontend.
pub struct Session {
    pub id: u64,
    pub node: Arc<NodeState>,
    pub handle: ServerHandle,
    /// This node's address that the frontend reached.
    pub local: SocketAddr,
    /// Moments at which the frontend wants tokens to leave this node.
    pub stream: Stream,
    /// Connections granted to the frontend.
    pub connections: Mutex<AcceleratorEnds<Arc<ServeConnection>>>,
    /// Number of refusals logged, and number of full reasons sent.
    pub reasons: Arc<[AtomicU64; 2]>,
    /// The node's totals before the session.
    before: (NicWaits, Counters, EngineTotals),
    losses: Notify,
    ended: Mutex<Vec<ServedConnection>>,
    /// Last epoch of each connection that was lost, without those the frontend closed as it left.
    lost: Mutex<HashMap<u16, u32>>,
    /// Arrivals at the time of the last answered drain.
    drained: Mutex<Option<u64>>,
    readings: NodeReadings,
}

impl Session {
    pub(crate) fn new(id: u64, node: Arc<NodeState>, session: &ServerSession) -> Self {
        let before = Counters {
            arrived: node.server.arrived(),
            ..*lock(&node.ended)
        };
        Session {
            id,
            handle: session.handle.clone(),
            local: session.local_address,
            stream: session.stream(),
            connections: Mutex::default(),
            reasons: Arc::default(),
            before: (node.server.waits(), before, (node.params.engine)()),
            losses: Notify::new(),
            ended: Mutex::default(),
            lost: Mutex::default(),
            drained: Mutex::default(),
            readings: NodeReadings::default(),
            node,
        }
    }

    fn arrived(&self) -> u64 {
        self.node.server.arrived() - self.before.1.arrived
    }

    /// Whether a drain was answered and no sample came since: its connections then end in good
    /// order, whatever their sockets report.
    fn is_leaving(&self) -> bool {
        *lock(&self.drained) == Some(self.arrived())
    }

    /// Attaches a connection whose data connection has come to a NIC, unless it was given up
    /// meanwhile.
    pub(crate) fn attach(
        &self,
        nic_index: usize,
        connection: Arc<ServeConnection>,
        link: Link,
    ) -> Option<()> {
        // Holds the lock, so that a later command to give up reaches the NIC thread afterwards.
        let mut connections = lock(&self.connections);
        let ServeConnectionCfgs {
            connection: number,
            epoch,
            ..
        } = connection.cfgs();
        let wanted = connections.up(number, epoch);
        wanted.then(|| self.node.server.attach(nic_index, connection, link))
    }

    /// Attaches a connection that came over a data port, or reports its loss.
    pub(crate) fn admit(
        &self,
        nic_index: usize,
        connection: Arc<ServeConnection>,
        linked: Result<Link, String>,
    ) -> Result<(), String> {
        let cfgs = connection.cfgs();
        let attached = linked.map(|link| self.attach(nic_index, connection, link));
        match attached {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err("its connection was given up meanwhile".to_owned()),
            Err(why) => {
                // No NIC thread has the connection, so report its loss here.
                self.lost_here(&ConnectionLost {
                    session: self.id,
                    connection: cfgs.connection,
                    epoch: cfgs.epoch,
                    cause: Broken::GivenUp(why.clone()),
                });
                Err(why)
            }
        }
    }

    /// Handles the loss of a connection whose local side the NIC thread has destroyed.
    pub(crate) fn lost_here(&self, l: &ConnectionLost) {
        // Holds the lock, so that the frontend learns of the loss before it learns that this end
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
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            if self.collect(true) {
                sleep(LOOK).await;
            } else {
                // A loss before this call has stored a permit.
                let _ = timeout(LOOK_ANYWAY, self.losses.notified()).await;
            }
        }
    }

    /// Lets go of lost connections without readers. True while some lost connections remain.
    fn collect(&self, lost: bool) -> bool {
        let mut connections = lock(&self.connections);
        let record = |connection: Arc<ServeConnection>| {
            connection.record(lost).put_on(&mut lock(&self.ended));
            add(&mut lock(&self.node.ended), &connection);
        };
        for (connection, epoch) in connections.collect(|l| l.readers() == 0, record) {
            tracing::debug!("connection {connection} (epoch {epoch}) reset here");
            self.handle.connection_reset(connection, epoch);
        }
        connections.quarantined()
    }

    /// Releases every connection after the session; a connection's memory is freed with the last
    /// batch that reads its slots.
    pub(crate) async fn release(&self, patience: Duration) {
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
            sleep(LOOK).await;
        }
    }

    /// Report of the session, once its connections are released. `clean`: the frontend ended with a
    /// bye. A frontend whose drain was answered counts as clean even if its bye did not come.
    pub(crate) fn report(&self, frontend: &str, clean: bool) -> ServedReport {
        let clean = clean || self.is_leaving();
        let engine = (self.node.params.engine)();
        let (waits_before, _, engine_before) = &self.before;
        let nics = self.node.config.nics.iter().map(|n| n.facts().label);
        let mut report = ServedReport {
            frontend: frontend.to_owned(),
            // Counts are not final while a batch still reads a connection.
            clean: clean && lock(&self.connections).busy() == 0,
            connections: std::mem::take(&mut *lock(&self.ended)),
            batches: engine.batches.since(&engine_before.batches),
            sequences: engine
                .sequences
                .map(|s| s.since(&engine_before.sequences.unwrap_or_default())),
            engine_copies: engine.copies.saturating_sub(engine_before.copies),
            waits: self.node.server.waits().since(waits_before),
            places: places(nics.zip(&self.node.near), self.node.server.placed()),
            ..ServedReport::default()
        };
        report.connections.sort_by_key(|c| (c.connection, c.epoch));
        if clean {
            mark_closed(&mut report.connections, &lock(&self.lost));
        }
        report.close();
        report
    }

    /// Takes a reading at each tick, until the task is aborted.
    pub(crate) async fn take_readings(self: Arc<Self>) {
        let mut every = interval(READ_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            self.read_now();
        }
    }

    fn read_now(&self) {
        let (counters, engine) = (self.counters(), (self.node.params.engine)());
        let threads = self.node.thread_times;
        self.readings.read(now_ns(), &counters, engine, threads);
    }

    pub(crate) fn figures(&self) -> NodeFigures {
        // Lock in the order of `collect`, so that each connection is counted exactly once.
        let connections = lock(&self.connections);
        let mut now = *lock(&self.node.ended);
        connections.slots().for_each(|c| add(&mut now, c));
        (now, connections.up_and_lost())
    }

    /// Totals of the session so far, and whether every arrived sample is answered.
    fn totals(&self) -> (Counters, bool) {
        let node = &self.node;
        let (_, before, engine_before) = &self.before;
        let (now, _) = self.figures();
        let engine = (node.params.engine)();
        let counters = Counters {
            arrived: self.arrived(),
            responded: now.responded - before.responded,
            refused: now.refused - before.refused,
            dropped_late: now.dropped_late - before.dropped_late,
            parts: now.parts - before.parts,
            copies: engine.copies.saturating_sub(engine_before.copies),
            batches: engine.batches.since(&engine_before.batches).batches(),
            progress: engine.progress.saturating_sub(engine_before.progress),
        };
        let answered = counters.responded + counters.refused + counters.dropped_late;
        (counters, counters.arrived <= answered)
    }
}

fn add(totals: &mut Counters, connection: &ServeConnection) {
    totals.responded += connection.responded();
    totals.refused += connection.refused();
    totals.dropped_late += connection.late();
    totals.parts += connection.parts();
}

/// Marks the connections of a cleanly ended session as lost or closed. A number's last epoch is
/// closed unless in `lost`; earlier epochs were lost. `connections` are in that order.
fn mark_closed(connections: &mut [ServedConnection], lost: &HashMap<u16, u32>) {
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
        let engine = (self.node.params.engine)();
        Some(Scores {
            interior: engine.interior.unwrap_or(Score::ONE),
            standing: match engine.standing {
                Standing::Away(why) => Standing::Away(clip(&why)),
                Standing::Overdue(why) => Standing::Overdue(clip(&why)),
                other => other,
            },
            rails: self
                .node
                .links
                .iter()
                .take(MAX_RAILS)
                .enumerate()
                .map(each)
                .collect(),
        })
    }

    fn open(&self, requests: &[ConnectionRequest]) -> Result<Vec<ConnectionGrant>, Refusal> {
        let wanted: Vec<_> = requests.iter().map(|r| (r.connection, r.epoch)).collect();
        lock(&self.connections)
            .ask(&wanted)
            .map_err(|(connection, e)| {
                let code = match e {
                    LifeError::Over => ErrorCode::ShuttingDown,
                    _ => ErrorCode::Protocol,
                };
                Refusal::new(code, format!("connection {connection}: {e}"))
            })?;
        let made = self.check_memory(requests).and_then(|()| {
            let each = requests.iter().map(|r| self.make_connection(r));
            each.collect::<Result<Vec<_>, _>>()
        });
        let granted = made
            .map(|made| made.into_iter().map(|new| self.hand_out(new)).collect())
            .inspect_err(|_| lock(&self.connections).refuse(&wanted));
        // The frontend may have given up some connections meanwhile.
        self.losses.notify_one();
        granted
    }

    fn connection_lost(&self, connection: u16, epoch: u32, cause: &str) {
        let LossActions {
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
        if give_up {
            let session = self.id;
            let which = move |c: &ServeConnectionCfgs| {
                (c.session, c.connection, c.epoch) == (session, connection, epoch)
            };
            let cause = Broken::GivenUp(format!("the frontend lost it: {cause}"));
            if !self.is_leaving() {
                tracing::info!("connection {connection} (epoch {epoch}) lost: {cause}");
            }
            self.node.server.give_up(which, &cause);
        }
    }

    fn connection_reset(&self, connection: u16, epoch: u32) {
        tracing::debug!("connection {connection} (epoch {epoch}) reset there");
        lock(&self.connections).reset_there(connection, epoch);
    }

    fn cancel(&self, connection: u16, epoch: u32, imm: Imm) {
        if let Some(connection) = lock(&self.connections).of_epoch(connection, epoch) {
            connection.cancel(imm);
        }
    }

    fn drain(&self) -> Option<Counters> {
        let (counters, done) = self.totals();
        if done {
            *lock(&self.drained) = Some(counters.arrived);
        }
        done.then_some(counters)
    }

    fn engine(&self) -> (BatchSizes, Vec<GpuRecord>) {
        let now = (self.node.params.engine)();
        let before = &self.before.2;
        let gpus = now.gpus.into_iter().enumerate();
        let gpus = gpus.map(|(i, gpu)| match before.gpus.get(i) {
            Some(then) => gpu.since(then),
            None => gpu,
        });
        (now.batches.since(&before.batches), gpus.collect())
    }

    fn used(&self) -> NodeUse {
        NodeUse {
            engine: (self.node.params.engine)().used,
            ..usage(&(self.node.thread_times)(), self.node.server.nic_use())
        }
    }

    fn side(&self, at: u64) -> (u64, String) {
        if at == 0 {
            // Takes a reading, so that the side includes the time since the last reading.
            self.read_now();
        }
        let threads = self.node.thread_times;
        self.readings.part(&self.node.config.node, at, threads)
    }

    fn name(&self) -> String {
        self.node.params.sut_name.clone()
    }

    fn describe(&self) -> Result<Description, Refusal> {
        (self.node.params.describe)().map_err(|text| Refusal::new(ErrorCode::Protocol, text))
    }

    fn counters(&self) -> Counters {
        self.totals().0
    }

    fn gone(&self, cause: &ControlError) {
        lock(&self.connections).end();
        let session = self.id;
        let which = move |c: &ServeConnectionCfgs| c.session == session;
        let cause = Broken::GivenUp(format!("the session ended: {cause}"));
        self.node.server.give_up(which, &cause);
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
        mark_closed(&mut connections, &HashMap::from([(2, 3)]));
        let lost = connections.iter().map(|c| c.lost).collect::<Vec<_>>();
        assert_eq!(lost, [true, false, false, true, true]);
    }
}
