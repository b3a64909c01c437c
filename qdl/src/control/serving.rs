//! The accelerator's task of a session: takes the frontend's frames in turn and answers them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::clock::now_ns;

use super::{
    ControlError,
    error::Peer,
    handshake::unexpected,
    heartbeat::{Health, Heartbeat, HeartbeatCfgs, OutOfOrder},
    limits::{MAX_LANES, check_sut_name},
    message::{ErrorCode, LaneRequest, Message, clip},
    session::{Out, Refusal, SessionHandler},
    wire::Wire,
};

/// Most requests of a frontend that may wait for their turn.
const MAX_WAITING: usize = 256;

/// How often a drain that is under way is asked whether it is done.
const DRAIN_POLL: Duration = Duration::from_millis(2);

/// How long a peer that takes nothing any more is listened to.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Most messages of this node sent before the peer is listened to again.
const BURST: usize = 64;

/// A request that takes time.
enum Work {
    Open(u64, Vec<LaneRequest>),
    Start(u64),
}

/// See the module.
pub(super) struct Serving {
    heartbeat: Heartbeat,
    handler: Arc<dyn SessionHandler>,
    peer: Peer,
    /// Highest epoch of each lane.
    lanes: HashMap<u16, u32>,
    /// Highest epoch of each lane that was asked for, opened or not: it may be given up before its turn.
    asked: HashMap<u16, u32>,
    /// A start was asked for and has not been refused.
    started: bool,
    waiting: VecDeque<Work>,
    working: Option<JoinHandle<Message>>,
    /// What is worked on is a start.
    starting: bool,
    draining: Vec<u64>,
}

impl Serving {
    pub fn new(peer: Peer, heartbeat: &HeartbeatCfgs, handler: Arc<dyn SessionHandler>) -> Self {
        Serving {
            heartbeat: Heartbeat::new(heartbeat, now_ns()),
            handler,
            peer,
            lanes: HashMap::new(),
            asked: HashMap::new(),
            started: false,
            waiting: VecDeque::new(),
            working: None,
            starting: false,
            draining: Vec::new(),
        }
    }

    /// Until the session ends; says why.
    pub async fn run(
        &mut self,
        wire: &mut Wire,
        outbox: &mut mpsc::UnboundedReceiver<Out>,
    ) -> ControlError {
        loop {
            match self.turn(wire, outbox).await {
                Ok(()) => {}
                Err(cause @ ControlError::Io { .. }) => return self.last_words(wire, cause).await,
                Err(cause) => return cause,
            }
        }
    }

    /// A peer that has said good-bye and closed may leave us in the middle of telling it something: what it said is read
    /// before the failure counts.
    async fn last_words(&mut self, wire: &mut Wire, cause: ControlError) -> ControlError {
        let end = Instant::now() + LAST_WORDS;
        loop {
            match wire.recv_until("last words", end, LAST_WORDS).await {
                Ok(Message::Bye {}) => {
                    return ControlError::Bye {
                        peer: self.peer.clone(),
                    };
                }
                Ok(_) => {}
                Err(_) => return cause,
            }
        }
    }

