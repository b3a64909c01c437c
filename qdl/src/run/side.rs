//! An accelerator's side of a run: readings tick by tick from its first sample on, sent to the
//! frontend on request at the end.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fabric::{clock::now_ns, os::thread_times};
use record::timeline::{MOST_SIZES, NodeSide};

use super::{lock, node::EngineTotals, served::Session};
use crate::{
    control::{Counters, limits::MAX_SIDE_PART},
    counters::ticks::{
        EngineReading, EngineTicks, FIRST_TICK_NS, MOST_TICKS, ThreadReading, ThreadTicks, tick_ns,
    },
};

/// Interval of counter readings; each is one tick.
const EVERY: Duration = Duration::from_nanos(FIRST_TICK_NS);
/// Every fifth reading includes the threads, which cost two small reads each.
const THREADS: u64 = 5;
/// Most bytes of a side; both nodes must hold it in memory.
pub(super) const MOST_BYTES: u64 = 4 << 20;

/// Most threads in a peer's side.
const MOST_THREADS: usize = 32;

/// Readings of an accelerator's run.
#[derive(Debug, Default)]
pub(super) struct Side {
    gathered: Mutex<Option<Gathered>>,
    /// The text being sent, piece by piece.
    told: Mutex<String>,
}

#[derive(Debug)]
struct Gathered {
    begin_ns: u64,
    threads: ThreadTicks,
    engines: EngineTicks,
    readings: u64,
}

fn reading(counters: &Counters, engine: EngineTotals) -> EngineReading {
    let copied = |us: u64, g: &record::GpuRecord| us + g.copy_in_us + g.copy_out_us;
    EngineReading {
        arrived: counters.arrived,
        answered: counters.responded,
        batches: engine.batches,
        computed_us: engine.used.busy_us,
        copied_us: engine.gpus.iter().fold(0, copied),
    }
}

impl Side {
    /// Takes readings until the task is aborted.
    pub async fn gather(session: Arc<Session>) {
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            session.side.read_now(&session);
        }
    }

    /// Takes one reading of a session.
    pub fn read_now(&self, session: &Session) {
        let (counters, engine) = (session.counters_now(), session.engine_now());
        self.read(now_ns(), &counters, engine);
    }

    fn read(&self, now_ns: u64, counters: &Counters, engine: EngineTotals) {
        let reading = reading(counters, engine);
        let mut gathered = lock(&self.gathered);
        let begun = gathered.as_ref().is_some_and(|g| g.readings > 0);
        if !begun && reading.arrived == 0 || gathered.is_none() {
            // Readings before the first sample are dropped.
            *gathered = Some(Gathered {
                begin_ns: now_ns,
                threads: ThreadTicks::new(now_ns),
                engines: EngineTicks::new(now_ns, reading),
                readings: 0,
            });
        } else if let Some(g) = &mut *gathered {
            g.engines.read(now_ns, reading);
            g.readings += 1;
        }
        if let Some(g) = &mut *gathered
            && g.readings.is_multiple_of(THREADS)
        {
            read_threads(g, now_ns);
        }
    }

    /// The text from byte `at` on: its total length, and a piece that fits one frame. With `at` 0
    /// the text is assembled anew.
    pub fn tell(&self, node: &str, at: u64) -> (u64, String) {
        let mut told = lock(&self.told);
        if at == 0 {
            *told = self.text(node);
        }
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let rest = told.get(from..).unwrap_or_default();
        let mut end = rest.len().min(MAX_SIDE_PART);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        (told.len() as u64, rest[..end].to_owned())
    }

    /// The side as JSON; its `begins_s` is the negative age of its begin. Empty without readings.
    fn text(&self, node: &str) -> String {
        let now_ns = now_ns();
        let mut gathered = lock(&self.gathered);
        let Some(g) = gathered.as_mut().filter(|g| g.readings > 0) else {
            return String::new();
        };
        read_threads(g, now_ns);
        let lasted_ns = now_ns.saturating_sub(g.begin_ns);
        let (tick_ns, n) = (g.engines.tick_ns(), g.engines.ticks().len());
        let side = NodeSide {
            node: node.to_owned(),
            begins_s: -(lasted_ns as f64) / 1e9,
            tick_ms: tick_ns / 1_000_000,
            threads: g.threads.sides(tick_ns, n, lasted_ns),
            engines: g.engines.ticks().to_vec(),
        };
        let text = serde_json::to_string(&side).unwrap_or_default();
        if text.len() as u64 > MOST_BYTES {
            return String::new();
        }
        text
    }
}

