//! The work of a frontend's rail thread: poll its lanes, complete what has arrived, post from the backlog
//! as slots come free, watch for silence, and take lost lanes down.

use std::{
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;

use crate::{
    clock::now_ns,
    dispatch::{Completer, DispatchEvent, Response, SampleTimes, Shared, WARM_UP_ID},
    fabric::{Armed, Broken, Control, Event, Imm, Link, Rx},
    rail::{Echo, EchoAction, RailHandle, RailWork, Turn, arm_all},
    response::{RESPONSE_HEADER_BYTES, ResponseHeader},
    tracker::InFlight,
};

/// Events taken from one lane before the next has its turn, and before the peer hears of them: while we see
/// to these, it sees to what else is in flight.
const BUDGET: usize = 128;

/// What the rail thread is told.
pub(super) enum Command {
    Attach {
        lane: usize,
        epoch: u32,
        link: Link,
    },
    GiveUp {
        lane: usize,
        epoch: u32,
        cause: Broken,
    },
    /// Rails are chosen by health from now on.
    Health,
    GiveUpAll(Broken),
    Abort(Broken),
    Stop,
}

/// A lane that is up.
struct Up {
    lane: usize,
    epoch: u32,
    rx: Box<dyn Rx>,
    echo: Echo,
    broken: Option<Broken>,
    /// Sleeps that it ended.
    wakeups: u64,
    /// Responses taken from it.
    taken: u64,
    /// Those who choose by health know that it is up.
    known: bool,
}

/// A response seen in this turn.
struct Seen {
    lane: usize,
    slot: u16,
    in_flight: InFlight,
    header: ResponseHeader,
}

pub(super) struct FrontendRail {
    index: usize,
    shared: Arc<Shared>,
    inbox: Arc<SegQueue<Command>>,
    completer: Box<dyn Completer>,
    up: Vec<Up>,
    arrived: Vec<(Imm, u32)>,
    seen: Vec<Seen>,
    new_fds: Vec<RawFd>,
    stopping: bool,
}

impl FrontendRail {
    pub fn new(
        index: usize,
        shared: Arc<Shared>,
        inbox: Arc<SegQueue<Command>>,
        completer: Box<dyn Completer>,
        handle: &RailHandle,
    ) -> Self {
        // Touched from the pinned thread: where memory cannot be bound to a node, it comes to lie
        // near.
        for lane in shared.lanes.iter().filter(|l| l.cfgs.rail == index) {
            lane.window.region().prefault();
            handle.note_memory(lane.window.region());
        }
        FrontendRail {
            index,
            shared,
            inbox,
            completer,
            up: Vec::new(),
            arrived: Vec::with_capacity(BUDGET),
            seen: Vec::with_capacity(4 * BUDGET),
            new_fds: Vec::new(),
            stopping: false,
        }
    }

    fn completed(&self) -> &CachePadded<AtomicU64> {
        &self.shared.completed[self.index]
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Attach { lane, epoch, link } => {
                if self.shared.aborted.load(Ordering::SeqCst) {
                    return;
                }
                let Link { tx, rx } = link;
                self.new_fds.push(rx.fd());
                self.shared.lanes[lane].attach(tx);
                self.up.push(Up {
                    lane,
                    epoch,
                    rx,
                    echo: Echo::new(self.shared.echo, now_ns()),
                    broken: None,
                    wakeups: 0,
                    taken: 0,
                    known: false,
                });
                self.make_known();
            }
            Command::Health => self.make_known(),
            Command::GiveUp { lane, epoch, cause } => {
                if let Some(i) = self
                    .up
                    .iter()
                    .position(|u| u.lane == lane && u.epoch == epoch)
                {
                    self.lose(i, cause);
                }
            }
            Command::Abort(cause) | Command::GiveUpAll(cause) => {
                while !self.up.is_empty() {
                    self.lose(0, cause.clone());
                }
            }
            Command::Stop => {
                self.stopping = true;
                while !self.up.is_empty() {
                    self.take_down(0);
                }
            }
        }
    }

    /// Tells those who choose by health which lanes are up.
    fn make_known(&mut self) {
        if self.shared.health.get().is_some() {
            for up in self.up.iter_mut().filter(|u| !u.known) {
                up.known = true;
                self.shared.health_up(up.lane);
            }
        }
    }

    /// Destroys the local side of a lane: nobody posts on it any more and nothing lands through it.
    fn take_down(&mut self, i: usize) -> Up {
        let up = self.up.swap_remove(i);
        let lane = &self.shared.lanes[up.lane];
        lane.detach();
        {
            let mut counts = lane.counts();
            counts.received.add(&up.rx.counts());
            counts.wakeups += up.wakeups;
            counts.taken += up.taken;
        }
        self.new_fds.retain(|fd| *fd != up.rx.fd());
        up
    }

    /// A lane is lost: destroy its local side, then send its samples again by whatever lane is left.
    fn lose(&mut self, i: usize, cause: Broken) {
        let up = self.take_down(i);
        let (index, epoch, known) = (up.lane, up.epoch, up.known);
        drop(up);
        let shared = self.shared.clone();
        let mut again = 0;
        let health = shared.health.get();
        shared.lanes[index].tracker.sweep(|f: InFlight| {
            if f.sample.id == WARM_UP_ID {
                return;
            }
            again += 1;
            if let Some(h) = health {
                h.arbiter.taken_back(index, f.sample.len);
            }
            shared.push_all(std::iter::once(f.sample));
        });
        shared.warm_up.lost(index, &cause);
        if let Some(h) = health {
            shared.take_assigned_back(h, &shared.lanes[index]);
        }
        shared.again.fetch_add(again as u64, Ordering::Relaxed);
        shared.lanes_lost.fetch_add(1, Ordering::Relaxed);
        if shared.aborted.load(Ordering::SeqCst) {
            shared.empty_backlog();
        } else if again > 0 {
            shared.wake_all();
        }
        if known {
            shared.health_lost(&shared.lanes[index]);
        }
        shared.owner.event(DispatchEvent::LaneLost {
            lane: index,
            epoch,
            cause,
            again,
        });
    }

    /// Polls one lane; returns how many events there were.
    fn poll(&mut self, i: usize, now: u64) -> usize {
        let Self {
            up,
            arrived,
            shared,
            seen,
            ..
        } = self;
        let up = &mut up[i];
        let lane = &shared.lanes[up.lane];
        let mut reply = None;
        let mut broken = None;
        let events = up.rx.poll(BUDGET, &mut |event| match event {
            Event::Arrived { imm, len } => arrived.push((imm, len)),
            Event::Control(Control::Echo(v)) => reply = Some(v),
            Event::Control(Control::EchoReply(_)) => {}
            Event::Broken(b) => broken = Some(b),
        });
        if events == 0 {
            // Where the sending half has failed, the receiving half may still have had something to report.
            up.broken = up.broken.take().or_else(|| lane.take_failed());
            return 0;
        }
        up.echo.heard(now);
        let before = seen.len();
        for (imm, len) in arrived.drain(..) {
            // The receiving half has closed the grant: the slot and its record are ours.
            let offset = lane.window.slot_offset(imm.slot());
            // SAFETY: the grant is closed, so the peer has no more business in the slot until it is opened
            // again, which only `release` below makes possible.
            let slot = unsafe { lane.window.region().bytes(offset, len as usize) };
            let header = slot
                .ok()
                .and_then(|b| ResponseHeader::decode(b, len, imm.use_count()));
            match (header, lane.tracker.arrived(imm.slot())) {
                (Some(header), Some(f)) if f.sample.id == WARM_UP_ID => {
                    lane.tracker.release(imm.slot());
                    shared.warmed(lane, &f, &header);
                }
                (Some(header), Some(in_flight)) => seen.push(Seen {
                    lane: up.lane,
                    slot: imm.slot(),
                    in_flight,
                    header,
                }),
                (_, in_flight) => {
                    broken = Some(Broken::BadFrame {
                        what: "response header",
                        value: u64::from(len),
                    });
                    // The sample was taken from the tracker and has no answer: it goes again.
                    if let Some(f) = in_flight {
                        lane.tracker.release(imm.slot());
                        if f.sample.id == WARM_UP_ID {
                            continue;
                        }
                        if let Some(h) = shared.health.get() {
                            h.arbiter.taken_back(lane.index, f.sample.len);
                        }
                        shared.push_all(std::iter::once(f.sample));
                        shared.again.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        up.taken += (seen.len() - before) as u64;
        if let Some(v) = reply {
            lane.answer.put(Control::EchoReply(v));
            shared.drive(lane, || None);
        }
        up.broken = broken;
        events
    }

    /// Completes what this turn has seen, in one call, then frees the slots.
    fn complete(&mut self, now: u64) {
        let shared = self.shared.clone();
        let response = |s: &Seen| {
            let window = &shared.lanes[s.lane].window;
            let offset = window.slot_offset(s.slot) + RESPONSE_HEADER_BYTES;
            // SAFETY: as in `poll`; the slot is released below.
            let payload = unsafe { window.region().bytes(offset, s.header.len as usize) };
            Response {
                id: s.in_flight.sample.id,
                index: s.in_flight.sample.index,
                payload: payload.unwrap_or_default(),
            }
        };
        self.completer.complete(&mut self.seen.iter().map(response));
        let done = now_ns();
        self.completed()
            .fetch_add(self.seen.len() as u64, Ordering::Release);
        let health = shared.health.get();
        for s in self.seen.drain(..) {
            shared.lanes[s.lane].tracker.release(s.slot);
            let f = &s.in_flight;
            if let Some(h) = health {
                let residence = u64::from(s.header.queue_us) + u64::from(s.header.compute_us);
                let round_trip = now.saturating_sub(f.posted_ns);
                let network = round_trip.saturating_sub(residence * 1000);
                h.arbiter.completed(s.lane, f.sample.len, network);
            }
            self.completer.record(&SampleTimes {
                issued_ns: f.sample.issued_ns,
                posted_ns: f.posted_ns,
                seen_ns: now,
                completed_ns: done,
                queue_us: s.header.queue_us,
                compute_us: s.header.compute_us,
                bytes_out: f.sample.len,
                bytes_in: s.header.len,
            });
        }
    }

    /// Posts from the backlog, rings doorbells that wait, and goes on with what a full socket held up. Returns samples posted.
    fn post(&mut self, completed: bool) -> usize {
        let mut posted = 0;
        if completed && let Some(h) = self.shared.health.get() {
            // Slots came free before the look.
            fence(Ordering::SeqCst);
            if self.shared.has_backlog() {
                self.shared.distribute(h, false);
            }
        }
        for i in 0..self.up.len() {
            let lane = &self.shared.lanes[self.up[i].lane];
            let held_up = lane.held_up() || lane.unrung.load(Ordering::SeqCst);
            let waiting = match &lane.assigned {
                Some(assigned) => !assigned.is_empty(),
                None => self.shared.has_backlog(),
            };
            if held_up || (waiting && lane.tracker.has_free()) {
                posted += self.shared.drive(lane, || None).posted;
            }
        }
        posted
    }
}

impl RailWork for FrontendRail {
    fn turn(&mut self, now: u64) -> Turn {
        while let Some(c) = self.inbox.pop() {
            self.command(c);
        }
        if self.stopping {
            return Turn::Stop;
        }
        let mut events = 0;
        for i in 0..self.up.len() {
            events += self.poll(i, now);
        }
        if !self.seen.is_empty() {
            self.complete(now_ns());
            self.shared.health_tick(now);
        }
        while let Some(i) = self.up.iter().position(|u| u.broken.is_some()) {
            if let Some(cause) = self.up[i].broken.take() {
                self.lose(i, cause);
            }
        }
        let posted = self.post(events > 0);
        if events + posted > 0 {
            Turn::Busy
        } else {
            Turn::Idle
        }
    }

    fn tick(&mut self, now: u64) {
        for up in &mut self.up {
            let lane = &self.shared.lanes[up.lane];
            if up.echo.waits()
                && let Some(bytes) = up.rx.confirmed()
            {
                up.echo.confirmed(now, bytes);
            }
            match up.echo.tick(now) {
                EchoAction::Wait => {}
                EchoAction::Ask(v) => {
                    lane.ask.put(Control::Echo(v));
                    self.shared.drive(lane, || None);
                }
                EchoAction::Lost(ns) => {
                    up.broken = Some(Broken::Silent(format!(
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
            self.shared.distribute(h, false);
        }
        self.completer.tick(now);
    }

    fn arm(&mut self) -> Armed {
        let work = !self.inbox.is_empty()
            || self
                .up
                .iter()
                .any(|u| u.broken.is_some() || self.shared.lanes[u.lane].has_failed())
            || self.up.iter().any(|u| {
                let lane = &self.shared.lanes[u.lane];
                let waiting = match &lane.assigned {
                    Some(assigned) => !assigned.is_empty(),
                    None => self.shared.has_backlog(),
                };
                lane.unrung.load(Ordering::SeqCst) || (waiting && lane.takes())
            });
        if work {
            return Armed::Ready;
        }
        arm_all(self.up.iter_mut().map(|u| &mut u.rx))
    }

    fn woken_by(&mut self, fd: RawFd) {
        if let Some(up) = self.up.iter_mut().find(|u| u.rx.fd() == fd) {
            up.wakeups += 1;
        }
    }

    fn new_descriptors(&mut self, add: &mut dyn FnMut(RawFd)) {
        self.new_fds.drain(..).for_each(add);
    }
}
