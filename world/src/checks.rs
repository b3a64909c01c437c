//! Invariants that hold when no step is due, at rest, and after the stop. The book and the fabric
//! check those of each callback and of each write.

use fabric::Broken;
use record::{RunRecord, ServedConnection, Stage, StageRow, StageTable, timeline::NodeSide};

use crate::{plan::Kind, world::World};

/// Events after which a connection may be lost, beside [`OUTAGES`].
const LOSSES: &[Kind] = &[
    Kind::Cut,
    Kind::Silent,
    Kind::Hole,
    Kind::Delay,
    Kind::Fail,
    Kind::Stray,
    Kind::GiveUp,
];

/// Events after which an end may hear late of a loss by the other end.
const LATE_WORDS: &[Kind] = &[
    Kind::Stop,
    Kind::Mute,
    Kind::Stick,
    Kind::Reset,
    Kind::Spoil,
    Kind::Lie,
];

/// Events after which an accelerator may be away for long, or for good.
const OUTAGES: &[Kind] = &[
    Kind::Stop,
    Kind::Spoil,
    Kind::Lie,
    Kind::Leave,
    Kind::Abort,
    Kind::Reset,
    Kind::Mute,
    Kind::Stick,
    Kind::Restart,
    Kind::Change,
    Kind::Down,
    Kind::Finish,
];

/// Time within which both ends have lost a connection.
const HALF_NS: u64 = 50_000_000;

/// Events after which a peer may be silent.
const SILENCES: &[Kind] = &[
    Kind::Silent,
    Kind::Hole,
    Kind::Delay,
    Kind::Stop,
    Kind::Mute,
    Kind::Stick,
    // The rest of a frame with a spoilt length never comes.
    Kind::Spoil,
];

