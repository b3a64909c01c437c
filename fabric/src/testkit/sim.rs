//! A fabric whose delays and faults are the caller's, on a clock that the caller sets
//! ([`crate::clock::by_hand`]). No call waits, and there is no thread: the caller passes each
//! [`Due`] back to [`Sim::handle`] at its time.
//!
//! Bytes land at a time of their own, not when the receiver polls, as a NIC's writes do. A frame
//! under way reads its source when it lands. A source that changed before, and bytes that land
//! without a grant, are violations of the contract by the code above ([`Sim::take_violations`]).

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard},
};

use super::dice::Dice;
use crate::{
    Armed, Broken, Endpoint, Event, FabricCounts, Flushed, Imm, Link, PathReading, Post, PostError,
    Region, Rx, Tx, Window, clock::now_ns, os::EventFd, os::lock, parts::Parts,
};

/// Longest payload that `post` copies, in bytes.
const INLINE_LIMIT: usize = 64;

/// First of the descriptors, which are only names here.
const FIRST_FD: RawFd = 1 << 20;

/// Longest time from a partial flush until the connection is writable, in nanoseconds.
const WRITABLE_NS: u64 = 20_000;

/// How one direction of a connection behaves.
#[derive(Clone, Copy, Debug)]
pub struct PathCfgs {
    /// Time from flush to landing, and the most that chance adds.
    pub delay_ns: u64,
    /// See `delay_ns`.
    pub jitter_ns: u64,
    /// Frames under way until `flush` is blocked.
    pub capacity: usize,
    /// Of 100 frames, how many end a flush early.
    pub partial: u64,
    /// The queue has room when writes have landed (as on `ib`), not when flushed (as on `tcp`).
    pub room_by_landing: bool,
    /// Nanoseconds that a goodbye waits for frames under way.
    pub linger_ns: u64,
}

/// An event of the fabric that is due at some time. A pipe is one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants say what each pipe is")]
pub enum Due {
    /// The first frame under way in the pipe lands.
    Land { pipe: usize },
    /// A blocked flush into the pipe may go on.
    Writable { pipe: usize },
    /// The pipe's receiver learns that the connection is over.
    Close { pipe: usize },
}

/// A call of a link, within which other threads may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named after the calls")]
pub enum Call {
    Post,
    Flush,
    Poll,
    Arm,
}

/// Actions of other threads within the calls of a link.
pub type Meanwhile = Box<dyn FnMut(Call) + Send>;

#[derive(Debug)]
enum Payload {
    Copied(Vec<u8>),
    In(Arc<Region>, usize),
}

#[derive(Debug)]
struct Frame {
    imm: Imm,
    at: u32,
    len: u32,
    payload: Payload,
    /// Checksum of the payload when it was posted; `None` for a frame that no end has posted.
    sum: Option<u64>,
    /// The frame never lands.
    lost: bool,
}

impl Frame {
    fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Copied(bytes) => bytes,
            Payload::In(region, offset) => {
                // SAFETY: one thread runs the whole simulation, or the sender's thread lands the
                // frame within the flush. Each caller drops the slice before it returns to the code
                // that may write these bytes.
                let bytes = unsafe { region.bytes(*offset, self.len as usize) };
                bytes.unwrap_or_default()
            }
        }
    }

    fn copy(&mut self) {
        self.payload = Payload::Copied(self.payload().to_vec());
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, n: u64| (sum ^ n).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().map(|w| u64::from_le_bytes(*w));
    let sum = sum.fold(bytes.len() as u64, mix);
    rest.iter().map(|b| u64::from(*b)).fold(sum, mix)
}

#[derive(Debug)]
struct Pipe {
    path: PathCfgs,
    dice: Dice,
    /// Descriptors of the sending and of the receiving end.
    from: RawFd,
    to: RawFd,
    window: Window,
    under_way: VecDeque<Frame>,
    last_due: u64,
    landed: VecDeque<(Imm, u32, u32)>,
    /// Writes landed since the connection was opened.
    retired: u64,
    /// Payload bytes landed, of which the sender has the acknowledgement.
    confirmed: u64,
    /// The sender waits until the connection is writable.
    blocked: bool,
    /// Frames vanish, and no end learns of it.
    black_hole: bool,
    /// The connection is cut: further frames vanish.
    cut: bool,
    /// The sending half has failed.
    failed: bool,
    /// The receiver knows, or will know, that the connection is over.
    closed: bool,
    closing: bool,
    /// Halves of the receiving end that live.
    receivers: u8,
}

