//! The accelerator's side of a session: takes the frontend's requests in turn and answers them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    control::{
        error::ControlError,
        limits::{MAX_LANES, check_sut_name},
        message::{Counters, ErrorCode, Hex, LaneGrant, LaneRequest, Message, Role, Scores, clip},
    },
    stats::{BatchSizes, GpuRecord},
};

use super::{
    Core,
    handshake::Local,
    heartbeat::nanos,
    link::{Link, Step},
};

/// Most requests of a kind that may wait for their turn.
const MAX_WAITING: usize = 256;

/// How often the owner is asked whether a drain that is under way is done.
const DRAIN_POLL: Duration = Duration::from_millis(2);

/// A request that is not granted: the frontend is told, and the session goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub code: ErrorCode,
    /// Reason in words: what is asked for, what there is, which key to change.
    pub text: String,
}

/// What happens, and what the owner is asked for.
#[derive(Debug)]
pub(in crate::control) enum Event {
    /// May the frontend of this name be served? Answered by [`Accelerator::admit`].
    Admit(String),
    /// The session begins, with the frontend of this name.
    Connected(String),
    /// Connections are asked for: one such at a time, answered by [`Accelerator::opened`].
    Open(Vec<LaneRequest>),
    /// The node's part of the SUT's name is asked for: answered by [`Accelerator::named`].
    Name(u64),
    /// Is everything answered that has arrived? [`Accelerator::drained`] if so; else this comes
    /// again.
    Drain,
    /// A heartbeat is due: [`Accelerator::beat`].
    Beat,
    /// The frontend has given up a connection.
    LaneLost {
        lane: u16,
        epoch: u32,
        cause: String,
    },
    /// The frontend's end of this connection is torn down, and nothing there uses its slots.
    LaneReset { lane: u16, epoch: u32 },
    /// The session is over. Always the last event.
    Gone(ControlError),
}

/// A request that waits for its turn.
#[derive(Debug)]
enum Work {
    Open(u64, Vec<LaneRequest>),
    Start(u64),
}

/// Epochs of one lane.
#[derive(Debug, Default)]
struct Lane {
    /// The last that was granted, 0 for none.
    opened: u32,
    /// The highest that was asked for.
    asked: u32,
    /// Asked for, and not answered.
    pending: Vec<u32>,
    /// What the frontend says of pending ones: a cause for lost, none for reset.
    held: Vec<(u32, Option<String>)>,
}

/// See the module.
#[derive(Debug)]
pub(in crate::control) struct Accelerator {
    link: Link,
    lanes: HashMap<u16, Lane>,
    /// A start was asked for and has not been refused.
    started: bool,
    waiting: VecDeque<Work>,
    /// The open that the owner works on: its number, lanes and epochs.
    working: Option<(u64, Vec<(u16, u32)>)>,
    draining: Vec<u64>,
    /// When the owner is asked again.
    drain_at: u64,
    events: VecDeque<Event>,
}

impl Accelerator {
    /// A connection came from `address`. `nonce` is random.
    pub fn new(local: Arc<Local>, address: String, nonce: Hex<32>, now: u64) -> Self {
        Accelerator {
            link: Link::new(Role::Accelerator, local, address, nonce, now),
            lanes: HashMap::new(),
            started: false,
            waiting: VecDeque::new(),
            working: None,
            draining: Vec::new(),
            drain_at: 0,
            events: VecDeque::new(),
        }
    }

    /// Answers [`Event::Admit`]: this frontend is served, or the name of the one that is.
    pub fn admit(&mut self, place: Result<(), String>, now: u64) {
        self.link.admit(place, now);
    }

    /// Answers [`Event::Open`].
    pub fn opened(&mut self, answer: Result<Vec<LaneGrant>, Refusal>) {
        if let Some((id, lanes)) = self.working.take()
            && self.link.in_session()
        {
            self.open_done(id, &lanes, answer);
            self.work();
        }
    }

    /// Answers [`Event::Name`].
    pub fn named(&mut self, id: u64, name: String) {
        match check_sut_name(&name) {
            Ok(()) => self.link.say(Message::NameIs { id, name }),
            Err(problem) => {
                let text = format!("the accelerator's name {name:?}: {problem}");
                self.refuse(id, ErrorCode::Protocol, &text);
            }
        }
    }

