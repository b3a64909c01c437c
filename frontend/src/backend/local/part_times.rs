//! Times of answers that arrive in parts, by slot.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use qdl::{
    connection::tracker::InFlight,
    counters::SampleTimes,
    serve::{Finished, OutputPart},
};

/// One record per slot. Parts and end of an answer arrive one after the other, so the accesses do
/// not race and are relaxed.
pub(super) struct PartTimes(Box<[CachePadded<PartTime>]>);

#[derive(Default)]
struct PartTime {
    first_ns: AtomicU64,
    first_residence_us: AtomicU32,
    first_bytes: AtomicU32,
    /// Sum over parts of the microseconds since the arrival was made.
    after_us: AtomicU64,
}

impl PartTimes {
    pub fn new(slots: usize) -> Self {
        PartTimes((0..slots).map(|_| CachePadded::default()).collect())
    }

    /// Records a part. Returns true for an answer's first part.
    pub fn record(&self, slot: u16, in_flight: &InFlight, part: &OutputPart, now_ns: u64) -> bool {
        let Some(time) = self.0.get(usize::from(slot)) else {
            return false;
        };
        let first = part.from == 0;
        if first {
            let residence = part.queue_us.saturating_add(part.compute_us);
            time.first_ns.store(now_ns, Relaxed);
            time.first_residence_us.store(residence, Relaxed);
            time.first_bytes.store(part.to, Relaxed);
            time.after_us.store(0, Relaxed);
        }
        let after = now_ns.saturating_sub(in_flight.posted_ns) / 1_000;
        time.after_us
            .store(time.after_us.load(Relaxed).saturating_add(after), Relaxed);
        first
    }

    /// Returns the times of a sample whose last or only part arrived at `seen_ns`.
    pub fn times(
        &self,
        slot: u16,
        in_flight: &InFlight,
        f: &Finished,
        [seen_ns, completed_ns]: [u64; 2],
    ) -> SampleTimes {
        let residence = f.queue_us.saturating_add(f.compute_us);
        let after = seen_ns.saturating_sub(in_flight.posted_ns) / 1_000;
        let begun = self.0.get(usize::from(slot)).filter(|_| f.sent.parts > 0);
        let (first_ns, first_residence_us, first_bytes, before_us) =
            begun.map_or((seen_ns, residence, f.len, 0), |m| {
                (
                    m.first_ns.load(Relaxed),
                    m.first_residence_us.load(Relaxed),
                    m.first_bytes.load(Relaxed),
                    m.after_us.load(Relaxed),
                )
            });
        // The first token of a sample sent again may have been reported before the repeat.
        let first_ns = match in_flight.history.first_token {
            Some(first) if first.arrived_ns.get() < in_flight.posted_ns => first.arrived_ns.get(),
            _ => first_ns,
        };
        let parts = f.sent.parts.saturating_add(1);
        let mean = |sum: u64| u32::try_from(sum / u64::from(parts)).unwrap_or(u32::MAX);
        SampleTimes {
            issued_ns: in_flight.sample.issued_ns,
            failed_ns: in_flight
                .history
                .tries
                .failed_ns(in_flight.sample.issued_ns),
            posted_ns: in_flight.posted_ns,
            seen_ns,
            completed_ns,
            queue_us: f.queue_us,
            compute_us: f.compute_us,
            bytes_out: in_flight.sample.len,
            bytes_in: f.len,
            first_ns,
            first_residence_us,
            first_bytes,
            is_prefilled: false,
            decoded_ns: 0,
            parts,
            parts_after_us: mean(before_us.saturating_add(after)),
            parts_residence_us: mean(f.sent.sum_us.saturating_add(u64::from(residence))),
            connection: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use qdl::{connection::tracker::History, dispatch::Sample, serve::Sent};

    use super::*;

    #[test]
    fn times_of_parts_are_averages_and_the_first_is_kept() {
        let all = PartTimes::new(2);
        let in_flight = InFlight {
            sample: Sample {
                len: 12,
                issued_ns: 500,
                ..Sample::default()
            },
            history: History::default(),
            posted_ns: 1_000,
        };
        let part = |from, to, compute_us| OutputPart {
            ticket: 0,
            from,
            to,
            queue_us: 1,
            compute_us,
        };
        let finished = |sent| Finished {
            ticket: 0,
            len: 20,
            queue_us: 1,
            compute_us: 59,
            sent,
        };
        for _ in 0..2 {
            assert!(all.record(1, &in_flight, &part(0, 4, 9), 21_000));
            assert!(!all.record(1, &in_flight, &part(4, 8, 29), 41_000));
        }
        let sent = Sent {
            bytes: 8,
            parts: 2,
            sum_us: 40,
        };
        let t = all.times(1, &in_flight, &finished(sent), [91_000, 92_000]);
        assert_eq!((t.first_ns, t.first_residence_us, t.parts), (21_000, 10, 3));
        assert_eq!((t.parts_after_us, t.parts_residence_us), (50, 33));
        assert_eq!((t.bytes_out, t.bytes_in, t.first_bytes), (12, 20, 4));
        // The next answer in the slot arrives in one piece.
        let t = all.times(1, &in_flight, &finished(Sent::default()), [91_000, 92_000]);
        assert_eq!((t.first_ns, t.first_residence_us, t.parts), (91_000, 60, 1));
        assert_eq!((t.parts_after_us, t.parts_residence_us), (90, 60));
        assert_eq!(t.first_bytes, 20);
    }
}
