//! Outages of an accelerator: losses at about the same time form one outage, which lasts until
//! every lost connection is back. A data structure; the caller passes the clock.

use std::collections::BTreeSet;

use fabric::Broken;
use record::{LossRecord, SilentOn};

/// Most outages recorded separately; later losses are added to the last outage.
const MOST: usize = 256;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outage {
    /// Time of the first loss.
    pub at_ns: u64,
    /// Cause of the session's end if the session ended, else of the first lost connection.
    pub cause: String,
    /// A timeout of the echo or heartbeat found the outage, some time after the fault.
    pub by_silence: bool,
    silent_on: Option<SilentOn>,
    back_ns: Option<u64>,
    /// The cause says only that the peer closed the connection.
    bare: bool,
    session: bool,
    whole: bool,
    /// Connections lost in the outage, and lost connections that are still down.
    lost: BTreeSet<u16>,
    down: BTreeSet<u16>,
    losses: u64,
    again: u64,
    /// The outage was reported, so later losses start a new outage.
    reported: bool,
    /// The accelerator is connected and takes no samples: its engine's server is away.
    away: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Outages {
    all: Vec<Outage>,
    connections: usize,
    /// Samples given back before the heartbeat with the reason.
    given_back: u64,
}

impl Outages {
    pub(crate) fn new(connections: usize) -> Self {
        Outages {
            connections,
            ..Outages::default()
        }
    }

    fn open(&self) -> impl Iterator<Item = &Outage> {
        self.all.iter().filter(|o| o.back_ns.is_none() && !o.away)
    }

    /// The first outage that has not ended.
    pub(crate) fn open_outage(&self) -> Option<&Outage> {
        self.open().next()
    }

    pub(crate) fn is_whole(&self) -> bool {
        let missing = self.open().map(|o| o.down.len()).sum::<usize>();
        self.open_outage().is_some() && missing >= self.connections
    }

    /// Whether the last outage has not been reported.
    pub(crate) fn is_news(&self) -> bool {
        self.all.last().is_some_and(|o| !o.reported)
    }

    /// The outage that a new loss belongs to. With `same`: the last outage, even if reported.
    fn outage_at(
        &mut self,
        at_ns: u64,
        cause: &str,
        by_silence: bool,
        same: bool,
    ) -> Option<&mut Outage> {
        let full = self.all.len() >= MOST;
        match self.all.last_mut() {
            Some(last) if last.back_ns.is_none() && !last.away && (same || !last.reported) => {}
            Some(last) if full => last.back_ns = None,
            _ => self.all.push(Outage {
                at_ns,
                cause: cause.to_owned(),
                by_silence,
                silent_on: by_silence.then_some(SilentOn::Data),
                ..Outage::default()
            }),
        }
        self.all.last_mut()
    }

    /// Records the loss of connection `number`, with `again` samples to send again.
    pub(crate) fn add_loss(&mut self, number: u16, at_ns: u64, cause: &Broken, again: u64) {
        // Losses after the session's end belong to the outage of the session.
        let same = self.all.last().is_some_and(|o| o.session);
        for o in &mut self.all {
            o.down.remove(&number);
        }
        let (words, by_silence) = (cause.to_string(), cause.by_silence());
        if let Some(o) = self.outage_at(at_ns, &words, by_silence, same) {
            if o.lost.is_empty() && !o.session {
                o.bare = !cause.says_why();
            }
            o.lost.insert(number);
            o.down.insert(number);
            o.losses += 1;
            o.again += again;
        }
        let whole = self.is_whole();
        if let Some(o) = self.all.last_mut() {
            o.whole |= whole;
        }
    }

    /// Records the accelerator's reason for a loss. True where no reason was known.
    pub(crate) fn add_reason(&mut self, number: u16, words: &str) -> bool {
        let of_it = |o: &&mut Outage| o.bare && o.lost.contains(&number);
        let Some(o) = self.all.iter_mut().rev().find(of_it) else {
            return false;
        };
        o.cause = format!("the accelerator lost it: {words}");
        o.bare = false;
        true
    }

    pub(crate) fn last_cause(&self, number: u16) -> Option<String> {
        let mut of_it = self.all.iter().rev();
        Some(of_it.find(|o| o.lost.contains(&number))?.cause.clone())
    }

    /// Records the end of the session, whose cause is more specific than a socket's error.
    pub(crate) fn session_over(&mut self, at_ns: u64, cause: &str, by_silence: bool) {
        let same = self.is_whole();
        if let Some(o) = self.outage_at(at_ns, cause, by_silence, same)
            && !o.session
        {
            (o.session, o.whole, o.bare) = (true, true, false);
            cause.clone_into(&mut o.cause);
            o.silent_on = by_silence.then_some(SilentOn::Control);
        }
    }

    /// Records that a connection is up again. True where its outage ended and the session is up.
    pub(crate) fn connection_up(&mut self, number: u16, now_ns: u64) -> bool {
        let mut whole = false;
        for o in (self.all.iter_mut()).filter(|o| o.back_ns.is_none() && !o.away) {
            let was = o.down.remove(&number);
            if was && o.down.is_empty() && !o.session {
                o.back_ns = Some(now_ns);
                whole = true;
            }
        }
        whole
    }

    pub(crate) fn session_back(&mut self, now_ns: u64) {
        for o in self.all.iter_mut().filter(|o| o.back_ns.is_none()) {
            o.down.clear();
            o.session = false;
            o.back_ns = Some(now_ns);
        }
    }

    fn away(&mut self) -> Option<&mut Outage> {
        let mut all = self.all.iter_mut();
        all.find(|o| o.away && o.back_ns.is_none())
    }

    /// Counts a sample that the accelerator gave back.
    pub(crate) fn add_given_back(&mut self) {
        match self.away() {
            Some(o) => o.again += 1,
            None => self.given_back += 1,
        }
    }

    /// Records why the accelerator takes no samples, or (`None`) that it takes samples. Returns
    /// whether that is news.
    pub(crate) fn set_away(&mut self, why: Option<&str>, now_ns: u64) -> bool {
        match (self.away(), why) {
            (Some(o), None) => {
                o.back_ns = Some(now_ns);
                return true;
            }
            (None, Some(_)) => {}
            _ => return false,
        }
        let again = std::mem::take(&mut self.given_back);
        let is_news = self.all.len() < MOST;
        if is_news {
            self.all.push(Outage {
                at_ns: now_ns,
                cause: why.unwrap_or_default().to_owned(),
                again,
                losses: 1,
                whole: true,
                reported: true,
                away: true,
                ..Outage::default()
            });
        }
        is_news
    }

    /// Record of the last outage, once, with the node's name and the time of the run.
    pub(crate) fn take_record(
        &mut self,
        node: &str,
        in_run: impl Fn(u64) -> Option<f64>,
    ) -> Option<LossRecord> {
        let connections = self.connections;
        let o = self.all.last_mut().filter(|o| !o.reported)?;
        o.reported = true;
        Some(record(o, node, connections, &in_run))
    }

    pub(crate) fn records(
        &self,
        node: &str,
        in_run: impl Fn(u64) -> Option<f64>,
    ) -> Vec<LossRecord> {
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
        whole: o.whole,
        at_s: in_run(o.at_ns),
        why: o.cause.clone(),
        silent_on: o.silent_on,
        connections: o.lost.iter().copied().collect(),
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

    fn given_up(why: &str) -> Broken {
        Broken::GivenUp(why.to_owned())
    }

    fn silent() -> Broken {
        Broken::Silent("silent".to_owned())
    }

    #[test]
    fn the_accelerators_reason_takes_the_place_of_a_bare_end_and_of_no_other() {
        let mut o = Outages::new(2);
        o.add_loss(0, 110, &Broken::Closed, 3);
        assert!(!o.add_reason(1, "of another connection"));
        assert!(o.add_reason(0, "slot 4: bad frame") && !o.add_reason(0, "said again"));
        let told = o.take_record("a", seconds).expect("news");
        assert_eq!(told.why, "the accelerator lost it: slot 4: bad frame");
        o.add_loss(1, 120, &silent(), 3);
        assert!(!o.add_reason(1, "later"));
        assert_eq!(o.last_cause(1).as_deref(), Some("silent"));
    }

    #[test]
    fn what_goes_at_once_is_one_loss_and_the_session_says_why() {
        let mut o = Outages::new(3);
        assert!(!o.is_news() && !o.is_whole());
        for i in 0..3 {
            o.add_loss(i, 112 + u64::from(i), &Broken::Closed, 5);
            assert_eq!(o.is_whole(), i == 2);
        }
        o.session_over(116, "it was killed", false);
        o.session_over(117, "said again", false);
        assert!(o.is_news());
        let told = o.take_record("a", seconds).expect("news");
        assert_eq!(
            (told.node.as_str(), told.at_s, told.why.as_str()),
            ("a", Some(12.0), "it was killed")
        );
        assert!(told.whole && !told.back && told.silent_on.is_none());
        assert_eq!(
            (told.connections.len(), told.losses, told.again),
            (3, 3, 15)
        );
        assert!(!o.is_news() && o.take_record("a", seconds).is_none());
        assert_eq!(o.records("a", seconds), [told]);
        // Connections of the new session come up one by one; the outage ends with the last.
        assert!(!o.connection_up(0, 120) && o.open_outage().is_some());
        o.session_back(130);
        assert!(o.open_outage().is_none());
        let records = o.records("a", seconds);
        assert_eq!((records[0].back_s, records[0].back), (Some(30.0), true));
    }

    #[test]
    fn a_session_that_ends_before_or_behind_its_connections_is_the_same_loss() {
        let mut o = Outages::new(2);
        o.session_over(110, "it was killed", false);
        let _ = o.take_record("a", seconds);
        // A blocked thread took them down late.
        (0..2).for_each(|i| o.add_loss(i, 150, &given_up("given up"), 4));
        let records = o.records("a", seconds);
        assert_eq!((records.len(), records[0].again), (1, 8));

        let mut o = Outages::new(2);
        (0..2).for_each(|i| o.add_loss(i, 110, &silent(), 4));
        let told = o.take_record("a", seconds).expect("news");
        assert_eq!(told.silent_on, Some(SilentOn::Data));
        o.session_over(150, "not heard of for 2 s", true);
        let records = o.records("a", seconds);
        assert_eq!((records.len(), records[0].at_s), (1, Some(10.0)));
        assert_eq!(records[0].why, "not heard of for 2 s");
        assert_eq!(records[0].silent_on, Some(SilentOn::Control));
        // Killed: the session's end outranks the silence of a connection.
        let mut o = Outages::new(1);
        o.add_loss(0, 110, &silent(), 4);
        o.session_over(111, "it was killed", false);
        assert_eq!(o.records("a", seconds)[0].silent_on, None);
    }

    #[test]
    fn what_is_lost_later_is_another_loss_and_each_comes_back_by_itself() {
        let mut o = Outages::new(2);
        o.add_loss(1, 90, &given_up("reset"), 1);
        let _ = o.take_record("a", seconds);
        o.add_loss(0, 150, &silent(), 2);
        assert!(o.is_whole() && o.is_news());
        assert!(o.connection_up(1, 160) && !o.connection_up(1, 161) && !o.is_whole());
        let records = o.records("a", seconds);
        let [first, second] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!((first.at_s, first.whole, first.back), (None, false, true));
        // After the second loss no connection was left.
        assert_eq!((second.at_s, second.whole), (Some(50.0), true));
        assert_eq!((&second.connections[..], second.back), (&[0][..], false));
        assert!(o.connection_up(0, 170) && o.open_outage().is_none());
    }

    #[test]
    fn an_accelerator_that_is_away_is_on_record_and_not_lost() {
        let mut o = Outages::new(1);
        o.add_given_back();
        assert!(!o.set_away(None, 100) && o.set_away(Some("HTTP 503"), 102));
        o.add_given_back();
        assert!(!o.set_away(Some("HTTP 503"), 103));
        assert!(!o.is_whole() && o.open_outage().is_none() && !o.is_news());
        // It is lost while it is away, and comes back.
        o.add_loss(0, 105, &Broken::Closed, 3);
        assert!(o.is_whole() && o.is_news());
        o.session_back(107);
        assert!(o.set_away(Some("gone"), 110) && o.set_away(None, 112));
        let records = o.records("acc", seconds);
        assert_eq!(
            records[0].to_string(),
            "acc lost 2.0 s into the run: HTTP 503; 2 samples were in flight; back 7.0 s into the run"
        );
        let again: Vec<u64> = records.iter().map(|r| r.again).collect();
        assert_eq!((again, records[2].back_s), (vec![2, 3, 0], Some(12.0)));
    }

    #[test]
    fn a_path_that_flaps_for_hours_is_put_on_record_within_bounds() {
        let mut o = Outages::new(1);
        for i in 0..2 * MOST as u64 {
            o.add_loss(0, i, &Broken::Closed, 1);
            assert!(o.connection_up(0, i));
        }
        let records = o.records("a", seconds);
        let again: u64 = records.iter().map(|r| r.again).sum();
        assert_eq!((records.len(), again), (MOST, 2 * MOST as u64));
    }
}
