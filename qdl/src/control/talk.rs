//! The frontend's task of a session: sends what is asked, hands out answers, tells what happens.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::clock::now_ns;

use super::{
    ControlError,
    client::{ClientEvent, CountersFn, MAX_EVENTS, ScoresFn},
    error::Peer,
    handshake::unexpected,
    heartbeat::{Health, Heartbeat, HeartbeatCfgs},
    limits::check,
    message::{ErrorCode, LaneGrant, LaneRequest, Message, Role, clip},
    pending::{Ended, Reply, ReplySender},
    serving::{judged, out_of_order},
    wire::Wire,
};

/// Most commands sent before the peer is listened to again.
const BURST: usize = 64;

/// What a handle wants of the session's task.
#[derive(Debug)]
pub(super) enum Command {
    Ask(Ask, ReplySender),
    Say(Message),
    Bye,
    Close(ErrorCode, String),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) enum Ask {
    Open(Vec<LaneRequest>),
    Start,
    Name,
    Drain,
}

/// The session's task.
pub(super) async fn run(
    mut wire: Wire,
    mut inbox: mpsc::UnboundedReceiver<Command>,
    events: mpsc::Sender<ClientEvent>,
    ended: Arc<Ended>,
    heartbeat: HeartbeatCfgs,
    (counters, scores): (CountersFn, ScoresFn),
) {
    let mut talk = Talk {
        heartbeat: Heartbeat::new(&heartbeat, now_ns()),
        peer: wire.peer(),
        events,
        counters,
        scores,
        waiting: HashMap::new(),
        next_id: 1,
    };
    let cause = loop {
        if let Err(cause) = talk.turn(&mut wire, &mut inbox).await {
            break cause;
        }
    };
    // First the cause, then the channels: whoever finds one closed finds the cause.
    ended.set(cause.clone());
    drop((talk, inbox));
    wire.close(&cause, Role::Frontend).await;
}

struct Talk {
    heartbeat: Heartbeat,
    peer: Peer,
    events: mpsc::Sender<ClientEvent>,
    counters: CountersFn,
    scores: ScoresFn,
    waiting: HashMap<u64, (Ask, ReplySender)>,
    next_id: u64,
}

