//! What only a run's timeline shows: one connection or one NIC thread that is slower than the
//! others of the same run at the same time.

use qdl::stats::{text, timeline::ThreadSide};

use crate::{pictures::percent, run::Run};

/// Of the slowest samples, the share that makes one connection conspicuous.
const MOST: f64 = 0.6;
/// How many times its fair share that is at least.
const TIMES: f64 = 2.0;
/// How many times the others' round trip or wait its own is at least.
const LONGER: f64 = 3.0;
/// Share of its time that a starved thread waits for a core, at least.
const STARVED: f64 = 0.25;

/// A card: its name, and what is seen, what it means, what to turn.
pub type Card = (&'static str, [String; 3]);

/// The mean of the values; none of none.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let n = values.len();
    (n > 0).then(|| values.sum::<f64>() / n as f64)
}

/// The greatest and its place, where it is so many times the median of the others.
fn outstanding(values: &[f64]) -> Option<(usize, f64, f64)> {
    let mut by: Vec<_> = values.iter().copied().enumerate().collect();
    by.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (at, most) = *by.first()?;
    let others = by.get(1..)?;
    let (_, usual) = *others.get(others.len() / 2)?;
    (most >= LONGER * usual).then_some((at, most, usual))
}

/// One connection has most of the slowest samples, and its packets take much longer.
fn connection(run: &Run) -> Option<Card> {
    let timeline = run.timeline.as_ref()?;
    let slow = &timeline.slowest;
    let all = &run.summary.run.system.connections;
    let rtt = |i: usize| {
        let ticks = timeline.ticks.iter().filter_map(|t| t.connections.get(i));
        let seen: Vec<f64> = ticks.filter_map(|c| Some(c.rtt_us? as f64)).collect();
        mean(seen.into_iter()).unwrap_or(0.0)
    };
    let rtts: Vec<f64> = (0..all.len()).map(rtt).collect();
    let (at, mine, others) = outstanding(&rtts)?;
    let own = &all[at];
    let samples: u64 = all.iter().map(|c| c.samples).sum();
    let count = slow.iter().filter(|s| s.connection as usize == at).count();
    let share = count as f64 / slow.len() as f64;
    let fair = own.samples as f64 / samples.max(1) as f64;
    if slow.len() < 8 || share < MOST || share < TIMES * fair {
        return None;
    }
    let seen = format!(
        "`{}` carried {} of the samples and {} of the slowest {}; its packets' round trip was {} \
         on average, {} on the others",
        own.name,
        percent(fair),
        percent(share),
        slow.len(),
        text::time_us(mine),
        text::time_us(others)
    );
    let means = "that way is congested, or its far end does not read: the others are not";
    let turn = "look at its link and its switch ports; `arbiter: health_spray`, `health_best_fit` \
                or `best` steer samples around it";
    Some(("one connection", [seen, means.to_owned(), turn.to_owned()]))
}

/// One NIC thread waits for a core, and the others of its node do not.
fn thread(run: &Run) -> Option<Card> {
    // `nic-0`, and not its helper `nic-0-slots`, which sleeps.
    let number = |t: &ThreadSide| t.name.strip_prefix("nic-")?.parse::<u32>().ok();
    let wait = |t: &&ThreadSide| {
        mean(
            t.waited
                .iter()
                .map(|permille| f64::from(*permille) / 1000.0),
        )
        .unwrap_or(0.0)
    };
    run.timeline.as_ref()?.nodes.iter().find_map(|node| {
        let nics = node.threads.iter().filter(|t| number(t).is_some());
        let nics: Vec<&ThreadSide> = nics.collect();
        let waits: Vec<f64> = nics.iter().map(wait).collect();
        let (at, waited, others) = outstanding(&waits).filter(|o| o.1 >= STARVED)?;
        let seen = format!(
            "`{}` of {} waited for a core {} of the time, the other NIC threads {}",
            nics[at].name,
            node.node,
            percent(waited),
            percent(others)
        );
        let means = "it shares its core with something that does not sleep: its connections are \
                     late for that, and not for the network";
        let turn = "`nics[].cpus`: a core that nothing else runs on; fewer spinning threads on \
                    that one";
        Some(("one NIC thread", [seen, means.to_owned(), turn.to_owned()]))
    })
}

/// What is uneven in this run.
pub fn of(run: &Run) -> Vec<Card> {
    thread(run).into_iter().chain(connection(run)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Four connections; the last has so many of ten slow samples, and packets so much slower.
    /// Three NIC threads and a helper waited for a core for so many permille of the time.
    fn found(slow_of_last: u32, times: u64, waited: [u16; 4]) -> Vec<Card> {
        let connections =
            [0, 1, 2, 3].map(|i| json!({"name": format!("acc/{i}"), "samples": 1_000}));
        let summary = json!({"connections": connections});
        let rtts = [40, 40, 40, 40 * times].map(|us| json!({"rtt_us": us}));
        let slow = (0..10).map(|i| if i < slow_of_last { 3 } else { i % 3 });
        let slow: Vec<_> = slow.map(|i| json!({"connection": i})).collect();
        let names = ["nic-0", "nic-1", "nic-2", "nic-0-slots"];
        let threads = names.iter().zip(waited);
        let threads: Vec<_> = threads
            .map(|(n, w)| json!({"name": n, "waited": [w, w]}))
            .collect();
        let timeline = json!({
            "ticks": [{"connections": rtts}, {"connections": rtts}],
            "slowest": slow,
            "nodes": [{"node": "front", "threads": threads}],
        });
        let summary = serde_json::from_value(summary).expect("a summary");
        let timeline = serde_json::from_value(timeline).expect("a timeline");
        of(&Run::of("x", &summary, Some(timeline)))
    }

    #[test]
    fn one_congested_way_among_four_is_named() {
        let cards = found(9, 10, [0; 4]);
        let seen = &cards[0].1[0];
        assert_eq!((cards.len(), cards[0].0), (1, "one connection"));
        assert!(
            seen.starts_with("`acc/3` carried 25 % of the samples and 90 %"),
            "{seen}"
        );
        // By chance, or with packets as fast as anybody's, it is none.
        assert!(found(4, 10, [0; 4]).is_empty());
        assert!(found(9, 1, [0; 4]).is_empty());
    }

    #[test]
    fn one_starved_thread_is_named_and_a_busy_machine_is_not() {
        let cards = found(0, 1, [20, 600, 40, 0]);
        let seen = &cards[0].1[0];
        assert!(
            seen.contains("`nic-1` of front waited for a core 60 %"),
            "{seen}"
        );
        let all = found(0, 1, [500, 600, 550, 0]);
        assert!(
            all.is_empty(),
            "all of them wait but the helper, which sleeps"
        );
        assert!(found(0, 1, [1, 100, 1, 0]).is_empty(), "it waits little");
    }
}
