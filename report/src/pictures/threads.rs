//! What each thread of each node ran, and how long it waited for a core.

use qdl::stats::{
    limits::ThreadGroup,
    timeline::{NodeSide, ThreadSide, Timeline},
};

use super::{course::Axis, percent};
use crate::{
    chart::{Chart, Style, Unit, beside},
    html::{Cell, absent, escape, figure, table},
    run::Run,
};

/// Maximum number of threads of a node that are drawn: the busiest.
const MOST: usize = 14;

fn mean(permille: &[u16]) -> f64 {
    let sum: u64 = permille.iter().map(|p| u64::from(*p)).sum();
    sum as f64 / permille.len().max(1) as f64 / 1000.0
}

/// Charts of a node's threads over time.
fn over_time(node: &NodeSide, threads: &[ThreadSide], timeline: &Timeline) -> String {
    let ticks = threads.iter().map(|t| t.on_core.len()).max().unwrap_or(0);
    let axis = Axis::of_node(node, timeline, ticks);
    let chart = |title, of: fn(&ThreadSide) -> &[u16]| {
        let units = (Unit::Seconds, Unit::Share);
        let mut chart = Chart::new(title, Style::Lines, units, axis.x.clone());
        for thread in threads {
            chart.line(&thread.name, None, of(thread).chunks(axis.each).map(mean));
        }
        chart.html()
    };
    let on_core = chart("On a core", |t| &t.on_core);
    beside(&[on_core, chart("Wanted a core and waited", |t| &t.waited)])
}

/// A node's threads: what they came to, and over time where that was kept.
fn one(node: &NodeSide, timeline: Option<&Timeline>) -> String {
    let threads = &node.threads[..node.threads.len().min(MOST)];
    let row = |t: &ThreadSide| {
        let (ran, waited) = (mean(&t.on_core), mean(&t.waited));
        let shares = [ran, waited, (1.0 - ran - waited).max(0.0)];
        let shares = shares.map(|share| Cell::figure(percent(share)));
        [Cell::words(&t.name)].into_iter().chain(shares).collect()
    };
    let rows: Vec<Vec<Cell>> = threads.iter().map(row).collect();
    let heading = ["thread", "on a core", "wanted one and waited", "slept"];
    let more = match node.threads.len().saturating_sub(MOST) {
        0 => String::new(),
        n => absent(&format!("and {n} threads that did less.")),
    };
    let charts = timeline.map_or_else(String::new, |t| over_time(node, threads, t));
    let name = escape(&node.node);
    format!("<h4>{name}</h4>{}{more}{charts}", table(&heading, &rows))
}

/// Threads by kind, of a run that kept them in total alone.
fn groups(node: &str, clock_us: u64, groups: &[ThreadGroup]) -> NodeSide {
    let share = |us: u64, threads: u32| {
        let of = (clock_us.max(1) as f64) * f64::from(threads.max(1));
        (us as f64 / of * 1000.0).clamp(0.0, 1000.0) as u16
    };
    let mut threads: Vec<ThreadSide> = groups
        .iter()
        .filter(|g| g.ran_us + g.waited_us > 0)
        .map(|g| ThreadSide {
            name: match g.threads {
                1 => g.name.clone(),
                n => format!("{} x {n}", g.name),
            },
            on_core: vec![share(g.ran_us, g.threads)],
            waited: vec![share(g.waited_us, g.threads)],
        })
        .collect();
    threads.sort_by_key(|t| std::cmp::Reverse(t.on_core[0] + t.waited[0]));
    NodeSide {
        node: node.to_owned(),
        threads,
        ..NodeSide::default()
    }
}

/// The nodes and their threads: over time, or in total.
fn nodes(run: &Run) -> (Vec<NodeSide>, bool) {
    let kept = run.timeline.iter().flat_map(|t| &t.nodes);
    let kept: Vec<NodeSide> = kept.filter(|n| !n.threads.is_empty()).cloned().collect();
    if !kept.is_empty() {
        return (kept, true);
    }
    let r = &run.summary.run;
    let own = &r.evidence.node;
    let own = groups(&run.summary.node, own.clock_us, &own.threads);
    let others = r.system.accelerators.iter();
    let others = others.map(|a| groups(&a.node, a.used.clock_us, &a.used.threads));
    let all = [own].into_iter().chain(others);
    (all.filter(|n| !n.threads.is_empty()).collect(), false)
}

/// The picture.
pub fn picture(run: &Run) -> String {
    let (nodes, kept) = nodes(run);
    if nodes.is_empty() {
        return absent("What threads ran was not counted.");
    }
    let timeline = run.timeline.as_ref().filter(|_| kept);
    let html: String = nodes.iter().map(|n| one(n, timeline)).collect();
    let over = match kept {
        true => "",
        false => "`timeline.json` is not there: threads of a kind together. ",
    };
    let note = format!(
        "{over}Where threads wait for a core, everything else looks slow as well: that is the \
         scheduler and not the network."
    );
    figure(
        "threads",
        "Threads: on a core, and waiting for one",
        &html,
        &note,
    )
}
