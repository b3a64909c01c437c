//! What came of comparing every response with what it must be.

use serde::{Deserialize, Serialize};

use super::text;

/// Counts of a run that verified its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verified {
    /// Responses compared.
    pub compared: u64,
    /// Of those, and of first tokens, the ones that were not their sample's.
    pub mismatches: u64,
    /// Responses that came twice or to nothing, and first tokens likewise.
    pub duplicates: u64,
    /// Samples never answered.
    pub lost: u64,
}

impl Verified {
    /// Whether nothing was wrong.
    pub fn sound(&self) -> bool {
        (self.mismatches, self.duplicates, self.lost) == (0, 0, 0)
    }

    /// One line.
    pub(super) fn text(&self) -> String {
        let compared = text::counted(self.compared, "response");
        if self.sound() {
            return format!("{compared} compared, each its own sample's");
        }
        let n = text::grouped;
        format!(
            "{compared} compared: {} not their own sample's, {} came twice; {} never answered",
            n(self.mismatches),
            n(self.duplicates),
            text::counted(self.lost, "sample")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compared_is_said_whether_right_or_wrong() {
        let mut verified = Verified {
            compared: 48_209,
            ..Verified::default()
        };
        let all = "48,209 responses compared, each its own sample's";
        assert_eq!(verified.text(), all);
        (verified.compared, verified.lost) = (1, 2);
        let wrong = "1 response compared: 0 not their own sample's, 0 came twice; 2 samples never \
                     answered";
        assert_eq!(verified.text(), wrong);
        assert!(!verified.sound());
    }
}