impl World<'_> {
    /// A peer is called silent only where it was.
    pub fn check_cause(&self, connection: usize, cause: &Broken) {
        if cause.by_silence() && self.plan.has_none(SILENCES) {
            self.wrong(format!(
                "loss: connection {connection} was not silent: {cause}"
            ));
        }
    }

    /// One end has lost a connection: the session, or its end, takes the other end down, too.
    pub fn check_halves(&self) {
        // A frontend that did not come up lets go when the program ends.
        if !self.plan.has_none(LATE_WORDS) || self.book.lock().ready == Some(false) {
            return;
        }
        for (c, seen) in self.seen.iter().enumerate() {
            let lives = match seen.is_lost {
                [false, true] => self.front.dispatcher.look(c).up,
                [true, false] => self.sim.has_receiver(seen.pipe),
                _ => false,
            };
            if lives && self.now > seen.lost_at + HALF_NS {
                let text = format!(
                    "loss: one end alone has lost connection {c}: {:?}",
                    seen.is_lost
                );
                self.wrong(text);
            }
        }
    }

    /// Whether no fault explains the end of a session or a connection.
    pub fn is_untroubled(&self) -> bool {
        let is_aborted = self.book.lock().aborted;
        let is_quiet = self.plan.has_none(LOSSES) && self.plan.has_none(OUTAGES);
        is_quiet && self.plan.shape.never == 0 && self.plan.shape.ports < 2 && !is_aborted
    }

    /// A sleep of an hour has ended: nothing else would have ended it.
    pub fn check_timeout(&self) {
        let outstanding = self.front.dispatcher.outstanding();
        if self.plan.shape.asleep > 0 && outstanding > 0 {
            let text = format!("lost wake-up: all threads sleep, {outstanding} samples wait");
            self.wrong(text);
        }
    }

    /// A burst has been issued: no sample waits for an accelerator that takes none.
    pub fn check_away(&self) {
        for c in 0..self.seen.len() {
            let look = self.front.dispatcher.look(c);
            if look.ring > 0 && look.allowance == 0 {
                self.wrong(format!(
                    "away: samples wait in the ring of connection {c}: {look:?}"
                ));
            }
        }
    }

    /// No step of the two ends is due, so samples wait for an engine, or for a connection, and all
    /// parts have come. Returns whether the world has ended.
    pub fn check_idle(&mut self) -> bool {
        let dispatcher = self.front.dispatcher.clone();
        let outstanding = dispatcher.outstanding();
        let nothing_comes = self.queue.outside == 0;
        if outstanding == 0 || self.is_ending {
            // The word that ends a connection may be under way.
            let is_doomed = |c: usize| self.seen[c].is_doomed && dispatcher.look(c).up;
            let ends = (0..self.seen.len()).any(is_doomed);
            return nothing_comes && self.is_done() && !ends;
        }
        let backlog = dispatcher.backlog();
        let is_by_health = self.plan.shape.policy().is_by_health();
        let mut are_healthy = true;
        for c in 0..self.seen.len() {
            let look = dispatcher.look(c);
            let seen = &self.seen[c];
            let is_healthy = look.up && seen.is_lost == [false; 2] && !seen.is_faulty;
            are_healthy &= is_healthy && look.allowance > 0;
            if !is_healthy {
                continue;
            }
            let (owed, held_back) = {
                let engine = self.engine();
                (engine.owed(c), engine.held_back(c))
            };
            if let Some(id) = held_back {
                self.wrong(format!("lost wake-up: a part of sample {id} is held back"));
            } else if look.in_flight > owed + look.handles || look.blocked {
                let text = format!("lost wake-up: connection {c}, engine owes {owed}: {look:?}");
                self.wrong(text);
            } else if !is_by_health
                && look.takes
                && !look.is_held_back
                && (look.ring > 0 || look.backlog > 0)
            {
                let text = format!("lost wake-up: connection {c} is free: {look:?}, {backlog}");
                self.wrong(text);
            }
        }
        if self.is_wrong() {
            return true;
        }
        if self.engine().due().is_some() {
            return false;
        }
        if nothing_comes && !self.engine().hung_connections().is_empty() {
            self.end_hangs();
            return false;
        }
        // A sample that is refused three times ends the run, after a second for the reason.
        let is_spent = dispatcher.counts().refused[2] > 0;
        if nothing_comes && are_healthy && !is_by_health && !is_spent {
            let text =
                format!("lost wake-up: {outstanding} samples wait, {backlog} in the backlog");
            self.wrong(text);
        }
        self.is_wrong()
    }

    /// Everything has ended: the ledgers of the frontend close.
    pub fn check_rest(&mut self) {
        let counts = self.front.dispatcher.counts();
        let issued = self.issued();
        let (answered, empty, recorded, aborted) = {
            let book = self.book.lock();
            (book.answered, book.empty, book.recorded, book.aborted)
        };
        let require = |holds: bool, what: &str| {
            if !holds {
                self.wrong(format!("ledger: {what}: {counts:?}"));
            }
        };
        require(counts.issued == issued, "samples issued");
        let ended = (counts.answered, counts.emptied);
        require(ended == (answered, empty), "samples completed");
        require(answered + empty == issued, "samples issued and completed");
        let records = self.plan.shape.records > 0;
        require(!records || recorded == answered, "samples recorded");
        let refused = counts.refused.iter().sum::<u64>();
        let again = counts.answered + counts.redispatched + refused;
        let again = again + counts.prefilled + self.front.dispatcher.lost_cancelled();
        require(aborted || counts.posted == again, "samples posted");
        let shape = &self.plan.shape;
        // Pauses of 100 ms at most, and 1.5 s until the run is aborted.
        let comes_back = shape.retry_ms <= 5 && shape.lost_ms >= 2_000;
        let is_short = self.plan.has_none(OUTAGES) && shape.never == 0 && shape.refusals < 3;
        require(
            !(aborted && comes_back && is_short),
            "no abort, since each lost connection comes back",
        );
        require(
            !self.is_untroubled() || counts.lost_connections == 0,
            "no loss without a fault",
        );
        for c in 0..self.seen.len() {
            let look = self.front.dispatcher.look(c);
            let left = look.in_flight + look.granted + look.ring;
            if left > 0 || look.prompts > 0 || self.front.dispatcher.backlog() > 0 {
                self.wrong(format!("ledger: connection {c} at rest: {look:?}"));
            }
            if self.seen[c].is_doomed && look.up && self.plan.has_none(LATE_WORDS) {
                self.wrong(format!("loss: connection {c} was given up and lives on"));
            }
            if aborted && look.up {
                self.wrong(format!("loss: connection {c} was aborted and lives on"));
            }
        }
    }

    /// The frontend has stopped: the record of its run agrees with itself and with the book.
    pub fn check_record(&mut self, sides: Vec<NodeSide>) {
        let system = self.front.cluster.record(sides);
        self.warmed = system.ledger.warmed;
        for a in &system.accelerators {
            let ended = a.samples.unwrap_or(0) + a.refused + a.dropped_late;
            if a.arrived.is_some_and(|arrived| arrived > ended) {
                self.wrong(format!("drain: answered while samples wait: {a:?}"));
            }
        }
        if self.front.dispatcher.outstanding() > 0 {
            return;
        }
        let row = StageRow {
            count: self.book.lock().answered,
            ..StageRow::default()
        };
        let mut run = RunRecord {
            system,
            stages: StageTable::new([(Stage::Total, row)]),
            ..RunRecord::default()
        };
        if !run.close() {
            self.wrong(format!("record: {}", run.mismatches.join("; ")));
        }
    }

    /// Both ends have stopped: each choice by health has ended, no link lives on, and the ledgers
    /// of both ends agree.
    pub fn check_stopped(&mut self) {
        for peer in 0..self.back.len() {
            let assigned = self.front.dispatcher.assigned_bytes(peer);
            // A run that ends early leaves samples on their way.
            if assigned > 0 && self.front.dispatcher.outstanding() == 0 {
                self.wrong(format!(
                    "ledger: {assigned} bytes on their way to peer {peer}"
                ));
            }
        }
        let live = self.sim.live_halves();
        if live > 0 {
            self.wrong(format!(
                "loss: {live} halves of links live on after the stop"
            ));
        }
        let counts = self.front.dispatcher.counts();
        let is_untroubled = self.is_untroubled();
        let book = self.book.lock();
        let mut total = ServedConnection::default();
        let mut problem = None;
        let is_clean = is_untroubled && book.ready == Some(true);
        for (server, report) in &book.served {
            let sum = report.total();
            total.arrived += sum.arrived;
            total.answered += sum.answered;
            total.refused += sum.refused;
            total.dropped_late += sum.dropped_late;
            if !report.mismatches.is_empty() {
                problem = Some(format!("acc-{server}: {:?}", report.mismatches));
            }
            if is_clean && !report.clean {
                problem = Some(format!("acc-{server}: its session did not end in order"));
            }
        }
        let ended = total.answered + total.refused + total.dropped_late;
        if total.arrived != ended {
            problem = Some(format!("{total:?}"));
        }
        let both = (total.arrived, total.dropped_late);
        if is_clean && both != (counts.posted + self.warmed, 0) {
            problem = Some(format!("both ends: {total:?}, {counts:?}"));
        }
        if is_clean && book.ready == Some(false) && self.plan.shape.memory_mib > 1 {
            problem = Some("the cluster did not come up, and nothing failed".to_owned());
        }
        drop(book);
        if let Some(problem) = problem {
            self.wrong(format!("ledger: {problem}"));
        }
    }
}
