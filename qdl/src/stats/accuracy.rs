//! How many answers were right.

use serde::{Deserialize, Serialize};

use super::text;

/// Answers that were compared with their samples' labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accuracy {
    /// Share of right answers, from 0 to 1.
    pub share: f64,
    /// Answers that name their sample's label.
    pub right: u64,
    /// Answers.
    pub answers: u64,
    /// Of those, the ones that name no class at all.
    pub unreadable: u64,
}

impl Accuracy {
    /// From the counts.
    pub fn new(right: u64, answers: u64, unreadable: u64) -> Self {
        Accuracy {
            share: right as f64 / answers.max(1) as f64,
            right,
            answers,
            unreadable,
        }
    }

    /// For people: `97.778 %: 528 of 540`.
    pub fn text(&self) -> String {
        format!(
            "{:.3} %: {} of {}",
            self.share * 100.0,
            text::grouped(self.right),
            text::grouped(self.answers)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_answers() {
        let a = Accuracy::new(528, 540, 3);
        assert_eq!(a.text(), "97.778 %: 528 of 540");
        assert_eq!(Accuracy::new(0, 0, 0).text(), "0.000 %: 0 of 0");
    }
}
