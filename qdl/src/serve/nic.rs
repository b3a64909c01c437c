//! The work of an accelerator's NIC thread, for one share of a NIC's connections. The thread polls
//! the connections, passes arrivals to the service, answers echoes, continues blocked flushes, and
//! takes lost connections down.

use std::{
    os::fd::RawFd,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use crossbeam_queue::SegQueue;

use super::{
    ConnectionLost, NicCounts, OnConnectionLost, ServeConnection, Which, arrival::Arrival,
    arrival::Service, connection::Received,
};
use crate::connection::{NicWork, PollOrder, Receiving, Turn, arm_all, burst};
use fabric::{Armed, Broken, Link, clock::now_ns};

pub(super) enum Command {
    Attach {
        connection: Arc<ServeConnection>,
        link: Link,
    },
    GiveUp {
        which: Arc<Which>,
        cause: Broken,
    },
    Stop,
}

/// A connection that is up: its link, and the state that only its NIC thread uses.
struct ServeLink {
    connection: Arc<ServeConnection>,
    half: Receiving,
    arrived: u64,
}

pub(super) struct ServeNic {
    inbox: Arc<SegQueue<Command>>,
    service: Arc<dyn Service>,
    lost: Arc<OnConnectionLost>,
    counts: Arc<NicCounts>,
    up: Vec<ServeLink>,
    order: PollOrder,
    /// Connections during their goodbye: no responses are sent, and arrivals are ignored.
    leaving: Vec<ServeLink>,
    arrivals: Vec<Arrival>,
    new_fds: Vec<RawFd>,
    stopping: bool,
}

impl ServeNic {
    pub(crate) fn new(
        inbox: Arc<SegQueue<Command>>,
        service: Arc<dyn Service>,
        lost: Arc<OnConnectionLost>,
        counts: Arc<NicCounts>,
    ) -> Self {
        ServeNic {
            inbox,
            service,
            lost,
            counts,
            up: Vec::new(),
            order: PollOrder::default(),
            leaving: Vec::new(),
            arrivals: Vec::with_capacity(4 * burst(usize::MAX)),
            new_fds: Vec::new(),
            stopping: false,
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Attach { connection, link } => {
                self.new_fds.push(link.rx.fd());
                connection.send.attach(link.tx);
                let mut half = Receiving::new(link.rx);
                // Its preparation may outlast the time limit of a stop.
                half.broken = self.stopping.then(stopping);
                self.up.push(ServeLink {
                    connection,
                    half,
                    arrived: 0,
                });
            }
            Command::GiveUp { which, cause } => {
                for up in &mut self.up {
                    if which(&up.connection.cfgs()) {
                        up.half.broken = Some(cause.clone());
                    }
                }
            }
            Command::Stop => {
                self.stopping = true;
                self.up
                    .iter_mut()
                    .for_each(|u| u.half.broken = Some(stopping()));
            }
        }
    }

    /// Destroys the local side of broken connections that have said goodbye, and reports them.
    fn take_down(&mut self) {
        let broken = |u: &mut ServeLink| u.half.broken.is_some();
        self.leaving.extend(self.up.extract_if(.., broken));
        let mut i = 0;
        while i < self.leaving.len() {
            if !self.leaving[i].connection.detach() {
                i += 1;
                continue;
            }
            let ServeLink {
                connection,
                half,
                arrived,
            } = self.leaving.swap_remove(i);
            self.counts.connections.fetch_sub(1, Ordering::Relaxed);
            self.new_fds.retain(|fd| *fd != half.rx.fd());
            let (sent, received) = (connection.sent_counts(), half.counts());
            connection.put_received(Received {
                arrived,
                wakeups: half.wakeups,
                fabric: received,
            });
            self.counts
                .received
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(&received);
            let Receiving { rx, broken, .. } = half;
            drop(rx);
            let c = connection.cfgs();
            tracing::debug!(
                "connection {} (epoch {}) had {} arrivals in {} CQEs; {} responses in {} work requests, \
                 {} of them inline, {} signaled, {} doorbells",
                c.connection,
                c.epoch,
                received.writes,
                received.cqes,
                sent.writes,
                sent.work_requests,
                sent.inline,
                sent.signaled,
                sent.doorbells
            );
            drop(connection);
            if let Some(cause) = broken {
                (self.lost)(ConnectionLost {
                    session: c.session,
                    connection: c.connection,
                    epoch: c.epoch,
                    cause,
                });
            }
        }
    }

    /// Polls one connection. All arrivals of the poll get the clock's reading at the first one: a
    /// reading before the poll would lengthen their residence. Returns the number of events, and
    /// whether there was any work.
    fn poll(&mut self, i: usize) -> (usize, bool) {
        let Self { up, arrivals, .. } = self;
        let up = &mut up[i];
        let connection = &up.connection;
        let before = arrivals.len();
        let most = burst(connection.cfgs().slots);
        let mut at_ns = None;
        let events = up.half.poll(&connection.send, most, |imm, _, len| {
            let arrived =
                connection.arrive((imm, len), *at_ns.get_or_insert_with(now_ns), arrivals);
            arrived.ok_or(Broken::BadFrame {
                what: "request's slot or options",
                value: u64::from(imm.bits()),
            })?;
            Ok(())
        });
        up.arrived += (arrivals.len() - before) as u64;
        if up.half.owes_reply {
            connection.post();
        }
        (events, up.half.is_busy)
    }
}

fn stopping() -> Broken {
    Broken::GivenUp("this node is stopping".to_owned())
}

impl NicWork for ServeNic {
    fn turn(&mut self, _now: u64) -> Turn {
        while let Some(c) = self.inbox.pop() {
            self.command(c);
        }
        let mut busy = false;
        if !self.stopping {
            let mut order = self.order;
            order.turn(self.up.len(), |i| {
                let (events, is_busy) = self.poll(i);
                busy |= is_busy;
                events > 0
            });
            self.order = order;
        }
        if !self.arrivals.is_empty() {
            self.counts
                .arrived
                .fetch_add(self.arrivals.len() as u64, Ordering::Relaxed);
            self.service.arrived(&mut self.arrivals);
            self.arrivals.clear();
        }
        for up in &self.up {
            if up.connection.send.is_held_up() || up.connection.has_ready() {
                busy |= up.connection.post();
            }
        }
        self.take_down();
        match (self.stopping && self.leaving.is_empty(), busy) {
            (true, _) => Turn::Stop,
            (false, false) => Turn::Idle,
            (false, true) => Turn::Busy,
        }
    }

    fn arm(&mut self) -> Armed {
        let work = |u: &ServeLink| {
            let send = &u.connection.send;
            u.half.broken.is_some() || send.has_failed() || u.connection.has_ready()
        };
        if !self.inbox.is_empty() || !self.leaving.is_empty() || self.up.iter().any(work) {
            return Armed::Ready;
        }
        arm_all(self.up.iter_mut().map(|u| u.half.rx.arm()))
    }

    fn woken_by(&mut self, fd: RawFd) {
        self.up.iter_mut().any(|u| u.half.woken_by(fd));
    }

    fn new_descriptors(&mut self, add: &mut dyn FnMut(RawFd)) {
        self.new_fds.drain(..).for_each(add);
    }
}