impl Pipe {
    fn loses(&self) -> bool {
        self.black_hole || self.cut
    }

    /// Time of the next landing, `after_ns` or more from now, in the order of posting.
    fn next_due(&mut self, after_ns: u64) -> u64 {
        self.last_due = (now_ns() + after_ns).max(self.last_due + 1);
        self.last_due
    }
}

#[derive(Default)]
struct State {
    pipes: Vec<Pipe>,
    due: Vec<(u64, Due)>,
    signals: Vec<(RawFd, bool)>,
    violations: Vec<String>,
    frames: u64,
    bytes: u64,
    /// Real descriptors of the two ends of a pair, where everything that is due happens at once.
    at_once: Option<[EventFd; 2]>,
}

/// The fabric of one simulation.
#[derive(Clone, Default)]
pub struct Sim {
    state: Arc<Mutex<State>>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

impl Sim {
    /// A fabric of one pair, whose ends may have threads of their own: it has descriptors to sleep
    /// on, and everything that is due happens at once.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    pub(super) fn at_once() -> io::Result<Self> {
        let sim = Sim::default();
        sim.state().at_once = Some([EventFd::new()?, EventFd::new()?]);
        Ok(sim)
    }

    /// Sets the actions of other threads within [`Tx::post`], [`Tx::flush`], [`Rx::poll`] and
    /// [`Rx::arm`].
    pub fn set_meanwhile(&self, meanwhile: Option<Meanwhile>) {
        *self.meanwhile_slot() = meanwhile;
    }

