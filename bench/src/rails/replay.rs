//! `rails --replay flight.bin`: what a real run's frontend recorded, played again through the
//! policies that chose, with a clock of its own; and what would have been with another policy, or
//! without some connections.
//!
//! Each connection is a queue served in order. How long each sample took there comes from the
//! record: a sample that was posted when the connection was idle took what it took; one that was
//! posted behind others took what lies between its answer and the one before. Samples of the replay
//! take those times, idle and busy apart, each once and at about its own time of the run; where
//! none is left, the median. What differs is who chooses. The model knows no faults, no engine that
//! several connections share, and no core that they fight for.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    path::Path,
};

use anyhow::{Context, Result};
use qdl::{
    flight::{Flight, Kind, Record},
    rails::{
        Arbiter, ConnectionRail, HealthCfgs, Load, PeerCfgs, Policy, RailArbiter, RailArbiterCfgs,
        RailId, RailPolicy, Score,
    },
};
use serde::Serialize;

/// How near a replay has to come: bytes of each connection, and p99.
const BYTES_WITHIN: f64 = 0.05;
const P99_WITHIN: f64 = 0.2;
/// What a sample took says something of others that are no further from it.
const ABOUT_NS: u64 = 20_000_000;

/// One sample of the record.
#[derive(Clone, Copy, Debug)]
struct Taken {
    issued_ns: u64,
    posted_ns: u64,
    done_ns: u64,
    connection: usize,
    bytes: u32,
    /// It was posted from the backlog, for which connections are gone through in their order: by a
    /// NIC's thread, or by who found others waiting.
    in_order: bool,
}

/// What a connection did, recorded or played.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Did {
    samples: u64,
    bytes: u64,
    p99_us: f64,
}

/// The outcome of a replay.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Replay {
    policy: String,
    without: Vec<usize>,
    names: Vec<String>,
    recorded: Vec<Did>,
    played: Vec<Did>,
    /// From issue to answer, over all connections.
    recorded_p99_us: f64,
    played_p99_us: f64,
    /// Why it is not within the bounds, or what it could not know.
    notes: Vec<String>,
}

/// Who chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chosen {
    Plain(Policy),
    Rails(RailPolicy),
}

fn policy(name: &str) -> Result<Chosen> {
    Ok(match name {
        "round_robin" => Chosen::Plain(Policy::RoundRobin),
        "least_outstanding" => Chosen::Plain(Policy::LeastOutstanding),
        "best" => Chosen::Rails(RailPolicy::Best),
        "health_best_fit" => Chosen::Rails(RailPolicy::HealthBestFit),
        "health_spray" => Chosen::Rails(RailPolicy::HealthSpray {
            delta: Score::from_f32(0.1),
            above_only: false,
        }),
        other => anyhow::bail!(
            "--policy {other}: one of round_robin, least_outstanding, best, health_best_fit, \
             health_spray"
        ),
    })
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct What<'a> {
    /// Who chooses.
    pub policy: &'a str,
    /// Slots of each connection.
    pub slots: usize,
    /// Connections that are left out.
    pub without: &'a [usize],
}

/// Reads a file, plays it, prints what came of it.
pub fn run(path: &Path, args: What<'_>) -> Result<Replay> {
    let flight = Flight::read(path)?;
    let replay = of(&flight, args)?;
    println!("{}", replay.text());
    Ok(replay)
}

