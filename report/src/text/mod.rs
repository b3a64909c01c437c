//! Formats records as text for a terminal.
//!
//! | file | contents |
//! | --- | --- |
//! | `summary`, `loadgen` | the summary of a run |
//! | `served` | a session from the accelerator's side |
//! | `stages`, `settings` | tables of stages and of settings |
//! | `events`, `figures` | single records: a line or two each |
//! | `page` | facts behind labels, as text and as JSON |
//! | `numbers` | numbers with units, columns, wrapped lines |

mod events;
mod figures;
mod loadgen;
mod numbers;
mod page;
mod served;
mod settings;
mod stages;
mod summary;

use serde::Serialize;

pub use events::{refusal, with_busy, with_events, with_losses, with_refusals};
pub use figures::accuracy;
pub(crate) use figures::places;
pub(crate) use numbers::{bit_rate, three};
pub use numbers::{bytes, counted, grouped, rate, short, time_us};

pub use page::{Page, memory};
pub use served::served;
pub use summary::summary;

/// The name of an enum's variant in JSON.
pub(crate) fn json_name(variant: impl Serialize) -> String {
    let name = serde_json::to_value(variant).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}
