//! Invariants that hold when no step is due, at rest, and after the stop. The book and the fabric
//! check those of each callback and of each write.

use fabric::Broken;

use crate::{plan::Kind, world::World};

/// Events after which a connection may be lost.
const LOSSES: &[Kind] = &[
    Kind::Cut,
    Kind::Silent,
    Kind::Hole,
    Kind::Delay,
    Kind::Fail,
    Kind::Stray,
    Kind::GiveUp,
    Kind::Stop,
    Kind::Leave,
    Kind::Abort,
];

/// Events after which a peer may be silent.
const SILENCES: &[Kind] = &[Kind::Silent, Kind::Hole, Kind::Delay, Kind::Stop];

impl World<'_> {
    /// A peer is called silent only where it was.
    pub fn check_cause(&self, connection: usize, cause: &Broken) {
        if cause.by_silence() && self.plan.has_none(SILENCES) {
            self.wrong(format!(
                "loss: connection {connection} was not silent: {cause}"
            ));
        }
    }

    /// A sleep of an hour has ended: nothing else would have ended it.
    pub fn check_timeout(&self) {
        let outstanding = self.nodes.dispatcher.outstanding();
        if self.plan.shape.asleep > 0 && outstanding > 0 {
            let text = format!("lost wake-up: all threads sleep, {outstanding} samples wait");
            self.wrong(text);
        }
    }

    /// A burst has been issued: no sample waits for an accelerator that takes none.
    pub fn check_away(&self) {
        for c in 0..self.controls.len() {
            let look = self.nodes.dispatcher.look(c);
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
        let dispatcher = self.nodes.dispatcher.clone();
        let outstanding = dispatcher.outstanding();
        let nothing_comes = self.queue.outside == 0;
        if outstanding == 0 || self.is_ending {
            return nothing_comes;
        }
        let backlog = dispatcher.backlog();
        let is_by_health = self.plan.shape.policy().is_by_health();
        let mut are_healthy = true;
        for c in 0..self.controls.len() {
            let look = dispatcher.look(c);
            let control = &self.controls[c];
            let is_healthy = control.front && control.back && !control.is_faulty;
            are_healthy &= is_healthy;
            if !is_healthy || !look.up {
                continue;
            }
            let (owed, held_back) = {
                let engine = self.engine();
                (engine.owed(c), engine.held_back(c))
            };
            if let Some(id) = held_back {
                self.wrong(format!("lost wake-up: a part of sample {id} is held back"));
            } else if look.in_flight > owed || look.blocked {
                let text = format!("lost wake-up: connection {c}, engine owes {owed}: {look:?}");
                self.wrong(text);
            } else if !is_by_health && look.takes && (look.ring > 0 || backlog > 0) {
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
        if nothing_comes && are_healthy && !is_by_health {
            let text =
                format!("lost wake-up: {outstanding} samples wait, {backlog} in the backlog");
            self.wrong(text);
        }
        self.is_wrong()
    }

    /// Everything has ended: the ledgers of the frontend close.
    pub fn check_rest(&mut self) {
        let counts = self.nodes.dispatcher.counts();
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
        let ended = (counts.completed, counts.completed_empty);
        require(ended == (answered, empty), "samples completed");
        require(answered + empty == issued, "samples issued and completed");
        let records = self.plan.shape.records > 0;
        require(!records || recorded == answered, "samples recorded");
        let refused = counts.refused.iter().sum::<u64>();
        let again = counts.completed + counts.again + refused;
        require(aborted || counts.posted == again, "samples posted");
        let is_clean = self.plan.has_none(LOSSES) && self.plan.shape.never == 0 && !aborted;
        require(
            !is_clean || counts.connections_lost == 0,
            "no loss without a fault",
        );
        for c in 0..self.controls.len() {
            let look = self.nodes.dispatcher.look(c);
            let left = look.in_flight + look.granted + look.ring;
            if left > 0 || self.nodes.dispatcher.backlog() > 0 {
                self.wrong(format!("ledger: connection {c} at rest: {look:?}"));
            }
            let control = &self.controls[c];
            if control.is_doomed && control.front && control.back {
                self.wrong(format!("loss: connection {c} was given up and lives on"));
            }
            if aborted && control.is_attached_front() {
                self.wrong(format!(
                    "loss: connection {c} was aborted, and no loss is reported"
                ));
            }
        }
    }

    /// Both ends have stopped: each choice by health has ended, each connection of an accelerator
    /// is reported lost, and the ledgers of both ends agree.
    pub fn check_stopped(&mut self) {
        for c in 0..self.controls.len() {
            if self.controls[c].is_attached_back() {
                self.wrong(format!(
                    "loss: connection {c} outlives its accelerator's stop"
                ));
            }
            self.controls[c].drop_links();
            self.close_ledger(c);
        }
        for peer in 0..self.nodes.servers.len() {
            let assigned = self.nodes.dispatcher.assigned_bytes(peer);
            if assigned > 0 {
                self.wrong(format!(
                    "ledger: {assigned} bytes on their way to peer {peer}"
                ));
            }
        }
        let counts = self.nodes.dispatcher.counts();
        let [arrived, responded, refused, late] = self.ledger;
        let is_clean = self.plan.has_none(LOSSES) && self.plan.shape.never == 0;
        if is_clean && !self.book.lock().aborted {
            let posted = counts.posted;
            if (posted, posted, 0) != (arrived, responded + refused, late) {
                self.wrong(format!("ledger: both ends: {:?}, {counts:?}", self.ledger));
            }
        }
    }

    /// Closes the ledger of an epoch whose local side at the accelerator is destroyed.
    pub fn close_ledger(&mut self, c: usize) {
        let Some(serve) = self.controls[c].serve.take() else {
            return;
        };
        let ended = [serve.responded(), serve.refused(), serve.late()];
        let arrived = serve.received().arrived;
        if arrived != ended.iter().sum::<u64>() {
            let text = format!("ledger: connection {c}: {arrived} arrived, {ended:?} ended");
            self.wrong(text);
        }
        self.ledger[0] += arrived;
        for (sum, n) in self.ledger[1..].iter_mut().zip(ended) {
            *sum += n;
        }
    }
}
