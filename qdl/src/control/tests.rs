//! Two cores whose frames pass as bytes, without sockets. The world runs whole sessions: slow, cut,
//! silent and repeated ones.

mod attacks;
pub(in crate::control) mod codec;
mod refusals;
mod sockets;

use std::{sync::Arc, time::Duration};

use fabric::wire::{End, Stream};
use record::{EngineInfo, NodeFacts};

use super::{
    core::{
        Core, HandshakeStep,
        accelerator::{Accelerator, Event as AcceleratorEvent},
        frontend::{Event, Frontend},
    },
    message::{Hex, Message},
    shell::Framing,
    *,
};
use crate::model::ModelSpec;

const MS: u64 = 1_000_000;

pub(in crate::control) fn token(text: &str) -> Auth {
    Auth::Token(Token::parse(text.repeat(64 / text.len()).as_bytes()).expect("digits"))
}

/// A node's part in its sessions: a frontend's for a name that begins with `fe`.
fn local(node: &str) -> LocalNode {
    LocalNode {
        node: node.to_owned(),
        auth: token("0123456789abcdef"),
        model: ModelSpec::opaque("digest", 64, 8),
        own: match node.starts_with("fe") {
            true => RolePart::Stream(Stream::First),
            false => RolePart::Engine(EngineInfo {
                name: "digest".to_owned(),
                ..EngineInfo::default()
            }),
        },
        facts: NodeFacts {
            host: format!("host of {node}"),
            ..NodeFacts::default()
        },
        timing: Timing {
            step: Duration::from_millis(200),
            heartbeat: HeartbeatCfgs {
                every: Duration::from_millis(20),
                gone_after: Duration::from_millis(100),
            },
        },
    }
}

fn connection(connection: u16, epoch: u32) -> ConnectionRequest {
    ConnectionRequest {
        connection,
        nic: 0,
        gpu_turn: 0,
        epoch,
        slots: 4,
        request_stride: 64,
        response_stride: 24,
        transport: End::new("tcp", "07".repeat(32)),
    }
}

fn grant(request: &ConnectionRequest) -> ConnectionGrant {
    ConnectionGrant {
        connection: request.connection,
        epoch: request.epoch,
        slots: request.slots,
        nic: 0,
        gpu: None,
        transport: End::new("tcp", "127.0.0.1:7410".to_owned()),
    }
}

/// A change of one unit: a frame in clear, or the records of a frame.
#[derive(Clone, Debug)]
enum Attack {
    /// Changes text in clear.
    Replace(&'static str, &'static str),
    /// Flips one bit of the byte at this place, counted from the end for a negative place.
    Flip(isize),
    Repeat,
    /// Forwards the first half, and closes.
    Cut,
    /// Forwards these bytes of another session instead.
    Splice(Vec<u8>),
}

/// One direction of a path: its units so far, and the change of the unit with this number.
#[derive(Default)]
struct Way {
    units: Vec<Vec<u8>>,
    attack: Option<(usize, Attack)>,
    is_cut: bool,
}

impl Way {
    fn pass(&mut self, mut unit: Vec<u8>) -> Vec<u8> {
        let index = self.units.len();
        self.units.push(unit.clone());
        match self.attack.as_ref().filter(|(at, _)| *at == index) {
            _ if self.is_cut => unit.clear(),
            None => {}
            Some((_, Attack::Replace(old, new))) => {
                let text = String::from_utf8_lossy(&unit[4..]).replace(old, new);
                unit = [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
            }
            Some((_, Attack::Flip(at))) => {
                let at = at.rem_euclid(unit.len() as isize) as usize;
                unit[at] ^= 1;
            }
            Some((_, Attack::Repeat)) => unit = unit.repeat(2),
            Some((_, Attack::Cut)) => {
                unit.truncate(unit.len() / 2);
                self.is_cut = true;
            }
            Some((_, Attack::Splice(other))) => unit = other.clone(),
        }
        unit
    }
}

/// A core with its framing.
struct Side<C> {
    core: C,
    framing: Framing,
}

impl<C: Core> Side<C> {
    fn new(core: C) -> Self {
        let framing = Framing::new();
        Side { core, framing }
    }

