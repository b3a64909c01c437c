//! Keys and flags of earlier versions, with their replacements.

use std::ffi::OsString;

/// Replacement for the flight recorder.
const LOGGED: &str = "-v logs each loss, re-dispatch and reset of a connection";

const KEYS: &[(&str, &str)] = &[
    (
        "doorbell_wait_us",
        "no doorbell waits for a time; `one_by_one: true` rings one for each sample, as 0 did",
    ),
    (
        "apart",
        "`begin_apart_us` is the time between batches, and 0 by default",
    ),
    (
        "gather",
        "the GPU's copy engines bring inputs that lie apart",
    ),
];
const FLAGS: &[(&str, &str)] = &[
    ("flight", LOGGED),
    ("--record", LOGGED),
    ("--record-to", LOGGED),
];

fn instead(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    let (_, instead) = table.iter().find(|(old, _)| *old == word)?;
    Some(instead)
}

/// Returns the replacement for an unknown key that an earlier version had.
pub(super) fn moved_key(key: &str) -> Option<&'static str> {
    instead(KEYS, key)
}

/// Returns the error message for the first flag of an earlier version on a command line without its
/// program name. A command is the first word or none.
pub fn moved_flag(words: impl IntoIterator<Item = OsString>) -> Option<String> {
    words.into_iter().enumerate().find_map(|(at, word)| {
        let word = word.to_str()?.split('=').next()?;
        let instead = instead(FLAGS, word).filter(|_| at == 0 || word.starts_with('-'))?;
        Some(format!("`{word}` is gone: {instead}"))
    })
}
