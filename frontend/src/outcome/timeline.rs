//! The timeline of a run, for `timeline.json`: reads existing counters during the run, and
//! assembles the ticks at the run's end.

use fabric::os::ThreadTime;
use qdl::counters::{
    Live,
    ticks::{Grown, LatencyTicks, ThreadTicks, tick_count, tick_ns},
};
use record::{
    LossRecord, SystemRecord,
    timeline::{ConnectionTick, Event, NodeSide, Tick, Timeline},
};

/// Maximum number of connections recorded per tick.
const MOST_CONNECTIONS: usize = 64;
const MOST_EVENTS: usize = 1_000;
/// Number of counters of the run: issued, completed, tokens. [`EACH`] is that of a connection.
const RUN: usize = 3;
const EACH: usize = 5;
const GAUGES: usize = 3;
/// The whole number that represents a score of 1 in a gauge.
const SCORE: f64 = 1e6;

/// Data of a finished run, besides the gathered ticks.
pub struct TimelineEnd<'a> {
    pub node: &'a str,
    pub system: &'a SystemRecord,
    /// Latencies by tick, of each recording thread.
    pub latencies: &'a [&'a LatencyTicks],
    pub answered: u64,
    pub tokens: u64,
    /// Time of the first query, on [`fabric::clock`].
    pub first_ns: u64,
    /// Time of completion of the last sample.
    pub last_ns: u64,
    pub phases: Vec<(String, u64)>,
}

#[derive(Debug, Default)]
pub struct TimelineGatherer {
    /// Counters before the first query.
    before: Vec<u64>,
    run: Option<(Grown, ThreadTicks)>,
    /// Latencies that NIC threads publish, if the live page shows them.
    shown: Option<Grown>,
    events: Vec<Event>,
}

/// Builds a row for [`Grown`]: counters, then gauges.
fn row(run: [u64; RUN], connections: &[ConnectionTick]) -> Vec<u64> {
    let connections = &connections[..connections.len().min(MOST_CONNECTIONS)];
    let mut row = run.to_vec();
    for c in connections {
        row.extend([
            c.samples,
            c.bytes_out,
            c.bytes_in,
            c.retransmits,
            c.window_limited_us,
        ]);
    }
    for c in connections {
        // Unknown is 0, so known values are stored plus one.
        let score = c
            .score
            .map_or(0, |s| 1 + (s.clamp(0.0, 1.0) * SCORE) as u64);
        row.extend([c.in_flight, c.rtt_us.map_or(0, |us| us + 1), score]);
    }
    row
}

fn connection(row: &[u64], index: usize, of: usize) -> ConnectionTick {
    let counters = row.get(RUN + index * EACH..).unwrap_or_default();
    let gauges = row
        .get(RUN + of * EACH + index * GAUGES..)
        .unwrap_or_default();
    let counter = |i: usize| counters.get(i).copied().unwrap_or(0);
    let gauge = |i: usize| gauges.get(i).copied().unwrap_or(0);
    ConnectionTick {
        samples: counter(0),
        bytes_out: counter(1),
        bytes_in: counter(2),
        retransmits: counter(3),
        window_limited_us: counter(4),
        in_flight: gauge(0),
        rtt_us: gauge(1).checked_sub(1),
        score: gauge(2).checked_sub(1).map(|s| s as f64 / SCORE),
    }
}

/// Latency buckets of a tick, with their counts.
type Latencies = Vec<(u16, u64)>;

/// Assembles ticks of `of` connections; `completed` counts a tick's samples.
fn ticks(
    rows: &[Vec<u64>],
    latencies: Vec<Latencies>,
    of: usize,
    completed: impl Fn(&[u64], &[(u16, u64)]) -> u64,
) -> Vec<Tick> {
    // Issued and completed are counted at different times: the difference may be below 0.
    let mut outstanding = 0i64;
    let ticks = latencies.into_iter().enumerate().map(|(k, latency)| {
        let row = rows.get(k).map_or(&[][..], Vec::as_slice);
        let counter = |i: usize| row.get(i).copied().unwrap_or(0);
        let issued = counter(0);
        let completed = completed(row, &latency);
        outstanding += issued as i64 - completed as i64;
        Tick {
            issued,
            completed,
            in_flight: outstanding.max(0) as u64,
            tokens: counter(2),
            latency,
            connections: (0..of).map(|i| connection(row, i, of)).collect(),
        }
    });
    ticks.collect()
}

