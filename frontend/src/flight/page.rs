//! What `frontend flight` prints.

use std::{collections::BTreeMap, fmt::Write};

use anyhow::Context;
use qdl::flight::{Flight, Kind, Record};

/// No more lines of one fault.
const MOST_LINES: usize = 400;

/// What one connection did.
#[derive(Debug, Default)]
struct Connection {
    posted: u64,
    bytes_out: u64,
    arrived: u64,
    bytes_in: u64,
    /// Round trips, or at an accelerator how long samples stayed.
    stays_ns: Vec<u64>,
    lost: u64,
    up: u64,
}

impl Connection {
    fn p(&mut self, quantile: f64) -> String {
        self.stays_ns.sort_unstable();
        let n = self.stays_ns.len();
        let at = (quantile * n as f64).ceil() as usize;
        match self.stays_ns.get(at.saturating_sub(1)) {
            Some(ns) => format!("{:.1}", *ns as f64 / 1000.0),
            None => "-".to_owned(),
        }
    }
}

/// All records of a node in the order of their times, with the index of their thread.
fn in_order(flight: &Flight) -> Vec<(usize, Record)> {
    let threads = flight.threads.iter().enumerate();
    let each = threads.flat_map(|(i, t)| t.records.iter().map(move |r| (i, *r)));
    let mut all: Vec<_> = each.collect();
    all.sort_by_key(|(_, r)| r.at_ns);
    all
}

fn name(flight: &Flight, connection: u16) -> String {
    let name = flight.connections.get(usize::from(connection));
    name.map_or_else(|| format!("connection {connection}"), Clone::clone)
}

fn connections(records: &[(usize, Record)]) -> BTreeMap<u16, Connection> {
    let mut all: BTreeMap<u16, Connection> = BTreeMap::new();
    let mut began: BTreeMap<(u16, u16), u64> = BTreeMap::new();
    for (_, r) in records {
        let slot = (r.connection, r.slot);
        let kind = Kind::from_number(r.kind);
        // A request begins a slot's turn at either node, and a response ends it.
        match kind {
            Some(Kind::Posted) => {
                let c = all.entry(r.connection).or_default();
                c.posted += 1;
                c.bytes_out += u64::from(r.size);
                began.insert(slot, r.at_ns);
            }
            Some(Kind::Arrived) => {
                let c = all.entry(r.connection).or_default();
                c.arrived += 1;
                c.bytes_in += u64::from(r.size);
                match began.remove(&slot) {
                    Some(at) => c.stays_ns.push(r.at_ns.saturating_sub(at)),
                    None => {
                        began.insert(slot, r.at_ns);
                    }
                }
            }
            Some(Kind::Answered) if r.count > 0 => {
                let c = all.entry(r.connection).or_default();
                c.posted += 1;
                c.bytes_out += u64::from(r.size);
                if let Some(at) = began.remove(&slot) {
                    c.stays_ns.push(r.at_ns.saturating_sub(at));
                }
            }
            Some(Kind::Lost) => {
                all.entry(r.connection).or_default().lost += 1;
                began.retain(|(connection, _), _| *connection != r.connection);
            }
            Some(Kind::Up) => all.entry(r.connection).or_default().up += 1,
            _ => {}
        }
    }
    all
}

