//! Draws the network diagram: LoadGen's node, the switches, and the SUT's nodes. It shows each NIC
//! that carries samples with address and rate, and a line for each cable.

use std::fmt::Write;

use super::{
    escape::xml,
    form::{Form, Switch},
    system::{DescribedSystem, speed},
    used::UsedNode,
};

const WIDTH: u32 = 1000;
const BOX: u32 = 300;
const LINE: u32 = 18;
const GAP: u32 = 30;
const HEADER: u32 = 60;

/// A drawn port: its names `NODE:NIC`, and the point where its cable begins.
struct Port {
    names: Vec<String>,
    x: u32,
    y: u32,
}

pub fn svg(form: &Form, system: &DescribedSystem) -> String {
    let mut body = String::new();
    let mut ports = Vec::new();
    let mut draw = |side, machine: &UsedNode, at| {
        let title = match system.titles(machine) {
            names if names.is_empty() => machine.node.host.clone(),
            names => names,
        };
        let title = format!("{side}: {title}");
        draw_node(&mut body, &mut ports, &title, machine, at)
    };
    let left = draw("LoadGen", &system.frontend, (20, HEADER));
    let mut y = HEADER;
    for machine in &system.accelerators {
        y = draw("SUT", machine, (WIDTH - BOX - 20, y)) + GAP;
    }
    let (loadgen, sut) = ports.split_at(system.frontend.ports().count());
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
    let title = xml(&format!("{}: {}", form.submitter, form.system));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"18\">{title}</text>\n{lines}{body}</svg>\n"
    )
}

/// Draws a machine's box and returns the y coordinate below the box.
fn draw_node(
    out: &mut String,
    ports: &mut Vec<Port>,
    title: &str,
    machine: &UsedNode,
    (x, y): (u32, u32),
) -> u32 {
    let node = &machine.node;
    let mut rows = vec![node.processors.model.clone()];
    if !node.gpus.is_empty() {
        rows.push(format!("{} x {}", node.gpus.len(), node.gpus[0].name));
    }
    let nics = machine.nics.iter();
    let nics = nics.flat_map(|used| used.nic.ports().iter().map(move |port| (&used.nic, port)));
    let lines = rows.len() + 2 * nics.clone().count();
    let lines = u32::try_from(lines).unwrap_or(u32::MAX / 64);
    let height = (lines + 2).saturating_mul(LINE);
    frame(out, x, y, BOX, height, title);
    let mut at = y + 2 * LINE;
    for row in rows {
        text(out, x + 10, at, &row);
        at += LINE;
    }
    for (nic, port) in nics {
        let right = x + BOX > WIDTH / 2;
        let of = |node: &String| [nic, port].map(|nic| format!("{node}:{}", nic.name));
        ports.push(Port {
            names: machine.names.iter().flat_map(of).collect(),
            x: if right { x } else { x + BOX },
            y: at,
        });
        let rate = format!("{} {}", port.link_layer, speed(port));
        let title = format!("{}  {rate}", nic.titled(port));
        text(out, x + 10, at, title.trim_end());
        let address = nic.addresses.first().map_or("", String::as_str);
        let card = format!("{address}  {}", port.model);
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
            for port in ports.iter().filter(|p| connects(switch, &p.names)) {
                let end = Port {
                    names: Vec::new(),
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

fn connects(switch: &Switch, port: &[String]) -> bool {
    switch.connects.is_empty() || switch.connects.iter().any(|cable| port.contains(cable))
}

// Writing to a String cannot fail.
fn frame(out: &mut String, x: u32, y: u32, width: u32, height: u32, title: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#f4f6f8\" stroke=\"#445\"/>\n\
         <text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>",
        x + 10,
        y + LINE,
        xml(title)
    );
}

fn text(out: &mut String, x: u32, y: u32, what: &str) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", xml(what));
}

fn line(out: &mut String, from: &Port, to: &Port) {
    let _ = writeln!(
        out,
        "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#27a\" stroke-width=\"2\"/>",
        from.x, from.y, to.x, to.y
    );
}