/// Checks a peer's side received at `asked_ns`, clips it, and converts it to the clock of a run
/// that began at `first_ns`. `None` where it is invalid.
pub(super) fn checked(
    mut told: NodeSide,
    node: String,
    asked_ns: u64,
    first_ns: u64,
) -> Option<NodeSide> {
    // The cast saturates: values below 0 and NaN become 0.
    let lasted_ns = (-told.begins_s * 1e9) as u64;
    let tick = told.tick_ms.checked_mul(1_000_000)?;
    let ticks = told.engines.len();
    // This node's clock began with its process, before any session.
    let possible = told.begins_s <= 0.0
        && lasted_ns <= asked_ns
        && (FIRST_TICK_NS..=tick_ns(lasted_ns)).contains(&tick)
        && ticks <= MOST_TICKS
        && (ticks as u64).saturating_sub(1) <= lasted_ns / tick
        && told.engines.iter().all(|e| e.batches.len() <= MOST_SIZES);
    if !possible {
        return None;
    }
    told.node = node;
    told.begins_s += (asked_ns as f64 - first_ns as f64) / 1e9;
    told.threads.truncate(MOST_THREADS);
    for t in &mut told.threads {
        t.name = t
            .name
            .chars()
            .filter(|c| !c.is_control())
            .take(32)
            .collect();
        t.on_core.truncate(ticks);
        t.waited.truncate(ticks);
        let both = t.on_core.iter_mut().chain(&mut t.waited);
        both.for_each(|permille| *permille = (*permille).min(1000));
    }
    Some(told)
}

fn read_threads(g: &mut Gathered, now_ns: u64) {
    let all = thread_times();
    let each = all.iter().map(|t| ThreadReading {
        id: t.id,
        name: &t.name,
        ran_ns: t.ran_ns,
        waited_ns: t.waited_ns,
    });
    g.threads.read(now_ns, each);
}

#[cfg(test)]
mod tests {
    use record::BatchSizes;

    use super::*;

    fn counters(arrived: u64) -> Counters {
        Counters {
            arrived,
            responded: arrived,
            ..Counters::default()
        }
    }

    fn all_of(side: &Side) -> NodeSide {
        let mut text = String::new();
        loop {
            let (of, part) = side.tell("acc", text.len() as u64);
            text += &part;
            if part.is_empty() || text.len() as u64 >= of {
                break;
            }
        }
        serde_json::from_str(&text).expect("a side")
    }

    #[test]
    fn a_side_begins_with_its_first_sample_and_is_told_in_parts() {
        let side = Side::default();
        assert_eq!(side.tell("acc", 0), (0, String::new()));
        let began = now_ns();
        let at = |k: u64| began + k * FIRST_TICK_NS;
        for k in 0..3 {
            side.read(at(k), &counters(0), EngineTotals::default());
        }
        // Readings before the first arrival are not sent.
        assert_eq!(side.tell("acc", 0).0, 0);
        // Batches of several sizes in each tick make the text longer than one piece.
        let mut batches = BatchSizes::new(16);
        for k in 3..1_003u64 {
            (1..=16).for_each(|size| batches.record(size));
            let engine = EngineTotals {
                batches: batches.clone(),
                ..EngineTotals::default()
            };
            side.read(at(k), &counters(7 * (k - 2)), engine);
        }
        let (of, first) = side.tell("acc", 0);
        assert!(
            first.len() <= MAX_SIDE_PART && of > first.len() as u64,
            "{of} bytes"
        );
        let told = all_of(&side);
        assert_eq!(
            (told.node.as_str(), told.engines.len(), told.tick_ms),
            ("acc", 1_000, 100)
        );
        assert!(
            told.engines
                .iter()
                .all(|t| (t.arrived, t.answered) == (7, 7))
        );
        assert!(!told.threads.is_empty() && told.begins_s <= 0.0);
        // On the frontend's clock; impossible values are refused.
        let own = NodeSide {
            begins_s: -100.0,
            ..told
        };
        const S: u64 = 1_000_000_000;
        let put = |side| checked(side, "b".to_owned(), 202 * S, 100 * S);
        let there = put(own.clone()).expect("sound");
        assert_eq!((there.node.as_str(), there.begins_s), ("b", 2.0));
        let lies: [fn(&mut NodeSide); 8] = [
            |side| side.tick_ms = 1,
            |side| side.tick_ms = 1_000,
            |side| side.tick_ms = 18_000_000_000_000,
            |side| side.tick_ms = u64::MAX,
            |side| side.begins_s = 1.0,
            |side| side.begins_s = f64::NEG_INFINITY,
            |side| side.begins_s = -90.0,
            |side| side.engines[0].batches = vec![(1, 1); 17],
        ];
        for (i, lie) in lies.iter().enumerate() {
            let mut told = own.clone();
            lie(&mut told);
            assert_eq!(put(told), None, "lie {i}");
        }
    }

    #[test]
    fn ticks_longer_than_any_run_are_not_believed() {
        let told = NodeSide {
            begins_s: -1.0,
            tick_ms: 18_000_000_000_000,
            ..NodeSide::default()
        };
        assert_eq!(checked(told, "b".to_owned(), 7_000_000_000, 0), None);
    }
}