fn of(flight: &Flight, args: What<'_>) -> Result<Replay> {
    let (name, without) = (args.policy, args.without);
    let chosen = policy(name)?;
    let (taken, mut notes) = taken(flight);
    anyhow::ensure!(
        !taken.is_empty(),
        "{}: no sample that was posted and answered is on record; is it a frontend's?",
        flight.node
    );
    let connections = taken.iter().map(|t| t.connection + 1).max().unwrap_or(1);
    let connections = connections.max(flight.connections.len());
    anyhow::ensure!(
        without.iter().all(|w| *w < connections) && without.len() < connections,
        "--without: there are connections 0 to {}, and one must be left",
        connections - 1
    );
    let played = play(&taken, chosen, connections, args.slots, args.without)?;
    let by_health = flight
        .threads
        .iter()
        .flat_map(|t| &t.records)
        .any(|r| r.kind == Kind::Picked as u8);
    if by_health != matches!(chosen, Chosen::Rails(_)) {
        let was = if by_health {
            "by health"
        } else {
            "by connections alone"
        };
        notes.push(format!("the run chose {was}: {name} is another policy"));
    }
    let mut replay = Replay {
        policy: name.to_owned(),
        without: without.to_vec(),
        names: (0..connections)
            .map(|c| match flight.connections.get(c) {
                Some(name) => name.clone(),
                None => format!("connection {c}"),
            })
            .collect(),
        recorded: did(&taken, connections),
        played: did(&played, connections),
        recorded_p99_us: p99(taken.iter().map(|t| t.done_ns - t.issued_ns)),
        played_p99_us: p99(played.iter().map(|t| t.done_ns - t.issued_ns)),
        notes: Vec::new(),
    };
    let far = replay.far();
    if without.is_empty() && !far.is_empty() && notes.is_empty() {
        notes.push(
            "nothing on record explains it: connections share an engine, a core or a link, which \
             this model does not know"
                .to_owned(),
        );
    }
    replay.notes = far.into_iter().chain(notes).collect();
    Ok(replay)
}

/// The samples that were posted and answered, in the order of their issue, and what is not in them.
fn taken(flight: &Flight) -> (Vec<Taken>, Vec<String>) {
    let each = flight.threads.iter().flat_map(|t| {
        let nic = t.name.starts_with("nic");
        let mut waits = 0;
        t.records.iter().map(move |r| {
            if r.kind == Kind::Waits as u8 {
                waits = r.at_ns;
            }
            // Of a request: it was issued before the last that had to wait.
            (r, nic || r.aux <= waits)
        })
    });
    let mut all: Vec<(&Record, bool)> = each.collect();
    // Of one time: a request is posted before it is answered.
    all.sort_by_key(|(r, _)| (r.at_ns, r.kind == Kind::Arrived as u8));
    let mut open: BTreeMap<(u16, u16), (&Record, bool)> = BTreeMap::new();
    let mut taken = Vec::new();
    let (mut lost, mut again, mut answers) = (0u64, 0u64, 0u64);
    for (r, in_order) in &all {
        match Kind::from_number(r.kind) {
            Some(Kind::Posted) => {
                again += u64::from(r.count > 0);
                open.insert((r.connection, r.slot), (r, *in_order));
            }
            Some(Kind::Arrived) => match open.remove(&(r.connection, r.slot)) {
                // Warm-up has no time of issue that is worth anything: it was never issued.
                Some((p, in_order)) if flight.first_ns == 0 || p.aux >= flight.first_ns => {
                    taken.push(Taken {
                        issued_ns: p.aux.min(p.at_ns),
                        posted_ns: p.at_ns,
                        done_ns: r.at_ns.max(p.at_ns),
                        connection: usize::from(p.connection),
                        bytes: p.size,
                        in_order,
                    });
                }
                Some(_) => {}
                None => answers += 1,
            },
            Some(Kind::Lost) => lost += 1,
            _ => {}
        }
    }
    taken.sort_by_key(|t| (t.issued_ns, t.posted_ns));
    let mut notes = Vec::new();
    let overwritten: u64 = flight.threads.iter().map(|t| t.overwritten).sum();
    if overwritten > 0 {
        notes.push(format!(
            "{overwritten} records were overwritten: the beginning is missing; a larger --record \
             keeps it"
        ));
    }
    if answers > 0 {
        notes.push(format!(
            "{answers} answers to requests that are not on record"
        ));
    }
    if lost + again > 0 {
        notes.push(format!(
            "{lost} connections were lost and {again} samples sent again: the model knows no faults"
        ));
    }
    (taken, notes)
}

/// Times of one connection: of samples that found it idle, and busy.
#[derive(Default)]
struct Times {
    idle: Pool,
    busy: Pool,
}

/// When, and how long; each is taken once.
#[derive(Default)]
struct Pool {
    left: VecDeque<(u64, u64)>,
    median_ns: u64,
}

impl Pool {
    /// One of about this time of the run that nobody has taken: a stall that held one sample up
    /// holds up one. Where there is none, the median.
    fn next(&mut self, now: u64) -> u64 {
        while self.left.front().is_some_and(|(at, _)| at + ABOUT_NS < now) {
            self.left.pop_front();
        }
        let near = self
            .left
            .front()
            .is_some_and(|(at, _)| *at <= now + ABOUT_NS);
        let one = if near { self.left.pop_front() } else { None };
        one.map_or(self.median_ns, |(_, ns)| ns)
    }

