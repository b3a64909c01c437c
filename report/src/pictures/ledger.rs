//! The picture of the reconciliation: samples issued, posted, arrived, answered, completed.

use record::{RunFolder, RunRecord};

use crate::{
    model::{Cell, Part, figure, paragraph, table},
    text,
};

/// Exit code of an interrupted run.
const INTERRUPTED: u8 = 130;

/// A step on a sample's way: the node that counts it, and the parts of its count.
struct CountedStep {
    name: &'static str,
    who: &'static str,
    /// Colour, count and name of each part, the samples themselves first.
    parts: Vec<(&'static str, u64, &'static str)>,
    /// Whether counts may be missing, because a node was lost before its last report.
    partial: bool,
}

fn steps(run: &RunRecord) -> Vec<CountedStep> {
    let (l, system) = (&run.system.ledger, &run.system);
    let step = |name, who, parts: &[(&'static str, u64, &'static str)]| CountedStep {
        name,
        who,
        parts: parts.iter().filter(|p| p.1 > 0).copied().collect(),
        partial: false,
    };
    let mut steps = vec![step("issued", "LoadGen", &[("net", l.issued, "")])];
    if !system.connections.is_empty() {
        let refused: u64 = l.refused.iter().sum();
        let again = l.redispatched.saturating_add(refused);
        let first = l.posted.saturating_sub(again.saturating_add(l.prefilled));
        let first = ("net", first, "");
        let prefilled = ("r5", l.prefilled, "behind a prefill");
        let again = ("post", again, "sent again");
        let warmed = ("all", l.warmed, "warm-up");
        steps.push(step(
            "posted",
            "frontend",
            &[first, prefilled, again, warmed],
        ));
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
            [("net", own, ""), ("all", n - own, "warm-up")]
        };
        for (name, n) in [("arrived", arrived), ("answered", answered)] {
            let mut s = step(name, "accelerators", &split(n));
            s.partial = lost;
            steps.push(s);
        }
    }
    let emptied = ("bad", l.emptied, "completed empty");
    let answered = ("net", l.answered, "");
    steps.push(step("completed", "frontend", &[answered, emptied]));
    steps
}

fn row(step: &CountedStep, most: u64) -> Vec<Cell> {
    let parts: Vec<_> = step
        .parts
        .iter()
        .map(|(colour, n, what)| {
            let said = format!("{} {what}", text::grouped(*n));
            let share = *n as f64 / most.max(1) as f64;
            (*colour, share, said.trim_end().to_owned())
        })
        .collect();
    let figures: Vec<String> = parts.iter().map(|p| p.2.clone()).collect();
    let figures = match &figures[..] {
        [] => "0".to_owned(),
        figures => figures.join(" + "),
    };
    let partial = if step.partial { " *" } else { "" };
    vec![
        Cell::words(step.name),
        Cell::words(step.who),
        Cell::Bar(parts),
        Cell::words(format!("{figures}{partial}")),
    ]
}

/// The picture, with the counts that do not agree.
pub fn picture(run: &RunFolder) -> Part {
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
    let totals = steps.iter().map(|s| s.parts.iter().map(|p| p.1).sum());
    let most = totals.max().unwrap_or(0);
    let rows = steps.iter().map(|s| row(s, most)).collect();
    let mut parts = vec![table("step|counted by||samples", rows)];
    parts.push(match &r.mismatches[..] {
        [] => Part::Words("ok", format!("All counts agree: {}.", agreed(r))),
        lines => {
            let wrong = paragraph("Counts do not agree:");
            Part::Group("wrong", vec![wrong, Part::List(lines.to_vec())])
        }
    });
    figure("ledger", "Every sample, counted at each step", parts, note)
}

/// Says which counts agree, as `issued = completed = recorded`.
pub fn agreed(run: &RunRecord) -> String {
    let system = &run.system;
    let others = match (
        system.connections.is_empty(),
        system.ledger.lost_connections,
    ) {
        (true, _) => "",
        _ if run.exit.code == INTERRUPTED && system.losses.is_empty() => {
            "; an interrupted run's accelerators are not asked for theirs"
        }
        (_, 0) => "; posted, arrived and answered agree",
        _ => "; lost accelerators' own counts were not compared",
    };
    format!("issued = completed = recorded{others}")
}