    /// Answers every drain.
    pub fn drained(&mut self, counters: Counters, batches: &BatchSizes, gpus: &[GpuRecord]) {
        for id in std::mem::take(&mut self.draining) {
            self.link.say(Message::Drained {
                id,
                counters,
                batches: batches.clone(),
                gpus: gpus.to_vec(),
            });
        }
    }

    /// Answers [`Event::Beat`].
    pub fn beat(&mut self, counters: Counters, scores: Option<Scores>) {
        self.link.beat(Some(counters), scores);
    }

    fn refuse(&mut self, id: u64, code: ErrorCode, text: &str) {
        let text = clip(text);
        self.link.say(Message::Refused { id, code, text });
    }

    fn session_frame(&mut self, message: Message, now: u64) -> Result<(), ControlError> {
        match message {
            Message::Open { id, lanes } => {
                self.room(self.waiting.len(), "open")?;
                for l in &lanes {
                    let lane = self.lanes.entry(l.lane).or_default();
                    lane.asked = lane.asked.max(l.epoch);
                    lane.pending.push(l.epoch);
                }
                self.waiting.push_back(Work::Open(id, lanes));
                self.work();
                Ok(())
            }
            Message::Start { id } => {
                if self.started {
                    let problem = "a session starts once".to_owned();
                    return Err(self.link.field("start", "id", problem));
                }
                self.room(self.waiting.len(), "start")?;
                self.started = true;
                self.waiting.push_back(Work::Start(id));
                self.work();
                Ok(())
            }
            Message::Name { id } => {
                self.events.push_back(Event::Name(id));
                Ok(())
            }
            Message::Drain { id } => {
                self.room(self.draining.len(), "drain")?;
                if self.draining.is_empty() {
                    self.drain_at = now;
                }
                self.draining.push(id);
                Ok(())
            }
            Message::Heartbeat {
                seq,
                counters,
                scores,
            } => {
                self.link.beaten(seq)?;
                if counters.is_some() || scores.is_some() {
                    let problem = "come from an accelerator alone".to_owned();
                    return Err(self.link.field("heartbeat", "counters, scores", problem));
                }
                Ok(())
            }
            Message::LaneLost { lane, epoch, cause } => {
                self.lane_note("lane_lost", lane, epoch, Some(clip(&cause)))
            }
            Message::LaneReset { lane, epoch } => self.lane_note("lane_reset", lane, epoch, None),
            other => {
                let expected = "a frontend's frame of a session";
                Err(self.link.unexpected(&other, expected))
            }
        }
    }

    fn room(&self, waiting: usize, kind: &'static str) -> Result<(), ControlError> {
        if waiting < MAX_WAITING {
            return Ok(());
        }
        let problem = format!("{MAX_WAITING} such requests wait already");
        Err(self.link.field(kind, "id", problem))
    }

    /// Takes up the requests whose turn it is.
    fn work(&mut self) {
        while self.working.is_none() {
            // Checked when it is its turn: what came before may change the answer.
            match self.waiting.pop_front() {
                None => return,
                Some(Work::Start(id)) => {
                    self.started = self.lanes.values().any(|l| l.opened > 0);
                    if self.started {
                        self.link.say(Message::Ready { id });
                    } else {
                        self.refuse(id, ErrorCode::Protocol, "no lane is open");
                    }
                }
                Some(Work::Open(id, lanes)) => {
                    let epochs: Vec<_> = lanes.iter().map(|l| (l.lane, l.epoch)).collect();
                    match self.check_open(&epochs) {
                        Ok(()) => {
                            self.working = Some((id, epochs));
                            self.events.push_back(Event::Open(lanes));
                        }
                        Err(text) => {
                            let code = ErrorCode::Protocol;
                            self.open_done(id, &epochs, Err(Refusal { code, text }));
                        }
                    }
                }
            }
        }
    }