    fn meanwhile_slot(&self) -> MutexGuard<'_, Option<Meanwhile>> {
        lock(&self.meanwhile)
    }

    fn meanwhile(&self, call: Call) {
        // Taken out for the call, since it may call a link.
        let taken = self.meanwhile_slot().take();
        if let Some(mut meanwhile) = taken {
            meanwhile(call);
            self.meanwhile_slot().get_or_insert(meanwhile);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Joins two endpoints. The pipe from `a` to `b` has the returned number, the other one more.
    pub fn pair(
        &self,
        a: Endpoint,
        b: Endpoint,
        paths: [(PathCfgs, Dice); 2],
    ) -> (Link, Link, usize) {
        let mut state = self.state();
        let first = state.pipes.len();
        let fds = match &state.at_once {
            Some(fds) => [0, 1].map(|end: usize| fds[end].as_raw_fd()),
            None => [0, 1].map(|end| FIRST_FD + first as RawFd + end),
        };
        let [out, back] = paths;
        for ((path, dice), (from, to), window) in [
            (out, (fds[0], fds[1]), b.window.clone()),
            (back, (fds[1], fds[0]), a.window.clone()),
        ] {
            state.pipes.push(Pipe {
                path,
                dice,
                from,
                to,
                window,
                under_way: VecDeque::new(),
                last_due: 0,
                landed: VecDeque::new(),
                retired: 0,
                confirmed: 0,
                blocked: false,
                black_hole: false,
                cut: false,
                failed: false,
                closed: false,
                closing: false,
                receivers: 2,
            });
        }
        drop(state);
        let link = |endpoint: Endpoint, out: usize, input: usize| Link {
            rx: Box::new(SimRx {
                sim: self.clone(),
                pipe: input,
                parts: Parts::new(endpoint.window.clone()),
                broken: false,
                counts: FabricCounts::default(),
            }),
            tx: Box::new(SimTx {
                sim: self.clone(),
                pipe: out,
                back: input,
                endpoint,
                queue: VecDeque::new(),
                posted: 0,
                until: None,
                has_finished: false,
                counts: FabricCounts::default(),
            }),
        };
        (link(a, first, first + 1), link(b, first + 1, first), first)
    }

    /// Moves the events that have been planned since the last call, with their times.
    pub fn take_due(&self, into: &mut Vec<(u64, Due)>) {
        into.append(&mut self.state().due);
    }

    /// Moves the edges since the last call: a descriptor, and whether it is writable, or readable.
    pub fn take_signals(&self, into: &mut Vec<(RawFd, bool)>) {
        into.append(&mut self.state().signals);
    }

    /// Violations of the contract since the last call.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.state().violations)
    }

    /// Frames that landed, and their bytes.
    pub fn carried(&self) -> (u64, u64) {
        let state = self.state();
        (state.frames, state.bytes)
    }

    /// Halves of links that live.
    pub fn live_halves(&self) -> usize {
        let state = self.state();
        state.pipes.iter().map(|p| usize::from(p.receivers)).sum()
    }

    /// Whether a half of the end that receives from a pipe lives.
    pub fn has_receiver(&self, pipe: usize) -> bool {
        self.state().pipes[pipe].receivers > 0
    }

    /// Makes the frames of a pipe vanish from now on, those under way included.
    pub fn black_hole(&self, pipe: usize) {
        let pipe = &mut self.state().pipes[pipe];
        pipe.black_hole = true;
        pipe.under_way.iter_mut().for_each(|f| f.lost = true);
    }

    /// Makes the sending half of a pipe fail; frames under way still land.
    pub fn fail(&self, pipe: usize) {
        self.state().pipes[pipe].failed = true;
    }

    /// Delays the frames that are flushed from now on by `ns`.
    pub fn delay(&self, pipe: usize, ns: u64) {
        let pipe = &mut self.state().pipes[pipe];
        pipe.last_due = pipe.last_due.max(now_ns()) + ns;
    }

    /// Writes into a slot as a faulty peer would, after the writes under way and without a grant.
    pub fn stray(&self, pipe: usize) {
        let mut state = self.state();
        let State { pipes, due, .. } = &mut *state;
        let p = &mut pipes[pipe];
        let slot = p.dice.below(p.window.slots() as u64) as u16;
        let imm = Imm::new(slot, 0x7000 + p.dice.below(0x800) as u16);
        let len = p.dice.from_to(16, 40).min(p.window.stride() as u64) as u32;
        due.push((p.next_due(1), Due::Land { pipe }));
        p.under_way.push_back(Frame {
            imm,
            at: 0,
            len,
            payload: Payload::Copied(vec![0x5a; len as usize]),
            sum: None,
            lost: p.loses(),
        });
        state.settle();
    }

    /// Cuts both directions from pipe `first` on. Some of the frames under way still land. Each end
    /// learns of the cut within `within_ns`, unless it is `silent`.
    pub fn cut(&self, first: usize, within_ns: u64, silent: [bool; 2]) {
        let mut state = self.state();
        let State { pipes, due, .. } = &mut *state;
        for (pipe, silent) in [first, first + 1].into_iter().zip(silent) {
            let p = &mut pipes[pipe];
            p.cut = true;
            let kept = p.dice.below(p.under_way.len() as u64 + 1) as usize;
            let lost = p.under_way.iter_mut().skip(kept);
            lost.for_each(|f| f.lost = true);
            if !silent && !p.closing {
                p.closing = true;
                let at = p.last_due.max(now_ns()) + p.dice.below(within_ns);
                due.push((at, Due::Close { pipe }));
            }
        }
        state.settle();
    }

    /// Handles an event at its time.
    pub fn handle(&self, due: Due) {
        self.state().handle(due);
    }

    /// Drops one half of the end that sends into `out` and receives from `input`.
    fn half_dropped(&self, out: usize, input: usize, is_sender: bool) {
        let mut state = self.state();
        let State { pipes, due, .. } = &mut *state;
        pipes[input].receivers -= 1;
        let p = &mut pipes[out];
        if is_sender {
            // Flushed bytes are on the wire, and the memory behind them may change from here on.
            let lands = |f: &&mut Frame| !f.lost;
            p.under_way.iter_mut().filter(lands).for_each(Frame::copy);
        }
        if !p.closing {
            p.closing = true;
            if !p.loses() {
                let after = p.path.delay_ns + p.dice.below(p.path.jitter_ns + 1);
                let at = p.last_due.max(now_ns()) + after;
                due.push((at, Due::Close { pipe: out }));
            }
        }
        state.settle();
    }
}

impl State {
    fn handle(&mut self, due: Due) {
        match due {
            Due::Writable { pipe } => {
                let p = &mut self.pipes[pipe];
                p.blocked = false;
                self.signals.push((p.from, true));
            }
            Due::Close { pipe } => {
                let p = &mut self.pipes[pipe];
                if !p.black_hole {
                    p.closed = true;
                    self.signals.push((p.to, false));
                }
            }
            Due::Land { pipe } => self.land(pipe),
        }
    }

