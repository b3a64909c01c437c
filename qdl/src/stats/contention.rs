//! What threads had of their cores, and whether they had to wait for them: what looks slow is late
//! where they did, and no work.

use super::{
    judge::{ALWAYS, MOST, View, percent, share},
    limits::{Cause, Finding, ISSUE, NIC, NodeUse, ThreadGroup},
};

/// Of the time in which threads want to run: what they may wait for a core where others run too.
const QUARTER: f64 = 0.25;
/// Of the run: what is waited in less than that, in all, makes nobody late.
const LITTLE: f64 = 0.1;

/// A group's share of the time that its threads had.
fn of_group(us: u64, group: &ThreadGroup, seconds: f64) -> f64 {
    let time = seconds * 1e6 * f64::from(group.threads.max(1));
    share(us as f64, time)
}

/// In words, how far a node's threads waited for cores; `None` where that was little.
fn waits(node: &NodeUse, seconds: f64, whose: [&str; 2]) -> Option<String> {
    let [machine, threads] = whose;
    let busy = share(node.machine_busy_ticks as f64, node.machine_ticks as f64);
    // What a peer says may be any number: sums of it are no integers.
    let sum = |of: fn(&ThreadGroup) -> f64| node.threads.iter().map(of).sum::<f64>();
    let (ran, waited) = (sum(|g| g.ran_us as f64), sum(|g| g.waited_us as f64));
    let waiting = share(waited, ran + waited);
    if busy >= ALWAYS && waiting >= QUARTER && waited >= LITTLE * seconds * 1e6 {
        let (busy, waiting) = (percent(busy), percent(waiting));
        return Some(format!(
            "{busy} of {machine} were busy, {threads} threads waited {waiting} of the time for one"
        ));
    }
    // Threads that share a core with others wait though the machine has some left.
    let late = [NIC, ISSUE].into_iter().find_map(|name| {
        let group = node.group(name)?;
        let part = of_group(group.waited_us, group, seconds);
        (part >= MOST).then(|| (name, percent(part)))
    });
    let (name, part) = late?;
    let name = if name == NIC { "NIC" } else { "issue" };
    let rest = match node.machine_ticks {
        0 => String::new(),
        _ => format!(", {} of {machine} were busy", percent(busy)),
    };
    Some(format!(
        "{threads} {name} threads waited for one {part} of the run{rest}"
    ))
}

impl View<'_> {
    /// This node's threads wait for cores, or an accelerator's.
    pub(super) fn cores(&self) -> Option<Finding> {
        let own = &self.run.evidence.node;
        let own = waits(own, self.node_seconds(), ["this machine's", "our"]);
        let theirs = || {
            let mut all = self.run.system.accelerators.iter();
            all.find_map(|a| {
                let machine = format!("those of the machine of {}", a.node);
                waits(&a.used, self.seconds, [&machine, "its"])
            })
        };
        self.found(Cause::Cores, own.or_else(theirs)?)
    }

    /// Shares of the run in which LoadGen's issue threads ran, and waited for a core.
    pub(super) fn issue_shares(&self) -> (f64, f64) {
        let Some(g) = self.run.evidence.node.group(ISSUE) else {
            return (0.0, 0.0);
        };
        let of = |us| of_group(us, g, self.node_seconds());
        (of(g.ran_us), of(g.waited_us))
    }

    /// Seconds over which this node's use was taken.
    pub(super) fn node_seconds(&self) -> f64 {
        self.run.evidence.node.clock_us as f64 / 1e6
    }

    /// In what share of its time a node's NIC threads were in turns that found something, with what
    /// they waited for a core in the middle of them: in the rest they had time to spare.
    pub(super) fn nic_taken(&self, node: &NodeUse, seconds: f64) -> f64 {
        let time = seconds * 1e6 * f64::from(node.nics.threads);
        share(node.nics.worked_us as f64, time)
    }

    /// In what share of its time a node's NIC threads were at work: in such turns, and on a core.
    pub(super) fn nic_share(&self, node: &NodeUse, seconds: f64) -> f64 {
        let taken = self.nic_taken(node, seconds);
        // A system that does not say what threads ran says 0.
        let said = node.group(NIC).filter(|g| g.ran_us > 0);
        said.map_or(taken, |g| taken.min(of_group(g.ran_us, g, seconds)))
    }
}
