//! The topology as a table like that of `nvidia-smi topo -m`, with NICs.

use std::fmt::Write;

use super::{Nearness, Nic, NicKind, PciPlace, Topology};

impl Topology {
    /// A table of distances between GPUs and NICs, with cores, NUMA nodes, and each GPU's NICs.
    pub(crate) fn matrix(&self) -> String {
        let gpus = self.gpus.iter().enumerate();
        let nics = self.nics.iter().enumerate();
        let all: Vec<(String, &PciPlace)> = gpus
            .map(|(i, g)| (format!("GPU{i}"), &g.place))
            .chain(nics.map(|(i, n)| (format!("NIC{i}"), &n.place)))
            .collect();
        let mut rows = vec![vec![String::new()]];
        rows[0].extend(all.iter().map(|(name, _)| name.clone()));
        rows[0].extend(["cores", "NUMA"].map(str::to_owned));
        for (i, (name, place)) in all.iter().enumerate() {
            let mut row = vec![name.clone()];
            row.extend(all.iter().enumerate().map(|(j, (_, other))| {
                let letters = match place.nearness(other) {
                    _ if i == j => "X",
                    // Two ports of one card have the shortest distance.
                    Nearness::Same => Nearness::Pix.letters(),
                    nearness => nearness.letters(),
                };
                letters.to_owned()
            }));
            row.push(place.cpus.to_string());
            row.push(place.numa.map_or_else(|| "-".to_owned(), |n| n.to_string()));
            rows.push(row);
        }
        let mut out = match all.is_empty() {
            true => "no GPU and no NIC that could carry samples\n".to_owned(),
            false => columns(&rows),
        };
        if !self.nics.is_empty() {
            out.push_str("\nNICs\n");
            let lines = self.nics.iter().enumerate();
            let lines: Vec<_> = lines.map(|(i, n)| nic_line(i, n)).collect();
            out.push_str(&columns(&lines));
        }
        if !self.gpus.is_empty() {
            out.push_str("\nNICs of each GPU\n");
            for g in self.nic_groups() {
                let names: Vec<_> = g.nics.iter().map(|n| self.nics[*n].name.as_str()).collect();
                let near = g.nearness.map_or("", |n| n.letters());
                let gpu = g.gpu.unwrap_or_default();
                let _ = writeln!(out, "  GPU{gpu}  {near:<4}  {}", names.join(" "));
            }
        }
        out.push_str("\nNUMA nodes\n");
        for n in &self.nodes {
            let _ = writeln!(out, "  {}  cores {}", n.id, n.cpus);
        }
        out.push_str(
            "\nX itself, PIX one PCIe switch, PXB several, PHB the host bridge, NODE between host \
             bridges of a NUMA node, SYS between NUMA nodes\n",
        );
        out
    }
}

fn nic_line(i: usize, n: &Nic) -> Vec<String> {
    let speed = match n.speed_mbps {
        Some(m) if m >= 1000 => format!("{} Gbit/s", m as f64 / 1000.0),
        Some(m) => format!("{m} Mbit/s"),
        None => String::new(),
    };
    let kind = match &n.kind {
        NicKind::Rdma { port, link_layer } => format!("{link_layer} port {port}"),
        NicKind::Tcp => "TCP".to_owned(),
    };
    let addresses: Vec<_> = n.addresses.iter().map(ToString::to_string).collect();
    vec![
        format!("  NIC{i}"),
        n.name.clone(),
        kind,
        if n.up { "up" } else { "down" }.to_owned(),
        speed,
        n.netdev
            .clone()
            .filter(|d| *d != n.name)
            .unwrap_or_default(),
        addresses.join(" "),
        n.place.address().map(|a| a.to_string()).unwrap_or_default(),
    ]
}

/// Formats cells in columns with two blanks between, without trailing blanks.
fn columns(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|s| s.chars().count())
            .max()
    };
    let widths: Vec<_> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            if *width > 0 {
                let _ = write!(line, "{cell:<width$}  ");
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
