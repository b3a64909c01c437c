//! Shares of NICs change hands: how a thread gives one to another of its crew, by the rules of
//! [`crew`](super::crew).

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering, fence},
};

use mio::{Poll, unix::SourceFd};

use super::{
    NicThreadHandle, NicWork,
    crew::{Apart, Balance, Give, Load, Moves},
    handle::{Thread, lock},
};

/// What a share of a NIC is to a thread: its work, and where others learn who does it.
pub(super) struct Worked<W> {
    pub(super) seat: NicThreadHandle,
    pub(super) work: W,
}

/// Shares that others gave to a thread; nothing once it has ended.
pub(super) struct Mail<W> {
    pub(super) has: AtomicBool,
    shares: Mutex<Option<Vec<Worked<W>>>>,
}

impl<W> Default for Mail<W> {
    fn default() -> Self {
        Mail {
            has: AtomicBool::new(false),
            shares: Mutex::new(Some(Vec::new())),
        }
    }
}

impl<W> Mail<W> {
    pub(super) fn take(&self) -> Vec<Worked<W>> {
        if !self.has.load(Ordering::Acquire) || !self.has.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let shares = lock(&self.shares).as_mut().map(std::mem::take);
        // What was made known to whoever had these is seen by the turns that follow.
        fence(Ordering::SeqCst);
        shares.unwrap_or_default()
    }

    /// Nothing comes from now on. False where something has come.
    fn close(&self) -> bool {
        let mut shares = lock(&self.shares);
        let empty = shares.as_ref().is_none_or(Vec::is_empty);
        if empty {
            *shares = None;
        }
        empty
    }
}

/// What the threads that may poll each other's connections have in common.
pub(super) struct Crew<W> {
    pub(super) threads: Arc<[Thread]>,
    pub(super) mail: Box<[Mail<W>]>,
    pub(super) group_of: Vec<usize>,
    pub(super) moves: Moves,
    pub(super) apart: Apart,
    /// Shares have been told to end: a thread that has none left ends.
    pub(super) over: AtomicBool,
    /// Not all could be started.
    pub(super) given_up: AtomicBool,
}

impl<W: NicWork> Crew<W> {
    pub(super) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        self.threads.iter().for_each(Thread::wake);
    }

    /// Whether a thread without shares, which has no more to come, ends.
    pub(super) fn is_done(&self, me: usize) -> bool {
        self.over.load(Ordering::SeqCst) && self.mail[me].close()
    }

    /// Gives a share to another thread, or back to this one if that has ended.
    fn give(&self, poll: &Poll, mut share: Worked<W>, me: usize, to: usize) -> Option<Worked<W>> {
        let mut shares = lock(&self.mail[to].shares);
        let Some(shares) = shares.as_mut() else {
            return Some(share);
        };
        share.work.descriptors(&mut |fd| {
            // One that was never registered is as good as taken back.
            let _ = poll.registry().deregister(&mut SourceFd(&fd));
        });
        debug_assert_eq!(share.seat.number(), me);
        share.seat.0.at.store(to, Ordering::SeqCst);
        shares.push(share);
        self.mail[to].has.store(true, Ordering::Release);
        None
    }

    /// Gives shares away where this thread has too much to do, or so little that another can do it
    /// beside its own.
    pub(super) fn balance(
        &self,
        me: usize,
        balance: &mut Balance,
        poll: &Poll,
        works: &mut Vec<Worked<W>>,
        now: u64,
        (busy, waited): (f64, f64),
    ) {
        let in_use = works.iter().filter(|w| w.work.is_in_use()).count();
        let load = |shares, busy| Load { shares, busy };
        self.threads[me].load.set(load(in_use, busy));
        if in_use == 0 || self.over.load(Ordering::SeqCst) {
            return;
        }
        let loads: Vec<_> = self.threads.iter().map(|t| t.load.get()).collect();
        let parting = self.apart.at(now);
        let give = match self.moves {
            Moves::Never => None,
            Moves::ByNeed => balance.look(me, (busy, waited), &loads, &self.group_of, parting),
            #[cfg(all(test, not(qdl_loom)))]
            Moves::Restless => {
                let next = (me + 1..self.threads.len()).chain(0..me);
                let mut next = next.filter(|t| self.group_of[*t] == self.group_of[me]);
                next.next().map(Give::All)
            }
        };
        let (to, given): (_, Vec<_>) = match give {
            None => return,
            Some(Give::Half(to)) => {
                self.apart.parted(now);
                let mut left = in_use / 2;
                let half = works.extract_if(.., |w| {
                    let gives = left > 0 && w.work.is_in_use();
                    left -= usize::from(gives);
                    gives
                });
                (to, half.collect())
            }
            Some(Give::All(to)) => (to, std::mem::take(works)),
        };
        let part = given.iter().filter(|w| w.work.is_in_use()).count();
        let of = |n: usize| busy * n as f64 / in_use as f64;
        // Until it says so itself: somebody else may have something to give, too.
        let more = load(loads[to].shares + part, loads[to].busy + of(part));
        self.threads[to].load.set(more);
        let back = given
            .into_iter()
            .filter_map(|share| self.give(poll, share, me, to));
        works.extend(back);
        let left = works.iter().filter(|w| w.work.is_in_use()).count();
        self.threads[me].load.set(load(left, of(left)));
        fence(Ordering::SeqCst);
        self.threads[to].wake();
    }
}
