//! What a connection's traffic took: counted by each half of it, and in the columns that
//! the frontend's summary and an accelerator's have alike.

use fabric::FabricCounts;

use super::text;

/// Their headings.
pub(super) const COLUMNS: [&str; 7] = [
    "sends", "reads", "wakes", "partial", "blocked", "copies", "copied",
];

/// One row of them: the halves' counts, sleeps that it
/// ended, and doorbells after which something was left.
pub(super) fn row(
    tx: &FabricCounts,
    rx: &FabricCounts,
    wakeups: u64,
    blocked: u64,
) -> [String; COLUMNS.len()] {
    let n = text::short;
    [
        n(tx.syscalls),
        n(rx.syscalls),
        n(wakeups),
        n(tx.partial.saturating_add(rx.partial)),
        n(blocked),
        n(tx.copies.saturating_add(rx.copies)),
        text::bytes(tx.copied_bytes.saturating_add(rx.copied_bytes)),
    ]
}