    /// Carries all frames to `to`, without delay. Returns whether any came.
    fn carry<D: Core>(&mut self, to: &mut Side<D>, way: &mut Way, now: u64) -> bool {
        let mut any = false;
        while self.framing.transmit(self.core.link_mut(), now) {
            any = true;
            let unit = way.pass(self.framing.output.split().to_vec());
            to.framing.receive(&mut to.core, &unit, now);
            if way.is_cut {
                to.framing.end(&mut to.core, now);
            }
        }
        self.core.link_mut().note_flushed(now);
        any
    }

    fn cause(&self) -> Option<&ControlError> {
        self.core.link().cause()
    }

    fn handle(&mut self, message: Message) {
        self.core.handle(message, 0);
    }

    /// The last frame that it sends.
    fn last_word(&mut self) -> Option<Message> {
        std::iter::from_fn(|| self.core.link_mut().poll_transmit(0)).last()
    }

    /// The last frame, which must be an error.
    fn error(&mut self) -> (ErrorCode, String) {
        match self.last_word() {
            Some(Message::Error { code, text }) => (code, text),
            other => panic!("{other:?}"),
        }
    }
}

fn frontend(local: LocalNode) -> Side<Frontend<usize>> {
    let nonce = Hex::random().expect("random bytes");
    let address = "10.0.0.2:7400".to_owned();
    Side::new(Frontend::new(Arc::new(local), address, nonce, 0))
}

fn accelerator(local: LocalNode) -> Side<Accelerator> {
    let nonce = Hex::random().expect("random bytes");
    let address = "10.0.0.1:999".to_owned();
    Side::new(Accelerator::new(Arc::new(local), address, nonce, 0))
}

impl Side<Frontend<usize>> {
    fn open(&mut self, connections: Vec<ConnectionRequest>, token: usize) {
        let open = |id| Message::Open { id, connections };
        self.core.ask("opened", open, token);
    }

    fn ask(&mut self, answer: &'static str, request: fn(u64) -> Message, token: usize) {
        self.core.ask(answer, request, token);
    }
}

/// A frontend, an accelerator and the path between them: to the frontend, and from it.
struct Pair {
    front: Side<Frontend<usize>>,
    node: Side<Accelerator>,
    ways: [Way; 2],
    /// The frontend that is served already.
    served: Option<&'static str>,
}

impl Pair {
    fn new(front: LocalNode, node: LocalNode) -> Self {
        Pair {
            front: frontend(front),
            node: accelerator(node),
            ways: Default::default(),
            served: None,
        }
    }

    /// Two nodes in a session.
    fn in_session() -> Self {
        let mut pair = Pair::new(local("fe-1"), local("acc-1"));
        let (here, there) = pair.meet();
        assert!(matches!(&here[..], [Event::Connected(n)] if n == "acc-1"));
        use AcceleratorEvent::Handshake;
        use HandshakeStep::{Connected, Proved};
        assert!(
            matches!(&there[..], [Handshake(Proved), Handshake(Connected(n))] if n == "fe-1"),
            "{there:?}"
        );
        pair
    }

    /// Exchanges all frames, without delay, and answers the question of admission.
    fn meet(&mut self) -> (Vec<Event<usize>>, Vec<AcceleratorEvent>) {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        loop {
            let [to_front, to_node] = &mut self.ways;
            let mut any = self.front.carry(&mut self.node, to_node, 0)
                | self.node.carry(&mut self.front, to_front, 0);
            while let Some(e) = self.node.core.poll_event() {
                any = true;
                match e {
                    AcceleratorEvent::Handshake(HandshakeStep::Admit(_)) => {
                        let place = self.served.map_or(Ok(()), |node| Err(node.to_owned()));
                        self.node.core.admit(place, 0);
                    }
                    e => there.push(e),
                }
            }
            while let Some(e) = self.front.core.poll_event() {
                any = true;
                here.push(e);
            }
            if !any {
                return (here, there);
            }
        }
    }

    /// Both sides' causes after one handshake, as text.
    fn causes(&mut self) -> [String; 2] {
        self.meet();
        let text = |cause: Option<&ControlError>| cause.map_or(String::new(), ToString::to_string);
        [text(self.front.cause()), text(self.node.cause())]
    }
}
