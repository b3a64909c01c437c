//! What may limit a run: the one table that the summary's last line and `docs/tuning.md` both have.

use serde::{Deserialize, Serialize};

/// What limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// An accelerator was lost, or said nothing for a while.
    Accelerator,
    /// The line between the nodes is full.
    Link,
    /// Too few slots to keep the engines at work.
    Slots,
    /// Batches are full and small.
    MaxBatch,
    /// One engine thread, always at work, on a node that has cores left.
    EngineThreads,
    /// The engine computes all the time.
    Engine,
    /// LoadGen is asked for more than this machine issues.
    Rate,
    /// LoadGen's issue thread wakes late.
    IssueThread,
    /// Threads wait for cores.
    Cores,
    /// A NIC thread is always at work.
    NicThread,
    /// The send buffer holds less than the line.
    SendBuffer,
    /// Sleeping and waking, for each sample.
    WakeUps,
    /// The issue thread copies payloads itself.
    Posting,
    /// LoadGen's own work on completions.
    Completion,
    /// The way there and back, with nothing asleep and nothing full.
    Network,
}

/// A cause as people read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which.
    pub cause: Cause,
    /// What the last line calls it.
    pub name: &'static str,
    /// What is seen.
    pub symptom: &'static str,
    /// What that means.
    pub means: &'static str,
    /// What to turn.
    pub turn: &'static str,
    /// What that is expected to bring.
    pub brings: &'static str,
}

const fn row(
    cause: Cause,
    name: &'static str,
    symptom: &'static str,
    means: &'static str,
    turn: &'static str,
    brings: &'static str,
) -> Row {
    Row {
        cause,
        name,
        symptom,
        means,
        turn,
        brings,
    }
}

/// Every cause, in the order in which they are looked for: what comes first explains what would
/// else be found after it.
pub const ROWS: [Row; 15] = [
    row(
        Cause::Accelerator,
        "accelerator",
        "one was lost, or gave no sign of life for 400 ms and more while it was asked for one",
        "it was stopped, ended or cut off for a part of the run; samples waited, or went again elsewhere",
        "look at its log and its machine; how soon silence is a loss say `deadlines.echo_timeout_ms` (data \
         connections) and `deadlines.heartbeat_timeout_ms` (control connection)",
        "samples no longer wait for the silence or go again: the slowest ones become as fast as the others",
    ),
    row(
        Cause::Link,
        "link",
        "`network` is the most of the round trip, packets are under way all the time and take many \
         times as long as the fastest did, NIC threads have time to spare",
        "the line is full: packets queue up in it",
        "a faster line, another entry of `nics`, more accelerators; Server: a lower rate",
        "the round trip falls to what the fastest packets take; Offline: a rate higher by as much as the line is faster",
    ),
    row(
        Cause::Slots,
        "slots",
        "nearly every slot is in use on average, and there are fewer than the engines' batches hold, \
         or nothing else is busy",
        "samples wait for a slot, and batches are smaller than they could be",
        "more `nics[].slots` or `nics[].connections` on the frontend",
        "batches grow until the engine computes all the time, and the rate with them; `issue -> post` shrinks",
    ),
    row(
        Cause::MaxBatch,
        "max_batch",
        "engines compute all the time, in full batches of fewer than 8 samples",
        "the engine may do more samples in the same time than it is given",
        "raise `engine.max_batch`",
        "a rate higher by what a batch of twice the size saves per sample; none where it takes twice as long",
    ),
    row(
        Cause::EngineThreads,
        "engine threads",
        "the one engine thread computes all the time, its node has cores left; `batch wait` is large",
        "batches wait for each other",
        "raise `engine.threads`; where that brings nothing, it is the model's own speed",
        "up to as many times the rate as there are threads, as long as there are cores; `batch wait` falls",
    ),
    row(
        Cause::Engine,
        "engine",
        "engines compute all the time (SingleStream: `inference` is the most of a sample's time)",
        "that is the model's own speed",
        "more accelerators, SingleStream: a faster one; `--local` shows the same without a network",
        "a rate higher by as much as the engines are; a faster rest of the way brings nothing",
    ),
    row(
        Cause::Rate,
        "rate",
        "by what a sample has taken LoadGen's issue thread, the scheduled rate takes 70 % of a core and \
         more; fewer samples come back than were scheduled, or late",
        "this machine issues no more",
        "Server: a lower `target_qps`, `server_coalesce_queries`, `server_num_issue_query_threads`",
        "latencies fall at once, since nothing is issued late any more",
    ),
    row(
        Cause::IssueThread,
        "issue thread",
        "LoadGen's percentiles are far above those of `total`: it counts from the scheduled time, \
         and does not tell its SUT when that was",
        "its issue thread woke late or had no core",
        "leave it a core of its own: `nics[].cpus`, fewer spinning threads, nothing else on the machine",
        "LoadGen's percentiles come down to those of `total`",
    ),
    row(
        Cause::Cores,
        "cores",
        "our threads wait for a core a quarter of the time that they want to run, and the machine's \
         cores are busy nine tenths of the time and more; or NIC or issue threads wait for one half \
         of the run",
        "threads fight for cores: what else looks slow is late for that",
        "fewer programs and spinning threads on the machine; pin with `cpus`; another machine for \
         the frontend",
        "every stage that a thread of ours works on becomes shorter by what it waits",
    ),
    row(
        Cause::NicThread,
        "NIC thread",
        "the NIC threads of a node are at work on a core nine tenths of the time and more; waiting for \
         a core is no work",
        "copying to and from sockets is the limit",
        "more `nic_threads`, where some share one; more `connections`, where there are fewer than threads; \
         another entry of `nics` with `cpus` of its own; `ib` does not copy",
        "a rate higher by as many NIC threads as are added, as long as there are cores",
    ),
    row(
        Cause::SendBuffer,
        "send buffer",
        "the send buffer held up the connection for half of the time in which it had something to \
         send; `blocked` and `partial` are many",
        "the socket takes less than the line could have under way",
        "raise `nics[].send_buffer_bytes` and `net.core.wmem_max`",
        "`network` of large samples becomes shorter, and the line fuller",
    ),
    row(
        Cause::WakeUps,
        "wake-ups",
        "`network` is a large part of `total`, and NIC threads sleep once for every other sample or \
         more often",
        "each wake-up takes about 20 to 50 us on a virtual machine",
        "raise `completion.spin_us`, or `mode: poll` with a core to spare for each NIC thread (`cpus`)",
        "up to one wake-up less for each way of a sample, against a core that is awake all the time",
    ),
    row(
        Cause::Posting,
        "posting",
        "`issue -> post` is the most of `total` though hardly any slot is in use",
        "the issue thread copies large payloads itself",
        "lower `post_from_issue_thread_up_to`, so that NIC threads share the copying",
        "`issue -> post` falls to a few microseconds; the issue thread is free for the next query",
    ),
    row(
        Cause::Completion,
        "completion",
        "`completion` is the most of `total`",
        "LoadGen's own work: logging, its locks; in SingleStream it issues the next query meanwhile",
        "`enable_trace` off, where somebody turned it on; Server: `server_coalesce_queries`",
        "`completion` falls, and NIC threads are back at their connections sooner",
    ),
    row(
        Cause::Network,
        "network",
        "`network` is the most of `total`, and nothing sleeps and nothing is full",
        "that is the way there and back",
        "nothing here: compare with `cargo xtask bench fabric`",
        "nothing within this program: another fabric or a shorter way",
    ),
];

