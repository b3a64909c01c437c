//! Keys of earlier versions: a file that still has one is told the new name, or why there is none.
//! Flags of earlier versions: the error names the replacement.

use std::ffi::OsString;

use super::{
    document::Document,
    rules::{Findings, Side},
};

/// A key that is no longer known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// Whose file it was in; `None` for both.
    pub(super) side: Option<Side>,
    /// Where it stood; `[]` is any entry of a list, as in `nics[].connections`.
    pub(super) path: &'static str,
    /// What became of it.
    pub(super) now: Now,
}

/// What became of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Now {
    /// It has another name in the same place, or is found at another path.
    #[allow(dead_code, reason = "no key has been renamed yet; the tests do")]
    Called(&'static str),
    /// It is gone, for this reason.
    Gone(&'static str),
}

/// All of them.
pub(super) const MOVED: &[Moved] = &[
    Moved {
        side: Some(Side::Accelerator),
        path: "deadlines.echo_interval_ms",
        now: Now::Gone("the frontend's echo covers both directions"),
    },
    Moved {
        side: Some(Side::Frontend),
        path: "doorbell_wait_us",
        now: Now::Gone(
            "no doorbell waits for a time; `one_by_one: true` rings one for each sample, as 0 did",
        ),
    },
    Moved {
        side: None,
        path: "engine.apart",
        now: Now::Gone("`begin_apart_us` is the time between batches, and 0 by default"),
    },
    Moved {
        side: None,
        path: "engine.gather",
        now: Now::Gone("the GPU's copy engines bring inputs that lie apart"),
    },
];

/// Finds the keys of `table` in a document.
pub(super) fn moved_keys(table: &[Moved], side: Side, document: &Document, out: &mut Findings) {
    for moved in table.iter().filter(|m| m.side.is_none_or(|s| s == side)) {
        for path in document.matching(moved.path) {
            let key = path.rsplit('.').next().unwrap_or(&path).to_owned();
            match moved.now {
                Now::Called(new) => out.add(
                    path,
                    format!("`{key}` is called `{new}` now"),
                    format!("write `{new}` in its place"),
                ),
                Now::Gone(why) => out.add(
                    path,
                    format!("`{key}` is no key of {} any more: {why}", side.whose()),
                    format!("remove `{key}`"),
                ),
            }
        }
    }
}

/// What replaces the flight recorder.
const LOGGED: &str = "-v logs each loss, re-dispatch and reset of a connection";

/// Flags and commands that neither program knows, each with its replacement.
const MOVED_FLAGS: &[(&str, &str)] = &[
    ("flight", LOGGED),
    ("--record", LOGGED),
    ("--record-to", LOGGED),
];

/// Returns the error message for the first flag of [`MOVED_FLAGS`] on a command line without its
/// program name. A command is the first word or none.
pub fn moved_flag(words: impl IntoIterator<Item = OsString>) -> Option<String> {
    let mut words = words.into_iter().enumerate();
    words.find_map(|(at, word)| {
        let word = word.to_str()?.split('=').next()?;
        let is_it = |old: &str| old == word && (at == 0 || old.starts_with('-'));
        let (old, instead) = MOVED_FLAGS.iter().find(|(old, _)| is_it(old))?;
        Some(format!("`{old}` is gone: {instead}"))
    })
}
