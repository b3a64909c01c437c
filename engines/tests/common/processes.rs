//! The processes of a server that the engine `http` starts.

use std::path::Path;

pub use fabric::testkit::free_port;

/// The ids of the server's processes, from the file that it writes.
pub fn pids(folder: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(folder.join("pids")).expect("pids");
    text.split_whitespace()
        .map(|pid| pid.parse().expect("a number"))
        .collect()
}

/// The fields of `/proc/PID/stat` after the name: state, parent, group.
pub fn stat(pid: i32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().map(str::to_owned).collect()
}

/// True if the process runs; a zombie does not.
pub fn is_running(pid: i32) -> bool {
    let stat = stat(pid);
    stat.first()
        .is_some_and(|state| state != "Z" && state != "X")
}
