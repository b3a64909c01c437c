//! Formats the summary of a run.

use record::{
    AcceleratorRecord, ConnectionRecord, DEFAULT, Mode, RailRecord, RunRecord, SettingRecord,
    Summary, TokenRecord,
};

use crate::html::columns;

use super::{
    figures::{self, TRAFFIC, accuracy, bars, gpu, traffic},
    numbers::{self as text, INDENT, Table, WIDTH, cut, wrap},
    refusal,
    stages::{stages, token_facts, tokens},
    with_busy, with_events, with_losses, with_refusals,
};
/// Maximum number of connections with rows of their own; beyond, the text shows only their total.
const MOST_CONNECTIONS: usize = 24;
/// Longest name of a node in tables, in characters.
const NAME: usize = 20;
/// Exit code of an interrupted run.
const INTERRUPTED: u8 = 130;
/// Longest name of a connection in tables, in characters.
const CONNECTION: usize = 17;
/// Longest name of an engine in tables, in characters.
const ENGINE: usize = 12;

const BOLD: &str = "1";
const GREEN: &str = "1;32";
pub(super) const RED: &str = "1;31";
pub(super) const YELLOW: &str = "33";

/// Formats the whole summary in at most 100 columns, with `color` in ANSI escapes.
pub fn summary(summary: &Summary, color: bool) -> String {
    let mut page = Screen {
        out: String::new(),
        color,
    };
    let run = &summary.run;
    page.headline(summary);
    page.facts(summary);
    if let Some(loadgen) = &run.loadgen {
        page.loadgen(loadgen);
        page.out.push('\n');
    }
    if let Some(good) = &run.goodput {
        page.fact("goodput", &figures::goodput(good), None);
        page.out.push('\n');
    }
    let several = run.phases.len() > 1;
    if several {
        page.phases(run);
        page.stages_of_phases(run);
    } else {
        let loadgen = run.loadgen.as_ref();
        let scheduled = loadgen.and_then(|l| l.scheduled_to_issue.as_ref());
        page.block(&stages(&run.stages, scheduled));
    }
    page.ends(run);
    if run.uneven > 0 {
        let n = text::grouped(run.uneven);
        page.plain(&format!(
            "{n} samples: the accelerator's time came out longer than the round trip, so that their \
             network time counts as 0."
        ));
    }
    if let Some(tokens) = &run.tokens {
        page.tokens(tokens);
    }
    page.out.push('\n');
    // With several phases, print only the bars: figures over different rates mean nothing.
    let lines = if several { 1 } else { usize::MAX };
    let throughput = figures::throughput(&run.throughput);
    page.list("throughput", throughput.lines().take(lines), None);
    page.out.push('\n');
    let system = &run.system;
    if !system.accelerators.is_empty() {
        page.block(&accelerators(&system.accelerators));
        page.warmed(run);
        page.out.push('\n');
    }
    if !system.connections.is_empty() {
        page.block(&connections(run));
        page.out.push('\n');
    }
    if !system.rails.is_empty() {
        page.block(&rails(&system.rails));
        page.out.push('\n');
    }
    page.settings(run);
    page.counts(run);
    page.out
}

/// The text under construction; the file `loadgen` adds LoadGen's part.
pub(super) struct Screen {
    pub(super) out: String,
    color: bool,
}