    /// Where everything that is due happens at once, lets it happen.
    fn settle(&mut self) {
        if self.at_once.is_none() {
            return;
        }
        for (_, due) in std::mem::take(&mut self.due) {
            self.handle(due);
        }
        for (signal, _) in self.signals.drain(..) {
            let mut ends = self.at_once.iter().flatten();
            ends.find(|end| end.as_raw_fd() == signal)
                .inspect(|end| end.signal());
        }
    }

    /// Lands the first frame of a pipe that is not lost. Lost ones stay, so the sender finds no
    /// room.
    fn land(&mut self, pipe: usize) {
        let is_acknowledged = !self.pipes[pipe ^ 1].loses();
        let p = &mut self.pipes[pipe];
        let Some(next) = p.under_way.iter().position(|f| !f.lost) else {
            return;
        };
        let Some(frame) = p.under_way.remove(next) else {
            return;
        };
        if p.receivers == 0 {
            return;
        }
        // A stray write is refused before a byte is touched, as on `tcp`.
        if let Some(sum) = frame.sum
            && !frame.imm.is_control()
        {
            let (payload, imm) = (frame.payload(), frame.imm);
            if checksum(payload) != sum {
                let text = format!("source: {imm:?} in pipe {pipe} changed before it landed");
                self.violations.push(text);
            }
            match p.window.landing(imm, frame.at, frame.len) {
                Err(e) => self.violations.push(format!("bounds: pipe {pipe}: {e}")),
                Ok(offset) => {
                    match p.window.grants().permits(imm) {
                        Err(e) => self.violations.push(format!("grant: pipe {pipe}: {e}")),
                        // SAFETY: the grant is open, so the sender owns these bytes.
                        Ok(_) => _ = unsafe { p.window.region().store(offset, payload) },
                    }
                }
            }
            self.bytes += u64::from(frame.len);
            p.confirmed += u64::from(frame.len) * u64::from(is_acknowledged);
        }
        self.frames += 1;
        p.retired += u64::from(frame.sum.is_some());
        p.landed.push_back((frame.imm, frame.at, frame.len));
        self.signals.push((p.to, false));
        if std::mem::take(&mut p.blocked) {
            self.signals.push((p.from, true));
        }
    }
}

struct SimTx {
    sim: Sim,
    pipe: usize,
    /// The pipe in which the peer sends.
    back: usize,
    endpoint: Endpoint,
    /// Posted frames that wait for a flush.
    queue: VecDeque<Frame>,
    posted: u64,
    /// End of the goodbye's patience.
    until: Option<u64>,
    /// Whether [`Tx::finish`] has returned true.
    has_finished: bool,
    counts: FabricCounts,
}

impl SimTx {
    fn alive(&self) -> Result<(), Broken> {
        let pipes = &self.sim.state().pipes;
        match (pipes[self.back].closed, pipes[self.pipe].failed) {
            (true, _) => Err(Broken::Closed),
            (_, true) => Err(Broken::Device("the send queue has failed".to_owned())),
            _ => Ok(()),
        }
    }
}

