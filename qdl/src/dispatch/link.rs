//! State of a frontend's connection that is up, which only its NIC thread uses.

use super::{Attempt, Connection, connection::Figures, progress::ResponseProgress};
use crate::connection::{Echo, EchoCfgs, share::LiveConnection};
use fabric::{PathReading, Rx, clock::now_ns};

/// Interval of path readings: 100 ms. Each reading costs a system call.
const LOOK_AT_PATH_NS: u64 = 100_000_000;

/// Interval between updates of a connection's live figures: 40 ms.
const SHOW_NS: u64 = 40_000_000;

/// An epoch of a connection, as commands name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    /// Index of the connection.
    pub connection: usize,
    pub epoch: u32,
}

/// A connection that is up.
pub(super) type FrontendLink = LiveConnection<Attachment, LinkState>;

/// Answers of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub samples: u64,
    /// Payload bytes of the answered requests.
    pub bytes_out: u64,
    /// Payload bytes of the responses.
    pub bytes_in: u64,
}

pub(super) struct LinkState {
    pub echo: Echo,
    /// Answers since the last update of the live figures, at `shown_ns`.
    pub unshown: Carried,
    shown_ns: u64,
    /// Answers since the last path reading.
    pub answered: u64,
    path: PathReading,
    path_ns: u64,
    pub progress: ResponseProgress,
    /// The worn-out sample with the most losses, if any.
    pub too_often_lost: Option<Attempt>,
}

impl LinkState {
    /// State of a link of a new epoch.
    pub(crate) fn new(connection: &Connection, echo: EchoCfgs) -> Self {
        let now_ns = now_ns();
        let slots_in_parts = match connection.window.takes_parts() {
            true => connection.cfgs.slots,
            false => 0,
        };
        LinkState {
            echo: Echo::new(echo, now_ns),
            unshown: Carried::default(),
            shown_ns: now_ns,
            answered: 0,
            path: PathReading::default(),
            path_ns: now_ns,
            progress: ResponseProgress::new(slots_in_parts),
            too_often_lost: None,
        }
    }

    /// Updates the live figures.
    pub(crate) fn show(&mut self, connection: &Connection) {
        let unshown = std::mem::take(&mut self.unshown);
        let tick = &mut connection.figures().tick;
        tick.samples += unshown.samples;
        tick.bytes_out += unshown.bytes_out;
        tick.bytes_in += unshown.bytes_in;
    }

    /// Updates the live figures when the update is due.
    pub(crate) fn show_at(&mut self, connection: &Connection, now_ns: u64) {
        if now_ns.saturating_sub(self.shown_ns) >= SHOW_NS {
            self.shown_ns = now_ns;
            self.show(connection);
        }
    }

    /// Takes a path reading when it is due, and adds it to the counts while samples are in flight.
    pub(crate) fn look_at_path(&mut self, connection: &Connection, rx: &mut dyn Rx, now_ns: u64) {
        let span_ns = now_ns.saturating_sub(self.path_ns);
        if span_ns < LOOK_AT_PATH_NS {
            return;
        }
        let Some(reading) = rx.path() else {
            return;
        };
        self.path_ns = now_ns;
        let before = std::mem::replace(&mut self.path, reading);
        let answered = std::mem::take(&mut self.answered);
        let is_used = connection.tracker.in_flight() > 0;
        let Figures { tick, record } = &mut *connection.figures();
        if is_used || answered > 0 {
            // The kernel's round trip is an average, so it is valid although no sample may be in
            // flight now: few and quick samples are rarely in flight at a reading.
            tick.rtt_us = Some(reading.rtt_us);
        }
        if is_used {
            record.path.look(&reading, &before, span_ns / 1000);
            tick.retransmits = record.path.retransmits;
            tick.window_limited_us = record.path.rwnd_limited_us;
        }
    }
}