    async fn turn(
        &mut self,
        wire: &mut Wire,
        outbox: &mut mpsc::UnboundedReceiver<Out>,
    ) -> Result<(), ControlError> {
        if let Some(seq) = self.heartbeat.due(now_ns()) {
            let counters = self.handler.counters();
            let scores = self.handler.scores();
            wire.send(&Message::Heartbeat {
                seq,
                counters,
                scores,
            })
            .await?;
        }
        // Our own words first, a few at a time, so that a peer that never stops talking is answered.
        for _ in 0..BURST {
            match outbox.try_recv() {
                Ok(out) => self.say(wire, out).await?,
                Err(_) => break,
            }
        }
        if let Some(counters) = (!self.draining.is_empty())
            .then(|| self.handler.drain())
            .flatten()
        {
            for id in self.draining.drain(..) {
                let (batches, gpus) = self.handler.engine();
                let drained = Message::Drained {
                    id,
                    counters,
                    batches,
                    gpus,
                };
                wire.send(&drained).await?;
            }
        }
        self.work();

        let now = now_ns();
        let mut wake = self.heartbeat.next_at().saturating_sub(now);
        if !self.draining.is_empty() {
            wake = wake.min(DRAIN_POLL.as_nanos() as u64);
        }
        let wake = Instant::now() + Duration::from_nanos(wake);
        // What the peer has sent is read before its silence is judged: this process may have been the one
        // that slept.
        tokio::select! { biased;
            message = wire.recv("the end of the session") => {
                let message = message?;
                if self.heartbeat.heard(now_ns()) {
                    self.handler.health(Health::Alive);
                }
                self.handle(wire, message).await
            }
            Some(out) = outbox.recv() => self.say(wire, out).await,
            done = async { self.working.as_mut().expect("checked").await },
                if self.working.is_some() =>
            {
                self.working = None;
                let answer = done.map_err(|e| ControlError::Ended {
                    peer: self.peer.clone(),
                    code: ErrorCode::ShuttingDown,
                    text: format!("the accelerator failed while opening connections: {e}"),
                })?;
                if self.starting && matches!(answer, Message::Refused { .. }) {
                    self.started = false;
                }
                if let Message::Opened { lanes, .. } = &answer {
                    self.lanes.extend(lanes.iter().map(|l| (l.lane, l.epoch)));
                }
                wire.send(&answer).await
            }
            () = sleep_until(wake) => self.judge(),
        }
    }

    fn judge(&mut self) -> Result<(), ControlError> {
        if let Some(health) = judged(&mut self.heartbeat, &self.peer)? {
            self.handler.health(health);
        }
        Ok(())
    }

    async fn say(&self, wire: &mut Wire, out: Out) -> Result<(), ControlError> {
        match out {
            Out::Say(message) => wire.send(&message).await,
            Out::Close(code, text) => Err(ControlError::Ended {
                peer: self.peer.clone(),
                code,
                text,
            }),
        }
    }

    async fn handle(&mut self, wire: &mut Wire, message: Message) -> Result<(), ControlError> {
        match message {
            Message::Open { id, lanes } => {
                for l in &lanes {
                    let last = self.asked.entry(l.lane).or_default();
                    *last = l.epoch.max(*last);
                }
                self.enqueue(Work::Open(id, lanes))
            }
            Message::Start { id } => {
                if self.started {
                    return Err(self.bad("start", "id", "a session starts once".to_owned()));
                }
                self.started = true;
                self.enqueue(Work::Start(id))
            }
            Message::Name { id } => {
                let name = self.handler.name();
                let answer = match check_sut_name(&name) {
                    Ok(()) => Message::NameIs { id, name },
                    Err(problem) => Message::Refused {
                        id,
                        code: ErrorCode::Protocol,
                        text: clip(&format!("the accelerator's name {name:?}: {problem}")),
                    },
                };
                wire.send(&answer).await
            }
            Message::Drain { id } => {
                if self.draining.len() >= MAX_WAITING {
                    return Err(self.too_many("drain"));
                }
                self.draining.push(id);
                Ok(())
            }
            Message::Heartbeat {
                seq,
                counters,
                scores,
            } => {
                self.heartbeat
                    .number(seq)
                    .map_err(|e| out_of_order(&self.peer, e))?;
                self.handler.heartbeat(&counters);
                if let Some(scores) = scores {
                    self.handler.told(&scores);
                }
                Ok(())
            }
            Message::LaneLost { lane, epoch, cause } => {
                self.check_lane("lane_lost", lane, epoch)?;
                self.handler.lane_lost(lane, epoch, &clip(&cause));
                Ok(())
            }
            Message::LaneReset { lane, epoch } => {
                self.check_lane("lane_reset", lane, epoch)?;
                self.handler.lane_reset(lane, epoch);
                Ok(())
            }
            Message::Bye {} => Err(ControlError::Bye {
                peer: self.peer.clone(),
            }),
            other @ (Message::Hello { .. }
            | Message::Answer { .. }
            | Message::Model { .. }
            | Message::Opened { .. }
            | Message::Ready { .. }
            | Message::NameIs { .. }
            | Message::Drained { .. }
            | Message::Refused { .. }
            | Message::Error { .. }) => {
                Err(unexpected(wire, &other, "a frontend's frame of a session"))
            }
        }
    }