    fn of(mut all: Vec<(u64, u64)>) -> Self {
        let mut ns: Vec<u64> = all.iter().map(|(_, ns)| *ns).collect();
        ns.sort_unstable();
        all.sort_unstable();
        Pool {
            median_ns: ns.get(ns.len() / 2).copied().unwrap_or(0),
            left: all.into(),
        }
    }
}

fn times(taken: &[Taken], connections: usize) -> Vec<Times> {
    let mut by: Vec<Vec<&Taken>> = vec![Vec::new(); connections];
    taken.iter().for_each(|t| by[t.connection].push(t));
    by.into_iter()
        .map(|mut own| {
            own.sort_by_key(|t| (t.done_ns, t.posted_ns));
            let (mut idle, mut busy) = (Vec::new(), Vec::new());
            let mut before = 0;
            for t in own {
                let took = t.done_ns - t.posted_ns.max(before).min(t.done_ns);
                let to = if t.posted_ns < before {
                    &mut busy
                } else {
                    &mut idle
                };
                to.push((t.posted_ns, took));
                before = t.done_ns;
            }
            let (mut idle, mut busy) = (Pool::of(idle), Pool::of(busy));
            // Never busy on record: it takes as long behind others, for all that is known.
            if busy.left.is_empty() {
                busy.median_ns = idle.median_ns;
            }
            if idle.left.is_empty() {
                idle.median_ns = busy.median_ns;
            }
            Times { idle, busy }
        })
        .collect()
}

enum Chooser {
    Plain(Arbiter),
    Rails(RailArbiter),
}

/// Plays the samples again.
fn play(
    taken: &[Taken],
    chosen: Chosen,
    connections: usize,
    slots: usize,
    without: &[usize],
) -> Result<Vec<Taken>> {
    let kept: Vec<usize> = (0..connections).filter(|c| !without.contains(c)).collect();
    let chooser = match chosen {
        Chosen::Plain(policy) => Chooser::Plain(Arbiter::new(policy)),
        Chosen::Rails(policy) => {
            let rail = |i: usize| RailId(u8::try_from(i).unwrap_or(u8::MAX));
            let arbiter = RailArbiter::new(&RailArbiterCfgs {
                peers: vec![PeerCfgs {
                    policy,
                    health: HealthCfgs::default(),
                    rails: kept.len(),
                    targets: vec![(0..kept.len()).map(rail).collect()],
                }],
                connections: (0..kept.len())
                    .map(|nic| ConnectionRail {
                        peer: 0,
                        rail: rail(nic),
                        target: 0,
                        nic,
                    })
                    .collect(),
            });
            let arbiter = arbiter.context("rails of the record")?;
            let begin = taken.first().map_or(0, |t| t.issued_ns);
            (0..kept.len()).for_each(|c| arbiter.connection_up(begin, c, &mut |_| {}));
            Chooser::Rails(arbiter)
        }
    };
    let mut times = times(taken, connections);
    let mut in_flight = vec![0usize; kept.len()];
    let mut free_at = vec![0u64; kept.len()];
    let mut ends: BinaryHeap<Reverse<(u64, usize, u32, u64)>> = BinaryHeap::new();
    let mut backlog: VecDeque<Taken> = VecDeque::new();
    let mut played = Vec::with_capacity(taken.len());
    let mut next = taken.iter().peekable();
    loop {
        let arrives = next.peek().map(|t| t.issued_ns);
        let end = ends.peek().map(|Reverse((at, ..))| *at);
        let now = match (arrives, end) {
            (Some(at), end) if end.is_none_or(|end| at <= end) => {
                backlog.extend(next.next().copied());
                at
            }
            (_, Some(_)) => {
                let Some(Reverse((at, c, bytes, took))) = ends.pop() else {
                    break;
                };
                in_flight[c] -= 1;
                if let Chooser::Rails(a) = &chooser {
                    a.completed(c, bytes, took);
                }
                at
            }
            _ => break,
        };
        if let Chooser::Rails(a) = &chooser {
            a.tick(now, &mut |_, _| {});
        }
        while let Some(sample) = backlog.front().copied() {
            let load = |c: usize| Load {
                up: true,
                in_flight: in_flight[c],
                slots,
            };
            let picked = match &chooser {
                Chooser::Plain(_) if sample.in_order => {
                    (0..kept.len()).find(|c| in_flight[*c] < slots)
                }
                Chooser::Plain(a) => a.pick(kept.len(), load),
                Chooser::Rails(a) => a.pick(now, sample.bytes, load),
            };
            let Some(c) = picked else { break };
            backlog.pop_front();
            let busy = free_at[c] > now;
            let own = &mut times[kept[c]];
            let pool = if busy { &mut own.busy } else { &mut own.idle };
            let took = pool.next(now);
            let done_ns = now.max(free_at[c]) + took;
            free_at[c] = done_ns;
            in_flight[c] += 1;
            ends.push(Reverse((done_ns, c, sample.bytes, done_ns - now)));
            played.push(Taken {
                posted_ns: now,
                done_ns,
                connection: kept[c],
                ..sample
            });
        }
    }
    Ok(played)
}

