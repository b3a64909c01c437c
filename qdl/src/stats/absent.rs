//! Accelerators that were lost or silent in a run: what the judge names before all else.

use super::{
    AcceleratorRecord, SilentOn,
    judge::{Aim, View, share},
    limits::{Cause, Finding},
    text,
};

/// Silence that is no hiccup, in milliseconds.
const SILENCE_MS: u64 = 400;

/// What to do about one that was lost for this reason.
fn turn(why: &str, silent_on: Option<SilentOn>) -> String {
    match silent_on {
        Some(on) => format!(
            "look at its log and its machine; `{}` says how soon silence is a loss",
            on.deadline()
        ),
        // The reason says where to look.
        None if why.contains("its log") => {
            "it ended by itself, and no deadline helps: start it again".to_owned()
        }
        None => "look at its log and its machine".to_owned(),
    }
}

impl View<'_> {
    /// One that was lost, or silent for a part of the run that counts.
    pub(super) fn accelerator(&self, aim: &Aim) -> Option<Finding> {
        let system = &self.run.system;
        let lost: Vec<(&str, &str)> = system
            .accelerators
            .iter()
            .filter_map(|a: &AcceleratorRecord| Some((a.node.as_str(), a.lost.as_deref()?)))
            .collect();
        if let [(first, why), others @ ..] = &lost[..] {
            let figure = match others {
                [] => format!("{first} was lost ({why})"),
                [(second, other)] if other == why => {
                    format!("{first} and {second} were lost ({why})")
                }
                [(second, other)] => {
                    format!("{first} was lost ({why}), and {second} ({other})")
                }
                _ => format!("{} were lost, first {first} ({why})", lost.len()),
            };
            return self.absent(first, why, figure);
        }
        let named = |name: &str| name.rsplit_once('/').map_or(name, |n| n.0).to_owned();
        if let Some((c, why)) = system
            .connections
            .iter()
            .find_map(|c| Some((c, c.lost.first()?)))
        {
            let were = match system.ledger.lost_connections {
                0 | 1 => "a connection was lost".to_owned(),
                n => format!("{} connections were lost, first", text::grouped(n)),
            };
            let figure = format!("{were} {}: {why}", c.name);
            return self.absent(&named(&c.name), why, figure);
        }
        let silent = system.connections.iter().max_by_key(|c| c.silent_ms)?;
        let part = share(silent.silent_ms as f64 / 1000.0, self.seconds);
        let counts = match aim {
            Aim::Open => part >= 0.02,
            Aim::Kept(_) => part >= 0.05,
            Aim::Unmeasured(_) => false,
        };
        if silent.silent_ms < SILENCE_MS || !counts {
            return None;
        }
        // Who waits for a core is silent for that: cores are named, where the aim was missed.
        if matches!(aim, Aim::Open) && self.cores().is_some() {
            return None;
        }
        let figure = format!(
            "{} gave no sign of life for {} of {}",
            named(&silent.name),
            text::time_us(silent.silent_ms as f64 * 1000.0),
            text::time_us(self.seconds * 1e6)
        );
        let turn = turn("", Some(SilentOn::Data));
        Some(Finding {
            cause: Cause::Accelerator,
            figure,
            turn,
        })
    }

    /// The finding of a loss at this node, for this reason.
    fn absent(&self, node: &str, why: &str, figure: String) -> Option<Finding> {
        let losses = &self.run.system.losses;
        let of = losses.iter().find(|l| l.node == node && l.why == why);
        let of = of.or_else(|| losses.iter().rev().find(|l| l.node == node));
        Some(Finding {
            cause: Cause::Accelerator,
            figure,
            turn: turn(why, of.and_then(|l| l.silent_on)),
        })
    }
}