impl TimelineGatherer {
    /// Reads the counters before the first query: later readings subtract them.
    pub fn before(&mut self, connections: &[ConnectionTick]) {
        self.before = row([0; RUN], connections);
    }

    /// Reads the counters during a run that began at `first_ns`.
    pub fn look(
        &mut self,
        [first_ns, now_ns]: [u64; 2],
        run: [u64; RUN],
        connections: &[ConnectionTick],
    ) {
        let now = row(run, connections);
        if self.run.is_none() {
            let mut first = std::mem::take(&mut self.before);
            if first.len() != now.len() {
                first = row([0; RUN], connections);
            }
            let counters = now.len() - connections.len().min(MOST_CONNECTIONS) * GAUGES;
            let grown = Grown::new(first_ns, &first, counters);
            self.run = Some((grown, ThreadTicks::new(first_ns)));
        }
        if let Some((grown, _)) = &mut self.run {
            grown.read(now_ns, &now);
        }
    }

    /// Returns each connection's counters since the run began, at the last reading.
    pub fn connections(&self) -> Vec<ConnectionTick> {
        let Some((grown, _)) = &self.run else {
            return Vec::new();
        };
        let row = grown.since_begin();
        let of = row.len().saturating_sub(RUN) / (EACH + GAUGES);
        (0..of).map(|i| connection(&row, i, of)).collect()
    }

    /// Reads the latencies that NIC threads publish, of a run that began at `first_ns`. Call this
    /// at least once per tick, and before [`TimelineGatherer::so_far`].
    pub fn latencies(&mut self, [first_ns, now_ns]: [u64; 2], live: &Live) {
        let shown = live.latencies();
        let new = || Grown::new(first_ns, &vec![0; shown.len()], shown.len());
        let grown = self.shown.get_or_insert_with(new);
        grown.read(now_ns, &shown);
    }

    /// Returns the timeline of a running run that began at `first_ns`: finished ticks only, with
    /// the published latencies. The caller passes the backend's events and losses. Accelerators
    /// report their own ticks only at the end.
    pub fn so_far(
        &self,
        node: &str,
        [first_ns, now_ns]: [u64; 2],
        (mut events, losses): (Vec<Event>, Vec<LossRecord>),
    ) -> Timeline {
        events.extend(losses.iter().flat_map(lost));
        events.extend(self.events.iter().cloned());
        events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        events.drain(..events.len().saturating_sub(MOST_EVENTS));
        let Some((grown, threads)) = &self.run else {
            return Timeline {
                events,
                ..Timeline::default()
            };
        };
        let shown = self.shown.as_ref();
        let lasted_ns = now_ns.saturating_sub(first_ns);
        let tick = tick_ns(lasted_ns).max(grown.tick_ns());
        let tick = tick.max(shown.map_or(0, Grown::tick_ns));
        let n = usize::try_from(lasted_ns / tick).map_or(1, |n| n.max(1));
        let rows = grown.ticks(tick, n + 1);
        let shown = shown.map(|s| s.ticks(tick, n)).unwrap_or_default();
        let latency = |row: &Vec<u64>| {
            let counts = (0..).zip(row.iter().copied());
            counts.filter(|(_, n)| *n > 0).collect()
        };
        let mut latencies: Vec<Latencies> = shown.iter().map(latency).collect();
        latencies.resize(n.min(rows.len()), Vec::new());
        let width = rows.first().map_or(0, Vec::len);
        let of = width.saturating_sub(RUN) / (EACH + GAUGES);
        let completed = |row: &[u64], _: &[(u16, u64)]| row.get(1).copied().unwrap_or(0);
        Timeline {
            tick_ms: tick / 1_000_000,
            ticks: ticks(&rows, latencies, of, completed),
            events,
            slowest: Vec::new(),
            nodes: vec![NodeSide {
                node: node.to_owned(),
                threads: threads.sides(tick, n, lasted_ns),
                ..NodeSide::default()
            }],
        }
    }