    /// A lane's epochs grow, and a session has a limited number of lanes.
    fn check_open(&self, lanes: &[(u16, u32)]) -> Result<(), String> {
        let opened = |lane: u16| self.lanes.get(&lane).map_or(0, |l| l.opened);
        for &(lane, epoch) in lanes {
            let last = opened(lane);
            if epoch <= last {
                return Err(format!(
                    "lane {lane}: epoch {epoch} does not come after epoch {last}"
                ));
            }
        }
        let there = self.lanes.values().filter(|l| l.opened > 0).count();
        let total = there + lanes.iter().filter(|l| opened(l.0) == 0).count();
        if total > MAX_LANES {
            return Err(format!("{total} lanes, a session has at most {MAX_LANES}"));
        }
        Ok(())
    }

    /// Answers an open, then does what the frontend has said of its lanes meanwhile.
    fn open_done(
        &mut self,
        id: u64,
        lanes: &[(u16, u32)],
        answer: Result<Vec<LaneGrant>, Refusal>,
    ) {
        let granted = answer.is_ok();
        match answer {
            Ok(lanes) => self.link.say(Message::Opened { id, lanes }),
            Err(r) => self.refuse(id, r.code, &r.text),
        }
        for &(number, epoch) in lanes {
            let Some(lane) = self.lanes.get_mut(&number) else {
                continue;
            };
            if granted {
                lane.opened = lane.opened.max(epoch);
            }
            if let Some(at) = lane.pending.iter().position(|e| *e == epoch) {
                lane.pending.swap_remove(at);
            }
            if lane.pending.contains(&epoch) {
                continue;
            }
            let said: Vec<_> = lane.held.extract_if(.., |(e, _)| *e == epoch).collect();
            for (epoch, cause) in said {
                self.heed(number, epoch, cause);
            }
        }
    }

    /// The frontend has given up a lane, or torn its end down.
    fn lane_note(
        &mut self,
        kind: &'static str,
        number: u16,
        epoch: u32,
        cause: Option<String>,
    ) -> Result<(), ControlError> {
        let Some(lane) = self.lanes.get_mut(&number) else {
            let problem = format!("lane {number} was never opened");
            return Err(self.link.field(kind, "lane", problem));
        };
        if epoch > lane.asked {
            let problem = format!(
                "lane {number} is at epoch {}, this says {epoch}",
                lane.asked
            );
            return Err(self.link.field(kind, "epoch", problem));
        }
        if !lane.pending.contains(&epoch) {
            self.heed(number, epoch, cause);
            return Ok(());
        }
        let known = |(e, c): &(u32, Option<String>)| (*e, c.is_some()) == (epoch, cause.is_some());
        if !lane.held.iter().any(known) {
            lane.held.push((epoch, cause));
        }
        Ok(())
    }

    /// The same, of an epoch whose open is answered.
    fn heed(&mut self, lane: u16, epoch: u32, cause: Option<String>) {
        let opened = self.lanes.get(&lane).map_or(0, |l| l.opened);
        if epoch == opened {
            self.events.push_back(match cause {
                Some(cause) => Event::LaneLost { lane, epoch, cause },
                None => Event::LaneReset { lane, epoch },
            });
        } else if epoch > opened && cause.is_some() {
            // It was refused: nothing of it exists here, and the frontend may wait to hear so.
            self.link.lane_reset(lane, epoch);
        }
    }
}

impl Core for Accelerator {
    type Event = Event;

    fn link(&self) -> &Link {
        &self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    fn handle(&mut self, message: Message, now: u64) {
        if let Some(message) = self.link.receive(message, now)
            && let Err(e) = self.session_frame(message, now)
        {
            self.link.fail(e, now);
        }
    }

    fn handle_timeout(&mut self, now: u64) {
        if self.link.handle_timeout(now) {
            self.events.push_back(Event::Beat);
        }
        if self.link.in_session() && !self.draining.is_empty() && now >= self.drain_at {
            self.drain_at = now.saturating_add(nanos(DRAIN_POLL));
            self.events.push_back(Event::Drain);
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        let at = self.link.poll_timeout()?;
        let draining = self.link.in_session() && !self.draining.is_empty();
        Some(if draining { at.min(self.drain_at) } else { at })
    }

    fn poll_event(&mut self) -> Option<Event> {
        match self.link.step() {
            Some(Step::Admit(node)) => return Some(Event::Admit(node)),
            Some(Step::Connected(node)) => return Some(Event::Connected(node)),
            None => {}
        }
        let next = self.events.pop_front();
        next.or_else(|| self.link.gone().map(Event::Gone))
    }
}
