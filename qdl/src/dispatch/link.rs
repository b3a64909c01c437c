//! State of a frontend's connection that is up, which only its NIC thread uses.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Connection, Sample, progress::Progress};
use crate::{
    connection::{Echo, EchoCfgs},
    counters::look,
};
use fabric::{PathReading, Rx, clock::now_ns};

/// Interval of path readings: 100 ms. Each reading costs a system call.
const LOOK_AT_PATH_NS: u64 = 100_000_000;

/// Interval between updates of a connection's live figures: 40 ms.
const SHOW_NS: u64 = 40_000_000;

/// Payload bytes of completed samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PayloadBytes {
    pub bytes_out: u64,
    pub bytes_in: u64,
}

pub(super) struct LinkState {
    pub echo: Echo,
    /// Samples answered.
    pub answered: u64,
    /// Payload bytes of those responses and their requests.
    pub carried: PayloadBytes,
    /// Clock, samples and bytes at the last update of the live figures.
    shown: (u64, u64, PayloadBytes),
    /// Clock and value of the last path reading.
    path: (u64, PathReading),
    answered_at_look: u64,
    /// Parts of each slot's answer so far; empty where answers come in one piece.
    pub progress: Box<[Progress]>,
    /// The worn-out sample with the most losses, if any.
    pub worn_out: Option<Sample>,
}

impl LinkState {
    /// State of a link of a new epoch.
    pub(crate) fn new(connection: &Connection, echo: EchoCfgs) -> Self {
        let now = now_ns();
        let slots_in_parts = match connection.window.takes_parts() {
            true => connection.cfgs.slots,
            false => 0,
        };
        LinkState {
            echo: Echo::new(echo, now),
            answered: 0,
            carried: PayloadBytes::default(),
            shown: (now, 0, PayloadBytes::default()),
            path: (now, PathReading::default()),
            answered_at_look: 0,
            progress: vec![Progress::default(); slots_in_parts].into(),
            worn_out: None,
        }
    }

    pub(crate) fn show(&mut self, connection: &Connection) {
        let (_, answered, carried) = self.shown;
        let live = &connection.live;
        let add = |to: &AtomicU64, n: u64| {
            to.fetch_add(n, Ordering::Relaxed);
        };
        add(&live.samples, self.answered - answered);
        add(&live.bytes_out, self.carried.bytes_out - carried.bytes_out);
        add(&live.bytes_in, self.carried.bytes_in - carried.bytes_in);
        (self.shown.1, self.shown.2) = (self.answered, self.carried);
    }

    /// Updates the live figures when the update is due.
    pub(crate) fn show_at(&mut self, connection: &Connection, now: u64) {
        if now.saturating_sub(self.shown.0) >= SHOW_NS {
            self.shown.0 = now;
            self.show(connection);
        }
    }

    /// Takes a path reading when it is due, and adds it to the counts while samples are in flight.
    pub(crate) fn look_at_path(&mut self, connection: &Connection, rx: &mut dyn Rx, now: u64) {
        let (at, before) = self.path;
        let span = now.saturating_sub(at);
        if span < LOOK_AT_PATH_NS {
            return;
        }
        let Some(reading) = rx.path() else {
            return;
        };
        self.path = (now, reading);
        let carried = self.answered - std::mem::replace(&mut self.answered_at_look, self.answered);
        let on_it = connection.tracker.in_flight() > 0;
        if on_it || carried > 0 {
            // The kernel's round trip is an average, so it is valid although no sample may be in
            // flight now: few and quick samples are rarely in flight at a reading.
            let rtt = &connection.live.rtt_us;
            rtt.store(reading.rtt_us + 1, Ordering::Relaxed);
        }
        if on_it {
            let mut counts = connection.counts();
            look(&mut counts.path, &reading, &before, span / 1000);
            let live = &connection.live;
            live.retransmits
                .store(counts.path.retransmits, Ordering::Relaxed);
            live.window_limited_us
                .store(counts.path.rwnd_limited_us, Ordering::Relaxed);
        }
    }
}