impl Screen {
    fn paint(&self, text: &str, style: &str) -> String {
        if self.color {
            format!("\x1b[{style}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub(super) fn plain(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    /// Adds a wrapped remark on the table above it.
    pub(super) fn note(&mut self, text: &str) {
        wrap(text, WIDTH).iter().for_each(|line| self.plain(line));
    }

    /// Adds a table; its first line is the heading.
    pub(super) fn block(&mut self, table: &str) {
        for (i, line) in table.lines().enumerate() {
            if i == 0 {
                let heading = self.paint(line, BOLD);
                self.plain(&heading);
            } else {
                self.plain(line);
            }
        }
    }

    /// Adds a labelled fact, wrapped.
    pub(super) fn fact(&mut self, label: &str, value: &str, style: Option<&str>) {
        for (i, part) in wrap(value, WIDTH - INDENT).iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            let part = match style {
                Some(style) => self.paint(part, style),
                None => part.clone(),
            };
            let line = format!("{label:<INDENT$}{part}");
            self.plain(line.trim_end());
        }
    }

    /// Adds several facts behind one label.
    fn list<T: AsRef<str>>(
        &mut self,
        label: &str,
        lines: impl IntoIterator<Item = T>,
        style: Option<&str>,
    ) {
        let mut label = label;
        for line in lines {
            self.fact(label, line.as_ref(), style);
            label = "";
        }
    }

    fn headline(&mut self, summary: &Summary) {
        let run = &summary.run;
        let (verdict, style) = match run.valid {
            Some(true) => ("VALID", GREEN),
            Some(false) => ("INVALID", RED),
            None if run.exit.code == 0 => ("COMPLETE", GREEN),
            None => ("NO RESULT", RED),
        };
        let what = match run.mode {
            Mode::Performance => "performance",
            Mode::Accuracy => "accuracy",
            Mode::FindPeak => "find peak performance",
            Mode::Submission => "accuracy, then performance (submission)",
        };
        let verdict = self.paint(&format!("{verdict:<INDENT$}"), style);
        let what = self.paint(&format!("{}, {what}", run.scenario), BOLD);
        let node = cut(&summary.node, NAME);
        self.plain(&format!("{verdict}{what}, from node {node}"));
        let failed = with_refusals(&run.system.refusals, run.system.ledger.refused);
        let (events, busy) = (with_events(run), with_busy(&run.system.accelerators));
        let with = with_losses(&run.system.losses);
        for with in with.iter().chain(&failed).chain(&busy).chain(&events) {
            self.fact("", with, Some(YELLOW));
        }
        for reason in &run.reasons {
            self.fact("", reason, Some(RED));
        }
    }

    fn facts(&mut self, summary: &Summary) {
        let run = &summary.run;
        self.fact("SUT", &summary.name, None);
        // LoadGen does not ask for the SUT's name after an accuracy run, so list losses here.
        let gone = run.system.accelerators.iter().filter(|a| a.lost.is_some());
        let gone: Vec<String> = gone.map(|a| cut(&a.node, NAME)).collect();
        if !gone.is_empty() {
            let line = format!("lost when the run ended: {}", gone.join(", "));
            self.fact("", &line, Some(YELLOW));
        }
        if let Some(us) = summary.name_round_trip_us {
            let took = format!("asked of every node in {}", text::time_us(us));
            self.fact("name", &took, None);
        }
        match run.fabric_notes.split_first() {
            Some((first, others)) => {
                self.fact("fabric", &format!("{}, {first}", run.fabric), Some(YELLOW));
                self.list("", others, Some(YELLOW));
            }
            None => self.fact("fabric", &run.fabric, None),
        }
        let (payloads, control) = (&run.system.payloads, &run.system.control);
        if !payloads.is_empty() {
            let line = format!("{payloads}; control plane: {control}");
            self.fact("payloads", &line, None);
        }
        if let Some((first, others)) = run.would_not_count.split_first() {
            let more = match others.len() {
                0 => String::new(),
                n => format!("; {n} more in summary.json"),
            };
            let line = format!("would not count in a submission: {first}{more}");
            self.fact("", &line, Some(YELLOW));
        }
        self.contents(&run.system.accelerators);
        self.ran(run);
        let samples = text::grouped(run.samples);
        let took = text::time_us(run.duration_s * 1e6);
        let target = run.target_qps.filter(|_| !rate_by_default(run));
        let target = target.map(|qps| format!(" (target {}/s)", text::rate(qps)));
        let rate = match run.phases.len() {
            // Each phase has its own rate.
            n @ 2.. => format!(", {n} phases and what lay between"),
            _ => format!(
                ": {}/s{}",
                text::rate(run.per_s),
                target.unwrap_or_default()
            ),
        };
        self.fact("samples", &format!("{samples} in {took}{rate}"), None);
        self.accuracy(run);
        let c = &run.carried;
        let [out, back] = [
            (c.gbit_out_per_s, c.bytes_out),
            (c.gbit_in_per_s, c.bytes_in),
        ]
        .map(|(rate, bytes)| (text::bit_rate(rate), text::bytes(bytes)));
        let carried = format!("{} out ({}), {} back ({})", out.0, out.1, back.0, back.1);
        // The local fabric carries no payload over a network.
        let local = run.fabric == "local";
        self.fact(if local { "payload" } else { "carried" }, &carried, None);
        self.list("NUMA", figures::places(&run.system.places), None);
        self.out.push('\n');
    }

    /// Adds the engines' models: one line if all accelerators have the same.
    fn contents(&mut self, all: &[AcceleratorRecord]) {
        let said: Vec<_> = all.iter().filter_map(|a| a.content.as_ref()).collect();
        match said.first() {
            Some(first) if said.len() == all.len() && said.iter().all(|c| c.agrees(first)) => {
                self.fact("model", &first.to_string(), None);
            }
            _ => {
                let line =
                    |a: &AcceleratorRecord| Some(format!("{}: {}", a.node, a.content.as_ref()?));
                self.list("model", all.iter().filter_map(line), Some(YELLOW));
            }
        }
    }

    /// Adds the share of right answers, per accelerator if there are several.
    fn accuracy(&mut self, run: &RunRecord) {
        let mut label = "accuracy";
        if let Some(labelled) = &run.labelled {
            self.fact(label, &accuracy(labelled), None);
            label = "";
            let all = &run.system.accelerators;
            for a in all.iter().filter(|_| all.len() > 1) {
                let own = a.accuracy.as_ref().map(accuracy);
                let own = own.unwrap_or("answered none of them".to_owned());
                self.fact("", &format!("{} {own}", cut(&a.node, NAME)), None);
            }
        }
        if let Some(note) = &run.accuracy_note {
            self.fact(label, note, Some(YELLOW));
        }
    }

    /// Adds times and counts of tokens.
    fn tokens(&mut self, tokens: &TokenRecord) {
        self.out.push('\n');
        if let Some(table) = self::tokens(tokens) {
            self.block(&table);
        }
        for (label, value) in token_facts(tokens) {
            self.fact(label, &value, None);
        }
        for (n, fault) in [
            (tokens.too_short, "answers were no two tokens"),
            (
                tokens.contradicted,
                "samples were sent again and began with another token",
            ),
        ] {
            if n > 0 {
                self.fact("", &format!("{} {fault}", text::grouped(n)), Some(RED));
            }
        }
    }

    /// Explains which columns include the warm-up.
    fn warmed(&mut self, run: &RunRecord) {
        let Some(w) = run.system.warm_up.filter(|w| w.samples > 0) else {
            return;
        };
        self.note(&format!(
            "The warm-up ({}) counts here, and in connections' sends to copied; not in their \
             samples.",
            text::counted(w.samples, "sample")
        ));
    }

    /// Adds the warm-up: network time of each connection's first sample, and once warm.
    fn warm_up(&mut self, run: &RunRecord) {
        let Some(w) = &run.system.warm_up else { return };
        let samples = text::counted(w.samples, "sample");
        let took = text::time_us(w.took_ms * 1e3);
        self.fact(
            "warm-up",
            &format!("{samples} in {took} before the clock"),
            None,
        );
        let (n, of) = (w.sizes, w.of_sizes);
        if n < of {
            let line = format!("{n} of {of} sizes: warm_up.budget_ms was too short for the rest");
            self.fact("", &line, Some(YELLOW));
        }
        let us = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), |us| text::time_us(us as f64));
        let cold_and_warm = |c: &ConnectionRecord| {
            let name = cut(&c.name, CONNECTION);
            format!("{name} {} -> {}", us(c.cold_us), us(c.warm_us))
        };
        let each = if run.system.connections.len() <= MOST_CONNECTIONS {
            let all: Vec<_> = run.system.connections.iter().map(cold_and_warm).collect();
            all.join(", ")
        } else {
            let total = run.total();
            format!("the slowest {} -> {}", us(total.cold_us), us(total.warm_us))
        };
        self.fact("", &format!("network time, cold -> warm: {each}"), None);
    }

