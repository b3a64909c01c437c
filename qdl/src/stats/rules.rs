//! The judge's rules: what each cause is found by.

use super::{
    AcceleratorRecord, Stage,
    judge::{ALWAYS, BUSY, EASY, MOST, View, percent, share},
    limits::{Cause, Finding, PathUse},
    text,
};

/// Sleeps for each sample from which on they cost a good part of its time.
pub(super) const OFTEN: f64 = 0.5;

impl<'a> View<'a> {
    /// Packets queue up between the nodes, and nobody else has much to do.
    pub(super) fn link(&self) -> Option<Finding> {
        let path = self.paths();
        let busy = share(path.busy_us as f64, path.looked_us as f64);
        let rwnd = share(path.rwnd_limited_us as f64, path.busy_us as f64);
        let (rtt, least) = (path.mean_rtt_us(), path.min_rtt_us as f64);
        let queued = rtt >= 1000.0 && rtt >= 5.0 * least;
        let network = self.stage_of(Stage::Network, Stage::RoundTrip);
        let idle = self.nic_taken(&self.run.evidence.node, self.node_seconds()) < EASY;
        if path.looks == 0 || busy < BUSY || rwnd > MOST || !queued || network < MOST || !idle {
            return None;
        }
        let c = &self.run.carried;
        let rate = text::bit_rate(c.gbit_out_per_s.max(c.gbit_in_per_s));
        let figure = format!(
            "{rate} of payload; packets took {} there and back, the fastest {}",
            text::time_us(rtt),
            text::time_us(least)
        );
        self.found(Cause::Link, figure)
    }

    /// All connections that were looked at.
    fn paths(&self) -> PathUse {
        let mut all = PathUse::default();
        for c in &self.run.system.connections {
            all.add(&c.path);
        }
        all
    }

    /// The accelerator whose engine was at work the most, with that share.
    fn busiest(&self) -> Option<(&'a AcceleratorRecord, f64)> {
        let share_of = |a: &'a AcceleratorRecord| {
            let time = self.seconds * 1e6 * f64::from(a.used.engine.workers);
            (a, share(a.used.engine.busy_us as f64, time))
        };
        let engines = self.run.system.accelerators.iter().map(share_of);
        let at_work = engines.filter(|(a, _)| a.used.engine.workers > 0);
        at_work.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What engines could have in batches at once.
    fn engine_room(&self) -> f64 {
        let all = self.run.system.accelerators.iter().map(|a| &a.used.engine);
        all.map(|e| e.max_batch as f64 * f64::from(e.workers)).sum()
    }

    /// Of those that were to be had.
    fn slots_used(&self) -> f64 {
        share(self.in_flight, self.allowed as f64)
    }

    /// Whether there may be too few slots: those that were left alone, as more in flight brought
    /// nothing, are no fewer for that.
    fn slots_are_short(&self) -> bool {
        self.slots > 0 && self.allowed >= self.slots
    }

    /// Fewer slots than the engines' batches hold, and all of them in use.
    pub(super) fn slots_of_engine(&self) -> Option<Finding> {
        let (a, _) = self.busiest()?;
        let e = &a.used.engine;
        let mean = share(e.samples as f64, e.batches as f64);
        let small = mean < MOST * e.max_batch as f64;
        if !self.slots_are_short()
            || self.by_latency
            || !small
            || self.slots as f64 >= self.engine_room()
            || self.slots_used() < EASY
            || self.nic_taken(&self.run.evidence.node, self.node_seconds()) >= ALWAYS
        {
            return None;
        }
        let figure = format!(
            "{:.1} of {} in use on average, batches of {} where {} fit",
            self.in_flight.min(self.slots as f64),
            text::grouped(self.slots),
            text::three(mean),
            e.max_batch
        );
        self.found(Cause::Slots, figure)
    }

