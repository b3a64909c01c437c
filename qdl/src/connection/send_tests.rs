//! Tests of the sending half over a link that records its calls and returns prepared results.

use std::sync::Arc;

use super::*;
use fabric::Imm;

/// Calls that a [`Wire`] received, and the results of its next flushes.
#[derive(Debug, Default)]
struct Log {
    posted: Vec<Imm>,
    flushes: Vec<usize>,
    results: Vec<Result<Flushed, Broken>>,
    /// Bytes carried; each flush adds `each_carries`, complete or not.
    carried: u64,
    each_carries: u64,
}

/// A link that records its calls. A flush restores its room unless the flush is blocked.
#[derive(Debug)]
struct Wire {
    log: Arc<Mutex<Log>>,
    depth: usize,
    queued: usize,
}

impl Tx for Wire {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.queued += 1;
        self.log.lock().expect("alive").posted.push(post.imm);
        Ok(())
    }
    fn flush(&mut self) -> Result<Flushed, Broken> {
        let mut log = self.log.lock().expect("alive");
        log.flushes.push(self.queued);
        log.carried += log.each_carries;
        let result = log.results.pop().unwrap_or(Ok(Flushed::Done));
        if result == Ok(Flushed::Done) {
            self.queued = 0;
        }
        result
    }
    fn room(&self) -> usize {
        self.depth - self.queued
    }
    fn posted(&self) -> u64 {
        0
    }
    fn retired(&self) -> u64 {
        0
    }
    fn inline_limit(&self) -> usize {
        0
    }
    fn carried(&self) -> u64 {
        self.log.lock().expect("alive").carried
    }
    fn counts(&self) -> FabricCounts {
        let writes = self.log.lock().expect("alive").posted.len() as u64;
        FabricCounts {
            writes,
            ..FabricCounts::default()
        }
    }
}

/// A source of writes: `left` now, `later` more after those are posted. Counts calls of `down`.
#[derive(Default)]
struct Writes {
    left: usize,
    later: usize,
    down: usize,
    /// Writes per doorbell; 0 means 64.
    burst: usize,
}

impl WriteSource for Writes {
    fn begin(&mut self) -> usize {
        match self.burst {
            0 => 64,
            n => n,
        }
    }
    fn post_next(&mut self, tx: &mut dyn Tx, _: &mut SendCounts) -> Result<bool, Box<Broken>> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        let post = Post {
            imm: Imm::new(0, 1),
            ..Post::control(Control::Echo(0))
        };
        tx.post(&post).map_or_else(not_posted, |()| Ok(true))
    }
    fn end(&mut self, _: usize, _: &mut SendCounts) -> bool {
        self.left += self.later;
        std::mem::take(&mut self.later) > 0
    }
    fn down(&mut self) {
        self.down += 1;
    }
}

fn up(depth: usize) -> (SendHalf, Arc<Mutex<Log>>) {
    let (half, log) = (SendHalf::default(), Arc::<Mutex<Log>>::default());
    let queued = 0;
    half.attach(Box::new(Wire {
        log: log.clone(),
        depth,
        queued,
    }));
    (half, log)
}

/// Posts `left` writes. Returns whether that was work, and the source.
fn send(half: &SendHalf, left: usize) -> (bool, Writes) {
    let mut out = Writes {
        left,
        ..Writes::default()
    };
    (half.post_from(&mut out).is_work, out)
}

#[test]
fn writes_that_come_while_slots_are_held_go_with_the_next_burst() {
    let (half, log) = up(1000);
    let mut out = Writes {
        left: 3,
        later: 2,
        ..Writes::default()
    };
    assert!(half.post_from(&mut out).is_work);
    assert_eq!(out.left, 0);
    assert_eq!(log.lock().expect("alive").flushes, [3, 2]);
    // A call that posts no write does not repeat, but says so.
    let mut out = Writes {
        later: 2,
        ..Writes::default()
    };
    let posted = half.post_from(&mut out);
    assert!(!posted.is_work && posted.is_left);
    assert_eq!(out.left, 2);
}

#[test]
fn the_doorbell_is_rung_once_for_each_burst_and_where_there_is_no_room() {
    for (burst, depth, flushes) in [
        (64, 1000, vec![64, 64, 2]),
        (usize::MAX, 1000, vec![130]),
        (usize::MAX, 50, vec![50, 50, 30]),
    ] {
        let (half, log) = up(depth);
        let mut out = Writes {
            left: 130,
            burst,
            ..Writes::default()
        };
        assert!(half.post_from(&mut out).is_work);
        assert_eq!(out.left, 0);
        assert_eq!(log.lock().expect("alive").flushes, flushes);
    }
}

#[test]
fn a_control_message_goes_first_and_rings_alone() {
    let (half, log) = up(8);
    send(&half, 0);
    half.ask(7);
    half.answer(8);
    send(&half, 1);
    let log = log.lock().expect("alive");
    let messages: Vec<_> = log.posted.iter().map(|imm| imm.message()).collect();
    let (ask, answer) = (Control::Echo(7), Control::EchoReply(8));
    assert_eq!(messages, [Some(ask), Some(answer), None]);
    assert_eq!(log.flushes, [3], "and nothing is flushed for nothing");
}

#[test]
fn writes_that_a_full_link_held_up_go_with_the_next_post() {
    let (half, log) = up(2);
    log.lock().expect("alive").results = vec![Ok(Flushed::Blocked); 2];
    let (is_work, out) = send(&half, 5);
    assert_eq!((is_work, out.left), (true, 3));
    assert!(half.is_held_up());
    // The link is still full, and no new write waits.
    send(&half, 0);
    assert!(half.is_held_up());
    send(&half, 0);
    assert!(!half.is_held_up());
    assert_eq!(log.lock().expect("alive").flushes, [2, 2, 2]);
    assert_eq!(half.counts().blocked, 2);
}

#[test]
fn bytes_of_earlier_posts_count_as_work() {
    let (half, log) = up(2);
    log.lock().expect("alive").results = vec![Ok(Flushed::Blocked); 3];
    send(&half, 2);
    log.lock().expect("alive").each_carries = 100;
    assert!(send(&half, 0).0);
    log.lock().expect("alive").each_carries = 0;
    assert!(!send(&half, 0).0);
}

#[test]
fn a_failure_is_taken_once_and_the_next_link_begins_afresh() {
    let (half, log) = up(8);
    log.lock().expect("alive").results = vec![Err(Broken::Closed), Ok(Flushed::Blocked)];
    send(&half, 1);
    assert!(half.is_held_up() && !half.has_failed());
    send(&half, 1);
    assert!(half.has_failed());
    assert_eq!(half.take_failed(), Some(Broken::Closed));
    assert_eq!(half.take_failed(), None);
    send(&half, 0);
    // A failure that was not taken is dropped with its link.
    log.lock().expect("alive").results = vec![Err(Broken::Closed)];
    send(&half, 1);
    assert!(half.finish());
    assert!(!half.is_held_up() && !half.has_failed());
    let (is_work, out) = send(&half, 4);
    assert_eq!((is_work, out.left, out.down), (false, 4, 1));
    assert_eq!(half.fabric_counts().writes, 3, "of the link that is gone");
}
