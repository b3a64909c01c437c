//! The work of an accelerator's rail thread: poll its lanes, hand arrivals to the service, answer echoes, go
//! on with what a full socket held up, and take lost lanes down.

use std::{
    os::fd::RawFd,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use crossbeam_queue::SegQueue;

use super::{
    LaneLost, OnLaneLost, RailCounts, ServeLane, Which, arrival::Arrival, arrival::Service,
    lane::Received,
};
use crate::{
    clock::now_ns,
    fabric::{Armed, Broken, Control, Event, Link, Rx},
    rail::{RailWork, Turn, arm_all},
};

/// Events taken from one lane before the next has its turn, and before the peer hears of them: while we see
/// to these, it sees to what else is in flight.
const BUDGET: usize = 128;

/// What the rail thread is told.
pub(super) enum Command {
    Attach { lane: Arc<ServeLane>, link: Link },
    GiveUp { which: Arc<Which>, cause: Broken },
    Stop,
}

struct Up {
    lane: Arc<ServeLane>,
    rx: Box<dyn Rx>,
    broken: Option<Broken>,
    arrived: u64,
    /// Sleeps that it ended.
    wakeups: u64,
}

pub(super) struct ServeRail {
    inbox: Arc<SegQueue<Command>>,
    service: Arc<dyn Service>,
    lost: Arc<OnLaneLost>,
    counts: Arc<RailCounts>,
    up: Vec<Up>,
    arrivals: Vec<Arrival>,
    new_fds: Vec<RawFd>,
    stopping: bool,
}

impl ServeRail {
    pub fn new(
        inbox: Arc<SegQueue<Command>>,
        service: Arc<dyn Service>,
        lost: Arc<OnLaneLost>,
        counts: Arc<RailCounts>,
    ) -> Self {
        ServeRail {
            inbox,
            service,
            lost,
            counts,
            up: Vec::new(),
            arrivals: Vec::with_capacity(4 * BUDGET),
            new_fds: Vec::new(),
            stopping: false,
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Attach { lane, link } => {
                self.new_fds.push(link.rx.fd());
                lane.attach(link.tx);
                self.up.push(Up {
                    lane,
                    rx: link.rx,
                    broken: None,
                    arrived: 0,
                    wakeups: 0,
                });
            }
            Command::GiveUp { which, cause } => {
                for up in &mut self.up {
                    if which(&up.lane.cfgs()) {
                        up.broken = Some(cause.clone());
                    }
                }
            }
            Command::Stop => {
                self.stopping = true;
                let cause = Broken::GivenUp("this node is stopping".to_owned());
                self.up
                    .iter_mut()
                    .for_each(|u| u.broken = Some(cause.clone()));
            }
        }
    }

    /// Destroys the local side of every broken lane and tells of it.
    fn take_down(&mut self) {
        while let Some(i) = self.up.iter().position(|u| u.broken.is_some()) {
            let Up {
                lane,
                rx,
                broken,
                arrived,
                wakeups,
            } = self.up.swap_remove(i);
            self.new_fds.retain(|fd| *fd != rx.fd());
            lane.detach();
            let (sent, received) = (lane.sent_counts(), rx.counts());
            lane.received(Received {
                arrived,
                wakeups,
                fabric: received,
            });
            self.counts
                .received
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(&received);
            drop(rx);
            let c = lane.cfgs();
            tracing::debug!(
                "connection {} (epoch {}) had {} arrivals in {} CQEs; {} responses in {} work requests, {} of them inline, \
                 {} signaled, {} doorbells",
                c.lane,
                c.epoch,
                received.writes,
                received.cqes,
                sent.writes,
                sent.work_requests,
                sent.inline,
                sent.signaled,
                sent.doorbells
            );
            drop(lane);
            if let Some(cause) = broken {
                (self.lost)(LaneLost {
                    session: c.session,
                    lane: c.lane,
                    epoch: c.epoch,
                    cause,
                });
            }
        }
    }

    fn poll(&mut self, i: usize, now: u64) -> usize {
        let Self { up, arrivals, .. } = self;
        let up = &mut up[i];
        let lane = &up.lane;
        let (mut reply, mut broken) = (None, None);
        let before = arrivals.len();
        let events = up.rx.poll(BUDGET, &mut |event| match event {
            Event::Arrived { imm, len } => match lane.arrival(imm, len, now) {
                Some(a) => arrivals.push(a),
                None => {
                    broken = Some(Broken::BadFrame {
                        what: "request slot",
                        value: u64::from(imm.bits()),
                    });
                }
            },
            Event::Control(Control::Echo(v)) => reply = Some(v),
            Event::Control(Control::EchoReply(_)) => {}
            Event::Broken(b) => broken = Some(b),
        });
        up.arrived += (arrivals.len() - before) as u64;
        if let Some(v) = reply {
            lane.answer.put(Control::EchoReply(v));
            lane.drive();
        }
        if events == 0 && lane.cannot_send() {
            broken = Some(Broken::Closed);
        }
        if let Some(why) = lane.refused() {
            broken = Some(why.clone());
        }
        if up.broken.is_none() {
            up.broken = broken;
        }
        events
    }
}

impl RailWork for ServeRail {
    fn turn(&mut self, _now: u64) -> Turn {
        while let Some(c) = self.inbox.pop() {
            self.command(c);
        }
        let mut work = 0;
        if !self.stopping {
            let now = now_ns();
            for i in 0..self.up.len() {
                work += self.poll(i, now);
            }
        }
        if !self.arrivals.is_empty() {
            self.counts
                .arrived
                .fetch_add(self.arrivals.len() as u64, Ordering::Relaxed);
            self.service.arrived(&mut self.arrivals);
            self.arrivals.clear();
        }
        for up in &self.up {
            if up.lane.held_up() {
                work += up.lane.drive();
            }
        }
        self.take_down();
        match (self.stopping, work) {
            (true, _) => Turn::Stop,
            (false, 0) => Turn::Idle,
            _ => Turn::Busy,
        }
    }

    fn tick(&mut self, _now: u64) {}

    fn arm(&mut self) -> Armed {
        if !self.inbox.is_empty() {
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
