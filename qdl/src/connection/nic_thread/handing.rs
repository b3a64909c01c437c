//! NICs change hands: how a thread gives one to another of its crew, by the rules of
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

/// What a NIC is to a thread: its work, and where others learn who does it.
pub(super) struct Worked<W> {
    pub(super) seat: NicThreadHandle,
    pub(super) work: W,
}

/// NICs that others gave to a thread; nothing once it has ended.
pub(super) struct Mail<W> {
    pub(super) has: AtomicBool,
    nics: Mutex<Option<Vec<Worked<W>>>>,
}

impl<W> Default for Mail<W> {
    fn default() -> Self {
        Mail {
            has: AtomicBool::new(false),
            nics: Mutex::new(Some(Vec::new())),
        }
    }
}

impl<W> Mail<W> {
    pub(super) fn take(&self) -> Vec<Worked<W>> {
        if !self.has.load(Ordering::Acquire) || !self.has.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let nics = lock(&self.nics).as_mut().map(std::mem::take);
        // What was made known to whoever had these is seen by the turns that follow.
        fence(Ordering::SeqCst);
        nics.unwrap_or_default()
    }

    /// Nothing comes from now on. False where something has come.
    fn close(&self) -> bool {
        let mut nics = lock(&self.nics);
        let empty = nics.as_ref().is_none_or(Vec::is_empty);
        if empty {
            *nics = None;
        }
        empty
    }
}

/// What the threads that may poll each other's NICs share.
pub(super) struct Crew<W> {
    pub(super) threads: Arc<[Thread]>,
    pub(super) mail: Box<[Mail<W>]>,
    pub(super) group_of: Vec<usize>,
    pub(super) moves: Moves,
    pub(super) apart: Apart,
    /// NICs have been told to end: a thread that has none left ends.
    pub(super) over: AtomicBool,
    /// Not all could be started.
    pub(super) given_up: AtomicBool,
}

impl<W: NicWork> Crew<W> {
    pub(super) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        self.threads.iter().for_each(Thread::wake);
    }

    /// Whether a thread without NICs, which has no more to come, ends.
    pub(super) fn is_done(&self, me: usize) -> bool {
        self.over.load(Ordering::SeqCst) && self.mail[me].close()
    }

    /// Gives a NIC to another thread, or back to this one if that has ended.
    fn give(&self, poll: &Poll, mut nic: Worked<W>, me: usize, to: usize) -> Option<Worked<W>> {
        let mut nics = lock(&self.mail[to].nics);
        let Some(nics) = nics.as_mut() else {
            return Some(nic);
        };
        nic.work.descriptors(&mut |fd| {
            // One that was never registered is as good as taken back.
            let _ = poll.registry().deregister(&mut SourceFd(&fd));
        });
        debug_assert_eq!(nic.seat.number(), me);
        nic.seat.0.at.store(to, Ordering::SeqCst);
        nics.push(nic);
        self.mail[to].has.store(true, Ordering::Release);
        None
    }

    /// Gives NICs away where this thread has too much to do, or so little that another can do it
    /// beside its own.
    pub(super) fn balance(
        &self,
        me: usize,
        balance: &mut Balance,
        poll: &Poll,
        works: &mut Vec<Worked<W>>,
        (now, share): (u64, f64),
    ) {
        let nics = works.len();
        self.threads[me].load.set(Load { nics, share });
        if nics == 0 || self.over.load(Ordering::SeqCst) {
            return;
        }
        let loads: Vec<_> = self.threads.iter().map(|t| t.load.get()).collect();
        let may_move = self.apart.is_over(now);
        let give = match self.moves {
            Moves::Never => None,
            Moves::ByNeed => balance.look(me, share, &loads, &self.group_of, may_move),
            #[cfg(all(test, not(qdl_loom)))]
            Moves::Restless => {
                let next = (me + 1..self.threads.len()).chain(0..me);
                let mut next = next.filter(|t| self.group_of[*t] == self.group_of[me]);
                next.next().map(Give::All)
            }
        };
        let (to, keep) = match give {
            None => return,
            Some(Give::Half(to)) => {
                self.apart.parted(now);
                (to, nics - nics / 2)
            }
            Some(Give::All(to)) => (to, 0),
        };
        let given = works.split_off(keep);
        // Until it says so itself: somebody else may have something to give, too.
        let part = share * given.len() as f64 / nics as f64;
        self.threads[to].load.set(Load {
            nics: loads[to].nics + given.len(),
            share: loads[to].share + part,
        });
        let back = given
            .into_iter()
            .filter_map(|nic| self.give(poll, nic, me, to));
        works.extend(back);
        self.threads[me].load.set(Load {
            nics: works.len(),
            share: share * works.len() as f64 / nics as f64,
        });
        fence(Ordering::SeqCst);
        self.threads[to].wake();
    }
}
