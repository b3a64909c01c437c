//! Texts of a run's report: lines on losses and refusals, beside the texts of [`view`].

mod events;

use serde::Serialize;

pub use events::{
    kv_caches, refusal, with_busy, with_events, with_losses, with_nans, with_refusals,
    with_unfetched,
};
pub(crate) use view::{
    Page, RED, YELLOW, accuracy, bit_rate, bytes, counted, date, grouped, percent, rate, short,
    three, time_us,
};

/// The name of an enum's variant in JSON.
pub(crate) fn json_name(variant: impl Serialize) -> String {
    let name = serde_json::to_value(variant).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}
