//! Random histories of two cores over pipes that delay, drop and break, but keep the order.

use std::collections::{HashMap, VecDeque};

use fastrand::Rng;

use super::*;
use crate::control::{
    core::{Link, accelerator::Refusal},
    message::Counters,
};
use crate::wire::Description;

fn is_chosen(rng: &mut Rng, percent: u64) -> bool {
    rng.u64(..100) < percent
}

/// Fault of the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Both ends find it closed.
    Cut,
    /// No frame arrives any more: in one direction (0: to the accelerator), or in both (2).
    Hole(usize),
    /// The system accepts no more bytes from one side.
    Stuck(usize),
}

/// One direction: frames, or the end.
#[derive(Default)]
struct Pipe {
    items: VecDeque<(u64, Option<Message>)>,
    ended: bool,
}

/// State of one end that both roles share.
#[derive(Default)]
struct EndState {
    heard: u64,
    eof: bool,
    gone: Option<ControlError>,
    over_at: Option<u64>,
}

struct History {
    rng: Rng,
    now: u64,
    delay: u64,
    gone_after: u64,
    fault: Fault,
    fault_at: u64,
    f: Frontend<usize>,
    a: Accelerator,
    ends: [EndState; 2],
    /// To the accelerator, and to the frontend.
    pipes: [Pipe; 2],
    /// Time at which the accelerator's owner completes this open.
    opening: Option<(u64, Vec<ConnectionRequest>)>,
    /// Actions of the frontend's owner: number of answers to each request, and requested epochs.
    answers: Vec<u32>,
    started: bool,
    /// A describe request waits for its answer; one at a time.
    describing: bool,
    describe_token: Option<usize>,
    asked: HashMap<u16, u32>,
    granted: HashMap<u16, u32>,
}

