//! The picture of the run's nodes: the frontend, the accelerators, and the traffic with each.

use record::{AcceleratorRecord, LinkFact, NodeFacts, RunFolder};

use crate::{
    html::{Cell, columns, figure, table},
    text,
};

/// A node's links: `nics[0] eth0, ethernet`.
fn links(facts: Option<&NodeFacts>) -> Vec<String> {
    let links = facts.iter().flat_map(|f| &f.links);
    let link = |l: &LinkFact| {
        let layer = text::json_name(l.layer);
        format!("nics[{}] {}, {layer}", l.nic, l.name)
    };
    links.map(link).collect()
}

fn host(facts: Option<&NodeFacts>) -> Cell {
    Cell::words(facts.map_or("", |f| f.host.as_str()))
}

fn frontend(run: &RunFolder) -> Vec<Cell> {
    let system = &run.summary.run.system;
    let facts = system.facts.as_ref();
    let mut nics = links(facts);
    if nics.is_empty() {
        nics = system.places.nics.iter().map(|n| n.nic.clone()).collect();
    }
    let mut cells = vec![
        Cell::words(&run.summary.node),
        host(facts),
        Cell::words("LoadGen"),
        Cell::words(nics.join("; ")),
    ];
    cells.resize(8, Cell::figure(""));
    cells
}

fn accelerator(run: &RunFolder, a: &AcceleratorRecord) -> Vec<Cell> {
    let connections = run.summary.run.system.connections.iter();
    let (mut n, mut bytes, mut losses) = (0, 0u64, 0);
    for c in connections {
        let node = c.name.rsplit_once('/').map(|(node, _)| node);
        if node.unwrap_or(&c.name) == a.node {
            n += 1;
            bytes = bytes.saturating_add(c.tx.bytes).saturating_add(c.rx.bytes);
            losses += c.lost.len();
        }
    }
    let bits = bytes as f64 * 8.0 / run.summary.run.duration_s.max(1e-9);
    let gpus = a.gpus.iter().map(|g| format!("GPU {} {}", g.index, g.name));
    let engine = std::iter::once(format!("engine {}", a.engine));
    let runs: Vec<String> = engine.chain(gpus).collect();
    vec![
        Cell::words(&a.node),
        host(a.facts.as_ref()),
        Cell::words(runs.join("; ")),
        Cell::words(links(a.facts.as_ref()).join("; ")),
        Cell::figure(text::grouped(n)),
        Cell::figure(text::bytes(bytes)),
        Cell::figure(text::bit_rate(bits / 1e9)),
        Cell::figure(text::grouped(losses as u64)),
    ]
}

/// The picture; empty for a run without a network.
pub fn picture(run: &RunFolder) -> String {
    let system = &run.summary.run.system;
    if system.connections.is_empty() {
        return String::new();
    }
    let others = system.accelerators.iter().map(|a| accelerator(run, a));
    let rows: Vec<_> = [frontend(run)].into_iter().chain(others).collect();
    let heading = "node|host|runs|NICs|connections|payload|rate|losses";
    figure(
        "network",
        "The run's network",
        &table(&columns(heading), &rows),
        "Payload in both directions with the warm-up; the rate is its mean over the run.",
    )
}
