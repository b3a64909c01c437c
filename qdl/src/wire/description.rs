//! What a node answers that is asked to describe itself.

use serde::{Deserialize, Serialize};

/// Longest text of a [`Description`], in bytes: both of them fit a frame, however they are escaped.
pub const MAX_DESCRIPTION: usize = 1 << 17;

/// A node and its machine, for whoever keeps a record of a run. Its texts mean nothing here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The machine, as JSON: at most [`MAX_DESCRIPTION`] bytes, no control character but those
    /// that end a line, and the tabulator.
    pub machine: String,
    /// The configuration that the node runs with, as it was read; the same limits.
    pub config: String,
}

impl Description {
    /// Is it within its limits?
    ///
    /// # Errors
    /// Which text is not, and how.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
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
