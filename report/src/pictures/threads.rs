//! The picture of each node's threads: time on a core, and time waiting for one.

use record::{
    RunFolder,
    timeline::{NodeSide, ThreadSide, Timeline},
};

use super::course::Axis;
use crate::{
    chart::{Chart, Style, Unit},
    model::{Cell, Part, absent, figure, row, table},
    text::percent,
};

/// Maximum number of threads drawn for a node: the busiest.
const MOST: usize = 14;

fn mean(permille: &[u16]) -> f64 {
    let sum: u64 = permille.iter().map(|p| u64::from(*p)).sum();
    sum as f64 / permille.len().max(1) as f64 / 1000.0
}

fn over_time(node: &NodeSide, threads: &[ThreadSide], timeline: &Timeline) -> Part {
    let ticks = threads.iter().map(|t| t.on_core.len()).max().unwrap_or(0);
    let axis = Axis::of_node(node, timeline, ticks);
    let chart = |title, of: fn(&ThreadSide) -> &[u16]| {
        let units = (Unit::Seconds, Unit::Share);
        let mut chart = Chart::new(title, Style::Lines, units, axis.x.clone());
        for thread in threads {
            chart.line(&thread.name, None, of(thread).chunks(axis.each).map(mean));
        }
        Part::Chart(chart)
    };
    let on_core = chart("On a core", |t| &t.on_core);
    Part::Group(
        "charts",
        vec![on_core, chart("Waited for a core", |t| &t.waited)],
    )
}

/// A node's threads: shares of the whole run, and charts over time.
fn one(node: &NodeSide, timeline: &Timeline) -> Vec<Part> {
    let threads = &node.threads[..node.threads.len().min(MOST)];
    let of = |t: &ThreadSide| {
        let (ran, waited) = (mean(&t.on_core), mean(&t.waited));
        let shares = [ran, waited, (1.0 - ran - waited).max(0.0)];
        row(Cell::words(&t.name), shares.map(percent))
    };
    let rows: Vec<Vec<Cell>> = threads.iter().map(of).collect();
    let heading = "thread|on a core|waited for a core|slept";
    let mut parts = vec![Part::Title(node.node.clone()), table(heading, rows)];
    if let Some(n @ 1..) = node.threads.len().checked_sub(MOST) {
        parts.push(absent(format!("and {n} threads that did less.")));
    }
    parts.push(over_time(node, threads, timeline));
    parts
}

pub fn picture(run: &RunFolder) -> Part {
    let timelines = run.timeline.iter();
    let nodes = timelines.flat_map(|t| t.nodes.iter().map(move |n| (n, t)));
    let nodes = nodes.filter(|(n, _)| !n.threads.is_empty());
    let parts: Vec<Part> = nodes.flat_map(|(n, t)| one(n, t)).collect();
    if parts.is_empty() {
        return absent("What threads ran was not kept over time.");
    }
    figure(
        "threads",
        "Threads: on a core, and waiting for one",
        parts,
        "Where threads wait for a core, everything else looks slow as well: that is the scheduler \
         and not the network.",
    )
}
