//! The reconciliation as a picture: samples issued, posted, arrived, answered, completed.

use record::{Run, RunRecord};

use crate::text;

use crate::{
    draw::{At, Size, Svg, both},
    html::{figure, list},
};

/// A step of a sample's way: who counted, and what it is made of.
struct Step {
    name: &'static str,
    who: &'static str,
    /// Class, count and name of each part; the first are the samples themselves.
    parts: Vec<(&'static str, u64, &'static str)>,
    /// Not known to be whole: a node was lost with its last word.
    partial: bool,
}

fn steps(run: &RunRecord) -> Vec<Step> {
    let (l, system) = (&run.system.ledger, &run.system);
    let step = |name, who, parts: &[(&'static str, u64, &'static str)]| Step {
        name,
        who,
        parts: parts.iter().filter(|p| p.1 > 0).copied().collect(),
        partial: false,
    };
    let mut steps = vec![step("issued", "LoadGen", &[("k-net", l.issued, "")])];
    if !system.connections.is_empty() {
        let refused: u64 = l.refused.iter().sum();
        let again = l.redispatched.saturating_add(refused);
        let first = ("k-net", l.posted.saturating_sub(again), "");
        let again = ("k-post", again, "sent again");
        let warmed = ("k-all", l.warmed, "warm-up");
        steps.push(step("posted", "frontend", &[first, again, warmed]));
        let sum = |of: fn(&record::AcceleratorRecord) -> u64| -> u64 {
            system.accelerators.iter().map(of).sum()
        };
        let arrived = sum(|a| {
            let lost: u64 = a.lost_sessions.iter().map(|s| s.arrived).sum();
            a.arrived.unwrap_or(0).saturating_add(lost)
        });
        let answered = sum(|a| a.answered().unwrap_or(0));
        let lost = system.ledger.lost_connections > 0;
        let split = |n: u64| {
            let own = n.saturating_sub(l.warmed.min(n));
            [("k-net", own, ""), ("k-all", n - own, "warm-up")]
        };
        for (name, n) in [("arrived", arrived), ("answered", answered)] {
            let mut s = step(name, "accelerators", &split(n));
            s.partial = lost;
            steps.push(s);
        }
    }
    let late = ("k-comp", l.late_dropped, "late, dropped");
    let emptied = ("bad", l.emptied, "completed empty");
    let answered = ("k-net", l.answered, "");
    steps.push(step("completed", "frontend", &[answered, emptied, late]));
    steps
}

fn draw(steps: &[Step], size: Size) -> Svg {
    let each = if size.narrow { 52.0 } else { 38.0 };
    let (left, right) = if size.narrow {
        (0.0, size.width)
    } else {
        (184.0, size.width - 250.0)
    };
    let top = steps
        .iter()
        .map(|s| s.parts.iter().map(|p| p.1).sum::<u64>());
    let top = top.max().unwrap_or(0).max(1) as f64;
    let height = steps.len() as f64 * each + 4.0;
    let mut svg = Svg::new(
        size.width,
        height,
        "samples issued, posted, arrived, answered, completed",
    );
    for (i, step) in steps.iter().enumerate() {
        let y = i as f64 * each;
        let total: u64 = step.parts.iter().map(|p| p.1).sum();
        let bar = if size.narrow { y + 20.0 } else { y + 6.0 };
        let name_y = if size.narrow { y + 14.0 } else { y + 21.0 };
        svg.words((0.0, name_y), At::Start, "T b", step.name);
        let who = (88.0, name_y);
        svg.words(who, At::Start, "t m", step.who);
        svg.rounded((left, bar), (right - left, 20.0), 3.0, "track");
        let mut x = left;
        let mut said = Vec::new();
        for (class, n, what) in &step.parts {
            let wide = *n as f64 / top * (right - left);
            let n = text::grouped(*n);
            let title = if what.is_empty() {
                n.clone()
            } else {
                format!("{n} {what}")
            };
            svg.titled(
                (x, bar),
                (wide.max(1.0), 20.0),
                &format!("fill {class}"),
                &title,
            );
            x += wide;
            said.push(title);
        }
        if said.is_empty() {
            said.push("0".to_owned());
        }
        let figures = said.join(" + ");
        let partial = if step.partial { " *" } else { "" };
        if size.narrow {
            let place = (size.width, name_y);
            svg.words(
                place,
                At::End,
                "t",
                &format!("{}{partial}", text::grouped(total)),
            );
        } else {
            let at = (right + 10.0, bar + 14.0);
            svg.words(at, At::Start, "t", &format!("{figures}{partial}"));
        }
    }
    svg
}

/// The picture, and what does not agree.
pub fn picture(run: &Run) -> String {
    let r = &run.summary.run;
    let steps = steps(r);
    let partial = steps.iter().any(|s| s.partial);
    let mut note =
        "Samples in blue, those sent again in orange, those of the warm-up in grey.".to_owned();
    if partial {
        note.push_str(
            " * An accelerator was lost: what it did since its last heartbeat is in no count.",
        );
    }
    let verdict = match &r.mismatches[..] {
        [] => "<p class=\"ok\">All counts agree.</p>".to_owned(),
        lines => format!(
            "<div class=\"wrong\"><p>Counts do not agree:</p>{}</div>",
            list(lines)
        ),
    };
    let picture = both(Size::FULL, |size| draw(&steps, size));
    figure(
        "ledger",
        "Every sample, counted at each step",
        &format!("{picture}{verdict}"),
        &note,
    )
}