fn did(taken: &[Taken], connections: usize) -> Vec<Did> {
    let of = |c: usize| {
        let own = || taken.iter().filter(|t| t.connection == c);
        Did {
            samples: own().count() as u64,
            bytes: own().map(|t| u64::from(t.bytes)).sum(),
            p99_us: p99(own().map(|t| t.done_ns - t.posted_ns)),
        }
    };
    (0..connections).map(of).collect()
}

fn p99(ns: impl Iterator<Item = u64>) -> f64 {
    let mut all: Vec<u64> = ns.collect();
    all.sort_unstable();
    let at = (all.len() as f64 * 0.99).ceil() as usize;
    all.get(at.saturating_sub(1))
        .map_or(0.0, |ns| *ns as f64 / 1000.0)
}

/// How far apart, as a share of the recorded.
fn apart(recorded: f64, played: f64) -> f64 {
    (played - recorded) / recorded.max(1e-9)
}

impl Replay {
    /// What is not as near as it should be.
    fn far(&self) -> Vec<String> {
        let mut far = Vec::new();
        let all: u64 = self.recorded.iter().map(|d| d.bytes).sum();
        for (name, (r, p)) in self
            .names
            .iter()
            .zip(self.recorded.iter().zip(&self.played))
        {
            // A connection that carried next to nothing is none to judge by.
            let share = apart(r.bytes as f64, p.bytes as f64);
            if share.abs() > BYTES_WITHIN && r.bytes * 100 > all {
                let samples = apart(r.samples as f64, p.samples as f64);
                let why = match samples.abs() <= BYTES_WITHIN {
                    true => ", its samples within 5 %: others of them were large",
                    false => "",
                };
                let percent = share * 100.0;
                far.push(format!(
                    "{name}: bytes {percent:+.1} % of the record's{why}"
                ));
            }
        }
        let share = apart(self.recorded_p99_us, self.played_p99_us);
        if share.abs() > P99_WITHIN {
            far.push(format!("p99 {:+.1} % of the record's", share * 100.0));
        }
        far
    }

