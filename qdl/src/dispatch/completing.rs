//! Completion of a turn's arrivals: hand them over, free their slots, later record their times.

use std::sync::atomic::Ordering;

use super::{
    Part, Response, SampleTimes, Shared,
    answers::{Piece, Seen, payload},
    nic::FrontendNic,
};
use fabric::clock::now_ns;

/// Times at which a turn's answers were seen and handed over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handed {
    seen_ns: u64,
    completed_ns: u64,
}

impl FrontendNic {
    /// Hands over this turn's parts, then its answers, in one call each; then frees the slots.
    /// [`Self::record`] records the times later in the same turn.
    pub(super) fn complete(&mut self, now: u64) -> Handed {
        let shared = self.shared.clone();
        for what in self.came.contradictions.drain(..) {
            self.completer.contradicted(what);
        }
        if !self.came.pieces.is_empty() {
            self.hand_parts_over(&shared, now);
        }
        let mut handed = Handed::default();
        if !self.came.seen.is_empty() {
            handed = self.hand_answers_over(&shared, now);
        }
        // After the hand-over of parts, since a different thread may complete these samples.
        for (connection, slot, sample) in self.came.spoilt.drain(..) {
            let mut none = None;
            let up = self.up.iter_mut().find(|u| u.connection == connection);
            let worn = up.map_or(&mut none, |u| &mut u.worn);
            let connection = &shared.connections[connection];
            connection.tracker.release(slot);
            shared.goes_again(connection, sample, worn);
        }
        for refused in self.came.refused.drain(..) {
            let epoch = self.up.get(refused.up).map_or(0, |u| u.epoch);
            shared.refused(epoch, &refused);
        }
        handed
    }

    fn hand_parts_over(&mut self, shared: &Shared, now: u64) {
        let pieces = &self.came.pieces;
        for p in pieces {
            if let Some(coming) = self.up[p.up].coming.get_mut(usize::from(p.slot)) {
                coming.after_ns += now.saturating_sub(p.in_flight.posted_ns);
                if p.at == 0 {
                    coming.first_ns = now;
                }
            }
        }
        let part = |p: &Piece| {
            let window = &shared.connections[p.connection].window;
            Part {
                id: p.in_flight.sample.id,
                index: p.in_flight.sample.index,
                at: p.at,
                // SAFETY: these bytes have arrived (`Shared::arrived`). The slot is granted again
                // only after its release, which follows the last part or the loss of the
                // connection.
                payload: unsafe { payload(window, p.slot, p.at, p.len) },
                first: p.first,
                losses: p.in_flight.sample.tries.losses,
            }
        };
        self.completer.parts(&mut pieces.iter().map(part));
        shared.parts[self.share].fetch_add(pieces.len() as u64, Ordering::Relaxed);
        self.came.pieces.clear();
    }

    fn hand_answers_over(&mut self, shared: &Shared, now: u64) -> Handed {
        let response = |s: &Seen| {
            let window = &shared.connections[s.connection].window;
            Response {
                id: s.in_flight.sample.id,
                index: s.in_flight.sample.index,
                connection: s.connection,
                // SAFETY: the receiving half has closed the grant (`Shared::arrived`). The peer may
                // write the slot only after a new grant, which follows the release below.
                payload: unsafe { payload(window, s.slot, 0, s.header.len) },
                whole: s.in_flight.sample.first.is_none(),
            }
        };
        self.completer
            .complete(&mut self.came.seen.iter().map(response));
        let done = now_ns();
        self.completed()
            .fetch_add(self.came.seen.len() as u64, Ordering::Release);
        if let Some(h) = shared.health.get() {
            for s in &self.came.seen {
                let f = &s.in_flight;
                let residence = u64::from(s.residence_us()) * 1000;
                let network = now.saturating_sub(f.posted_ns).saturating_sub(residence);
                h.arbiter.complete(s.connection, f.sample.len, network);
            }
        }
        for of_one in self.came.seen.chunk_by(|a, b| a.connection == b.connection) {
            if let Some(first) = of_one.first() {
                let tracker = &shared.connections[first.connection].tracker;
                tracker.release_all(of_one.iter().map(|s| s.slot));
            }
        }
        Handed {
            seen_ns: now,
            completed_ns: done,
        }
    }

    /// Records the times of this turn's answers.
    pub(super) fn record(&mut self, handed: Handed) {
        let Handed {
            seen_ns: now,
            completed_ns: done,
        } = handed;
        for alike in self.came.seen.chunk_by(Seen::is_alike) {
            let (Some(s), n) = (alike.first(), alike.len() as u64) else {
                continue;
            };
            let f = &s.in_flight;
            let round_trip = now.saturating_sub(f.posted_ns);
            let residence = s.residence_us();
            let up = &mut self.up[s.up];
            up.carried.bytes_out += n * u64::from(f.sample.len);
            up.carried.bytes_in += n * u64::from(s.header.len);
            let coming = up.coming.get(usize::from(s.slot));
            let (first_ns, first_residence_us, after_ns) = match coming {
                Some(c) if s.parts > 1 => (c.first_ns, c.first_residence_us, c.after_ns),
                _ => (now, residence, 0),
            };
            // A retried answer may have begun before the loss: its first token came then.
            let first_ns = match f.sample.first {
                Some(first) if first.at_ns.get() < f.posted_ns => first.at_ns.get(),
                _ => first_ns,
            };
            let after_us = (after_ns + round_trip) / u64::from(s.parts.max(1)) / 1000;
            let times = SampleTimes {
                issued_ns: f.sample.issued_ns,
                failed_ns: f.sample.tries.failed_ns(f.sample.issued_ns),
                posted_ns: f.posted_ns,
                seen_ns: now,
                completed_ns: done,
                queue_us: s.header.queue_us,
                compute_us: s.header.compute_us,
                bytes_out: f.sample.len,
                bytes_in: s.header.len,
                first_ns,
                first_residence_us,
                parts: s.parts,
                parts_after_us: u32::try_from(after_us).unwrap_or(u32::MAX),
                parts_residence_us: s.mean_us,
                connection: s.connection as u32,
            };
            self.completer.record(&times, n);
        }
        self.came.seen.clear();
    }
}