    /// Reads the CPU time of this process's threads.
    pub fn threads(&mut self, now_ns: u64, all: &[ThreadTime]) {
        if let Some((_, ticks)) = &mut self.run {
            ticks.read(now_ns, all);
        }
    }

    /// Adds an event, `at_s` seconds after the first query.
    pub fn event(&mut self, at_s: f64, kind: &str, text: &str) {
        if self.events.len() < MOST_EVENTS {
            self.events.push(event(at_s, kind, text));
        }
    }

    pub fn end(mut self, end: &TimelineEnd<'_>) -> Timeline {
        let lasted_ns = end.last_ns.saturating_sub(end.first_ns);
        let tick = tick_ns(lasted_ns);
        let coarsest = end.latencies.iter().map(|l| l.tick_ns());
        let coarsest = coarsest.chain(self.run.iter().map(|(g, _)| g.tick_ns()));
        let tick = coarsest.fold(tick, u64::max);
        let n = tick_count(lasted_ns, tick);
        let latencies = LatencyTicks::merge(end.latencies.iter().copied(), tick, n);
        let mut nodes = vec![NodeSide {
            node: end.node.to_owned(),
            ..NodeSide::default()
        }];
        let names = end.system.connections.len();
        let mut rows = Vec::new();
        let mut of = 0;
        if let Some((mut grown, threads)) = self.run.take() {
            let readings = &end.system.readings;
            of = names.min(readings.len()).min(MOST_CONNECTIONS);
            // Read once more: the last reading is some hundredths of a second old.
            let ledger = &end.system.ledger;
            let at = end.last_ns.max(grown.last_ns());
            let run = [ledger.issued, end.answered, end.tokens];
            grown.read(at, &row(run, readings));
            rows = grown.ticks(tick, n);
            nodes[0].threads = threads.sides(tick, n, lasted_ns);
        }
        // Peers record their ticks themselves: their reports change no measurement of this node.
        nodes.extend(end.system.sides.iter().cloned());
        self.known(end);
        self.events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let completed = |_: &[u64], latency: &[(u16, u64)]| latency.iter().map(|(_, n)| n).sum();
        Timeline {
            tick_ms: tick / 1_000_000,
            ticks: ticks(&rows, latencies, of, completed),
            slowest: LatencyTicks::slowest(
                end.latencies.iter().copied(),
                end.first_ns,
                end.answered,
            ),
            events: self.events,
            nodes,
        }
    }

    /// Adds the events that the backend and the phases recorded.
    fn known(&mut self, end: &TimelineEnd<'_>) {
        let seconds = |ns: u64| (ns as f64 - end.first_ns as f64) / 1e9;
        for e in &end.system.events {
            self.event(e.at_s, &e.kind, &e.text);
        }
        for e in end.system.losses.iter().flat_map(lost) {
            self.event(e.at_s, &e.kind, &e.text);
        }
        for (name, at_ns) in &end.phases {
            self.event(seconds(*at_ns), "phase", name);
        }
    }
}

fn event(at_s: f64, kind: &str, text: &str) -> Event {
    Event {
        at_s,
        kind: kind.to_owned(),
        text: text.to_owned(),
    }
}

/// Events of a loss: the loss, the repeated samples, and the recovery.
fn lost(loss: &LossRecord) -> Vec<Event> {
    let (node, numbers) = (&loss.node, &loss.connections);
    let who = match loss.whole {
        true => node.clone(),
        false => {
            let each: Vec<_> = numbers.iter().map(|n| format!("{node}/{n}")).collect();
            each.join(", ")
        }
    };
    let mut events = Vec::new();
    if let Some(at_s) = loss.at_s {
        events.push(event(at_s, "lost", &format!("{who}: {}", loss.why)));
        if loss.again > 0 {
            let text = format!("{} samples of {who}", loss.again);
            events.push(event(at_s, "sent_again", &text));
        }
    }
    events.extend(loss.back_s.map(|at_s| event(at_s, "back", &who)));
    events
}

#[cfg(test)]
mod tests {
    use qdl::counters::{Live, SampleTimes};

    use super::*;

    const S: u64 = 1_000_000_000;