    fn enqueue(&mut self, work: Work) -> Result<(), ControlError> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(match work {
                Work::Open(..) => self.too_many("open"),
                Work::Start(_) => self.too_many("start"),
            });
        }
        self.waiting.push_back(work);
        Ok(())
    }

    /// Takes up the next request that takes time.
    fn work(&mut self) {
        if self.working.is_some() {
            return;
        }
        let Some(work) = self.waiting.pop_front() else {
            return;
        };
        let handler = self.handler.clone();
        self.starting = matches!(work, Work::Start(_));
        // Checked when it is its turn: what came before may change the answer.
        let checked = match &work {
            Work::Open(_, lanes) => self.check_open(lanes),
            Work::Start(_) if self.lanes.is_empty() => Err("no lane is open".to_owned()),
            Work::Start(_) => Ok(()),
        };
        let checked = checked.map_err(|text| Refusal {
            code: ErrorCode::Protocol,
            text,
        });
        self.working = Some(tokio::task::spawn_blocking(move || match work {
            Work::Open(id, lanes) => match checked.and_then(|()| handler.open(&lanes)) {
                Ok(lanes) => Message::Opened { id, lanes },
                Err(r) => refused(id, &r),
            },
            Work::Start(id) => match checked.and_then(|()| handler.start()) {
                Ok(()) => Message::Ready { id },
                Err(r) => refused(id, &r),
            },
        }));
    }

    /// A lane's epochs grow, and a session has a limited number of lanes.
    fn check_open(&self, lanes: &[LaneRequest]) -> Result<(), String> {
        for l in lanes {
            if let Some(last) = self.lanes.get(&l.lane)
                && l.epoch <= *last
            {
                return Err(format!(
                    "lane {}: epoch {} does not come after epoch {last}",
                    l.lane, l.epoch
                ));
            }
        }
        let fresh = lanes.iter().filter(|l| !self.lanes.contains_key(&l.lane));
        let total = self.lanes.len() + fresh.count();
        if total > MAX_LANES {
            return Err(format!("{total} lanes, a session has at most {MAX_LANES}"));
        }
        Ok(())
    }

    fn check_lane(&self, kind: &'static str, lane: u16, epoch: u32) -> Result<(), ControlError> {
        let problem = match self.asked.get(&lane) {
            None => format!("lane {lane} was never opened"),
            Some(last) if epoch > *last => {
                format!("lane {lane} is at epoch {last}, this says {epoch}")
            }
            Some(_) => return Ok(()),
        };
        Err(self.bad(kind, "lane", problem))
    }

    fn too_many(&self, kind: &'static str) -> ControlError {
        self.bad(
            kind,
            "id",
            format!("{MAX_WAITING} such requests wait already"),
        )
    }

    fn bad(&self, kind: &'static str, field: &'static str, problem: String) -> ControlError {
        ControlError::Field {
            peer: self.peer.clone(),
            kind,
            field,
            problem,
        }
    }
}

fn refused(id: u64, r: &Refusal) -> Message {
    Message::Refused {
        id,
        code: r.code,
        text: clip(&r.text),
    }
}

/// What a peer's silence has come to, where that is new; an error once the peer is gone.
pub(super) fn judged(
    heartbeat: &mut Heartbeat,
    peer: &Peer,
) -> Result<Option<Health>, ControlError> {
    let now = now_ns();
    match heartbeat.check(now) {
        Some(Health::Gone) => Err(ControlError::Silent {
            peer: peer.clone(),
            silent: Duration::from_nanos(heartbeat.silent(now)),
        }),
        health => Ok(health),
    }
}

/// The error for a heartbeat whose number does not follow.
pub(super) fn out_of_order(peer: &Peer, e: OutOfOrder) -> ControlError {
    ControlError::Field {
        peer: peer.clone(),
        kind: "heartbeat",
        field: "seq",
        problem: format!("{}, expected {}", e.got, e.expected),
    }
}