    fn text(&self) -> String {
        let mut out = format!("replay by {}", self.policy);
        if !self.without.is_empty() {
            out += &format!(", without {:?}", self.without);
        }
        out += &format!(
            "\n{:<24} {:>10} {:>14} {:>10} {:>10} {:>14} {:>10} {:>8}\n",
            "connection", "recorded", "bytes", "p99 us", "played", "bytes", "p99 us", "bytes"
        );
        for (name, (r, p)) in self
            .names
            .iter()
            .zip(self.recorded.iter().zip(&self.played))
        {
            out += &format!(
                "{:<24} {:>10} {:>14} {:>10.1} {:>10} {:>14} {:>10.1} {:>+7.1}%\n",
                name,
                r.samples,
                r.bytes,
                r.p99_us,
                p.samples,
                p.bytes,
                p.p99_us,
                apart(r.bytes as f64, p.bytes as f64) * 100.0
            );
        }
        out += &format!(
            "from issue to answer: p99 {:.1} us recorded, {:.1} us played ({:+.1} %)\n",
            self.recorded_p99_us,
            self.played_p99_us,
            apart(self.recorded_p99_us, self.played_p99_us) * 100.0
        );
        match (self.notes.is_empty(), self.without.is_empty()) {
            (true, true) => out += "within 5 % of the bytes and 20 % of the p99\n",
            (true, false) => {}
            (false, _) => self
                .notes
                .iter()
                .for_each(|n| out += &format!("note: {n}\n")),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use qdl::flight::ThreadFlight;

    use super::*;

    const US: u64 = 1_000;

    fn what<'a>(policy: &'a str, without: &'a [usize]) -> What<'a> {
        What {
            policy,
            slots: 8_192,
            without,
        }
    }

    /// A run over connections that take so long for a sample, chosen as a dispatcher does.
    fn recorded(took_us: &[u64], gap_us: u64, n: u64) -> Flight {
        let arbiter = Arbiter::new(Policy::LeastOutstanding);
        let mut done: Vec<Vec<u64>> = vec![Vec::new(); took_us.len()];
        let mut records = Vec::new();
        for i in 0..n {
            let now = US * (1_000 + i * gap_us + (i * 7_919) % gap_us);
            let load = |c: usize| Load {
                up: true,
                in_flight: done[c].iter().filter(|d| **d > now).count(),
                slots: 1_000,
            };
            let c = arbiter.pick(took_us.len(), load).expect("room");
            let before = done[c].last().copied().unwrap_or(0);
            let end = now.max(before) + took_us[c] * US;
            let (connection, slot) = (c as u16, (i % 1_000) as u16);
            let record = |at_ns, kind, size, aux| Record {
                at_ns,
                kind: kind as u8,
                connection,
                slot,
                size,
                aux,
                ..Record::default()
            };
            records.push(record(now, Kind::Posted, 4_096, now));
            records.push(record(end, Kind::Arrived, 8, 0));
            done[c].push(end);
        }
        Flight {
            node: "fe".to_owned(),
            connections: (0..took_us.len()).map(|c| format!("acc/{c}")).collect(),
            threads: vec![ThreadFlight {
                name: "issue".to_owned(),
                records,
                overwritten: 0,
            }],
            ..Flight::default()
        }
    }

    #[test]
    fn a_replay_with_the_same_policy_gives_the_record_back() {
        let flight = recorded(&[30, 30, 30, 90], 14, 4_000);
        let replay = of(&flight, what("least_outstanding", &[])).expect("plays");
        assert!(replay.notes.is_empty(), "{}", replay.text());
        // The slow one was given less, in both.
        assert!(replay.recorded[3].bytes * 2 < replay.recorded[0].bytes);
        assert!(replay.played[3].bytes * 2 < replay.played[0].bytes);
        assert!(replay.text().contains("within 5 %"));
    }

    #[test]
    fn another_policy_and_fewer_rails_are_told_apart() {
        let flight = recorded(&[30, 30, 30, 90], 14, 4_000);
        let blind = of(&flight, what("round_robin", &[])).expect("plays");
        assert!(
            blind.notes.iter().any(|n| n.starts_with("acc/3: bytes +")),
            "{}",
            blind.text()
        );
        assert!(blind.played[3].bytes * 10 > blind.played[0].bytes * 9);
        let fewer = of(&flight, what("least_outstanding", &[0, 1])).expect("plays");
        assert_eq!((fewer.played[0].samples, fewer.played[1].samples), (0, 0));
        let all: u64 = fewer.played.iter().map(|d| d.samples).sum();
        assert_eq!(all, 4_000);
        assert!(fewer.played_p99_us > fewer.recorded_p99_us);
        assert!(of(&flight, what("least_outstanding", &[0, 1, 2, 3])).is_err());
        assert!(of(&flight, what("nearest", &[])).is_err());
        let spray = of(&flight, what("health_spray", &[])).expect("plays");
        assert!(spray.notes.iter().any(|n| n.contains("another policy")));
    }

    #[test]
    fn what_a_record_lacks_is_said() {
        let mut flight = recorded(&[30, 30], 30, 500);
        flight.threads[0].overwritten = 9;
        flight.threads[0].records.push(Record {
            at_ns: 5,
            kind: Kind::Lost as u8,
            ..Record::default()
        });
        let replay = of(&flight, what("least_outstanding", &[])).expect("plays");
        assert!(
            replay
                .notes
                .iter()
                .any(|n| n.contains("9 records were overwritten"))
        );
        assert!(
            replay
                .notes
                .iter()
                .any(|n| n.contains("1 connections were lost"))
        );
        assert!(of(&Flight::default(), what("least_outstanding", &[])).is_err());
    }
}