const FRONTEND: usize = 0;
const ACCELERATOR: usize = 1;

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let delay = 1 + rng.u64(..20) * MS;
        let every = Duration::from_millis(20 + rng.u64(..30));
        let gone_after = 2 * every + Duration::from_nanos(2 * delay);
        let with = |node: &str, auth: &Auth| {
            let mut local = LocalNode {
                auth: auth.clone(),
                ..local(node)
            };
            local.timing.heartbeat = HeartbeatCfgs { every, gone_after };
            local
        };
        let auth = if is_chosen(&mut rng, 10) {
            token("0123456789abcdef")
        } else {
            Auth::None
        };
        let fault = match rng.u64(..8) {
            0 => Fault::Cut,
            1 => Fault::Hole(rng.u64(..3) as usize),
            2 => Fault::Stuck(rng.u64(..2) as usize),
            _ => Fault::None,
        };
        History {
            f: frontend(with("fe-1", &auth)),
            a: accelerator(with("acc-1", &auth)),
            fault,
            fault_at: rng.u64(..300) * MS,
            rng,
            now: 0,
            delay,
            gone_after: nanos(gone_after),
            ends: Default::default(),
            pipes: Default::default(),
            opening: None,
            answers: Vec::new(),
            started: false,
            describing: false,
            describe_token: None,
            asked: HashMap::new(),
            granted: HashMap::new(),
        }
    }

    /// Runs until both sides are over; near the end one owner ends the session.
    fn run(&mut self) -> u64 {
        let mut act_at = self.rng.u64(..40) * MS;
        // After the handshake, since before it no session exists.
        let leave_at = (150 + self.rng.u64(..250)) * MS;
        let mut cut = false;
        for _ in 0..20_000 {
            self.settle();
            if self.ends.iter().all(|s| s.over_at.is_some()) {
                return leave_at;
            }
            let heads = self.pipes.iter().filter_map(|p| Some(p.items.front()?.0));
            let next = heads
                .chain(self.f.poll_timeout())
                .chain(self.a.poll_timeout())
                .chain(self.opening.as_ref().map(|o| o.0))
                .chain((act_at < leave_at).then_some(act_at))
                .chain((self.now < leave_at).then_some(leave_at))
                .chain((!cut && self.fault == Fault::Cut).then_some(self.fault_at))
                .min();
            let next = next.expect("not over, and waits for nothing");
            self.now = self.now.max(next);
            if !cut && self.fault == Fault::Cut && self.now >= self.fault_at {
                cut = true;
                self.pipes = Default::default();
                self.pipes.iter_mut().for_each(|p| p.ended = true);
                self.f.link_mut().handle_eof();
                self.a.link_mut().handle_eof();
            }
            self.deliver();
            if self.now >= act_at && act_at < leave_at {
                self.act();
                act_at = self.now + 1 + self.rng.u64(..30) * MS;
            }
            if self.now >= leave_at && self.f.link().cause().is_none() {
                match self.rng.u64(..3) {
                    0 => self
                        .a
                        .link_mut()
                        .close(ErrorCode::ShuttingDown, "SIGINT", self.now),
                    1 => self
                        .f
                        .link_mut()
                        .close(ErrorCode::ShuttingDown, "enough", self.now),
                    _ => self.f.link_mut().bye(self.now),
                }
            }
            if self.opening.as_ref().is_some_and(|o| o.0 <= self.now) {
                self.opened();
            }
            self.f.handle_timeout(self.now);
            self.a.handle_timeout(self.now);
        }
        panic!("no end in sight");
    }

    fn deliver(&mut self) {
        for to in [ACCELERATOR, FRONTEND] {
            while self.pipes[1 - to]
                .items
                .front()
                .is_some_and(|(at, _)| *at <= self.now)
            {
                let item = self.pipes[1 - to].items.pop_front().expect("seen");
                match to {
                    ACCELERATOR => arrive(&mut self.a, &mut self.ends[to], item.1, self.now),
                    _ => arrive(&mut self.f, &mut self.ends[to], item.1, self.now),
                }
            }
        }
    }

    /// A spontaneous action of one owner.
    fn act(&mut self) {
        let connection_of = |rng: &mut Rng| rng.u64(..4) as u16;
        let token = self.answers.len();
        match self.rng.u64(..9) {
            0..=2 => {
                let number = connection_of(&mut self.rng);
                let last = self.asked.entry(number).or_insert(0);
                // Sometimes the epoch is not higher, and the request is refused.
                let epoch = (*last + u32::from(is_chosen(&mut self.rng, 90))).max(1);
                *last = epoch;
                self.f.open(vec![connection(number, epoch)], token);
                self.answers.push(0);
                if self.f.link().in_session() && is_chosen(&mut self.rng, 40) {
                    self.f
                        .link_mut()
                        .connection_lost(number, epoch, "no answer in time");
                    self.f.link_mut().connection_reset(number, epoch);
                }
            }
            3 => {
                self.f.name(token);
                self.answers.push(0);
            }
            4 => {
                self.f.drain(token);
                self.answers.push(0);
            }
            7 if !std::mem::replace(&mut self.describing, true) => {
                self.f.describe(token);
                self.describe_token = Some(token);
                self.answers.push(0);
            }
            5 if !std::mem::replace(&mut self.started, true) => {
                self.f.start(token);
                self.answers.push(0);
            }
            6 => {
                let (connection, epoch) = (connection_of(&mut self.rng), 1);
                self.a
                    .link_mut()
                    .connection_lost(connection, epoch, "port down");
                self.a.link_mut().connection_reset(connection, epoch);
            }
            _ => {
                let number = connection_of(&mut self.rng);
                if let Some(epoch) = self.granted.get(&number) {
                    self.f
                        .link_mut()
                        .connection_lost(number, *epoch, "cable out");
                }
            }
        }
    }

    fn opened(&mut self) {
        let (_, connections) = self.opening.take().expect("checked");
        if is_chosen(&mut self.rng, 70) {
            self.granted
                .extend(connections.iter().map(|l| (l.connection, l.epoch)));
            self.a.opened(Ok(connections.iter().map(grant).collect()));
        } else {
            let refusal = Refusal::new(ErrorCode::Budget, "193 of 200 MiB are in use");
            self.a.opened(Err(refusal));
        }
    }

    /// Handles events and frames until neither side has more.
    fn settle(&mut self) {
        let mut more = true;
        while more {
            more = false;
            while let Some(event) = self.a.poll_event() {
                more = true;
                self.accelerator_event(event);
            }
            while let Some(event) = self.f.poll_event() {
                more = true;
                self.frontend_event(event);
            }
            more |= self.transmit(FRONTEND) | self.transmit(ACCELERATOR);
        }
        for side in [FRONTEND, ACCELERATOR] {
            if self.link(side).is_over() {
                self.ends[side].over_at.get_or_insert(self.now);
            }
        }
    }

    fn link(&mut self, side: usize) -> &mut Link {
        match side {
            FRONTEND => self.f.link_mut(),
            _ => self.a.link_mut(),
        }
    }

    /// Acts as the shell: sends frames, then the end. A reader that is over breaks the pipe.
    fn transmit(&mut self, from: usize) -> bool {
        let (now, faulty, fault) = (self.now, self.now >= self.fault_at, self.fault);
        let reader_over = self.link(1 - from).is_over();
        let mut any = false;
        if faulty && fault == Fault::Stuck(from) {
            // The system holds one frame for ever.
            self.link(from).poll_transmit(now);
            return false;
        }
        while let Some(m) = self.link(from).poll_transmit(now) {
            any = true;
            if reader_over {
                let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
                self.link(from).fail_write(broken, now);
                break;
            }
            self.send(from, Some(m));
        }
        if !self.link(from).has_output() {
            self.link(from).note_flushed(now);
        }
        let done = self.link(from).is_shut() || self.link(from).is_over();
        if done && !self.pipes[from].ended {
            self.pipes[from].ended = true;
            self.send(from, None);
        }
        if self.link(from).is_shut() && self.ends[from].eof {
            self.link(from).end_lingering();
        }
        any
    }

    fn send(&mut self, from: usize, item: Option<Message>) {
        let hole = match self.fault {
            Fault::Hole(2) => true,
            Fault::Hole(which) => which == from,
            _ => false,
        };
        if hole && self.now >= self.fault_at {
            return;
        }
        let last = self.pipes[from].items.back().map_or(0, |(at, _)| *at);
        let at = last.max(self.now + self.rng.u64(..self.delay));
        self.pipes[from].items.push_back((at, item));
    }

    fn accelerator_event(&mut self, event: AcceleratorEvent) {
        assert!(
            self.ends[ACCELERATOR].gone.is_none(),
            "after the end: {event:?}"
        );
        match event {
            AcceleratorEvent::Handshake(HandshakeStep::Admit(_)) => self.a.admit(Ok(()), self.now),
            AcceleratorEvent::Handshake(_) => {}
            AcceleratorEvent::Open(connections) => {
                assert!(self.opening.is_none(), "one at a time");
                for l in &connections {
                    let last = self.granted.get(&l.connection).copied().unwrap_or(0);
                    assert!(l.epoch > last, "epochs grow");
                }
                self.opening = Some((self.now + self.rng.u64(..80) * MS, connections));
            }
            AcceleratorEvent::Name(id) => self.a.named(id, "acc".to_owned()),
            AcceleratorEvent::Describe => {
                let refused = is_chosen(&mut self.rng, 20);
                self.a.described(match refused {
                    false => Ok(Description::default()),
                    true => Err(Refusal::new(ErrorCode::Protocol, "no description")),
                });
            }
            AcceleratorEvent::Side(id, at) => self.a.side_is(id, (at + 1, "x".to_owned())),
            AcceleratorEvent::Drain => {
                if is_chosen(&mut self.rng, 30) {
                    self.a.drained(
                        Counters::default(),
                        &Default::default(),
                        Vec::new(),
                        Default::default(),
                    );
                }
            }
            AcceleratorEvent::Beat => self.a.beat(Counters::default(), None),
            AcceleratorEvent::ConnectionLost {
                connection, epoch, ..
            }
            | AcceleratorEvent::ConnectionReset { connection, epoch } => {
                let granted = self.granted.get(&connection);
                assert_eq!(
                    granted,
                    Some(&epoch),
                    "of connection {connection}, which is granted"
                );
            }
            AcceleratorEvent::Gone(cause) => self.gone(ACCELERATOR, cause),
        }
    }

    fn frontend_event(&mut self, event: Event<usize>) {
        match event {
            // A request after the end is answered with the end's cause.
            Event::Answer(token, _) => {
                self.answers[token] += 1;
                if self.describe_token == Some(token) {
                    self.describing = false;
                }
            }
            Event::Session(event) => {
                let over = self.ends[FRONTEND].gone.is_some();
                assert!(!over, "after the end: {event:?}");
                if let ClientEvent::Gone(cause) = event {
                    self.gone(FRONTEND, cause);
                }
            }
            Event::Connected(_) => {}
        }
    }

    fn gone(&mut self, side: usize, cause: ControlError) {
        if let ControlError::Silent { silent, .. } = &cause {
            assert_eq!(
                nanos(*silent),
                self.gone_after,
                "found at the moment it is due"
            );
            assert_eq!(self.now, self.ends[side].heard + self.gone_after);
        }
        // Two correct cores never break the protocol; only the connection breaks.
        let sound = match &cause {
            ControlError::Bye { .. } | ControlError::Ended { .. } => true,
            ControlError::Remote { code, .. } => {
                *code == ErrorCode::ShuttingDown || self.fault != Fault::None
            }
            ControlError::Silent { .. }
            | ControlError::Timeout { .. }
            | ControlError::Closed { .. }
            | ControlError::Vanished { .. }
            | ControlError::Io { .. } => self.fault != Fault::None,
            _ => false,
        };
        assert!(sound, "{:?}: {cause}", self.fault);
        self.ends[side].gone = Some(cause);
    }

    /// Checks that hold for every history.
    fn check(&self, began_leaving: u64) {
        let waits = nanos(local("x").timing.step) * 2 + self.gone_after + 600 * MS + 4 * self.delay;
        for side in &self.ends {
            assert!(side.gone.is_some(), "an end has a cause");
            let over = side.over_at.expect("over");
            assert!(
                over <= began_leaving + waits,
                "{over} is past every deadline"
            );
        }
        let once = self.answers.iter().all(|n| *n == 1);
        assert!(once, "each request is answered once: {:?}", self.answers);
    }
}