    fn slots(&mut self, run: &RunRecord, total: &ConnectionRecord) {
        let connections = run.system.connections.len() as u64;
        if connections == 0 || total.slots == 0 {
            return;
        }
        let n = text::grouped;
        let used = match total.allowed {
            0 => n(total.slots),
            allowed => n(allowed),
        };
        let (slots, most) = (n(total.slots), n(total.in_flight_max));
        let on = text::counted(connections, "connection");
        let slots =
            format!("{slots} on {on}, {used} of them in use; at most {most} in flight on one");
        self.fact("slots", &slots, None);
    }

    /// Adds the batching rules: one line if all accelerators have the same.
    fn batching(&mut self, all: &[AcceleratorRecord]) {
        let Some(first) = all.first().filter(|a| !a.batching.is_empty()) else {
            return;
        };
        if all.iter().all(|a| a.batching == first.batching) {
            return self.fact("batches", &first.batching, None);
        }
        let lines = all.iter().map(|a| format!("{}: {}", a.node, a.batching));
        self.list("batches", lines, None);
    }

    fn losses(&mut self, run: &RunRecord) {
        let l = &run.system.ledger;
        let any = [l.lost_connections, l.redispatched, l.emptied];
        let emptied = text::counted(l.emptied, "sample");
        if any == [0; 3] {
            self.fact("losses", "none", None);
        } else if own_end(run) {
            let lost = format!("none before the interruption; {emptied} completed empty by it");
            self.fact("losses", &lost, None);
        } else {
            // An aborted run may have no accelerator left to send samples to again.
            let again = if l.emptied == 0 {
                "sent again"
            } else {
                "in flight on them"
            };
            let lost = format!(
                "{}; {} {again}, {} completed empty",
                text::counted(l.lost_connections, "connection"),
                text::counted(l.redispatched, "sample"),
                text::grouped(l.emptied)
            );
            self.fact("losses", &lost, Some(YELLOW));
        }
        self.list("", run.system.refusals.iter().map(refusal), Some(YELLOW));
        for lost in &run.system.losses {
            let style = if lost.back { YELLOW } else { RED };
            self.fact("", &lost.to_string(), Some(style));
        }
    }

