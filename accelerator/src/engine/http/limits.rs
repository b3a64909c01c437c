//! As many open files as there are connections.

use fabric::os::{open_files, set_open_files};

/// An answer is complete a moment before its connection can be used again, and the next request
/// does not wait for that.
const ENDING: u64 = 2;
/// What else a process has open: its libraries, logs, sockets of the network.
const OTHERS: u64 = 256;

/// Makes room for so many connections more, as far as the system lets a process.
///
/// # Errors
/// In words, where it does not.
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
