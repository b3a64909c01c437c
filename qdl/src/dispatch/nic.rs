//! A frontend's NIC thread, for one share of a NIC's connections. It polls them, completes samples,
//! posts the backlog when slots come free, checks liveness, and takes lost connections down.

use std::{
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use crossbeam_queue::SegQueue;

use super::{answers::Inbound, connection::Connection, link::FrontendLink};
use crate::{
    connection::{
        EchoAction, NicThreadHandle, NicWork, PollOrder, Receiving, Turn, arm_all, burst,
        tracker::InFlight,
    },
    dispatch::{Completer, DispatchEvent, Shared},
};
use fabric::{Armed, Broken, Link};

pub(super) enum Command {
    Attach {
        connection: usize,
        epoch: u32,
        link: Link,
    },
    GiveUp {
        connection: usize,
        epoch: u32,
        cause: Broken,
    },
    Health,
    GiveUpAll(Broken),
    Stop,
}

pub(super) struct FrontendNic {
    share: usize,
    shared: Arc<Shared>,
    inbox: Arc<SegQueue<Command>>,
    completer: Box<dyn Completer>,
    links: Vec<FrontendLink>,
    order: PollOrder,
    /// Connections during their goodbye: no thread posts on them, and their arrivals are ignored.
    leaving: Vec<FrontendLink>,
    inbound: Inbound,
    new_fds: Vec<RawFd>,
    stopping: bool,
}

impl FrontendNic {
    pub(crate) fn new(
        share: usize,
        shared: Arc<Shared>,
        inbox: Arc<SegQueue<Command>>,
        completer: Box<dyn Completer>,
        handle: &NicThreadHandle,
    ) -> Self {
        // The pinned thread's first touch places the memory, even where memory cannot be bound.
        for connection in shared.connections.iter().filter(|l| l.share == share) {
            connection.window.region().prefault();
            handle.note_memory(connection.window.region());
        }
        FrontendNic {
            share,
            shared,
            inbox,
            completer,
            links: Vec::new(),
            order: PollOrder::default(),
            leaving: Vec::new(),
            inbound: Inbound::with_capacity(4 * burst(usize::MAX)),
            new_fds: Vec::new(),
            stopping: false,
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Attach {
                connection,
                epoch,
                link,
            } => {
                if self.shared.aborted.load(Ordering::SeqCst) {
                    drop(link);
                    let cause = Broken::GivenUp("the run has been aborted".to_owned());
                    return self.shared.report_loss(connection, epoch, cause, 0);
                }
                let Link { tx, rx } = link;
                self.new_fds.push(rx.fd());
                let end = &self.shared.connections[connection];
                end.attach(tx);
                self.shared.connections_changed();
                let slots = match end.window.takes_parts() {
                    true => end.cfgs.slots,
                    false => 0,
                };
                let link = FrontendLink::new((connection, epoch), rx, self.shared.echo, slots);
                self.links.push(link);
                self.make_known();
            }
            Command::Health => self.make_known(),
            Command::GiveUp {
                connection,
                epoch,
                cause,
            } => {
                let mut up = self.links.iter_mut();
                if let Some(up) = up.find(|u| u.connection == connection && u.epoch == epoch) {
                    up.half.broken = Some(cause);
                }
            }
            Command::GiveUpAll(cause) => {
                for up in &mut self.links {
                    up.half.broken = Some(cause.clone());
                }
            }
            Command::Stop => self.stopping = true,
        }
    }

    /// Reports connections that have come up to the arbiter by health.
    fn make_known(&mut self) {
        if self.shared.health.get().is_some() {
            for up in self.links.iter_mut().filter(|u| !u.known) {
                up.known = true;
                self.shared.health_up(up.connection);
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.leaving.is_empty() && self.links.iter().all(|u| u.half.broken.is_none())
    }

    /// Takes broken connections down, or all when this thread stops. Destroys the local side of a
    /// connection once its link has said goodbye; afterwards no write lands through the link.
    fn take_down(&mut self) {
        let down = |u: &mut FrontendLink| self.stopping || u.half.broken.is_some();
        self.leaving.extend(self.links.extract_if(.., down));
        let mut i = 0;
        while i < self.leaving.len() {
            let connection = &self.shared.connections[self.leaving[i].connection];
            if !connection.detach() {
                i += 1;
                continue;
            }
            self.shared.connections_changed();
            let mut up = self.leaving.swap_remove(i);
            up.show(connection);
            {
                let mut counts = connection.counts();
                counts.rx.add(&up.half.counts());
                counts.wakeups += up.half.wakeups;
                counts.samples += up.taken;
                let silent_ms = up.echo.longest_silence_ns() / 1_000_000;
                counts.silent_ms = counts.silent_ms.max(silent_ms);
            }
            self.new_fds.retain(|fd| *fd != up.half.rx.fd());
            self.lose(up);
        }
    }

    /// Handles a lost connection: its samples are sent again on the remaining connections. Does
    /// nothing when this thread stops.
    fn lose(&mut self, up: FrontendLink) {
        let FrontendLink {
            connection: index,
            epoch,
            known,
            mut worn,
            half: Receiving { rx, broken, .. },
            ..
        } = up;
        drop(rx);
        let Some(cause) = broken else { return };
        let shared = self.shared.clone();
        let mut again = 0;
        let connection = &shared.connections[index];
        connection.tracker.sweep(|f: InFlight| {
            again += usize::from(shared.goes_again(connection, f.sample, &mut worn));
        });
        shared.warm_up.lost(index, &cause);
        shared.empty_ring(connection);
        if shared.aborted.load(Ordering::SeqCst) {
            // The connection was taken down with the run.
            shared.empty_backlog();
        } else {
            shared.connections_lost.fetch_add(1, Ordering::Relaxed);
            // The lost connection's samples, in flight or not posted, are in the backlog.
            if shared.has_backlog() {
                shared.wake_all();
            }
        }
        if known {
            shared.health_lost(connection);
        }
        shared.report_loss(index, epoch, cause.clone(), again);
        if let Some(sample) = worn {
            shared.owner.event(DispatchEvent::WornOut {
                index: sample.index,
                losses: sample.tries.losses,
                connection: index,
                cause,
            });
        }
    }

    /// Polls one connection. Returns the number of events, and whether it did any work.
    fn poll(&mut self, i: usize, now: u64) -> (usize, bool) {
        let Self {
            links,
            shared,
            inbound,
            ..
        } = self;
        let up = &mut links[i];
        let connection = &shared.connections[up.connection];
        let before = inbound.answers.len();
        let progress = &mut up.progress;
        // Half of the writes in flight, not of the slots: half of many slots may be all responses
        // in flight, and the peer would be idle while this thread handles them.
        let most = burst(connection.tracker.in_flight());
        let events = up.half.poll(&connection.send, most, |imm, at, len| {
            shared.arrived((i, connection), progress, (imm, at, len), inbound)
        });
        if up.half.is_busy {
            // Bytes of an incomplete answer are a sign of life, too.
            up.echo.heard(now);
            up.silent = None;
        } else if up.silent.is_some() && up.half.broken.is_none() {
            up.half.broken = up.silent.take();
        }
        up.taken += (inbound.answers.len() - before) as u64;
        let is_busy = up.half.is_busy;
        if up.half.owes_reply {
            shared.post(connection);
        }
        (events, is_busy)
    }

    /// Posts rings and the backlog, continues blocked flushes. Returns whether there was any work.
    fn post(&mut self, completed: bool) -> bool {
        let mut busy = false;
        if completed && let Some(h) = self.shared.health.get() {
            // Orders the freed slots before the check of the backlog.
            fence(Ordering::SeqCst);
            if self.shared.has_backlog() {
                self.shared.distribute(h);
            }
        }
        for i in 0..self.links.len() {
            let connection = &self.shared.connections[self.links[i].connection];
            let held_up = connection.send.is_held_up();
            if held_up || (self.shared.waits_for(connection) && connection.tracker.has_free()) {
                busy |= self.shared.post(connection);
            }
        }
        busy
    }
}

impl NicWork for FrontendNic {
    fn turn(&mut self, now: u64) -> Turn {
        while let Some(c) = self.inbox.pop() {
            self.command(c);
        }
        if self.stopping {
            self.take_down();
            return if self.leaving.is_empty() {
                Turn::Stop
            } else {
                Turn::Idle
            };
        }
        let (mut came, mut busy) = (false, false);
        let mut order = self.order;
        order.turn(self.links.len(), |i| {
            let (events, is_busy) = self.poll(i, now);
            came |= events > 0;
            busy |= is_busy;
            events > 0
        });
        self.order = order;
        if !self.inbound.is_empty() {
            let Self {
                inbound,
                shared,
                share,
                links,
                completer,
                ..
            } = self;
            inbound.complete(shared, *share, links, completer.as_mut());
            self.shared.health_tick(now);
        }
        if self.is_whole() {
            // Record after posting, so that the peers work meanwhile.
            busy |= self.post(came);
            self.inbound
                .record(&mut self.links, self.completer.as_mut());
        } else {
            self.inbound
                .record(&mut self.links, self.completer.as_mut());
            self.take_down();
            busy |= self.post(came);
        }
        if busy { Turn::Busy } else { Turn::Idle }
    }

    fn tick(&mut self, now: u64) {
        for up in &mut self.links {
            let connection = &self.shared.connections[up.connection];
            up.look_at_path(connection, now);
            up.show_at(connection, now);
            if up.echo.waits()
                && let Some(bytes) = up.half.rx.confirmed()
            {
                up.echo.confirmed(now, bytes);
            }
            match up.echo.tick(now) {
                EchoAction::Wait => {}
                EchoAction::Ask(v) => {
                    connection.send.ask(v);
                    self.shared.post(connection);
                }
                EchoAction::Lost(ns) => {
                    up.silent = Some(Broken::Silent(format!(
                        "no sign of life on the data connection for {} ms",
                        ns / 1_000_000
                    )));
                }
            }
        }
        self.shared.health_tick(now);
        if let Some(h) = self.shared.health.get()
            && self.shared.has_backlog()
        {
            self.shared.distribute(h);
        }
        self.completer.tick(now);
    }

    fn arm(&mut self) -> Armed {
        let work = |u: &FrontendLink| {
            let connection = &self.shared.connections[u.connection];
            u.half.broken.is_some()
                || u.silent.is_some()
                || connection.send.has_failed()
                || (self.shared.waits_for(connection) && connection.takes())
        };
        if !self.inbox.is_empty() || !self.leaving.is_empty() || self.links.iter().any(work) {
            return Armed::Ready;
        }
        arm_all(self.links.iter_mut().map(|u| u.half.rx.arm()))
    }

    fn woken_by(&mut self, fd: RawFd) {
        self.links.iter_mut().any(|u| u.half.woken_by(fd));
    }

    fn new_descriptors(&mut self, add: &mut dyn FnMut(RawFd)) {
        self.new_fds.drain(..).for_each(add);
    }
}

impl Shared {
    fn report_loss(&self, connection: usize, epoch: u32, cause: Broken, again: usize) {
        self.owner.event(DispatchEvent::ConnectionLost {
            connection,
            epoch,
            cause,
            again,
        });
    }

    /// Whether samples wait that this connection may post.
    fn waits_for(&self, connection: &Connection) -> bool {
        !connection.ring.is_empty() || (!connection.by_health && self.has_backlog())
    }
}
