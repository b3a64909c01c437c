//! The work of a frontend's NIC thread, for one share of a NIC's connections: it polls them,
//! completes arrivals, posts the backlog when slots come free, checks liveness, and takes lost
//! connections down.

use std::{
    iter,
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;

use super::{
    answers::{Came, Coming},
    completing::Handed,
    end::Connection,
};
use crate::{
    connection::{
        Echo, EchoAction, NicThreadHandle, NicWork, PollOrder, Polled, Receiving, Turn, arm_all,
        burst,
        tracker::{InFlight, Sample},
    },
    dispatch::{Completer, DispatchEvent, Shared, WARM_UP_ID},
};
use fabric::{Armed, Broken, Link, PathReading, clock::now_ns};

/// Losses of a sample's connections after which [`DispatchEvent::WornOut`] names the sample. A
/// sample that crashes its accelerator loses its connections for ever. But connections are also
/// lost without the sample's fault, and a long answer is in flight on many. If half of its attempts
/// fail by chance, 64 losses in a row occur once in 10^19; if nine of ten fail, once in 850.
const LOSSES: u16 = 64;

/// Interval of path readings: one system call each, ten per second.
const LOOK_AT_PATH_NS: u64 = 100_000_000;

/// Interval of updates of a connection's live figures.
const SHOW_NS: u64 = 40_000_000;

/// Payload bytes of completed samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) bytes_out: u64,
    pub(super) bytes_in: u64,
}

/// Command to a NIC thread.
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
    /// The policy is by health from now on.
    Health,
    GiveUpAll(Broken),
    Stop,
}

/// A connection that is up.
pub(super) struct Up {
    pub(super) connection: usize,
    pub(super) epoch: u32,
    half: Receiving,
    echo: Echo,
    /// The echo timed out. Bytes that the next poll finds still count as a sign of life.
    silent: Option<Broken>,
    /// Responses taken from the connection.
    taken: u64,
    /// Payload bytes of those responses and their requests.
    pub(super) carried: Carried,
    /// Time, samples and bytes of the last update of the live figures.
    shown: (u64, u64, Carried),
    /// Time and value of the last path reading.
    path: (u64, PathReading),
    /// `taken` at the last path reading.
    taken_at_look: u64,
    /// Parts of each slot's answer so far; empty where answers come in one piece.
    pub(super) coming: Box<[Coming]>,
    /// The arbiter by health knows that the connection is up.
    known: bool,
    /// The worn-out sample with the most losses, if any.
    pub(super) worn: Option<Sample>,
}

pub(super) struct FrontendNic {
    pub(super) share: usize,
    pub(super) shared: Arc<Shared>,
    inbox: Arc<SegQueue<Command>>,
    pub(super) completer: Box<dyn Completer>,
    pub(super) up: Vec<Up>,
    order: PollOrder,
    /// Connections that say goodbye: no thread posts on them, and their arrivals are ignored.
    leaving: Vec<Up>,
    pub(super) came: Came,
    new_fds: Vec<RawFd>,
    stopping: bool,
}

impl FrontendNic {
    pub fn new(
        share: usize,
        shared: Arc<Shared>,
        inbox: Arc<SegQueue<Command>>,
        completer: Box<dyn Completer>,
        handle: &NicThreadHandle,
    ) -> Self {
        // The pinned thread touches the memory, so it is local even where memory cannot be bound.
        for connection in shared.connections.iter().filter(|l| l.share == share) {
            connection.window.region().prefault();
            handle.note_memory(connection.window.region());
        }
        FrontendNic {
            share,
            shared,
            inbox,
            completer,
            up: Vec::new(),
            order: PollOrder::default(),
            leaving: Vec::new(),
            came: Came::with_capacity(4 * burst(usize::MAX)),
            new_fds: Vec::new(),
            stopping: false,
        }
    }