    /// Every slot in use and nothing else: the way there and back has to be filled.
    pub(super) fn slots(&self) -> Option<Finding> {
        let node = &self.run.evidence.node;
        let engine = self.busiest().map_or(0.0, |(_, busy)| busy);
        let nics = self.nic_share(node, self.node_seconds());
        if !self.slots_are_short()
            || self.by_latency
            || self.slots_used() < BUSY
            || engine >= BUSY
            || self.nic_taken(node, self.node_seconds()) >= EASY
        {
            return None;
        }
        let figure = format!(
            "{:.1} of {} in use on average, engines at work {} and NIC threads {} of the time",
            self.in_flight.min(self.slots as f64),
            text::grouped(self.slots),
            percent(engine),
            percent(nics)
        );
        self.found(Cause::Slots, figure)
    }

    /// The engine, or what keeps it from more.
    pub(super) fn engine(&self) -> Option<Finding> {
        if self.by_latency {
            return self.engine_by_latency();
        }
        let (a, busy) = self.busiest()?;
        if busy < BUSY {
            return None;
        }
        self.engine_at_work(a, busy)
    }

    /// One query at a time: the most of its time.
    fn engine_by_latency(&self) -> Option<Finding> {
        let (compute, wait) = (self.stage(Stage::Compute), self.stage(Stage::Queue));
        if wait >= 0.3
            && let Some((a, busy)) = self.busiest()
        {
            return self.engine_at_work(a, busy);
        }
        if compute < MOST {
            return None;
        }
        let mean = self.run.stages.get(Stage::Total).map_or(0.0, |r| r.mean_us);
        self.own_speed(&format!(
            "inference is {} of a sample's {}",
            percent(compute),
            text::time_us(mean)
        ))
    }

    fn engine_at_work(&self, a: &AcceleratorRecord, busy: f64) -> Option<Finding> {
        let e = &a.used.engine;
        let mean = share(e.samples as f64, e.batches as f64);
        let full = share(mean, e.max_batch as f64) >= EASY;
        let batches = format!("batches of {} where {} fit", text::three(mean), e.max_batch);
        if full && e.max_batch < 8 {
            let figure = format!(
                "{} computed {} of the time, {batches}",
                a.node,
                percent(busy)
            );
            return self.found(Cause::MaxBatch, figure);
        }
        if e.workers == 1 && self.has_cores_left(a) {
            let figure = format!(
                "the one of {} computed {} of the time, {batches}",
                a.node,
                percent(busy)
            );
            return self.found(Cause::EngineThreads, figure);
        }
        self.own_speed(&format!(
            "{} computed {} of the time on {} threads, {batches}",
            a.node,
            percent(busy),
            e.workers
        ))
    }

    /// The engine itself, with nothing around it that could be turned.
    fn own_speed(&self, figure: &str) -> Option<Finding> {
        self.found(
            Cause::Engine,
            format!("{figure}: that is the model's own speed"),
        )
    }

    /// The accelerator's own threads leave a quarter of its cores.
    fn has_cores_left(&self, a: &AcceleratorRecord) -> bool {
        let own = match a.used.threads.is_empty() {
            // Without a network the engine's threads are this node's.
            true => &self.run.evidence.node,
            false => &a.used,
        };
        // What a peer says may be any number: sums of it are no integers.
        let ran: f64 = own.threads.iter().map(|g| g.ran_us as f64).sum();
        let cores = f64::from(own.cores);
        cores == 0.0 || ran < 0.75 * cores * self.seconds * 1e6
    }

