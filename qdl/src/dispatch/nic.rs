//! The frontend's end in a NIC thread: it completes samples, checks liveness, posts the backlog
//! when slots come free, and sends a lost connection's samples again.

use std::sync::{Arc, atomic::Ordering};

use super::{
    Attempt, Connection, DispatchState,
    link::{Attachment, FrontendLink, LinkState},
    responses::Inbound,
};
use crate::{
    connection::{
        EchoAction, NicThreadHandle, ReceiveHalf, SendHalf,
        share::{LiveConnection, NicEnd},
        tracker::InFlight,
        writes_at_once,
    },
    dispatch::{Completer, DispatchEvent},
};
use fabric::{Broken, Link};

pub(super) struct FrontendEnd {
    share: usize,
    shared: Arc<DispatchState>,
    completer: Box<dyn Completer>,
    inbound: Inbound,
}

impl FrontendEnd {
    pub(crate) fn new(
        share: usize,
        shared: Arc<DispatchState>,
        completer: Box<dyn Completer>,
        handle: &NicThreadHandle,
    ) -> Self {
        // The pinned thread's first touch places the memory, even where memory cannot be bound.
        for connection in shared.connections.iter().filter(|l| l.share == share) {
            connection.window.region().prefault();
            handle.note_memory(connection.window.region());
        }
        FrontendEnd {
            share,
            shared,
            completer,
            inbound: Inbound::with_capacity(4 * writes_at_once(usize::MAX)),
        }
    }

    fn connection(&self, attachment: Attachment) -> &Connection {
        &self.shared.connections[attachment.connection]
    }
}

impl NicEnd for FrontendEnd {
    type Connection = Attachment;
    type State = LinkState;

    fn attach(&mut self, attachment: Attachment, link: Link) -> Option<FrontendLink> {
        if self.shared.is_aborted() {
            drop(link);
            let cause = Broken::GivenUp("the run has been aborted".to_owned());
            self.shared.report_loss(attachment, cause, 0);
            return None;
        }
        let connection = self.connection(attachment);
        connection.attach(link.tx, attachment.epoch);
        self.shared.connections_changed();
        self.shared.rail_up(connection);
        Some(LiveConnection {
            connection: attachment,
            half: ReceiveHalf::new(link.rx),
            state: LinkState::new(connection, self.shared.receiving.echo),
        })
    }

    fn send(&self, attachment: &Attachment) -> &SendHalf {
        &self.connection(*attachment).send
    }

    fn poll(&mut self, index: usize, up: &mut FrontendLink, now_ns: u64) -> usize {
        let FrontendEnd {
            shared, inbound, ..
        } = self;
        let connection = &shared.connections[up.connection.connection];
        let answers = |inbound: &Inbound| inbound.responses.len() + inbound.prefilled.len();
        let answered_before = answers(inbound);
        let progress = &mut up.state.progress;
        // Half of the writes in flight, not of the slots: half of many slots may be all responses
        // in flight, and the peer would be idle while this thread handles them.
        let events_max = writes_at_once(connection.tracker.in_flight());
        let events = up.half.poll(&connection.send, events_max, |write| {
            shared.arrived(index, connection, progress, write, inbound)
        });
        if up.half.is_busy {
            up.state.echo.heard(now_ns);
        }
        let answered = (answers(inbound) - answered_before) as u64;
        up.state.answered += answered;
        up.state.unshown.samples += answered;
        events
    }

    fn deliver(&mut self, links: &mut [FrontendLink], has_events: bool, now_ns: u64) {
        let (shared, completer) = (&self.shared, self.completer.as_mut());
        if !self.inbound.is_empty() {
            self.inbound.complete(shared, self.share, links, completer);
            shared.fold_scores(now_ns);
        }
        if has_events {
            shared.distribute();
        }
    }

    fn has_writes(&self, attachment: &Attachment) -> bool {
        let connection = self.connection(*attachment);
        self.shared.waits_for(connection) && connection.takes()
    }

    fn post_waiting(&self, attachment: &Attachment) -> bool {
        self.shared.post_waiting(self.connection(*attachment))
    }

    fn record(&mut self, links: &mut [FrontendLink]) {
        self.inbound.record(links, self.completer.as_mut());
    }

    fn detach(&self, attachment: &Attachment) -> bool {
        self.connection(*attachment).detach()
    }

    /// Sends the samples again on the remaining connections, unless the share stops.
    fn lose(&mut self, up: FrontendLink) {
        let LiveConnection {
            connection: attachment,
            half,
            mut state,
        } = up;
        let shared = &*self.shared;
        let connection = self.connection(attachment);
        shared.connections_changed();
        state.show(connection);
        {
            let record = &mut connection.figures().record;
            record.rx.add(&half.counts());
            record.wakeups += half.wakeups;
            let silent_ms = state.echo.longest_silence_ns() / 1_000_000;
            record.silent_ms = record.silent_ms.max(silent_ms);
        }
        drop(half.rx);
        let Some(cause) = half.broken else { return };
        let mut retries = 0;
        connection.tracker.sweep(|f: InFlight| {
            retries +=
                usize::from(shared.retry_lost(connection, f.attempt(), &mut state.too_often_lost));
        });
        shared.warm_up.lost(connection.index, &cause);
        shared.requeue_ring(connection);
        if shared.is_aborted() {
            // The connection was taken down with the run.
            shared.empty_backlog();
        } else {
            shared.ends.lost_connections.fetch_add(1, Ordering::Relaxed);
            // The lost connection's samples, in flight or not posted, are in the backlog.
            if shared.backlogs.iter().any(|b| !b.is_empty()) {
                shared.wake_all();
            }
        }
        shared.rail_lost(connection);
        shared.report_loss(attachment, cause.clone(), retries);
        if let Some(Attempt { sample, history }) = state.too_often_lost {
            shared.owner.event(DispatchEvent::TooManyLosses {
                index: sample.index,
                losses: history.tries.losses,
                connection: connection.index,
                cause,
            });
        }
    }

    fn tick(&mut self, links: &mut [FrontendLink], now_ns: u64) {
        for up in links {
            let connection = self.connection(up.connection);
            let (state, rx) = (&mut up.state, &mut *up.half.rx);
            state.look_at_path(connection, rx, now_ns);
            state.show_at(connection, now_ns);
            if state.echo.waits()
                && let Some(bytes) = rx.confirmed()
            {
                state.echo.confirmed(now_ns, bytes);
            }
            match state.echo.tick(now_ns) {
                EchoAction::Wait => {}
                EchoAction::Ask(v) => {
                    connection.send.ask(v);
                    self.shared.post_waiting(connection);
                }
                EchoAction::Lost(ns) => {
                    up.half.silent = Some(Broken::Silent(format!(
                        "no sign of life on the data connection for {} ms",
                        ns / 1_000_000
                    )));
                }
            }
        }
        self.shared.fold_scores(now_ns);
        self.shared.distribute();
        if self.shared.cancels.is_any() {
            let connections = &self.shared.connections;
            self.shared.cancels.purge(now_ns, connections);
        }
        self.completer.tick(now_ns);
    }
}

impl DispatchState {
    fn report_loss(&self, attachment: Attachment, cause: Broken, retries: usize) {
        self.owner.event(DispatchEvent::ConnectionLost {
            connection: attachment.connection,
            epoch: attachment.epoch,
            cause,
            retries,
        });
    }
}