    pub(super) fn completed(&self) -> &CachePadded<AtomicU64> {
        &self.shared.completed[self.share]
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Attach {
                connection,
                epoch,
                link,
            } => {
                if self.shared.aborted.load(Ordering::SeqCst) {
                    return;
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
                self.up.push(Up {
                    coming: vec![Coming::default(); slots].into(),
                    connection,
                    epoch,
                    half: Receiving::new(rx),
                    echo: Echo::new(self.shared.echo, now_ns()),
                    silent: None,
                    taken: 0,
                    carried: Carried::default(),
                    shown: (now_ns(), 0, Carried::default()),
                    path: (now_ns(), PathReading::default()),
                    taken_at_look: 0,
                    known: false,
                    worn: None,
                });
                self.make_known();
            }
            Command::Health => self.make_known(),
            Command::GiveUp {
                connection,
                epoch,
                cause,
            } => {
                let mut up = self.up.iter_mut();
                if let Some(up) = up.find(|u| u.connection == connection && u.epoch == epoch) {
                    up.half.broken = Some(cause);
                }
            }
            Command::GiveUpAll(cause) => {
                for up in &mut self.up {
                    up.half.broken = Some(cause.clone());
                }
            }
            Command::Stop => self.stopping = true,
        }
    }

    /// Tells the arbiter by health which connections are up.
    fn make_known(&mut self) {
        if self.shared.health.get().is_some() {
            for up in self.up.iter_mut().filter(|u| !u.known) {
                up.known = true;
                self.shared.health_up(up.connection);
            }
        }
    }

    /// Whether no connection has to be taken down.
    fn is_whole(&self) -> bool {
        self.leaving.is_empty() && self.up.iter().all(|u| u.half.broken.is_none())
    }

