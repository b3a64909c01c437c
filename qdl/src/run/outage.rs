//! What an accelerator lost, when and why: one outage from the first connection that is lost until
//! none is missing any more. A data structure; the clock is handed in.

use std::collections::BTreeSet;

use crate::stats::LossRecord;

/// Most outages that are kept apart; later ones are counted in with the last.
const MOST: usize = 256;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    /// When its first connection was lost.
    pub at_ns: u64,
    /// Why: what the control session ended with where it ended, else the first connection.
    pub cause: String,
    /// It was found out by waiting for a sign of life, which took its time.
    pub by_silence: bool,
    /// When nothing was missing any more.
    pub back_ns: Option<u64>,
    /// The session ended too.
    session: bool,
    /// Connections that are missing now.
    down: BTreeSet<u16>,
    /// Most that were missing at once.
    most: usize,
    /// Losses of connections.
    losses: u64,
    /// Samples that went again.
    again: u64,
    told: bool,
}

/// All outages of one accelerator.
#[derive(Clone, Debug, Default)]
pub(super) struct Outages {
    all: Vec<Outage>,
    /// Connections to it.
    connections: usize,
}

impl Outages {
    /// Of an accelerator with so many connections.
    pub fn new(connections: usize) -> Self {
        Outages {
            all: Vec::new(),
            connections,
        }
    }

    /// The one that goes on.
    pub fn now(&self) -> Option<&Outage> {
        self.all.last().filter(|o| o.back_ns.is_none())
    }

    /// Every connection is missing.
    pub fn is_whole(&self) -> bool {
        self.now().is_some_and(|o| o.down.len() >= self.connections)
    }

    /// There is something that nobody has been told of.
    pub fn is_news(&self) -> bool {
        self.now().is_some_and(|o| !o.told)
    }

    fn begun(&mut self, at_ns: u64, cause: &str, by_silence: bool) -> Option<&mut Outage> {
        let room = self.all.len() < MOST;
        match self.all.last_mut() {
            Some(last) if last.back_ns.is_some() && !room => last.back_ns = None,
            Some(last) if last.back_ns.is_none() => {}
            _ => self.all.push(Outage {
                at_ns,
                cause: cause.to_owned(),
                by_silence,
                back_ns: None,
                session: false,
                down: BTreeSet::new(),
                most: 0,
                losses: 0,
                again: 0,
                told: false,
            }),
        }
        self.all.last_mut()
    }

    /// A connection was lost, by its number, and with it the way of so many samples.
    pub fn lost(&mut self, number: u16, at_ns: u64, cause: &str, by_silence: bool, again: u64) {
        if let Some(o) = self.begun(at_ns, cause, by_silence) {
            o.down.insert(number);
            o.most = o.most.max(o.down.len());
            o.losses += 1;
            o.again += again;
        }
    }

    /// The control session ended: what it ended with says more than a socket does.
    pub fn session_over(&mut self, at_ns: u64, cause: &str, by_silence: bool) {
        if let Some(o) = self.begun(at_ns, cause, by_silence)
            && !o.session
        {
            o.session = true;
            cause.clone_into(&mut o.cause);
        }
    }

    /// A connection is up again. True where it was the last that was missing, and the session
    /// stands.
    pub fn up(&mut self, number: u16, now_ns: u64) -> bool {
        let going = self.all.last_mut().filter(|o| o.back_ns.is_none());
        going.is_some_and(|o| {
            let was = o.down.remove(&number);
            let whole = was && o.down.is_empty() && !o.session;
            o.back_ns = whole.then_some(now_ns);
            whole
        })
    }

    /// A new session has all its connections.
    pub fn back(&mut self, now_ns: u64) {
        if let Some(o) = self.all.last_mut().filter(|o| o.back_ns.is_none()) {
            o.down.clear();
            o.session = false;
            o.back_ns = Some(now_ns);
        }
    }

    /// What is to be said of the one that goes on, once: by `node` and by the time of the run.
    pub fn tell(&mut self, node: &str, in_run: impl Fn(u64) -> Option<f64>) -> Option<LossRecord> {
        let connections = self.connections;
        let o = self.all.last_mut().filter(|o| !o.told)?;
        o.told = true;
        Some(record(o, node, connections, &in_run))
    }

    /// All of them, for the record.
    pub fn records(&self, node: &str, in_run: impl Fn(u64) -> Option<f64>) -> Vec<LossRecord> {
        let each = |o| record(o, node, self.connections, &in_run);
        self.all.iter().map(each).collect()
    }
}

fn record(
    o: &Outage,
    node: &str,
    connections: usize,
    in_run: &impl Fn(u64) -> Option<f64>,
) -> LossRecord {
    LossRecord {
        node: node.to_owned(),
        whole: o.session || o.most >= connections,
        at_s: in_run(o.at_ns),
        why: o.cause.clone(),
        connections: o.most as u64,
        of: connections as u64,
        losses: o.losses,
        again: o.again,
        back_s: o.back_ns.and_then(in_run),
        back: o.back_ns.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(ns: u64) -> Option<f64> {
        ns.checked_sub(100).map(|ns| ns as f64)
    }

    #[test]
    fn what_goes_at_once_is_one_loss_and_the_session_says_why() {
        let mut o = Outages::new(3);
        assert!(!o.is_news() && !o.is_whole());
        for i in 0..3 {
            o.lost(i, 112 + u64::from(i), "the peer closed it", false, 5);
            assert_eq!(o.is_whole(), i == 2);
        }
        o.session_over(116, "it was killed", false);
        o.session_over(117, "said again", false);
        assert!(o.is_news());
        let told = o.tell("a", seconds).expect("news");
        assert_eq!(
            (told.node.as_str(), told.at_s, told.why.as_str()),
            ("a", Some(12.0), "it was killed")
        );
        assert!(told.whole && !told.back);
        assert_eq!((told.connections, told.losses, told.again), (3, 3, 15));
        assert!(!o.is_news() && o.tell("a", seconds).is_none());
        assert_eq!(o.records("a", seconds), [told]);
        // Connections of the new session come up one by one: it is back once all are.
        assert!(!o.up(0, 120) && o.now().is_some());
        o.back(130);
        assert!(o.now().is_none());
        let records = o.records("a", seconds);
        assert_eq!((records[0].back_s, records[0].back), (Some(30.0), true));
    }

    #[test]
    fn a_connection_that_comes_back_ends_its_outage_and_the_next_is_another() {
        let mut o = Outages::new(2);
        o.lost(1, 90, "reset", false, 1);
        assert!(!o.up(0, 95) && o.up(1, 95) && o.now().is_none());
        o.lost(0, 150, "silent", true, 2);
        assert!(o.now().is_some_and(|o| o.by_silence));
        let records = o.records("a", seconds);
        let [first, second] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!(
            (first.at_s, first.whole, first.connections),
            (None, false, 1)
        );
        assert_eq!(
            (second.at_s, second.again, second.back),
            (Some(50.0), 2, false)
        );
    }

    #[test]
    fn a_path_that_flaps_for_hours_is_put_on_record_within_bounds() {
        let mut o = Outages::new(1);
        for i in 0..2 * MOST as u64 {
            o.lost(0, i, "x", false, 1);
            assert!(o.up(0, i));
        }
        let records = o.records("a", seconds);
        let again: u64 = records.iter().map(|r| r.again).sum();
        assert_eq!((records.len(), again), (MOST, 2 * MOST as u64));
    }
}