    fn counts(&mut self, run: &RunRecord) {
        let n = text::grouped;
        let total = run.total();
        self.warm_up(run);
        let copies = total.tx.copies.saturating_add(total.rx.copies);
        let copied = total.tx.copied_bytes.saturating_add(total.rx.copied_bytes);
        let (copies, copied) = (n(copies), text::bytes(copied));
        let (staged, bytes) = (
            n(run.system.staged_copies),
            text::bytes(run.system.staged_bytes),
        );
        let line = format!("{staged} staged ({bytes}), {copies} by the fabric ({copied})");
        self.fact("copies", &line, None);
        let waited = format!(
            "{} found no free slot, at most {} at once; {} had one and were left to a NIC thread",
            text::counted(run.system.backlogged, "sample"),
            n(run.system.backlog_max),
            n(run.system.handed_over)
        );
        self.fact("backlog", &waited, None);
        self.slots(run, &total);
        self.batching(&run.system.accelerators);
        if let Some(rule) = run.system.posting_rule {
            let up_to = match rule.up_to_bytes {
                0 => "NIC threads post all bursts".to_owned(),
                bytes => format!(
                    "the issuing thread posts bursts of at most {} on idle connections and for NIC \
                     threads that sleep, NIC threads the others",
                    text::bytes(bytes)
                ),
            };
            let one_by_one = "; one doorbell a sample";
            let each = if rule.one_by_one { one_by_one } else { "" };
            self.fact("posting", &format!("{up_to}{each}"), None);
        }
        if !run.system.connections.is_empty() {
            let threads = format!(
                "{} slept {}; connections woke them {}, other threads {}",
                match run.system.nic_threads {
                    0 => "NIC threads".to_owned(),
                    threads => text::counted(threads, "NIC thread"),
                },
                text::counted(run.system.sleeps, "time"),
                text::counted(total.wakeups, "time"),
                n(run.system.woken)
            );
            self.fact("threads", &threads, None);
        }
        self.losses(run);
        if run.mismatches.is_empty() {
            let agreed = format!("issued = completed = recorded{}", compared(run));
            self.fact("reconciled", &agreed, None);
        }
        if let Some(verified) = &run.verified {
            let style = (!verified.sound()).then_some(RED);
            self.fact("verified", &figures::verified(verified), style);
        }
        self.list("MISMATCH", &run.mismatches, Some(RED));
        let exit = format!("{}, {}", run.exit.code, run.exit.reason);
        let style = if run.exit.code == 0 { GREEN } else { RED };
        self.fact("exit", &exit, Some(style));
        // The last line names the limit and the remedy.
        if !run.limits.line.is_empty() {
            self.fact("limited by", &run.limits.line, Some(BOLD));
        }
    }
}

