//! Readings of an accelerator's run, tick by tick from its first sample on, sent to the frontend on
//! request at the end.

use std::sync::Mutex;

use fabric::{clock::now_ns, os::ThreadTime};
use record::timeline::NodeSide;

use super::node_state::EngineTotals;
use crate::{
    control::{
        Counters,
        limits::{MAX_SIDE, MAX_SIDE_PART},
    },
    counters::ticks::{EngineReading, EngineTicks, ThreadTicks},
    run::lock,
};

/// Every fifth reading includes the threads, which cost two small reads each.
const THREADS: u64 = 5;

/// Reads the work of this process's threads.
type ReadThreads = fn() -> Vec<ThreadTime>;

#[derive(Debug, Default)]
pub(crate) struct NodeReadings {
    ticks: Mutex<Option<RunTicks>>,
    /// The text being sent, piece by piece.
    text: Mutex<String>,
}

#[derive(Debug)]
struct RunTicks {
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

impl NodeReadings {
    pub(crate) fn read(
        &self,
        now_ns: u64,
        counters: &Counters,
        engine: EngineTotals,
        threads: ReadThreads,
    ) {
        let reading = reading(counters, engine);
        let mut ticks = lock(&self.ticks);
        let begun = ticks.as_ref().is_some_and(|g| g.readings > 0);
        if !begun && reading.arrived == 0 || ticks.is_none() {
            // Readings before the first sample are dropped.
            *ticks = Some(RunTicks {
                begin_ns: now_ns,
                threads: ThreadTicks::new(now_ns),
                engines: EngineTicks::new(now_ns, reading),
                readings: 0,
            });
        } else if let Some(g) = &mut *ticks {
            g.engines.read(now_ns, reading);
            g.readings += 1;
        }
        if let Some(g) = &mut *ticks
            && g.readings.is_multiple_of(THREADS)
        {
            g.threads.read(now_ns, &threads());
        }
    }

    /// Length of the whole text, and the piece from byte `at` on that fits one frame. `at` 0 makes
    /// the text anew.
    pub(crate) fn part(&self, node: &str, at: u64, threads: ReadThreads) -> (u64, String) {
        let mut text = lock(&self.text);
        if at == 0 {
            *text = self.to_json(node, threads);
        }
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let rest = text.get(from..).unwrap_or_default();
        let mut end = rest.len().min(MAX_SIDE_PART);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        (text.len() as u64, rest[..end].to_owned())
    }

    /// This node's side of the run as JSON, empty without readings. `begins_s` is minus the age.
    fn to_json(&self, node: &str, threads: ReadThreads) -> String {
        let now_ns = now_ns();
        let mut ticks = lock(&self.ticks);
        let Some(g) = ticks.as_mut().filter(|g| g.readings > 0) else {
            return String::new();
        };
        g.threads.read(now_ns, &threads());
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
        if text.len() as u64 > MAX_SIDE {
            return String::new();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use fabric::os::thread_times;
    use record::BatchSizes;

    use super::*;
    use crate::counters::ticks::FIRST_TICK_NS;

    fn counters(arrived: u64) -> Counters {
        Counters {
            arrived,
            responded: arrived,
            ..Counters::default()
        }
    }

    fn all_of(side: &NodeReadings) -> NodeSide {
        let mut text = String::new();
        loop {
            let (of, part) = side.part("acc", text.len() as u64, thread_times);
            text += &part;
            if part.is_empty() || text.len() as u64 >= of {
                break;
            }
        }
        serde_json::from_str(&text).expect("a side")
    }

    #[test]
    fn a_side_begins_with_its_first_sample_and_is_told_in_parts() {
        let side = NodeReadings::default();
        assert_eq!(side.part("acc", 0, thread_times), (0, String::new()));
        let began = now_ns();
        let at = |k: u64| began + k * FIRST_TICK_NS;
        for k in 0..3 {
            side.read(at(k), &counters(0), EngineTotals::default(), thread_times);
        }
        // Readings before the first arrival are not sent.
        assert_eq!(side.part("acc", 0, thread_times).0, 0);
        // Batches of several sizes in each tick make the text longer than one piece.
        let mut batches = BatchSizes::new(16);
        for k in 3..1_003u64 {
            (1..=16).for_each(|size| batches.record(size));
            let engine = EngineTotals {
                batches: batches.clone(),
                ..EngineTotals::default()
            };
            side.read(at(k), &counters(7 * (k - 2)), engine, thread_times);
        }
        let (of, first) = side.part("acc", 0, thread_times);
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
    }
}