impl Talk {
    async fn turn(
        &mut self,
        wire: &mut Wire,
        inbox: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Result<(), ControlError> {
        if let Some(seq) = self.heartbeat.due(now_ns()) {
            let (counters, scores) = ((self.counters)(), (self.scores)());
            wire.send(&Message::Heartbeat {
                seq,
                counters,
                scores,
            })
            .await?;
        }
        // Our own words first, a few at a time, so that a peer that never stops talking is answered.
        for _ in 0..BURST {
            match inbox.try_recv() {
                Ok(command) => self.command(wire, command).await?,
                Err(_) => break,
            }
        }
        let wake = self.heartbeat.next_at().saturating_sub(now_ns());
        let wake = Instant::now() + Duration::from_nanos(wake);
        // What the peer has sent is read before its silence is judged: this process may have been the one
        // that slept.
        tokio::select! { biased;
            message = wire.recv("the end of the session") => {
                let message = message?;
                if self.heartbeat.heard(now_ns()) {
                    self.tell(ClientEvent::Health(Health::Alive))?;
                }
                self.handle(wire, message)
            }
            command = inbox.recv() => self.command(wire, command.unwrap_or(Command::Bye)).await,
            () = sleep_until(wake) => self.judge(),
        }
    }

    fn judge(&mut self) -> Result<(), ControlError> {
        match judged(&mut self.heartbeat, &self.peer)? {
            Some(health) => self.tell(ClientEvent::Health(health)),
            None => Ok(()),
        }
    }

    async fn command(&mut self, wire: &mut Wire, command: Command) -> Result<(), ControlError> {
        match command {
            Command::Ask(ask, sender) => {
                let id = self.next_id;
                self.next_id += 1;
                let message = match &ask {
                    Ask::Open(lanes) => Message::Open {
                        id,
                        lanes: lanes.clone(),
                    },
                    Ask::Start => Message::Start { id },
                    Ask::Name => Message::Name { id },
                    Ask::Drain => Message::Drain { id },
                };
                // What the peer would have to refuse ends no session: whoever asked is told.
                if let Err(o) = check(&message) {
                    let _ = sender.send(Err(ControlError::Setting {
                        key: o.field,
                        problem: o.problem,
                    }));
                    return Ok(());
                }
                self.waiting.insert(id, (ask, sender));
                wire.send(&message).await
            }
            Command::Say(message) => wire.send(&message).await,
            Command::Bye => {
                wire.send(&Message::Bye {}).await?;
                Err(ControlError::Bye {
                    peer: self.peer.clone(),
                })
            }
            Command::Close(code, text) => Err(ControlError::Ended {
                peer: self.peer.clone(),
                code,
                text,
            }),
        }
    }

    fn handle(&mut self, wire: &Wire, message: Message) -> Result<(), ControlError> {
        match message {
            Message::Opened { id, lanes } => self.answer(id, "opened", |peer, ask| match ask {
                Ask::Open(asked) => {
                    check_grants(peer, asked, &lanes).map(|()| Reply::Opened(lanes))
                }
                _ => Err(no_such(peer, id, "opened")),
            }),
            Message::Ready { id } => self.answer(id, "ready", |peer, ask| match ask {
                Ask::Start => Ok(Reply::Ready),
                _ => Err(no_such(peer, id, "ready")),
            }),
            Message::NameIs { id, name } => self.answer(id, "name_is", |peer, ask| match ask {
                Ask::Name => Ok(Reply::Name(name)),
                _ => Err(no_such(peer, id, "name_is")),
            }),
            Message::Drained {
                id,
                counters,
                batches,
                gpus,
            } => self.answer(id, "drained", |peer, ask| match ask {
                Ask::Drain => Ok(Reply::Drained(counters, batches, gpus)),
                _ => Err(no_such(peer, id, "drained")),
            }),
            Message::Refused { id, code, text } => {
                let Some((ask, sender)) = self.waiting.remove(&id) else {
                    return Err(no_such(&self.peer, id, "refused"));
                };
                // Whoever asked may have stopped waiting.
                let _ = sender.send(Err(ControlError::Refused {
                    peer: self.peer.clone(),
                    asked: ask.kind(),
                    code,
                    text: clip(&text),
                }));
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
                // The next one says more than this one: a reader that is behind misses nothing.
                let _ = self.events.try_send(ClientEvent::Heartbeat(counters));
                if let Some(scores) = scores {
                    let _ = self.events.try_send(ClientEvent::Scores(scores));
                }
                Ok(())
            }
            Message::LaneLost { lane, epoch, cause } => self.tell(ClientEvent::LaneLost {
                lane,
                epoch,
                cause: clip(&cause),
            }),
            Message::LaneReset { lane, epoch } => self.tell(ClientEvent::LaneReset { lane, epoch }),
            Message::Bye {} => Err(ControlError::Bye {
                peer: self.peer.clone(),
            }),
            other @ (Message::Hello { .. }
            | Message::Answer { .. }
            | Message::Model { .. }
            | Message::Open { .. }
            | Message::Start { .. }
            | Message::Name { .. }
            | Message::Drain { .. }
            | Message::Error { .. }) => Err(unexpected(
                wire,
                &other,
                "an accelerator's frame of a session",
            )),
        }
    }

    /// Gives an answer to whoever waits for it.
    fn answer(
        &mut self,
        id: u64,
        kind: &'static str,
        reply: impl FnOnce(&Peer, &Ask) -> Result<Reply, ControlError>,
    ) -> Result<(), ControlError> {
        let Some((ask, sender)) = self.waiting.remove(&id) else {
            return Err(no_such(&self.peer, id, kind));
        };
        // Whoever asked may have stopped waiting.
        let _ = sender.send(Ok(reply(&self.peer, &ask)?));
        Ok(())
    }

    fn tell(&self, event: ClientEvent) -> Result<(), ControlError> {
        match self.events.try_send(event) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(ControlError::EventsUnread {
                peer: self.peer.clone(),
                unread: MAX_EVENTS,
            }),
            // Nobody listens, by choice.
            Err(mpsc::error::TrySendError::Closed(_)) | Ok(()) => Ok(()),
        }
    }
}

impl Ask {
    fn kind(&self) -> &'static str {
        match self {
            Ask::Open(_) => "open",
            Ask::Start => "start",
            Ask::Name => "name",
            Ask::Drain => "drain",
        }
    }
}

fn no_such(peer: &Peer, id: u64, kind: &'static str) -> ControlError {
    ControlError::Field {
        peer: peer.clone(),
        kind,
        field: "id",
        problem: format!("{id} is no such request of this session"),
    }
}

/// Grants must answer the requests one for one.
fn check_grants(
    peer: &Peer,
    asked: &[LaneRequest],
    granted: &[LaneGrant],
) -> Result<(), ControlError> {
    let same = asked.len() == granted.len()
        && asked
            .iter()
            .zip(granted)
            .all(|(a, g)| (a.lane, a.epoch, a.slots) == (g.lane, g.epoch, g.slots));
    if same {
        return Ok(());
    }
    Err(ControlError::Field {
        peer: peer.clone(),
        kind: "opened",
        field: "lanes",
        problem: "are not the lanes, epochs and slots that were asked for".to_owned(),
    })
}
