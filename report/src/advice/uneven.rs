//! What a run's totals cannot show and its timeline does: one way among several that is slower than
//! the others, one NIC thread that gets no core.
//!
//! Both are judged by what the others of the same run do at the same time, so that a machine that
//! is slow as a whole is none of them.

use std::collections::BTreeMap;

use qdl::stats::{text, timeline::ThreadSide};

use crate::{pictures::percent, run::Run};

/// Of the slowest samples, the share that makes one connection conspicuous.
const MOST: f64 = 0.6;
/// How many times its fair share that is at least.
const TIMES: f64 = 2.0;
/// How many times the others' round trip its own is at least.
const LONGER: f64 = 3.0;
/// Share of its time that a starved thread waits for a core, at least.
const STARVED: f64 = 0.25;

/// What may be uneven, as people read of it: on the page, and in `docs/tuning.md`.
pub struct Row {
    /// What it is called.
    pub name: &'static str,
    /// What is seen, in general: for the table in `docs/tuning.md`, which a test writes.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a page says what is seen in its run")
    )]
    pub symptom: &'static str,
    /// What that means.
    pub means: &'static str,
    /// What to turn.
    pub turn: &'static str,
    /// What that is expected to bring.
    pub brings: &'static str,
}

/// One connection among several.
const CONNECTION: Row = Row {
    name: "one connection",
    symptom: "most of the slowest samples went over one connection, more than twice its share, and \
              its packets take three times as long as the others' and more",
    means: "that way is congested, or its far end does not read: the others are not",
    turn: "look at its link and its switch ports; `arbiter: health_spray`, `health_best_fit` or \
           `best` steer samples around it",
    brings: "the slowest samples become as fast as those of the other connections",
};

/// One NIC thread among several.
const THREAD: Row = Row {
    name: "one NIC thread",
    symptom: "one NIC thread waits for a core a quarter of the run and more, and three times as long \
              as the others of its node",
    means: "it shares its core with something that does not sleep: its connections are late for \
            that, and not for the network",
    turn: "`nics[].cpus`: a core that nothing else runs on; fewer spinning threads on that one",
    brings: "the round trips of its connections fall to those of the others",
};

/// In the order in which they stand on the page.
#[cfg(test)]
const ROWS: [&Row; 2] = [&THREAD, &CONNECTION];

