//! Settings compared in pairs.
//!
//! Each block of trials runs the settings as they are and every candidate once, at one rate near
//! the
//! limit and with one seed, in turns forwards and backwards: what the machine does meanwhile falls
//! on all of them alike. Behind every second block the worse half of the candidates leaves, and
//! those that stay are judged by the sign test: how often was it better than what it is compared
//! with, in the same block?

use std::collections::BTreeMap;

use crate::{fit::median, system::Halt};

/// A setting that may be turned.
#[derive(Clone, Debug, PartialEq)]
pub struct Knob {
    /// Its key: `nics[0].connections`.
    pub key: String,
    /// What it is now.
    pub now: String,
    /// What else it may be.
    pub values: Vec<String>,
}

/// What was found of one value of one knob.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Its key.
    pub key: String,
    /// What it was compared with.
    pub with: String,
    /// The value.
    pub value: String,
    /// By how much the logarithm of the margin was lower than beside it, of each pair.
    pub gains: Vec<f64>,
    /// It is better, by the sign test and by enough.
    pub better: bool,
}

impl Compared {
    /// Pairs in which it was better.
    pub fn wins(&self) -> usize {
        self.gains.iter().filter(|g| **g > 0.0).count()
    }

    /// The middle gain.
    pub fn gain(&self) -> f64 {
        median(&mut self.gains.clone())
    }

    /// How likely chance alone makes it better so often.
    pub fn chance(&self) -> f64 {
        sign_test(self.wins(), self.gains.len())
    }
}

/// The chance that a fair coin shows so many heads or more.
pub fn sign_test(heads: usize, of: usize) -> f64 {
    let mut ways = 1.0;
    let mut sum = 0.0;
    for k in 0..=of {
        if k >= heads {
            sum += ways;
        }
        ways *= (of - k) as f64 / (k + 1) as f64;
    }
    sum / 2.0_f64.powi(i32::try_from(of).unwrap_or(i32::MAX))
}

/// Above this chance nothing is called better.
const CHANCE: f64 = 0.05;
/// Blocks between two halvings, and at most.
const BLOCKS: usize = 2;
const MOST: usize = 8;
/// So many candidates are judged to the end.
const LAST: usize = 3;
/// A gain of less than this in the rate is none.
const WORTH: f64 = 0.01;

/// One trial of a block: knobs beside those that hold, and the block's number, by which its seed
/// goes; the logarithm of the margin.
pub type Try<'a> = dyn FnMut(&BTreeMap<String, String>, usize) -> Result<f64, Halt> + 'a;

/// Compares all values of all knobs with what they are now. `slope` is that of margins near the
/// limit. What is better is marked, the best value of each knob alone.
///
/// # Errors
/// [`Halt`]; what was found by then is in `found`.
pub fn compare(
    knobs: &[Knob],
    slope: f64,
    found: &mut Vec<Compared>,
    run: &mut Try<'_>,
) -> Result<(), Halt> {
    found.clear();
    for knob in knobs {
        let others = knob.values.iter().filter(|v| **v != knob.now);
        found.extend(others.map(|value| Compared {
            key: knob.key.clone(),
            with: knob.now.clone(),
            value: value.clone(),
            gains: Vec::new(),
            better: false,
        }));
    }
    let mut stay: Vec<usize> = (0..found.len()).collect();
    for block in 0..MOST {
        if stay.is_empty() {
            break;
        }
        let mut order: Vec<Option<usize>> = std::iter::once(None)
            .chain(stay.iter().copied().map(Some))
            .collect();
        if block % 2 == 1 {
            order.reverse();
        }
        let mut margins = BTreeMap::new();
        for who in order {
            let knobs = who.map(|i| (found[i].key.clone(), found[i].value.clone()));
            margins.insert(who, run(&knobs.into_iter().collect(), block)?);
        }
        for i in &stay {
            found[*i].gains.push(margins[&None] - margins[&Some(*i)]);
        }
        // Whoever can no longer be better by the sign test leaves.
        stay.retain(|i| {
            let c = &found[*i];
            let lost = c.gains.len() - c.wins();
            sign_test(MOST - lost, MOST) <= CHANCE
        });
        if (block + 1) % BLOCKS == 0 && stay.len() > LAST {
            stay.sort_by(|a, b| found[*b].gain().total_cmp(&found[*a].gain()));
            stay.truncate(stay.len().div_ceil(2).max(LAST));
            stay.sort_unstable();
        }
        let decided = |i: &usize| found[*i].chance() <= CHANCE;
        if stay.iter().all(decided) {
            break;
        }
    }
    let worth = |c: &Compared| c.chance() <= CHANCE && c.gain() / slope.max(0.1) >= WORTH;
    let mut best: BTreeMap<String, usize> = BTreeMap::new();
    for (i, compared) in found.iter().enumerate() {
        let known = best.get(&compared.key).map(|k| found[*k].gain());
        if worth(compared) && known.is_none_or(|gain| compared.gain() > gain) {
            best.insert(compared.key.clone(), i);
        }
    }
    best.into_values().for_each(|i| found[i].better = true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn five_of_five_and_seven_of_eight_are_no_chance() {
        assert!((sign_test(5, 5) - 1.0 / 32.0).abs() < 1e-12);
        assert!(sign_test(4, 4) > CHANCE && sign_test(6, 8) > CHANCE);
        assert!(sign_test(7, 8) <= CHANCE);
        assert!((sign_test(0, 3) - 1.0).abs() < 1e-12);
    }

    fn knob(key: &str, values: &[&str]) -> Knob {
        Knob {
            key: key.to_owned(),
            now: values[0].to_owned(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        }
    }

    #[test]
    fn the_knob_that_matters_is_found_and_the_others_are_left() {
        let knobs = [
            knob("slots", &["4", "16", "64"]),
            knob("spin", &["50", "100", "0"]),
            knob("arbiter", &["a", "b"]),
        ];
        let (mut right, mut wrong, mut trials) = (0, 0, 0);
        for seed in 0..100 {
            let mut random = Random(seed);
            let mut found = Vec::new();
            let mut run = |turned: &BTreeMap<String, String>, block: usize| {
                trials += 1;
                // The machine is slower in some blocks: all feel it.
                let machine = block as f64 * 0.3;
                let gain = match turned.get("slots").map(String::as_str) {
                    Some("16") => 0.3,
                    Some("64") => 0.6,
                    _ => 0.0,
                };
                Ok(machine - gain + 0.1 * random.normal())
            };
            compare(&knobs, 5.0, &mut found, &mut run).expect("no halt");
            let better: Vec<_> = found.iter().filter(|c| c.better).collect();
            right += usize::from(better.iter().any(|c| c.value == "64"));
            wrong += better.iter().filter(|c| c.key != "slots").count();
        }
        assert!(right >= 95, "{right} of 100");
        assert!(wrong <= 12, "{wrong} of 100");
        assert!(trials <= 100 * 45, "{trials}");
    }
}
