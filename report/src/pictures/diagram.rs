//! The run's network: the frontend and its NICs, the accelerators and theirs, and what went between
//! them.

use std::collections::BTreeMap;

use record::{AcceleratorRecord, Run};

use crate::text;

use crate::{
    draw::{At, Size, Svg, both},
    html::figure,
};

const ROW: f64 = 17.0;

/// A box with its lines.
struct Node {
    title: String,
    rows: Vec<String>,
}

impl Node {
    fn height(&self) -> f64 {
        (self.rows.len() as f64 + 1.0) * ROW + 14.0
    }

    fn draw(&self, svg: &mut Svg, at: (f64, f64), wide: f64) {
        svg.rounded(at, (wide, self.height()), 6.0, "node");
        svg.words((at.0 + 10.0, at.1 + 19.0), At::Start, "T b", &self.title);
        for (i, row) in self.rows.iter().enumerate() {
            let y = at.1 + 19.0 + (i as f64 + 1.0) * ROW;
            svg.words((at.0 + 10.0, y), At::Start, "t", &cut(row, wide - 18.0));
        }
    }
}

/// As much of a line as there is room for.
fn cut(line: &str, room: f64) -> String {
    if crate::draw::width_of(line, 12.0) <= room {
        return line.to_owned();
    }
    let mut kept = String::new();
    for c in line.chars() {
        if crate::draw::width_of(&kept, 12.0) + 14.0 > room {
            break;
        }
        kept.push(c);
    }
    kept.push('\u{2026}');
    kept
}

/// What went between the frontend and one accelerator.
#[derive(Default)]
struct Way {
    connections: usize,
    samples: u64,
    bytes: u64,
    lost: usize,
}

fn ways(run: &Run) -> BTreeMap<&str, Way> {
    let mut ways: BTreeMap<&str, Way> = BTreeMap::new();
    for c in &run.summary.run.system.connections {
        let node = c
            .name
            .rsplit_once('/')
            .map_or(c.name.as_str(), |(node, _)| node);
        let way = ways.entry(node).or_default();
        way.connections += 1;
        way.samples += c.samples;
        way.bytes += c.tx.bytes.saturating_add(c.rx.bytes);
        way.lost += c.lost.len();
    }
    ways
}

fn links(facts: Option<&record::NodeFacts>) -> Vec<String> {
    let links = facts.iter().flat_map(|f| &f.links);
    let name = |l: &record::LinkFact| {
        let layer = serde_json::to_value(l.layer).ok();
        let layer = layer.and_then(|v| v.as_str().map(str::to_owned));
        format!("nics[{}] {}, {}", l.nic, l.name, layer.unwrap_or_default())
    };
    links.map(name).collect()
}

fn frontend(run: &Run) -> Node {
    let system = &run.summary.run.system;
    let mut rows = vec!["LoadGen".to_owned()];
    let facts = system.facts.as_ref();
    if let Some(host) = facts.map(|f| &f.host).filter(|h| !h.is_empty()) {
        rows.push(format!("host {host}"));
    }
    match &system.places.nics[..] {
        [] => rows.extend(links(facts)),
        nics => rows.extend(nics.iter().map(|n| {
            let layer = links(facts)
                .into_iter()
                .find(|l| n.nic.starts_with(l.split(' ').next().unwrap_or(" ")));
            match layer.as_deref().and_then(|l| l.split_once(' ')) {
                Some((_, link)) => format!("{} ({link})", n.nic),
                None => n.nic.clone(),
            }
        })),
    }
    Node {
        title: run.summary.node.clone(),
        rows,
    }
}

fn accelerator(a: &AcceleratorRecord) -> Node {
    let mut rows = vec![format!("engine {}", a.engine)];
    if let Some(host) = a.facts.as_ref().map(|f| &f.host).filter(|h| !h.is_empty()) {
        rows.push(format!("host {host}"));
    }
    rows.extend(a.gpus.iter().map(|g| format!("GPU {} {}", g.index, g.name)));
    rows.extend(links(a.facts.as_ref()));
    Node {
        title: a.node.clone(),
        rows,
    }
}

fn draw(run: &Run, size: Size) -> Svg {
    let system = &run.summary.run.system;
    let (own, others) = (frontend(run), system.accelerators.iter().map(accelerator));
    let others: Vec<Node> = others.collect();
    let wide = if size.narrow { size.width - 2.0 } else { 300.0 };
    let gap = if size.narrow { 58.0 } else { 18.0 };
    let right: f64 = others.iter().map(|n| n.height() + gap).sum::<f64>();
    let height = if size.narrow {
        own.height() + right + 4.0
    } else {
        own.height().max(right - gap) + 4.0
    };
    let mut svg = Svg::new(
        size.width,
        height,
        "the run's nodes and what went between them",
    );
    let ways = ways(run);
    let most = ways.values().map(|w| w.bytes).max().unwrap_or(0).max(1) as f64;
    let own_y = if size.narrow {
        1.0
    } else {
        (height - own.height()) / 2.0
    };
    let mut y = if size.narrow { own.height() + gap } else { 2.0 };
    let seconds = run.summary.run.duration_s.max(1e-9);
    let middle = own_y + own.height() / 2.0;
    let boxes: Vec<(f64, &Node)> = others
        .iter()
        .map(|node| {
            let at = y;
            y += node.height() + gap;
            (at, node)
        })
        .collect();
    for (at, node) in &boxes {
        let Some(way) = ways.get(node.title.as_str()) else {
            continue;
        };
        let class = if way.lost > 0 { "way bad" } else { "way" };
        let thick = 2.0 + 10.0 * way.bytes as f64 / most;
        let rate = text::bit_rate(way.bytes as f64 * 8.0 / seconds / 1e9);
        let above = text::counted(way.connections as u64, "connection");
        let above = match way.lost {
            0 => above,
            n => format!("{above}, {n} losses"),
        };
        let below = format!("{}, {rate}", text::bytes(way.bytes));
        if size.narrow {
            let x = size.width / 2.0;
            svg.thick((24.0, at - gap + 2.0), (24.0, *at), thick, class);
            let words = format!("{above}: {below}");
            svg.words((x - 136.0, at - gap / 2.0 + 4.0), At::Start, "t", &words);
        } else {
            let (from, to) = (
                (wide, middle),
                (size.width - wide, at + node.height() / 2.0),
            );
            svg.thick(from, to, thick, class);
            let x = to.0 - 12.0;
            svg.words((x, to.1 - thick / 2.0 - 5.0), At::End, "t b halo", &above);
            svg.words((x, to.1 + thick / 2.0 + 14.0), At::End, "t halo", &below);
        }
    }
    own.draw(&mut svg, (1.0, own_y), wide);
    for (at, node) in boxes {
        let x = if size.narrow {
            1.0
        } else {
            size.width - wide - 1.0
        };
        node.draw(&mut svg, (x, at), wide);
    }
    svg
}

/// The picture; nothing where there was no network.
pub fn picture(run: &Run) -> String {
    if run.summary.run.system.connections.is_empty() {
        return String::new();
    }
    figure(
        "network",
        "The run's network",
        &both(Size::FULL, |size| draw(run, size)),
        "Lines are as thick as what went over them, payload in both directions with the warm-up.",
    )
}
