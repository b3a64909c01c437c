//! Cores without sockets: refused handshakes and refused orders. The world has sessions whose
//! streams are slow, cut or silent.

mod refusals;

use std::{sync::Arc, time::Duration};

use fabric::wire::Stream;
use record::EngineInfo;

use super::{
    Core, HandshakeStep, LocalNode, RolePart, Timing,
    accelerator::{Accelerator, Event as AcceleratorEvent},
    frontend::{ClientEvent, Event, Frontend},
    heartbeat::{HeartbeatCfgs, nanos},
};
use crate::{
    control::{
        auth::Auth,
        error::ControlError,
        message::{ConnectionGrant, ConnectionRequest, ErrorCode, Hex, Message},
        tests::{self, connection, grant, token},
    },
    model::ModelSpec,
};

const MS: u64 = 1_000_000;

/// A node with short time limits.
fn local(node: &str) -> LocalNode {
    LocalNode {
        timing: Timing {
            step: Duration::from_millis(200),
            heartbeat: HeartbeatCfgs {
                every: Duration::from_millis(20),
                gone_after: Duration::from_millis(100),
            },
        },
        ..tests::local(node)
    }
}

fn frontend(local: LocalNode) -> Frontend<usize> {
    Frontend::new(Arc::new(local), "10.0.0.2:7400".to_owned(), Hex([1; 32]), 0)
}

fn accelerator(local: LocalNode) -> Accelerator {
    Accelerator::new(Arc::new(local), "10.0.0.1:999".to_owned(), Hex([2; 32]), 0)
}

impl Frontend<usize> {
    fn open(&mut self, connections: Vec<ConnectionRequest>, token: usize) {
        self.ask("opened", |id| Message::Open { id, connections }, token);
    }

    fn start(&mut self, token: usize) {
        self.ask("ready", |id| Message::Start { id }, token);
    }

    fn name(&mut self, token: usize) {
        self.ask("name_is", |id| Message::Name { id }, token);
    }

    fn drain(&mut self, token: usize) {
        self.ask("drained", |id| Message::Drain { id }, token);
    }

    fn describe(&mut self, token: usize) {
        self.ask("described", |id| Message::Describe { id }, token);
    }
}

/// Delivers every frame from one core to the other, without delay.
fn carry<A: Core, B: Core>(from: &mut A, to: &mut B, now: u64) -> bool {
    let mut any = false;
    while let Some(m) = from.link_mut().poll_transmit(now) {
        any = true;
        to.handle(m, now);
    }
    from.link_mut().note_flushed(now);
    any
}

/// Exchanges all frames between both cores, without delay. The accelerator's owner admits any
/// frontend.
fn meet(
    f: &mut Frontend<usize>,
    a: &mut Accelerator,
    now: u64,
) -> (Vec<Event<usize>>, Vec<AcceleratorEvent>) {
    let (mut there, mut here) = (Vec::new(), Vec::new());
    loop {
        let mut any = carry(f, a, now) | carry(a, f, now);
        while let Some(e) = a.poll_event() {
            any = true;
            match e {
                AcceleratorEvent::Handshake(HandshakeStep::Admit(_)) => a.admit(Ok(()), now),
                e => there.push(e),
            }
        }
        while let Some(e) = f.poll_event() {
            any = true;
            here.push(e);
        }
        if !any {
            return (here, there);
        }
    }
}

/// Makes two cores in a session.
fn session() -> (Frontend<usize>, Accelerator) {
    let (mut f, mut a) = (frontend(local("fe-1")), accelerator(local("acc-1")));
    let (here, there) = meet(&mut f, &mut a, 0);
    assert!(
        matches!(&here[..], [Event::Connected(n)] if n == "acc-1"),
        "{here:?}"
    );
    use AcceleratorEvent::Handshake;
    use HandshakeStep::{Connected, Proved};
    assert!(
        matches!(&there[..], [Handshake(Proved), Handshake(Connected(n))] if n == "fe-1"),
        "{there:?}"
    );
    (f, a)
}
