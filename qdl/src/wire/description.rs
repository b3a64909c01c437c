//! A node's description of itself.

use serde::{Deserialize, Serialize};

/// Maximum bytes of each text in a [`Description`]. Both texts, even if escaped, fit in one frame.
pub(crate) const MAX_DESCRIPTION: usize = 1 << 17;

/// Description of a node and its machine, for the record of a run, as texts without syntax checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The machine as JSON: at most [`MAX_DESCRIPTION`] bytes, no control characters but CR, LF and
    /// tab.
    pub machine: String,
    /// Text of the node's configuration file; same limits as `machine`.
    pub config: String,
}

impl Description {
    /// Checks the limits of both texts.
    ///
    /// # Errors
    /// A text violates a limit; the error names the field and the violation.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let Description { machine, config } = self;
        for (field, text) in [("machine", machine), ("config", config)] {
            if text.len() > MAX_DESCRIPTION {
                let n = text.len();
                return Err((field, format!("{n} bytes, at most {MAX_DESCRIPTION}")));
            }
            if text
                .chars()
                .any(|c| c.is_control() && !"\r\n\t".contains(c))
            {
                return Err((field, "holds a control character".to_owned()));
            }
        }
        Ok(())
    }
}
