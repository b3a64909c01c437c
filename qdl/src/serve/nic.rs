//! The accelerator's end in a NIC thread: it passes arrivals to the service, and posts responses
//! that other threads could not post.

use std::sync::{Arc, atomic::Ordering};

use super::{
    ConnectionLost, NicCounts, OnConnectionLost, ServeConnection, arrival::Arrival,
    arrival::Service,
};
use crate::connection::{
    ReceiveHalf, SendHalf,
    share::{LiveConnection, LiveConnectionOf, NicEnd},
    writes_at_once,
};
use fabric::{Broken, Link, clock::now_ns};
use record::ServedConnection;

pub(super) struct AcceleratorEnd {
    service: Arc<dyn Service>,
    lost: Arc<OnConnectionLost>,
    counts: Arc<NicCounts>,
    arrivals: Vec<Arrival>,
}

impl AcceleratorEnd {
    pub(crate) fn new(
        service: Arc<dyn Service>,
        lost: Arc<OnConnectionLost>,
        counts: Arc<NicCounts>,
    ) -> Self {
        AcceleratorEnd {
            service,
            lost,
            counts,
            arrivals: Vec::with_capacity(4 * writes_at_once(usize::MAX)),
        }
    }
}

impl NicEnd for AcceleratorEnd {
    type Connection = Arc<ServeConnection>;
    /// Number of arrivals.
    type State = u64;

    fn attach(
        &mut self,
        connection: Arc<ServeConnection>,
        link: Link,
    ) -> Option<LiveConnectionOf<Self>> {
        connection.send.attach(link.tx);
        Some(LiveConnection {
            connection,
            half: ReceiveHalf::new(link.rx),
            state: 0,
        })
    }

    fn send<'a>(&'a self, connection: &'a Arc<ServeConnection>) -> &'a SendHalf {
        &connection.send
    }

    /// All arrivals of the poll get the clock's reading at the first one: a reading before the poll
    /// would lengthen their residence.
    fn poll(&mut self, _: usize, up: &mut LiveConnectionOf<Self>, _: u64) -> usize {
        let (connection, arrivals) = (&up.connection, &mut self.arrivals);
        let arrivals_before = arrivals.len();
        let events_max = writes_at_once(connection.cfgs().slots);
        let mut at_ns = None;
        let events = up.half.poll(&connection.send, events_max, |write| {
            let arrived = connection.arrive(write, *at_ns.get_or_insert_with(now_ns), arrivals);
            arrived.ok_or(Broken::BadFrame {
                what: "request's slot or options",
                value: u64::from(write.imm.bits()),
            })
        });
        up.state += (arrivals.len() - arrivals_before) as u64;
        events
    }

    fn deliver(&mut self, _: &mut [LiveConnectionOf<Self>], _: bool, _: u64) {
        if !self.arrivals.is_empty() {
            let arrived = &self.counts.arrived;
            arrived.fetch_add(self.arrivals.len() as u64, Ordering::Relaxed);
            self.service.arrived(&mut self.arrivals);
            self.arrivals.clear();
        }
    }

    fn has_writes(&self, connection: &Arc<ServeConnection>) -> bool {
        connection.has_ready()
    }

    fn post_waiting(&self, connection: &Arc<ServeConnection>) -> bool {
        connection.post_ready()
    }

    fn detach(&self, connection: &Arc<ServeConnection>) -> bool {
        connection.detach()
    }

    /// Reports the loss.
    fn lose(&mut self, up: LiveConnectionOf<Self>) {
        let LiveConnection {
            connection,
            half,
            state: arrived,
        } = up;
        self.counts.connections.fetch_sub(1, Ordering::Relaxed);
        let (sent, received) = (connection.sent_counts(), half.counts());
        connection.put_received(ServedConnection {
            arrived,
            wakeups: half.wakeups,
            rx: received,
            ..ServedConnection::default()
        });
        drop(half.rx);
        let c = connection.cfgs();
        tracing::debug!(
            "connection {} (epoch {}) had {} arrivals in {} CQEs; {} responses in {} work \
             requests, {} of them inline, {} signaled, {} doorbells",
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
        let stops = || Broken::GivenUp("this node is stopping".to_owned());
        (self.lost)(ConnectionLost {
            session: c.session,
            connection: c.connection,
            epoch: c.epoch,
            cause: half.broken.unwrap_or_else(stops),
        });
    }
}
