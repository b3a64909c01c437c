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

pub use events::{refusal, with_losses, with_refusals};
pub use figures::{accuracy, places};
pub use numbers::{bit_rate, bytes, counted, cut, grouped, rate, short, three, time_us};

pub use page::{Page, memory};
pub use served::served;
pub use summary::summary;