/// A table of each node's connections, and of its threads.
pub fn summary(flights: &[Flight]) -> String {
    let mut out = String::new();
    for flight in flights {
        let records = in_order(flight);
        let overwritten: u64 = flight.threads.iter().map(|t| t.overwritten).sum();
        let span = match (records.first(), records.last()) {
            (Some((_, first)), Some((_, last))) => last.at_ns - first.at_ns,
            _ => 0,
        };
        let _ = writeln!(
            out,
            "{}: {} records of {} threads over {:.3} s, {overwritten} older ones overwritten",
            flight.node,
            records.len(),
            flight.threads.len(),
            span as f64 / 1e9
        );
        let heading = [
            "posted",
            "bytes out",
            "arrived",
            "bytes in",
            "p50 us",
            "p99 us",
            "lost",
            "up",
        ];
        let _ = write!(out, "{:<24}", "connection");
        heading.iter().for_each(|h| {
            let _ = write!(out, " {h:>10}");
        });
        out.push('\n');
        for (index, mut c) in connections(&records) {
            let mut label = name(flight, index);
            label.truncate(24);
            let cells = [
                c.posted.to_string(),
                c.bytes_out.to_string(),
                c.arrived.to_string(),
                c.bytes_in.to_string(),
                c.p(0.5),
                c.p(0.99),
                c.lost.to_string(),
                c.up.to_string(),
            ];
            let _ = write!(out, "{label:<24}");
            cells.iter().for_each(|cell| {
                let _ = write!(out, " {cell:>10}");
            });
            out.push('\n');
        }
        for t in &flight.threads {
            let mut kinds: BTreeMap<u8, u64> = BTreeMap::new();
            t.records
                .iter()
                .for_each(|r| *kinds.entry(r.kind).or_default() += 1);
            let each = kinds
                .iter()
                .map(|(kind, n)| match Kind::from_number(*kind) {
                    Some(kind) => format!("{n} {}", kind.name()),
                    None => format!("{n} of kind {kind}"),
                });
            let each: Vec<_> = each.collect();
            let _ = writeln!(out, "  {:<22} {}", t.name, each.join(", "));
        }
        out.push('\n');
    }
    out
}

/// Nanoseconds since 1970 of a record, as well as its machine's clock knows.
fn unix_ns(flight: &Flight, at_ns: u64) -> i128 {
    i128::from(flight.dumped_unix_ns) - (i128::from(flight.dumped_ns) - i128::from(at_ns))
}

/// What happened around the `n`th loss, from 1, on all nodes, in order.
pub fn fault(flights: &[Flight], n: usize, around_ms: u64) -> anyhow::Result<String> {
    let mut all: Vec<(i128, usize, usize, Record)> = Vec::new();
    for (f, flight) in flights.iter().enumerate() {
        let each = in_order(flight).into_iter();
        all.extend(each.map(|(t, r)| (unix_ns(flight, r.at_ns), f, t, r)));
    }
    all.sort_by_key(|(at, ..)| *at);
    let losses: Vec<_> = all
        .iter()
        .filter(|(.., r)| r.kind == Kind::Lost as u8)
        .collect();
    let found = n.checked_sub(1).and_then(|i| losses.get(i));
    let (at, f, _, lost) = found.with_context(|| {
        let n = losses.len();
        format!("there are {n} losses on record; --fault takes 1 to {n}")
    })?;
    let span = i128::from(around_ms) * 1_000_000;
    let near = all.iter().filter(|(t, ..)| (t - at).abs() <= span);
    let count = near.clone().count();
    let mut out = format!(
        "fault {n} of {}: {} lost by {}, {count} records within {around_ms} ms\n",
        losses.len(),
        name(&flights[*f], lost.connection),
        flights[*f].node
    );
    // The nearest, where there are too many.
    let mut shown: Vec<_> = near.collect();
    shown.sort_by_key(|(t, ..)| (t - at).abs());
    shown.truncate(MOST_LINES);
    shown.sort_by_key(|(t, ..)| *t);
    for (t, f, thread, r) in shown {
        let flight = &flights[*f];
        let thread = flight.threads.get(*thread).map_or("", |t| t.name.as_str());
        let _ = writeln!(
            out,
            "{:>+12.1} us  {:<16} {:<12} {}",
            (t - at) as f64 / 1000.0,
            flight.node,
            thread,
            words(flight, r)
        );
    }
    Ok(out)
}