/// Delivers a frame or the end to a core.
fn arrive(core: &mut impl Core, side: &mut EndState, item: Option<Message>, now: u64) {
    match item {
        Some(message) => {
            if core.link().cause().is_none() {
                side.heard = now;
            }
            core.handle(message, now);
        }
        None => {
            side.eof = true;
            if !core.link().is_leaving() && !core.link().is_over() {
                core.link_mut().handle_eof();
            }
        }
    }
}

/// Prints the seed of a failed history.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the history of seed {}", self.0);
        }
    }
}

#[test]
fn ten_thousand_histories_end_with_a_cause_in_time_and_every_request_is_answered_once() {
    let mut causes: HashMap<String, u32> = HashMap::new();
    for seed in 0..10_000 {
        let seed = Seed(seed);
        let mut history = History::new(seed.0);
        let left = history.run();
        history.check(left);
        for cause in history.ends.iter().filter_map(|s| s.gone.as_ref()) {
            let kind = format!("{cause:?}");
            let kind = kind.split([' ', '(']).next().unwrap_or_default();
            *causes.entry(kind.to_owned()).or_default() += 1;
        }
    }
    // The histories must cover every kind of end.
    for kind in ["Bye", "Ended", "Remote", "Silent", "Timeout", "Closed"] {
        assert!(
            causes.get(kind).is_some_and(|n| *n > 20),
            "{kind}: {causes:?}"
        );
    }
}