    /// LoadGen's issue thread: it cannot issue what was asked for, or it wakes late.
    pub(super) fn issue(&self) -> Option<Finding> {
        let wanted = self.wanted_per_s()?;
        let total = self.run.stages.get(Stage::Total)?;
        let (theirs, ours) = (self.loadgen.p99_us, total.p99_us);
        let late = share(theirs - ours, theirs) >= MOST;
        if self.rate_reached() && !late {
            return None;
        }
        let (ran, waited) = self.issue_shares();
        let busy = format!(
            "its thread was on a core {} of the time and waited for one {}",
            percent(ran),
            percent(waited)
        );
        // What the scheduled rate takes of a core, by what a sample has taken.
        let per_s = share(self.run.samples as f64, self.seconds);
        let takes = share(ran, per_s) * wanted;
        if takes >= EASY {
            let (wanted, per_s) = (text::rate(wanted), text::rate(per_s));
            let figure = format!(
                "LoadGen scheduled {wanted}/s, which takes {:.1} cores; {per_s}/s came back",
                takes
            );
            return self.found(Cause::Rate, figure);
        }
        if !late {
            return None;
        }
        let (theirs, ours) = (text::time_us(theirs), text::time_us(ours));
        let figure = format!("LoadGen's p99 is {theirs} where ours is {ours}: {busy}");
        self.found(Cause::IssueThread, figure)
    }

    pub(super) fn nic_thread(&self) -> Option<Finding> {
        let own = self.nic_share(&self.run.evidence.node, self.node_seconds());
        let theirs = self.run.system.accelerators.iter();
        let theirs = theirs.map(|a| (a.node.as_str(), self.nic_share(&a.used, self.seconds)));
        let all = std::iter::once(("this node", own)).chain(theirs);
        let (node, most) = all.max_by(|a, b| a.1.total_cmp(&b.1))?;
        if most < ALWAYS {
            return None;
        }
        let figure = format!("those of {node} were at work {} of the time", percent(most));
        self.found(Cause::NicThread, figure)
    }

    pub(super) fn send_buffer(&self) -> Option<Finding> {
        let path = self.paths();
        let held = share(path.sndbuf_limited_us as f64, path.busy_us as f64);
        let busy = share(path.busy_us as f64, path.looked_us as f64);
        if held < MOST || busy < BUSY {
            return None;
        }
        let figure = format!(
            "it held up the connections {} of the time",
            percent(held * busy)
        );
        self.found(Cause::SendBuffer, figure)
    }

    /// How often NIC threads slept for each sample, here and at all accelerators.
    pub(super) fn sleeps(&self) -> (f64, f64) {
        let samples = self.run.samples as f64;
        let here = share(self.run.evidence.node.nics.sleeps as f64, samples);
        let there = self.run.system.accelerators.iter();
        let there = share(there.map(|a| a.used.nics.sleeps as f64).sum(), samples);
        (here, there)
    }

    pub(super) fn wake_ups(&self) -> Option<Finding> {
        let network = self.stage(Stage::Network);
        let (here, there) = self.sleeps();
        if self.run.scenario == "Offline" || network < 0.4 || here.max(there) < OFTEN {
            return None;
        }
        let figure = format!(
            "the network is {} of a sample's time, and NIC threads slept {here:.1} times a sample \
             here and {there:.1} there",
            percent(network)
        );
        self.found(Cause::WakeUps, figure)
    }

    pub(super) fn posting(&self) -> Option<Finding> {
        let posting = self.stage(Stage::IssueToPost);
        if self.run.scenario == "Offline" || posting < MOST || self.slots_used() >= MOST {
            return None;
        }
        let figure = format!(
            "`issue -> post` is {} of a sample's time, and {:.1} of {} slots were in use",
            percent(posting),
            self.in_flight,
            text::grouped(self.allowed)
        );
        self.found(Cause::Posting, figure)
    }

    pub(super) fn completion(&self) -> Option<Finding> {
        let completion = self.stage(Stage::Completion);
        let figure = format!("it is {} of a sample's time", percent(completion));
        self.found(Cause::Completion, figure)
            .filter(|_| completion >= MOST)
    }

    pub(super) fn network(&self) -> Option<Finding> {
        let network = self.stage(Stage::Network);
        if self.run.scenario == "Offline" || network < MOST {
            return None;
        }
        let figure = format!("it is {} of a sample's time", percent(network));
        self.found(Cause::Network, figure)
    }
}
