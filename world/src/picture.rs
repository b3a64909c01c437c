//! A picture of a plan: answers in each millisecond around two losses, an SVG row for each
//! accelerator.

use std::fmt::Write;

use crate::{
    Moment, Outcome,
    plan::{Event, Kind, Plan, Shape},
};

/// Milliseconds of the picture, and width of one.
const MS: u64 = 160;
const PX: u64 = 5;
/// Left margin, height of a row, and height of its bars.
const LEFT: u64 = 60;
const ROW: u64 = 130;
const BARS: u64 = 80;
/// Answers in a millisecond that fill a row.
const MOST: u64 = 16;

/// The plan of the picture: accelerator B stops from 30 ms to 80 ms, and a connection of
/// accelerator A is cut at 120 ms. 20 ms of silence are a loss.
pub fn plan() -> Plan {
    let shape = Shape {
        servers: 2,
        each: 2,
        slots: 16,
        service_ns: 200_000,
        silence_us: 20_000,
        ..Shape::default()
    };
    let event = |at_us, kind, on, n| Event { at_us, kind, on, n };
    let bursts = (0..4 * MS).map(|i| event(4_000 + i * 250, Kind::Burst, 0, 3));
    let mut events: Vec<_> = bursts.collect();
    events.push(event(30_000, Kind::Stop, 2, 50_000));
    events.push(event(120_000, Kind::Cut, 0, 1));
    events.sort_by_key(|e| e.at_us);
    Plan {
        seed: 1,
        shape,
        events,
    }
}

/// Draws the outcome of [`plan`].
pub fn draw(plan: &Plan, outcome: &Outcome) -> String {
    let (width, height) = (LEFT + MS * PX + 20, 40 + plan.shape.servers * ROW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for server in 0..plan.shape.servers {
        row(&mut svg, plan, outcome, server);
    }
    let y = 22 + plan.shape.servers * ROW;
    for ms in (0..=MS).step_by(20) {
        text(
            &mut svg,
            x_of(ms * 1_000),
            y,
            "middle",
            "black",
            &format!("{ms} ms"),
        );
    }
    svg += "</svg>\n";
    svg
}

/// Horizontal position of a time.
fn x_of(us: u64) -> u64 {
    LEFT + us * PX / 1_000
}

fn text(svg: &mut String, x: u64, y: u64, anchor: &str, color: &str, words: &str) {
    let place = format!("x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{color}\"");
    let _ = writeln!(svg, "<text {place}>{words}</text>");
}

fn mark(svg: &mut String, us: u64, bottom: u64, color: &str, height: u64, words: &str) {
    let (x, top) = (x_of(us), bottom - BARS - height);
    let line = format!("x1=\"{x}\" x2=\"{x}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"{color}\"");
    let _ = writeln!(svg, "<line {line} stroke-dasharray=\"4 2\"/>");
    text(svg, x + 4, top + 8, "start", color, words);
}

fn row(svg: &mut String, plan: &Plan, outcome: &Outcome, server: u64) {
    let bottom = 10 + (server + 1) * ROW;
    let mut answers = vec![0; MS as usize];
    for moment in &outcome.moments {
        if let Moment::Answer { at_ns, server: own } = moment
            && *own as u64 == server
            && let Some(n) = answers.get_mut((*at_ns / 1_000_000) as usize)
        {
            *n += 1;
        }
    }
    let mut path = format!("M{LEFT} {bottom}");
    for n in &answers {
        let y = bottom - BARS * (*n).min(MOST) / MOST;
        let _ = write!(path, "V{y}h{PX}");
    }
    let _ = writeln!(svg, "<path d=\"{path}V{bottom}Z\" fill=\"#4a7fb5\"/>");
    let right = x_of(MS * 1_000);
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {bottom}H{right}\" stroke=\"black\"/>"
    );
    let name = char::from(b'A' + server as u8);
    text(
        svg,
        4,
        bottom - BARS / 2,
        "start",
        "black",
        &name.to_string(),
    );
    text(
        svg,
        LEFT - 4,
        bottom - BARS + 10,
        "end",
        "black",
        &format!("{MOST}/ms"),
    );
    for e in &plan.events {
        let each = plan.shape.each;
        match e.kind {
            Kind::Stop if e.on == server + 1 => {
                mark(
                    svg,
                    e.at_us,
                    bottom,
                    "#b00020",
                    30,
                    &format!("{name} stops"),
                );
                let until = e.at_us + e.n;
                mark(
                    svg,
                    until,
                    bottom,
                    "#207020",
                    30,
                    &format!("{name} continues"),
                );
            }
            Kind::Cut if e.on / each == server => {
                let words = format!("one of {each} connections is cut");
                mark(svg, e.at_us, bottom, "#b00020", 30, &words);
            }
            _ => {}
        }
    }
    let losses = outcome.moments.iter().filter_map(|m| match m {
        Moment::Loss { at_ns, server: own } if *own as u64 == server => Some(at_ns / 1_000),
        _ => None,
    });
    if let Some(us) = losses.min() {
        mark(svg, us, bottom, "#c06000", 14, "lost");
    }
}