/// Text on the counts that were compared besides issued, completed and recorded.
fn compared(run: &RunRecord) -> String {
    let l = &run.system.ledger;
    if run.system.connections.is_empty() {
        return String::new();
    }
    if own_end(run) {
        return "; an interrupted run's accelerators are not asked for their counts".to_owned();
    }
    if l.lost_connections == 0 {
        return "; posted, arrived and answered agree".to_owned();
    }
    let posted = match l.redispatched {
        _ if l.emptied > 0 => String::new(),
        0 => " = posted".to_owned(),
        again => format!(", {} posted again", text::counted(again, "sample")),
    };
    format!("{posted}; lost accelerators' own counts were not compared")
}

/// Whether the rate is LoadGen's default, which is no target.
fn rate_by_default(run: &RunRecord) -> bool {
    let rate = |s: &&SettingRecord| {
        !s.idle && ["server_target_qps", "offline_expected_qps"].contains(&s.name.as_str())
    };
    let rate = run.settings.iter().find(rate);
    rate.is_some_and(|s| s.given.from == DEFAULT)
}

fn accelerators(all: &[AcceleratorRecord]) -> String {
    let heading = "accelerator|engine|connections|samples|batches|mean|max|sizes 1,2,4,8..";
    let mut table = Table::new(&columns(heading));
    for a in all {
        let mut row = vec![
            cut(&a.node, NAME),
            cut(&a.engine, ENGINE),
            text::grouped(a.connections as u64),
        ];
        match (a.answered(), a.lost_sessions.last()) {
            (Some(samples), None) => row.extend([
                text::short(samples),
                text::short(a.batches.batches()),
                text::three(a.batches.mean()),
                text::grouped(a.batches.max() as u64),
                bars(&a.batches),
            ]),
            (Some(samples), Some(_)) => {
                let batches = a.lost_sessions.iter().map(|s| s.batches);
                let batches = batches.sum::<u64>().saturating_add(a.batches.batches());
                let mean = match batches {
                    0 => "-".to_owned(),
                    n => text::three(samples as f64 / n as f64),
                };
                row.extend([text::short(samples), text::short(batches), mean]);
                row.extend(["-".to_owned(), as_of(a)]);
            }
            (None, _) => row.push("not known".to_owned()),
        }
        table.row(row);
    }
    let lines = all.iter().flat_map(|a| &a.gpus).filter_map(gpu);
    lines.fold(table.text(), |text, line| text + &line + "\n")
}

/// Text on a lost accelerator's last heartbeat, up to which its counts are complete.
fn as_of(a: &AcceleratorRecord) -> String {
    let last = a.lost_sessions.iter().rev().find_map(|s| s.as_of_s);
    match (a.samples, last) {
        (Some(_), Some(s)) => format!("without what its lost session did after {s:.1} s"),
        (Some(_), None) => "without a session lost before the first query".to_owned(),
        (None, Some(s)) => format!("as of {s:.1} s"),
        (None, None) => "as of before the first query".to_owned(),
    }
}

fn rails(all: &[RailRecord]) -> String {
    let heading = "rail|state|score|latency|samples|bytes|probes|changes";
    let mut table = Table::new(&columns(heading));
    for r in all.iter().take(MOST_CONNECTIONS) {
        table.row(vec![
            cut(&r.name, 2 * NAME),
            r.state.clone(),
            text::three(r.score),
            text::three(r.latency),
            text::short(r.samples),
            text::bytes(r.bytes),
            text::short(r.probes),
            text::grouped(r.changes.len() as u64),
        ]);
    }
    table.text()
}

fn connections(run: &RunRecord) -> String {
    let own = ["connection", "samples", "in flight"];
    let mut table = Table::new(&[&own[..], &TRAFFIC].concat());
    let mut row = |c: &ConnectionRecord, sum: bool| {
        // Connections peak at different times, so a sum of their maxima means nothing.
        let in_flight = (!sum).then(|| text::short(c.in_flight_max));
        let in_flight = in_flight.unwrap_or_default();
        let mut row = vec![cut(&c.name, CONNECTION), text::short(c.samples), in_flight];
        row.extend(traffic(&c.tx, &c.rx, c.wakeups, c.blocked));
        table.row(row);
    };
    if run.system.connections.len() <= MOST_CONNECTIONS {
        run.system.connections.iter().for_each(|c| row(c, false));
    }
    let mut total = run.total();
    total.name = match run.system.connections.len() {
        1 => return table.text(),
        n => format!("all {n}"),
    };
    row(&total, true);
    table.text()
}

/// Whether the run was interrupted without an earlier loss.
fn own_end(run: &RunRecord) -> bool {
    run.exit.code == INTERRUPTED && run.system.losses.is_empty()
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
