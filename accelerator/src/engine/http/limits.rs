//! Raises the limit of open files to the number of connections.

use fabric::os::{open_files, set_open_files};

/// Files per connection: an answer is complete a moment before its connection is free, and the next
/// request opens another one.
const ENDING: u64 = 2;
/// Other open files of the process: libraries, logs, network sockets.
const OTHERS: u64 = 256;

/// Raises the limit for `connections` more connections, within the hard limit of the system.
///
/// # Errors
/// The hard limit is too low, or the system call failed; in words.
pub(super) fn room_for(connections: usize) -> Result<(), String> {
    let want = connections as u64 * ENDING + OTHERS;
    let mut limit = open_files().map_err(|e| e.to_string())?;
    if limit.rlim_cur >= want {
        return Ok(());
    }
    if limit.rlim_max < want {
        return Err(format!(
            "{connections} requests at once need {want} open files, and this process may have {}: \
             lower it, or raise `ulimit -Hn`",
            limit.rlim_max
        ));
    }
    limit.rlim_cur = want;
    set_open_files(limit).map_err(|e| e.to_string())
}
