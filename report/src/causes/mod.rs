//! Causes that limit a run: their table, which the summary's last line and `docs/tuning.md` share,
//! and the judge that finds them.

mod judge;

use record::{Cause, Finding};

pub use judge::judge;

/// Every cause, in the order of the judge's rules: an earlier cause entails later ones. The cells
/// are name, meaning and remedy.
const ROWS: [(Cause, [&str; 3]); 10] = [
    (
        Cause::Standstill,
        [
            "standstill",
            "the frontend was stopped, suspended or without a core; no sample left or was \
             completed meanwhile",
            "let nothing stop or suspend it (batch system, debugger, virtual machine), and run \
             again",
        ],
    ),
    (
        Cause::Accelerator,
        [
            "accelerator",
            "it was stopped, ended or cut off for a part of the run; samples waited, or went \
             again elsewhere",
            "look at its log and its machine; how soon silence is a loss say \
             `deadlines.echo_timeout_ms` (data connections) and `deadlines.heartbeat_timeout_ms` \
             (control connection)",
        ],
    ),
    (
        Cause::Cores,
        [
            "cores",
            "threads wait for cores, so all else looks slow or busy too",
            "fewer programs and spinning threads on the machine; pin with `cpus`; another machine \
             for the frontend",
        ],
    ),
    (
        Cause::Link,
        [
            "link",
            "the link is full: packets queue up in it",
            "a faster link, another entry of `nics`, more accelerators; Server: a lower rate",
        ],
    ),
    (
        Cause::Slots,
        [
            "slots",
            "samples wait for a slot, and batches are smaller than they could be",
            "raise `slots` or `connections` of `nics` on the frontend",
        ],
    ),
    (
        Cause::MaxBatch,
        [
            "max_batch",
            "the engine may do more samples in the same time than it is given",
            "raise `engine.max_batch`",
        ],
    ),
    (
        Cause::EngineThreads,
        [
            "engine threads",
            "batches wait for each other",
            "raise `engine.threads`; where that brings nothing, it is the model's own speed",
        ],
    ),
    (
        Cause::Transfer,
        [
            "transfer",
            "KV caches take longer from node to node than the answers take to compute",
            "look at what carries them in the decode node's log: TCP is slow; a faster link, or \
             nodes that compute both phases",
        ],
    ),
    (
        Cause::Engine,
        [
            "engine",
            "that is the model's or the server's own speed",
            "more accelerators or a faster one (`--local` shows the same without a network)",
        ],
    ),
    (
        Cause::WakeUps,
        [
            "wake-ups",
            "each wake-up takes about 20 to 50 us on a virtual machine",
            "`completion.mode: adaptive` in place of `event`, a larger `spin_us`, or `poll` with \
             a core to spare for each NIC thread (`cpus`), at the node that sleeps",
        ],
    ),
];

fn row(cause: Cause) -> [&'static str; 3] {
    let row = ROWS.iter().find(|r| r.0 == cause);
    row.map_or(["another", "", ""], |r| r.1)
}

/// The cause's name in the summary's last line.
pub fn name(cause: Cause) -> &'static str {
    row(cause)[0]
}

/// The meaning of the cause.
pub fn means(cause: Cause) -> &'static str {
    row(cause)[1]
}

/// The remedy for the cause.
pub fn turn(cause: Cause) -> &'static str {
    row(cause)[2]
}

/// Formats a finding in one line.
pub fn line(f: &Finding) -> String {
    format!("{}: {}; {}", name(f.cause), f.figure, f.turn)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn the_page_on_tuning_has_the_very_words() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tuning.md");
        let page = fs::read_to_string(&path).expect("docs/tuning.md");
        for (_, [name, means, turn]) in ROWS {
            let row = |line: &&str| line.starts_with(&format!("| {name} | "));
            let row = page.lines().find(row).expect(name);
            assert!(row.ends_with(&format!(" | {means} | {turn} |")), "{row}");
        }
    }

    #[test]
    fn a_cause_of_an_older_summary_is_read() {
        let read = |cause: &str| serde_json::from_str(cause).expect("a cause");
        for (cause, cells) in ROWS {
            let json = serde_json::to_string(&cause).expect("JSON");
            assert_eq!((read(&json), row(cause)), (cause, cells));
        }
        assert_eq!(read("\"send_buffer\""), Cause::Other);
        assert_eq!(name(Cause::Other), "another");
    }
}