/// Something that is uneven in this run, and by what figures.
pub struct Uneven {
    /// What it is.
    pub row: &'static Row,
    /// By what figures.
    pub seen: String,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// One connection has most of the slowest samples, and its packets take much longer.
fn connection(run: &Run) -> Option<Uneven> {
    let slow = &run.timeline.as_ref()?.slowest;
    let all = &run.summary.run.system.connections;
    if slow.len() < 8 || all.len() < 2 {
        return None;
    }
    let mut by: BTreeMap<u32, usize> = BTreeMap::new();
    slow.iter()
        .for_each(|s| *by.entry(s.connection).or_default() += 1);
    let (at, count) = by.into_iter().max_by_key(|(_, n)| *n)?;
    let own = all.get(at as usize)?;
    let samples: u64 = all.iter().map(|c| c.samples).sum();
    let share = count as f64 / slow.len() as f64;
    let fair = own.samples as f64 / samples.max(1) as f64;
    if share < MOST || share < TIMES * fair {
        return None;
    }
    let timeline = run.timeline.as_ref()?;
    let rtt = |i: usize| {
        let ticks = timeline.ticks.iter().filter_map(|t| t.connections.get(i));
        let seen: Vec<f64> = ticks.filter_map(|c| Some(c.rtt_us? as f64)).collect();
        (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64)
    };
    let others = (0..all.len()).filter(|i| *i != at as usize);
    let others = median(others.filter_map(rtt).collect())?;
    let mine = rtt(at as usize)?;
    if mine < LONGER * others {
        return None;
    }
    let again: u64 = timeline
        .ticks
        .iter()
        .filter_map(|t| t.connections.get(at as usize))
        .map(|c| c.retransmits)
        .sum();
    Some(Uneven {
        row: &CONNECTION,
        seen: format!(
            "`{}` carried {} of the samples and {} of the slowest {}; its packets' round trip was {} on \
             average, {} on the others; {} were sent again",
            own.name,
            percent(fair),
            percent(share),
            slow.len(),
            text::time_us(mine),
            text::time_us(others),
            text::counted(again, "segment")
        ),
    })
}

fn mean(permille: &[u16]) -> f64 {
    let sum: f64 = permille.iter().map(|p| f64::from(*p)).sum();
    sum / permille.len().max(1) as f64 / 1000.0
}

/// One NIC thread waits for a core, and the others of its node do not.
fn thread(run: &Run) -> Option<Uneven> {
    for node in &run.timeline.as_ref()?.nodes {
        let is_nic = |t: &&ThreadSide| t.name.starts_with("nic");
        let nics: Vec<&ThreadSide> = node.threads.iter().filter(is_nic).collect();
        let longest = nics
            .iter()
            .max_by(|a, b| mean(&a.waited).total_cmp(&mean(&b.waited)));
        let Some(starved) = longest.filter(|_| nics.len() > 1) else {
            continue;
        };
        let waited = mean(&starved.waited);
        let others = nics.iter().filter(|t| t.name != starved.name);
        let others = median(others.map(|t| mean(&t.waited)).collect()).unwrap_or(1.0);
        if waited < STARVED || waited < LONGER * others {
            continue;
        }
        return Some(Uneven {
            row: &THREAD,
            seen: format!(
                "`{}` of {} waited for a core {} of the time, the other NIC threads {}",
                starved.name,
                node.node,
                percent(waited),
                percent(others)
            ),
        });
    }
    None
}

/// What is uneven in this run.
pub fn of(run: &Run) -> Vec<Uneven> {
    thread(run).into_iter().chain(connection(run)).collect()
}

/// The rows as a table of Markdown, without a line's end behind the last one.
#[cfg(test)]
fn table() -> String {
    let mut lines = vec![
        "| the page says | what is seen | what it means | what to turn | what that brings |"
            .to_owned(),
        "| --- | --- | --- | --- | --- |".to_owned(),
    ];
    lines.extend(ROWS.iter().map(|r| {
        format!(
            "| {} | {} | {} | {} | {} |",
            r.name, r.symptom, r.means, r.turn, r.brings
        )
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use qdl::stats::{
        ConnectionRecord, Summary,
        timeline::{ConnectionTick, NodeSide, SlowSample, Tick, Timeline},
    };

    use super::*;

    /// Four connections; the last has so many of ten slow samples, and packets so much slower.
    fn run(slow_of_last: usize, times: u64) -> Run {
        let mut summary = Summary::default();
        summary.run.system.connections = (0..4)
            .map(|i| ConnectionRecord {
                name: format!("acc/{i}"),
                samples: 1_000,
                ..ConnectionRecord::default()
            })
            .collect();
        let tick = |i: u64| ConnectionTick {
            rtt_us: Some(if i == 3 { 40 * times } else { 40 }),
            ..ConnectionTick::default()
        };
        let timeline = Timeline {
            tick_ms: 100,
            ticks: vec![
                Tick {
                    connections: (0..4).map(tick).collect(),
                    ..Tick::default()
                };
                20
            ],
            slowest: (0..10)
                .map(|i| SlowSample {
                    connection: if i < slow_of_last { 3 } else { i as u32 % 3 },
                    ..SlowSample::default()
                })
                .collect(),
            ..Timeline::default()
        };
        Run::of("x", &summary, Some(timeline))
    }

    #[test]
    fn one_congested_way_among_four_is_named() {
        let found = of(&run(9, 10));
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .seen
                .starts_with("`acc/3` carried 25 % of the samples and 90 %")
        );
        // By chance, or with packets as fast as anybody's, it is none.
        assert!(of(&run(4, 10)).is_empty());
        assert!(of(&run(9, 1)).is_empty());
    }

    #[test]
    fn one_starved_thread_is_named_and_a_busy_machine_is_not() {
        let side = |name: &str, waited: u16| ThreadSide {
            name: name.to_owned(),
            on_core: vec![300; 10],
            waited: vec![waited; 10],
        };
        let with = |waited: [u16; 3]| {
            let mut run = run(0, 1);
            let threads = [("nic-0", 0), ("nic-1", 1), ("nic-2", 2)];
            let node = NodeSide {
                node: "front".to_owned(),
                threads: threads.map(|(n, i)| side(n, waited[i])).to_vec(),
                ..NodeSide::default()
            };
            run.timeline.as_mut().expect("a timeline").nodes = vec![node];
            of(&run)
        };
        let found = with([20, 600, 40]);
        assert!(
            found[0]
                .seen
                .contains("`nic-1` of front waited for a core 60 %")
        );
        assert!(with([500, 600, 550]).is_empty(), "all of them wait");
        assert!(with([1, 100, 1]).is_empty(), "it waits little");
    }

    const TABLE_BEGINS: &str =
        "<!-- This table is made from the rows in report/src/advice/uneven.rs -->";
    const TABLE_ENDS: &str = "<!-- end of what is uneven -->";

    #[test]
    fn the_page_on_tuning_has_this_very_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tuning.md");
        let page = fs::read_to_string(&path).expect("docs/tuning.md");
        let (before, rest) = page.split_once(TABLE_BEGINS).expect("the first mark");
        let (found, after) = rest.split_once(TABLE_ENDS).expect("the second mark");
        let wanted = format!("\n\n{}\n\n", table());
        if env::var_os("QDL_WRITE_DOCS").is_some() && found != wanted {
            let page = format!("{before}{TABLE_BEGINS}{wanted}{TABLE_ENDS}{after}");
            fs::write(&path, page).expect("written");
            return;
        }
        assert_eq!(
            found, wanted,
            "docs/tuning.md and the rows differ: `QDL_WRITE_DOCS=1 cargo test -p report --lib \
             the_page_on_tuning` writes the page anew"
        );
    }
}