    /// Takes broken connections down, or all when this thread stops. Destroys the local side of
    /// each once it has said goodbye; from then on no write lands through it.
    fn take_down(&mut self) {
        let down = |u: &mut Up| self.stopping || u.half.broken.is_some();
        self.leaving.extend(self.up.extract_if(.., down));
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
    /// nothing where this thread stops.
    fn lose(&mut self, up: Up) {
        let Up {
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
        shared.take_assigned_back(connection);
        if shared.aborted.load(Ordering::SeqCst) {
            // The connection was taken down with the run.
            shared.empty_backlog();
        } else {
            shared.connections_lost.fetch_add(1, Ordering::Relaxed);
            // Samples that were in flight, or could not be posted.
            if shared.has_backlog() {
                shared.wake_all();
            }
        }
        if known {
            shared.health_lost(connection);
        }
        shared.owner.event(DispatchEvent::ConnectionLost {
            connection: index,
            epoch,
            cause: cause.clone(),
            again,
        });
        if let Some(sample) = worn {
            shared.owner.event(DispatchEvent::WornOut {
                index: sample.index,
                losses: sample.tries.losses,
                connection: index,
                cause,
            });
        }
    }

    /// Polls one connection.
    fn poll(&mut self, i: usize, now: u64) -> Polled {
        let Self {
            up, shared, came, ..
        } = self;
        let up = &mut up[i];
        let connection = &shared.connections[up.connection];
        let before = came.seen.len();
        let coming = &mut up.coming;
        // Half of the writes in flight, not of the slots: 256 responses read at once, with room for
        // 2,048, would leave the peer idle meanwhile.
        let most = burst(connection.tracker.in_flight());
        let polled = up.half.poll(&connection.send, most, |imm, at, len| {
            shared.arrived((i, connection), coming, (imm, at, len), came)
        });
        if polled.busy {
            // Bytes of an incomplete answer are a sign of life, too.
            up.echo.heard(now);
            up.silent = None;
        } else if up.silent.is_some() && up.half.broken.is_none() {
            up.half.broken = up.silent.take();
        }
        up.taken += (came.seen.len() - before) as u64;
        if polled.answer {
            shared.drive(connection);
        }
        polled
    }

    /// Posts rings and the backlog, and continues blocked flushes. Returns whether it did any work.
    fn post(&mut self, completed: bool) -> bool {
        let mut busy = false;
        if completed && let Some(h) = self.shared.health.get() {
            // Slots were freed before the check of the backlog.
            fence(Ordering::SeqCst);
            if self.shared.has_backlog() {
                self.shared.distribute(h);
            }
        }
        for i in 0..self.up.len() {
            let connection = &self.shared.connections[self.up[i].connection];
            let held_up = connection.send.is_held_up();
            if held_up || (self.shared.waits_for(connection) && connection.tracker.has_free()) {
                let done = self.shared.drive(connection);
                busy |= done.is_work();
            }
        }
        busy
    }
}

impl Up {
    /// Updates the live figures of the connection.
    fn show(&mut self, connection: &Connection) {
        let (_, taken, carried) = self.shown;
        let now = &connection.now;
        let add = |to: &AtomicU64, n: u64| {
            to.fetch_add(n, Ordering::Relaxed);
        };
        add(&now.samples, self.taken - taken);
        add(&now.bytes_out, self.carried.bytes_out - carried.bytes_out);
        add(&now.bytes_in, self.carried.bytes_in - carried.bytes_in);
        (self.shown.1, self.shown.2) = (self.taken, self.carried);
    }

    /// Updates the live figures when the update is due.
    fn show_at(&mut self, connection: &Connection, now: u64) {
        if now.saturating_sub(self.shown.0) >= SHOW_NS {
            self.shown.0 = now;
            self.show(connection);
        }
    }

    /// Takes a path reading when it is due, and adds it to the counts while samples are in flight.
    fn look_at_path(&mut self, connection: &Connection, now: u64) {
        let (at, before) = self.path;
        let span = now.saturating_sub(at);
        if span < LOOK_AT_PATH_NS {
            return;
        }
        let Some(reading) = self.half.rx.path() else {
            return;
        };
        self.path = (now, reading);
        let carried = self.taken - std::mem::replace(&mut self.taken_at_look, self.taken);
        let on_it = connection.tracker.in_flight() > 0;
        if on_it || carried > 0 {
            // Use the kernel's average over the time before: with few and quick samples, hardly any
            // is in flight at the moment of a reading.
            let rtt = &connection.now.rtt_us;
            rtt.store(reading.rtt_us + 1, Ordering::Relaxed);
        }
        if on_it {
            let mut counts = connection.counts();
            counts.path.look(&reading, &before, span / 1000);
            let now = &connection.now;
            now.retransmits
                .store(counts.path.retransmits, Ordering::Relaxed);
            now.window_limited_us
                .store(counts.path.rwnd_limited_us, Ordering::Relaxed);
        }
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
        order.turn(self.up.len(), |i| {
            let polled = self.poll(i, now);
            came |= polled.events > 0;
            busy |= polled.busy;
            polled.events > 0
        });
        self.order = order;
        let mut handed = Handed::default();
        if !self.came.is_empty() {
            handed = self.complete(now_ns());
            self.shared.health_tick(now);
        }
        if self.is_whole() {
            // Record after posting, so that the peers work meanwhile.
            busy |= self.post(came);
            self.record(handed);
        } else {
            self.record(handed);
            self.take_down();
            busy |= self.post(came);
        }
        if busy { Turn::Busy } else { Turn::Idle }
    }

    fn tick(&mut self, now: u64) {
        for up in &mut self.up {
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
                    self.shared.drive(connection);
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
        let work = |u: &Up| {
            let connection = &self.shared.connections[u.connection];
            u.half.broken.is_some()
                || u.silent.is_some()
                || connection.send.has_failed()
                || (self.shared.waits_for(connection) && connection.takes())
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

impl Shared {
    /// Whether samples wait that this connection may post.
    fn waits_for(&self, connection: &Connection) -> bool {
        !connection.assigned.is_empty() || (!connection.by_health && self.has_backlog())
    }

    /// Queues a sample again after the loss of its connection; false for a warm-up sample or an
    /// aborted run. Sets `worn` to the sample if it is worn out and has more losses than the one in
    /// `worn`.
    pub(super) fn goes_again(
        &self,
        connection: &Connection,
        mut sample: Sample,
        worn: &mut Option<Sample>,
    ) -> bool {
        if sample.id == WARM_UP_ID {
            return false;
        }
        sample.tries.lost(now_ns().saturating_sub(sample.issued_ns));
        let losses = sample.tries.losses;
        if losses >= LOSSES && worn.is_none_or(|w| w.tries.losses < losses) {
            *worn = Some(sample);
        }
        if let Some(h) = self.health.get() {
            h.arbiter.take_back(connection.index, sample.len);
        }
        self.push_all(iter::once(sample));
        // After an abort, the sample is not sent again.
        let goes = !self.aborted.load(Ordering::SeqCst);
        self.again.fetch_add(u64::from(goes), Ordering::Relaxed);
        goes
    }
}