impl Cause {
    /// Its row of the table.
    pub fn row(self) -> &'static Row {
        // A test sees to it that the rows stand in the order of the causes' places.
        ROWS.iter().find(|r| r.cause == self).unwrap_or(&ROWS[0])
    }

    /// What the last line calls it.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// The mark in front of the table in `docs/tuning.md`.
pub const TABLE_BEGINS: &str =
    "<!-- This table is made from the causes in qdl/src/stats/limits/causes.rs -->";
/// The mark behind it.
pub const TABLE_ENDS: &str = "<!-- up to here -->";

/// The table as `docs/tuning.md` has it, in Markdown.
pub fn table() -> String {
    let mut text =
        "| the line says | what is seen | what it means | what to turn | what that brings |\n\
                    | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for r in &ROWS {
        let line = format!(
            "| {} | {} | {} | {} | {} |\n",
            r.name, r.symptom, r.means, r.turn, r.brings
        );
        text.push_str(&line);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, env, fs, path::Path};

    use super::*;

    #[test]
    fn every_cause_has_a_row_of_its_own() {
        let names: BTreeSet<_> = ROWS.iter().map(|r| r.name).collect();
        let causes: BTreeSet<_> = ROWS.iter().map(|r| r.cause).collect();
        assert_eq!((names.len(), causes.len()), (ROWS.len(), ROWS.len()));
        // `Network` is the last of the enum.
        assert_eq!(causes.len(), Cause::Network as usize + 1);
        for r in &ROWS {
            assert_eq!(r.cause.row(), r);
            for cell in [r.name, r.symptom, r.means, r.turn, r.brings] {
                assert!(!cell.is_empty() && !cell.contains(['|', '\n']), "{cell}");
                assert!(!cell.contains("  "), "{cell}");
            }
        }
    }

    /// With `QDL_WRITE_DOCS=1` in the environment it writes the table instead.
    #[test]
    fn the_page_on_tuning_has_this_very_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tuning.md");
        let page = fs::read_to_string(&path).expect("docs/tuning.md");
        let (before, rest) = page.split_once(TABLE_BEGINS).expect("the first mark");
        let (found, after) = rest.split_once(TABLE_ENDS).expect("the second mark");
        let wanted = format!("\n\n{}\n", table());
        if env::var_os("QDL_WRITE_DOCS").is_some() && found != wanted {
            let page = format!("{before}{TABLE_BEGINS}{wanted}{TABLE_ENDS}{after}");
            fs::write(&path, page).expect("written");
            return;
        }
        assert_eq!(
            found, wanted,
            "docs/tuning.md and the causes differ: `QDL_WRITE_DOCS=1 cargo test -p qdl --lib \
             the_page_on_tuning` writes the page anew"
        );
    }
}
