//! Formats a session from the accelerator's side.

use record::{ServedConnection, ServedReport};

use view::{
    grouped,
    model::{Cell, row, table},
    node::{TRAFFIC, places, traffic},
    short, terminal,
};

/// Formats the session for a terminal: a headline, a row per connection, and the reconciliation.
pub fn served(report: &ServedReport) -> String {
    let total = report.total();
    let n = grouped;
    let [arrived, answered] = [total.arrived, total.answered].map(n);
    let [refused, dropped] = [total.refused, total.dropped_late].map(n);
    let mut out = format!(
        "served {}: {arrived} samples arrived, {answered} answered, {refused} refused, {dropped} \
         without an answer\n",
        report.frontend
    );
    let of = |name: String, c: &ServedConnection| {
        let figures = [short(c.arrived), short(c.answered)].into_iter();
        let figures = figures.chain(traffic(&c.tx, &c.rx, c.wakeups, c.blocked));
        row(Cell::words(name), figures)
    };
    let one = |c: &ServedConnection| {
        let lost = if c.lost { ", lost" } else { "" };
        let again = match c.epoch {
            n @ 2.. => format!(" ({n})"),
            _ => String::new(),
        };
        of(format!("{}{again}{lost}", c.connection), c)
    };
    let mut rows: Vec<_> = report.connections.iter().map(one).collect();
    if rows.len() != 1 {
        rows.push(of(format!("all {}", rows.len()), &total));
    }
    let heading = format!("connection|arrived|answered|{TRAFFIC}");
    out.push_str(&terminal::parts(&[table(&heading, rows)]));
    let ran = match &report.sequences {
        Some(s) => format!("{} sequences of {} tokens", n(s.answered), n(s.tokens)),
        None => {
            let (batches, copies) = (n(report.batches.batches()), n(report.engine_copies));
            format!("{batches} batches, {copies} inputs copied for them")
        }
    };
    let (slept, woken) = (n(report.waits.sleeps), n(report.waits.woken));
    out.push_str(&format!(
        "NIC threads slept {slept} times and were woken {woken} times by another thread; {ran}\n"
    ));
    for line in places(&report.places) {
        out.push_str(&format!("{line}\n"));
    }
    for m in &report.mismatches {
        out.push_str(&format!("MISMATCH     {m}\n"));
    }
    if !report.mismatches.is_empty() {
        return out;
    }
    if !report.clean {
        out.push_str("not compared: the session ended before its drain\n");
    } else if total.lost {
        out.push_str("reconciled   arrived = answered on each connection that was not lost\n");
    } else {
        let ran = match &report.sequences {
            Some(_) => "sequences",
            None => "samples in batches",
        };
        let answered = match total.refused.saturating_add(total.dropped_late) {
            0 => "answered = sent",
            _ => "answered, refused and without an answer",
        };
        out.push_str(&format!(
            "reconciled   received = arrived = {answered}, until each connection was closed; \
             as many {ran}\n"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use record::SequenceTotals;

    use super::*;

    fn good() -> ServedReport {
        let connection = |connection, n| ServedConnection {
            connection,
            arrived: n,
            answered: n,
            ..ServedConnection::default()
        };
        ServedReport {
            frontend: "frontend-01".to_owned(),
            clean: true,
            connections: vec![connection(0, 5), connection(1, 7)],
            ..ServedReport::default()
        }
    }

    #[test]
    fn the_text_has_a_line_for_each_connection_and_one_for_all() {
        let text = served(&good());
        assert!(text.starts_with(
            "served frontend-01: 12 samples arrived, 12 answered, 0 refused, 0 without an answer\n"
        ));
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 112), "{text}");
    }

    #[test]
    fn what_was_compared_and_what_ran_is_said() {
        let mut report = good();
        report.mismatches = vec!["writes received differ".to_owned()];
        assert!(served(&report).contains("MISMATCH     writes received differ\n"));
        report = ServedReport {
            clean: false,
            sequences: Some(SequenceTotals {
                answered: 12,
                tokens: 3400,
            }),
            ..good()
        };
        assert!(served(&report).contains("not compared"));
        report.clean = true;
        let text = served(&report);
        assert!(text.contains("; 12 sequences of 3,400 tokens\n"), "{text}");
        assert!(text.contains("; as many sequences\n"), "{text}");
        assert!(!text.contains("batches"), "{text}");
    }
}