impl Tx for SimTx {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.alive()?;
        self.endpoint.check(post)?;
        if self.room() == 0 {
            return Err(PostError::Full);
        }
        let source = self.endpoint.sources.get(usize::from(post.source.0));
        let mut frame = Frame {
            imm: post.imm,
            at: post.at,
            len: post.len,
            payload: match source {
                Some(region) => Payload::In(region.clone(), post.offset),
                None => Payload::Copied(Vec::new()),
            },
            sum: None,
            lost: false,
        };
        if post.len as usize <= INLINE_LIMIT {
            frame.copy();
            self.counts.inline += 1;
        }
        post.count(self.endpoint.peer_stream, &mut self.counts);
        frame.sum = Some(checksum(frame.payload()));
        self.queue.push_back(frame);
        self.posted += 1;
        self.sim.meanwhile(Call::Post);
        Ok(())
    }

    fn flush(&mut self) -> Result<Flushed, Broken> {
        self.alive()?;
        self.sim.meanwhile(Call::Flush);
        let mut state = self.sim.state();
        let is_at_once = state.at_once.is_some();
        let State { pipes, due, .. } = &mut *state;
        let (pipe, p) = (self.pipe, &mut pipes[self.pipe]);
        let mut cut_short = false;
        while p.under_way.len() < p.path.capacity && !cut_short {
            let Some(mut frame) = self.queue.pop_front() else {
                break;
            };
            frame.lost = p.loses();
            if !frame.lost {
                let jitter = p.dice.below(p.path.jitter_ns + 1);
                let after = p.path.delay_ns + jitter + u64::from(frame.len) / 10;
                due.push((p.next_due(after), Due::Land { pipe }));
            }
            p.under_way.push_back(frame);
            cut_short = !self.queue.is_empty() && p.dice.percent(p.path.partial);
        }
        self.counts.syscalls += 1;
        let outstanding = self.posted - p.retired;
        let is_full = p.path.room_by_landing && outstanding >= self.endpoint.send_depth as u64;
        if is_at_once {
            state.settle();
            return Ok(Flushed::Done);
        }
        if self.queue.is_empty() && !is_full {
            return Ok(Flushed::Done);
        }
        p.blocked = true;
        if cut_short {
            let at = now_ns() + 1 + p.dice.below(WRITABLE_NS);
            due.push((at, Due::Writable { pipe }));
        }
        Ok(Flushed::Blocked)
    }

    fn room(&self) -> usize {
        let p = &self.sim.state().pipes[self.pipe];
        let depth = self.endpoint.send_depth;
        match p.path.room_by_landing {
            true => depth.saturating_sub((self.posted - p.retired) as usize),
            false => depth - self.queue.len(),
        }
    }

    fn posted(&self) -> u64 {
        self.posted
    }

    fn retired(&self) -> u64 {
        self.sim.state().pipes[self.pipe].retired
    }

    fn inline_limit(&self) -> usize {
        INLINE_LIMIT
    }

    fn finish(&mut self) -> bool {
        let linger = self.sim.state().pipes[self.pipe].path.linger_ns;
        let until = *self.until.get_or_insert_with(|| now_ns() + linger);
        let is_broken = self.flush().is_err();
        self.has_finished = is_broken || self.retired() == self.posted || now_ns() >= until;
        self.has_finished
    }

    fn counts(&self) -> FabricCounts {
        self.counts
    }
}

impl Drop for SimTx {
    fn drop(&mut self) {
        if self.until.is_some() && !self.has_finished {
            let text = format!("goodbye: pipe {}: dropped before its end", self.pipe);
            self.sim.state().violations.push(text);
        }
        self.sim.half_dropped(self.pipe, self.back, true);
    }
}

struct SimRx {
    sim: Sim,
    pipe: usize,
    parts: Parts,
    broken: bool,
    counts: FabricCounts,
}

impl Rx for SimRx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize {
        self.sim.meanwhile(Call::Poll);
        let mut events = 0;
        while events < budget && !self.broken {
            let (landed, closed) = {
                let p = &mut self.sim.state().pipes[self.pipe];
                (p.landed.pop_front(), p.closed)
            };
            let event = match landed {
                Some((imm, ..)) if imm.is_control() => {
                    self.counts.control += 1;
                    imm.control_event()
                }
                Some((imm, at, len)) => {
                    let to = self.parts.landing(imm, Some(at), len);
                    to.and_then(|to| self.parts.land(imm, to.at, len, &mut self.counts))
                }
                None if closed => Err(Broken::Closed),
                None => break,
            };
            let event = event.unwrap_or_else(Event::Broken);
            self.broken = matches!(event, Event::Broken(_));
            sink(event);
            events += 1;
        }
        events
    }

    fn arm(&mut self) -> Armed {
        self.sim.meanwhile(Call::Arm);
        let state = self.sim.state();
        let p = &state.pipes[self.pipe];
        let mut ends = state.at_once.iter().flatten();
        ends.find(|end| end.as_raw_fd() == p.to)
            .inspect(|end| end.clear());
        match !self.broken && (!p.landed.is_empty() || p.closed) {
            true => Armed::Ready,
            false => Armed::Sleep,
        }
    }

    fn fd(&self) -> RawFd {
        self.sim.state().pipes[self.pipe].to
    }

    fn confirmed(&self) -> Option<u64> {
        Some(self.sim.state().pipes[self.pipe ^ 1].confirmed)
    }

    fn path(&self) -> Option<PathReading> {
        Some(PathReading {
            rtt_us: self.sim.state().pipes[self.pipe].path.delay_ns / 500,
            ..PathReading::default()
        })
    }

    fn counts(&self) -> FabricCounts {
        self.counts
    }
}

impl Drop for SimRx {
    fn drop(&mut self) {
        // The pipes of a pair have neighbouring numbers, the first one even.
        self.sim.half_dropped(self.pipe ^ 1, self.pipe, false);
    }
}
