//! Causes that limit a run: their table, which the summary's last line and `docs/tuning.md` share,
//! and the judge that finds them.

mod judge;

use record::{Cause, Finding};

pub use judge::judge;

/// Every cause, in the order of the judge's rules: an earlier cause entails later ones. The cells
/// are name, symptom, meaning and remedy.
const ROWS: [(Cause, [&str; 4]); 8] = [
    (
        Cause::Accelerator,
        [
            "accelerator",
            "one was lost, or gave no sign of life for 400 ms and more while it was asked for one",
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
            "our threads wait for a core a quarter of the time that they want to run, and the \
             machine's cores are busy nine tenths of the time and more; or NIC or issue threads \
             wait for one half of the run",
            "threads fight for cores: what else looks slow or busy is late for that",
            "fewer programs and spinning threads on the machine; pin with `cpus`; another machine \
             for the frontend",
        ],
    ),
    (
        Cause::Link,
        [
            "link",
            "`network` is the most of the round trip, packets are under way all the time and take \
             many times as long as the fastest did, NIC threads have time to spare",
            "the link is full: packets queue up in it",
            "a faster link, another entry of `nics`, more accelerators; Server: a lower rate",
        ],
    ),
    (
        Cause::Slots,
        [
            "slots",
            "seven tenths of the slots and more are in use on average, and there are fewer than \
             the engines' batches hold, or nothing else is busy",
            "samples wait for a slot, and batches are smaller than they could be",
            "raise `slots` or `connections` of `nics` on the frontend",
        ],
    ),
    (
        Cause::MaxBatch,
        [
            "max_batch",
            "engines compute all the time, in full batches of fewer than 8 samples",
            "the engine may do more samples in the same time than it is given",
            "raise `engine.max_batch`",
        ],
    ),
    (
        Cause::EngineThreads,
        [
            "engine threads",
            "the one engine thread computes all the time, its node has cores left",
            "batches wait for each other",
            "raise `engine.threads`; where that brings nothing, it is the model's own speed",
        ],
    ),
    (
        Cause::Engine,
        [
            "engine",
            "engines compute all the time; SingleStream, and engines that batch by themselves: \
             `inference` is the most of a sample's time (`http`: the server's own time)",
            "that is the model's or the server's own speed",
            "more accelerators or a faster one (`--local` shows the same without a network)",
        ],
    ),
    (
        Cause::WakeUps,
        [
            "wake-ups",
            "`network` is a large part of `total`, and NIC threads sleep once for every other \
             sample or more often",
            "each wake-up takes about 20 to 50 us on a virtual machine",
            "`completion.mode: adaptive` in place of `event`, a larger `spin_us`, or `poll` with \
             a core to spare for each NIC thread (`cpus`), at the node that sleeps",
        ],
    ),
];

fn row(cause: Cause) -> [&'static str; 4] {
    let row = ROWS.iter().find(|r| r.0 == cause);
    row.map_or(["another", "", "", ""], |r| r.1)
}

/// The cause's name in the summary's last line.
pub fn name(cause: Cause) -> &'static str {
    row(cause)[0]
}

/// The meaning of the cause.
pub fn means(cause: Cause) -> &'static str {
    row(cause)[2]
}

/// The remedy for the cause.
pub fn turn(cause: Cause) -> &'static str {
    row(cause)[3]
}

/// Formats a finding in one line.
pub fn line(f: &Finding) -> String {
    format!("{}: {}; {}", name(f.cause), f.figure, f.turn)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use super::*;

    const BEGINS: &str = "<!-- This table is made from the causes in report/src/causes/mod.rs -->";
    const ENDS: &str = "<!-- up to here -->";

    /// With `QDL_WRITE_DOCS=1` in the environment, writes the table instead of comparing it.
    #[test]
    fn the_page_on_tuning_has_this_very_table() {
        let mut table = "| the line says | what is seen | what it means | what to turn |\n\
                         | --- | --- | --- | --- |\n"
            .to_owned();
        for (_, cells) in ROWS {
            table.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tuning.md");
        let page = fs::read_to_string(&path).expect("docs/tuning.md");
        let (before, rest) = page.split_once(BEGINS).expect("the first mark");
        let (found, after) = rest.split_once(ENDS).expect("the second mark");
        let wanted = format!("\n\n{table}\n");
        if env::var_os("QDL_WRITE_DOCS").is_some() && found != wanted {
            let page = format!("{before}{BEGINS}{wanted}{ENDS}{after}");
            fs::write(&path, page).expect("written");
            return;
        }
        assert_eq!(
            found, wanted,
            "docs/tuning.md and the causes differ: `QDL_WRITE_DOCS=1 cargo test -p report --lib \
             the_page_on_tuning` writes the page anew"
        );
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