    fn latencies(n: u64) -> LatencyTicks {
        let (mut latencies, live) = (LatencyTicks::default(), Live::new(1));
        live.begin(S);
        for i in 0..n {
            let completed_ns = S + (i + 1) * S / n - 1;
            let times = SampleTimes {
                issued_ns: completed_ns - 1_000 - i,
                completed_ns,
                connection: 1,
                ..SampleTimes::default()
            };
            latencies.record(&times, 1, &live, 0);
        }
        latencies
    }

    /// The end of a run of a second, whose only samples are those of the latencies.
    fn end<'a>(system: &'a SystemRecord, latencies: &'a [&LatencyTicks]) -> TimelineEnd<'a> {
        TimelineEnd {
            node: "fe",
            system,
            latencies,
            answered: 1_000 * latencies.len() as u64,
            tokens: 0,
            first_ns: S,
            last_ns: 2 * S,
            phases: Vec::new(),
        }
    }

    // tests/scenarios.rs compares the ticks of real runs with their summaries.
    #[test]
    fn a_loss_is_three_events_in_the_order_of_their_times() {
        let loss = LossRecord {
            node: "acc-a".to_owned(),
            at_s: Some(0.25),
            back_s: Some(0.5),
            why: "reset".to_owned(),
            connections: vec![1],
            again: 4,
            ..LossRecord::default()
        };
        let warm_up = Event {
            at_s: -0.5,
            kind: "warm_up".to_owned(),
            text: "80 samples".to_owned(),
        };
        let system = SystemRecord {
            losses: vec![loss],
            events: vec![warm_up],
            ..SystemRecord::default()
        };
        let phases = vec![("performance".to_owned(), S)];
        let t = TimelineGatherer::default().end(&TimelineEnd {
            phases,
            ..end(&system, &[])
        });
        let kinds: Vec<_> = t.events.iter().map(|e| e.kind.as_str()).collect();
        assert_eq!(kinds, ["warm_up", "phase", "lost", "sent_again", "back"]);
        assert_eq!(t.events[2].text, "acc-a/1: reset");
    }

    #[test]
    fn latencies_of_ticks_that_are_over_are_known_while_the_run_goes_on() {
        let (mut g, live) = (TimelineGatherer::default(), Live::new(1));
        live.begin(S);
        let mut latencies = LatencyTicks::default();
        for k in 0..40u64 {
            let now = S + k * S / 40;
            let times = SampleTimes {
                issued_ns: now - 700,
                completed_ns: now,
                ..SampleTimes::default()
            };
            latencies.record(&times, 1, &live, 0);
            g.look([S, now], [k, k, 0], &[]);
            g.latencies([S, now + 1], &live);
        }
        let t = g.so_far("fe", [S, 2 * S], (Vec::new(), Vec::new()));
        let each = t
            .ticks
            .iter()
            .map(|t| t.latency.iter().map(|(_, n)| n).sum::<u64>());
        let each: Vec<u64> = each.collect();
        assert_eq!(
            each.iter().sum::<u64>(),
            36,
            "all but the last tick: {each:?}"
        );
        assert!(each[..8].iter().all(|n| (3..=5).contains(n)), "{each:?}");
    }

    #[test]
    fn no_accelerators_side_changes_the_ticks_of_a_run() {
        let sides = [100, 1_000, 18_000_000_000_000, u64::MAX].map(|tick_ms| NodeSide {
            tick_ms,
            ..NodeSide::default()
        });
        let system = SystemRecord {
            sides: sides.to_vec(),
            ..SystemRecord::default()
        };
        let recorded = latencies(1_000);
        let t = TimelineGatherer::default().end(&end(&system, &[&recorded]));
        assert_eq!((t.tick_ms, t.ticks.len()), (100, 10));
        assert_eq!(t.nodes[1..], sides);
    }

    #[test]
    fn a_run_without_connections_or_samples_has_a_timeline_too() {
        let system = SystemRecord::default();
        let t = TimelineGatherer::default().end(&TimelineEnd {
            first_ns: 5,
            last_ns: 0,
            ..end(&system, &[])
        });
        assert_eq!((t.ticks.len(), t.slowest.len(), t.nodes.len()), (1, 0, 1));
    }
}
