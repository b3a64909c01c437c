//! What each thread of each node ran, and how long it waited for a core.

use record::{
    Run, ThreadGroup,
    timeline::{NodeSide, ThreadSide},
};

use super::percent;
use crate::{
    draw::{At, Size, Svg, both},
    html::{absent, escape, figure, legend},
};

/// Most threads of a node that are drawn: the busiest.
const MOST: usize = 14;
const EACH: f64 = 34.0;

fn mean(permille: &[u16]) -> f64 {
    let sum: u64 = permille.iter().map(|p| u64::from(*p)).sum();
    sum as f64 / permille.len().max(1) as f64 / 1000.0
}

/// Means of neighbours, at most so many.
fn fewer(permille: &[u16], most: usize) -> Vec<f64> {
    let each = permille.len().div_ceil(most).max(1);
    permille.chunks(each).map(mean).collect()
}

/// One row: name, what it came to, and the strip.
fn strip(svg: &mut Svg, size: Size, y: f64, name: &str, shares: (f64, f64), of: &ThreadSide) {
    let (left, right) = if size.narrow {
        (0.0, size.width)
    } else {
        (130.0, size.width - 8.0)
    };
    let (top, high) = if size.narrow {
        (y + 16.0, 14.0)
    } else {
        (y + 16.0, 15.0)
    };
    let name_at = if size.narrow {
        (0.0, y + 12.0)
    } else {
        (0.0, y + 27.0)
    };
    svg.words(name_at, At::Start, "t b", name);
    let (ran, waited) = shares;
    let said = format!("on a core {}, waited {}", percent(ran), percent(waited));
    svg.words((right, y + 12.0), At::End, "t m", &said);
    svg.rect((left, top), (right - left, high), "track");
    let ran = fewer(&of.on_core, 240);
    let waited = fewer(&of.waited, 240);
    let n = ran.len().max(waited.len());
    if n == 0 {
        return;
    }
    let wide = (right - left) / n as f64;
    let base = top + high;
    let mut boxes = (Vec::new(), Vec::new());
    for i in 0..n {
        let x = left + i as f64 * wide;
        let on = ran.get(i).copied().unwrap_or(0.0).clamp(0.0, 1.0);
        let off = waited.get(i).copied().unwrap_or(0.0).clamp(0.0, 1.0 - on);
        if on > 0.01 {
            boxes.0.push(((x, base - on * high), (wide, on * high)));
        }
        if off > 0.01 {
            boxes
                .1
                .push(((x, base - (on + off) * high), (wide, off * high)));
        }
    }
    svg.boxes(&boxes.0, "fill k-net");
    svg.boxes(&boxes.1, "fill k-comp");
}

fn draw(node: &NodeSide, size: Size) -> Svg {
    let threads = &node.threads[..node.threads.len().min(MOST)];
    let height = threads.len() as f64 * EACH + 4.0;
    let label = format!("threads of {} over time", node.node);
    let mut svg = Svg::new(size.width, height, label);
    for (i, thread) in threads.iter().enumerate() {
        let shares = (mean(&thread.on_core), mean(&thread.waited));
        strip(
            &mut svg,
            size,
            i as f64 * EACH,
            &thread.name,
            shares,
            thread,
        );
    }
    svg
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
    let (nodes, over_time) = nodes(run);
    if nodes.is_empty() {
        return absent("What threads ran was not counted.");
    }
    let keys = legend(&[
        ("k-net", "on a core"),
        ("k-comp", "wanted one and waited"),
        ("track", "slept"),
    ]);
    let mut html = keys;
    for node in &nodes {
        let picture = both(Size::HALF, |size| draw(node, size));
        let more = node.threads.len().saturating_sub(MOST);
        let more = match more {
            0 => String::new(),
            n => format!("<p class=\"absent\">and {n} threads that did less.</p>"),
        };
        html.push_str(&format!(
            "<div class=\"part\"><h4>{}</h4>{picture}{more}</div>",
            escape(&node.node)
        ));
    }
    let note = if over_time {
        "From left to right the run's time. Where threads wait for a core, everything else looks slow \
         as well: that is the scheduler and not the network."
    } else {
        "Over the whole run, threads of a kind together: `timeline.json` is not there. Where threads \
         wait for a core, everything else looks slow as well."
    };
    figure(
        "threads",
        "Threads: on a core, and waiting for one",
        &format!("<div class=\"parts\">{html}</div>"),
        note,
    )
}
