//! Texts for a terminal, and the words and numbers that screens and pages share.
//!
//! | file | contents |
//! | --- | --- |
//! | `facts` | labelled facts, as text and as JSON |
//! | `events` | losses and refusals, a line each |
//! | `numbers` | numbers with units, wrapped lines |

mod events;
mod facts;
mod numbers;

use serde::Serialize;

pub use events::{refusal, with_busy, with_events, with_losses, with_refusals};
pub use facts::{Page, memory};
pub(crate) use facts::{RED, YELLOW};
pub(crate) use numbers::{WIDTH, bit_rate, cut, date, percent, three, wrap};
pub use numbers::{accuracy, bytes, counted, grouped, rate, short, time_us};

/// The name of an enum's variant in JSON.
pub(crate) fn json_name(variant: impl Serialize) -> String {
    let name = serde_json::to_value(variant).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}
