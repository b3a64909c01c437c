//! Frames that only a faulty peer sends, for a simulation.

use super::{ClientHandle, ServerHandle};
use crate::control::{
    core::{Core, link::Link},
    message::{Counters, ErrorCode, Message},
};

/// An id and an epoch that no peer knows, and a sequence number out of turn.
const NONE: u32 = 1_000_000;

/// Sends frame number `n`.
fn lie(link: &mut Link, n: u64) {
    let id = u64::from(NONE);
    let frame = match n % 8 {
        0 => Message::Start { id },
        1 => Message::Ready { id },
        2 => Message::Refused {
            id,
            code: ErrorCode::Protocol,
            text: "a lie".to_owned(),
        },
        3 => Message::Heartbeat {
            seq: id,
            counters: None,
            scores: None,
        },
        4 => Message::ConnectionLost {
            connection: u16::MAX,
            epoch: 1,
            cause: "a lie".to_owned(),
        },
        5 => Message::ConnectionReset {
            connection: 0,
            epoch: NONE,
        },
        6 => return link.beat(Some(Counters::default()), None),
        _ => {
            link.say(Message::Describe { id });
            Message::Describe { id: id + 1 }
        }
    };
    link.say(frame);
}

impl ClientHandle {
    /// Sends a frame that a sound frontend does not send, by its number.
    pub(crate) fn lie(&self, n: u64) {
        self.command(move |session, _| lie(session.link_mut(), n));
    }
}

impl ServerHandle {
    /// Sends a frame that a sound accelerator does not send, by its number.
    pub(crate) fn lie(&self, n: u64) {
        self.command(move |session, _| lie(session.link_mut(), n));
    }
}