fn words(flight: &Flight, r: &Record) -> String {
    let on = name(flight, r.connection);
    let Some(kind) = Kind::from_number(r.kind) else {
        return format!("kind {}", r.kind);
    };
    let what = kind.name();
    match kind {
        Kind::Picked => format!("{what} {on} for {} bytes", r.size),
        Kind::Posted => match r.count {
            0 => format!("{what} slot {} on {on}, {} bytes", r.slot, r.size),
            n => format!(
                "{what} slot {} on {on}, {} bytes, lost {n} times",
                r.slot, r.size
            ),
        },
        Kind::Answered => format!("{what} slot {} on {on}, {} bytes", r.slot, r.size),
        Kind::Arrived => match (r.aux >> 32, r.aux & 0xffff_ffff) {
            (0, 0) => format!("{what} slot {} on {on}, {} bytes", r.slot, r.size),
            (wait, compute) => format!(
                "{what} slot {} on {on}, {} bytes, waited {wait} us, computed {compute} us",
                r.slot, r.size
            ),
        },
        Kind::Rung => format!("{what} for {} on {on}", r.count),
        Kind::Waits => format!("{} in the backlog", r.count),
        Kind::Batch => format!("{what} of {}", r.count),
        Kind::Completed => format!("{what} {}", r.count),
        Kind::Rail => {
            let state =
                |n: u16| ["in service", "congested", "on probation", "down"][usize::from(n & 3)];
            let (from, to) = (state(r.count >> 8), state(r.count & 0xff));
            let score = f64::from(r.size) / 65_536.0;
            format!(
                "{what} {} of accelerator {}: {from} -> {to}, {score:.2}",
                r.slot, r.connection
            )
        }
        Kind::Lost => format!(
            "{what} {on} (epoch {}), {} samples go again",
            r.size, r.count
        ),
        Kind::Up => format!("{what} {on} (epoch {})", r.size),
    }
}

#[cfg(test)]
mod tests {
    use qdl::flight::ThreadFlight;

    use super::*;

    fn record(at_ns: u64, kind: Kind, slot: u16, size: u32) -> Record {
        Record {
            at_ns,
            kind: kind as u8,
            connection: 1,
            slot,
            size,
            count: u16::from(kind == Kind::Answered),
            ..Record::default()
        }
    }

    fn flight(node: &str, unix: u64, records: Vec<Record>) -> Flight {
        Flight {
            node: node.to_owned(),
            dumped_ns: 1_000_000,
            dumped_unix_ns: unix,
            connections: match node {
                "fe" => vec!["acc/0".to_owned(), "acc/1".to_owned()],
                _ => Vec::new(),
            },
            threads: vec![ThreadFlight {
                name: "nic-0".to_owned(),
                records,
                overwritten: 3,
            }],
            ..Flight::default()
        }
    }

    fn two() -> Vec<Flight> {
        let mut lost = record(90_000, Kind::Lost, 0, 1);
        lost.count = 2;
        let fe = vec![
            record(10_000, Kind::Posted, 5, 100),
            record(20_000, Kind::Posted, 6, 100),
            record(60_000, Kind::Arrived, 5, 8),
            lost,
            record(95_000, Kind::Up, 0, 2),
        ];
        // Its clock began 500 us before.
        let acc = vec![
            record(530_000, Kind::Arrived, 5, 100),
            record(540_000, Kind::Answered, 5, 24),
        ];
        vec![
            flight("fe", 9_001_000_000, fe),
            flight("acc", 9_000_500_000, acc),
        ]
    }

    #[test]
    fn connections_are_summed_up() {
        let text = summary(&two());
        let row = |word: &str| {
            let line = text.lines().find(|l| l.starts_with(word)).expect("a row");
            line.split_whitespace()
                .skip(1)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            row("acc/1"),
            ["2", "200", "1", "8", "50.0", "50.0", "1", "1"]
        );
        // An accelerator knows it by its number.
        let there = text
            .lines()
            .find(|l| l.starts_with("connection 1"))
            .expect("a row");
        assert!(there.contains("10.0") && there.contains("100"), "{there}");
        assert!(
            text.contains("3 older ones overwritten") && text.contains("2 posted"),
            "{text}"
        );
    }

    #[test]
    fn a_fault_is_read_in_order_over_all_nodes() {
        let text = fault(&two(), 1, 1).expect("one");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("acc/1 lost by fe, 7 records"), "{text}");
        let words = [
            "posted slot 5",
            "posted slot 6",
            "arrived slot 5",
            "answered slot 5",
            "arrived slot 5",
            "lost acc/1",
            "up acc/1",
        ];
        for (line, word) in lines[1..].iter().zip(words) {
            assert!(line.contains(word), "{word}: {text}");
        }
        assert!(
            lines[1].contains("-80.0 us") && lines[3].contains("acc "),
            "{text}"
        );
        assert!(lines[6].contains("2 samples go again"), "{text}");
        let error = fault(&two(), 2, 1).expect_err("there is one");
        assert!(error.to_string().contains("1 losses"), "{error}");
        assert_eq!(fault(&two(), 1, 0).expect("one").lines().count(), 2);
    }
}
