//! Readings of a connection's path, as a record.

use fabric::PathReading;
use record::PathUse;

/// Adds the reading `now` of a path; `before` is the reading taken `span_us` microseconds earlier.
pub(crate) fn look(path: &mut PathUse, now: &PathReading, before: &PathReading, span_us: u64) {
    // The counts of a new socket begin at 0.
    let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    path.looks += 1;
    path.looked_us += span_us;
    path.busy_us += since(now.busy_us, before.busy_us).min(span_us);
    path.rwnd_limited_us += since(now.rwnd_limited_us, before.rwnd_limited_us).min(span_us);
    path.retransmits += since(now.retransmits, before.retransmits);
    path.rtt_us += now.rtt_us;
    if now.min_rtt_us > 0 && (path.min_rtt_us == 0 || now.min_rtt_us < path.min_rtt_us) {
        path.min_rtt_us = now.min_rtt_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_add_up_and_a_new_socket_counts_from_nothing() {
        let reading = |busy_us, rtt_us, min_rtt_us| PathReading {
            busy_us,
            rtt_us,
            min_rtt_us,
            ..PathReading::default()
        };
        let mut path = PathUse::default();
        for (now, before) in [
            (reading(300, 50, 20), reading(100, 0, 0)),
            (reading(120, 70, 0), reading(300, 50, 20)),
            (reading(9_000, 90, 10), reading(120, 70, 20)),
        ] {
            look(&mut path, &now, &before, 250);
        }
        assert_eq!((path.looks, path.looked_us), (3, 750));
        assert_eq!(
            path.busy_us,
            200 + 120 + 250,
            "no more than the time between two looks"
        );
        assert_eq!((path.rtt_us, path.min_rtt_us), (210, 10));
    }
}
