//! A frontend's connection that is up: its link, and the state that only its NIC thread uses.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Connection, Sample, progress::Progress};
use crate::{
    connection::{Echo, EchoCfgs, Receiving},
    counters::look,
};
use fabric::{Broken, PathReading, Rx, clock::now_ns};

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

pub(super) struct FrontendLink {
    pub connection: usize,
    pub epoch: u32,
    pub half: Receiving,
    pub echo: Echo,
    /// The echo timed out. Bytes that the next poll finds still count as a sign of life.
    pub silent: Option<Broken>,
    pub taken: u64,
    /// Payload bytes of those responses and their requests.
    pub carried: PayloadBytes,
    /// Clock, samples and bytes at the last update of the live figures.
    shown: (u64, u64, PayloadBytes),
    /// Clock and value of the last path reading.
    path: (u64, PathReading),
    taken_at_look: u64,
    /// Parts of each slot's answer so far; empty where answers come in one piece.
    pub progress: Box<[Progress]>,
    /// The arbiter by health knows that the connection is up.
    pub known: bool,
    /// The worn-out sample with the most losses, if any.
    pub worn: Option<Sample>,
}

impl FrontendLink {
    /// A link of a new epoch; `slots` slots have answers in parts: all, or 0.
    pub(crate) fn new(
        (connection, epoch): (usize, u32),
        rx: Box<dyn Rx>,
        echo: EchoCfgs,
        slots: usize,
    ) -> Self {
        FrontendLink {
            connection,
            epoch,
            half: Receiving::new(rx),
            echo: Echo::new(echo, now_ns()),
            silent: None,
            taken: 0,
            carried: PayloadBytes::default(),
            shown: (now_ns(), 0, PayloadBytes::default()),
            path: (now_ns(), PathReading::default()),
            taken_at_look: 0,
            progress: vec![Progress::default(); slots].into(),
            known: false,
            worn: None,
        }
    }

    pub(crate) fn show(&mut self, connection: &Connection) {
        let (_, taken, carried) = self.shown;
        let live = &connection.live;
        let add = |to: &AtomicU64, n: u64| {
            to.fetch_add(n, Ordering::Relaxed);
        };
        add(&live.samples, self.taken - taken);
        add(&live.bytes_out, self.carried.bytes_out - carried.bytes_out);
        add(&live.bytes_in, self.carried.bytes_in - carried.bytes_in);
        (self.shown.1, self.shown.2) = (self.taken, self.carried);
    }

    /// Updates the live figures when the update is due.
    pub(crate) fn show_at(&mut self, connection: &Connection, now: u64) {
        if now.saturating_sub(self.shown.0) >= SHOW_NS {
            self.shown.0 = now;
            self.show(connection);
        }
    }

    /// Takes a path reading when it is due, and adds it to the counts while samples are in flight.
    pub(crate) fn look_at_path(&mut self, connection: &Connection, now: u64) {
        let (at, before) = self.path;
        let span = now.saturating_sub(at);
        if span < LOOK_AT_PATH_NS {
            return;
        }
        let Some(reading) = self.half.rx.path() else {
            return;
        };
        self.path = (now, reading);
        let carried = self.taken - std::mem::replace(&mut self.taken_at_look, self.taken);
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
