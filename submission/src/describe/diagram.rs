//! Draws the network diagram: LoadGen's node, the switches, and the SUT's nodes. It shows each NIC
//! that carries samples with address and rate, and a line for each cable.

use std::fmt::Write;

use super::{
    Nic, Node,
    form::{Form, Switch},
    system::{DescribedSystem, speed, used},
};

const WIDTH: u32 = 1000;
const BOX: u32 = 300;
const LINE: u32 = 18;
const GAP: u32 = 30;
const HEADER: u32 = 60;

/// A drawn NIC: its name `NODE:NIC`, and the point where its cable begins.
struct Port {
    name: String,
    x: u32,
    y: u32,
}

pub fn svg(form: &Form, system: &DescribedSystem<'_>) -> String {
    let mut body = String::new();
    let mut ports = Vec::new();
    let mut draw = |role, node, nics: &[&Nic], (x, y)| {
        draw_node(&mut body, &mut ports, role, (node, nics), (x, y))
    };
    let nics = system.loadgen_nics();
    let left = draw("LoadGen", system.frontend, &nics, (20, HEADER));
    let mut y = HEADER;
    for (node, names) in &system.accelerators {
        y = draw("SUT", node, &used(node, names), (WIDTH - BOX - 20, y)) + GAP;
    }
    let from = nics.len();
    let (loadgen, sut) = ports.split_at(from);
    let mut lines = String::new();
    let bottom = if form.switches.is_empty() {
        // Without switches, cable i connects the i-th NICs of both sides, modulo LoadGen's NICs.
        for (i, port) in sut.iter().enumerate() {
            if let Some(other) = loadgen.get(i % loadgen.len().max(1)) {
                line(&mut lines, other, port);
            }
        }
        HEADER
    } else {
        switches(&mut body, &mut lines, form, loadgen, sut)
    };
    let height = left.max(y).max(bottom) + GAP;
    let title = escape(&format!("{}: {}", form.submitter, form.system));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"18\">{title}</text>\n{lines}{body}</svg>\n"
    )
}

/// Draws a node's box and returns the y coordinate below the box.
fn draw_node(
    out: &mut String,
    ports: &mut Vec<Port>,
    role: &str,
    (node, nics): (&Node, &[&Nic]),
    (x, y): (u32, u32),
) -> u32 {
    let mut rows = vec![node.processors.model.clone()];
    if !node.gpus.is_empty() {
        rows.push(format!("{} x {}", node.gpus.len(), node.gpus[0].name));
    }
    let name = match node.node.as_str() {
        "" => &node.host,
        name => name,
    };
    let lines = u32::try_from(rows.len() + 2 * nics.len()).unwrap_or(u32::MAX / 64);
    let height = (lines + 2).saturating_mul(LINE);
    frame(out, x, y, BOX, height, &format!("{role}: {name}"));
    let mut at = y + 2 * LINE;
    for row in rows {
        text(out, x + 10, at, &row);
        at += LINE;
    }
    for nic in nics {
        let right = x + BOX > WIDTH / 2;
        ports.push(Port {
            name: format!("{name}:{}", nic.name),
            x: if right { x } else { x + BOX },
            y: at,
        });
        let rate = format!("{} {}", nic.link_layer, speed(nic));
        text(out, x + 10, at, format!("{}  {rate}", nic.name).trim_end());
        let address = nic.addresses.first().map_or("", String::as_str);
        let card = format!("{address}  {}", nic.model);
        text(out, x + 26, at + LINE, card.trim());
        at += 2 * LINE;
    }
    y + height
}

/// Draws the switches and their cables, and returns the y coordinate below the switches.
fn switches(
    out: &mut String,
    lines: &mut String,
    form: &Form,
    loadgen: &[Port],
    sut: &[Port],
) -> u32 {
    let (x, width) = (WIDTH / 2 - 80, 160);
    let mut y = HEADER + LINE;
    for switch in &form.switches {
        frame(out, x, y, width, 4 * LINE, &switch.name);
        text(out, x + 10, y + 2 * LINE, &switch.model);
        text(out, x + 10, y + 3 * LINE, &switch.software);
        let middle = y + 2 * LINE;
        for (ports, edge) in [(loadgen, x), (sut, x + width)] {
            for port in ports.iter().filter(|p| connects(switch, &p.name)) {
                let end = Port {
                    name: String::new(),
                    x: edge,
                    y: middle,
                };
                line(lines, port, &end);
            }
        }
        y += 4 * LINE + GAP;
    }
    y
}

fn connects(switch: &Switch, port: &str) -> bool {
    switch.connects.is_empty() || switch.connects.iter().any(|c| c == port)
}

// Writing to a String cannot fail.
fn frame(out: &mut String, x: u32, y: u32, width: u32, height: u32, title: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#f4f6f8\" stroke=\"#445\"/>\n\
         <text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>",
        x + 10,
        y + LINE,
        escape(title)
    );
}

fn text(out: &mut String, x: u32, y: u32, what: &str) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", escape(what));
}

fn line(out: &mut String, from: &Port, to: &Port) {
    let _ = writeln!(
        out,
        "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#27a\" stroke-width=\"2\"/>",
        from.x, from.y, to.x, to.y
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
