//! The state that both halves of a connection share: the endpoint, arrivals, sends in flight, and
//! the cause of a failure.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use ofi::{Completion, Endpoint, Failed, Outcome, RemoteRegion, Write};

use super::{OfiForm, OfiResources, OwnMessage, cfgs::EACH, shuffle::Shuffle};
use crate::{Broken, nic::Cause, os::lock};

/// Most polls of a closing connection's queue; each takes several entries.
const LAST_READS: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub data: u64,
    /// Length in bytes as the provider reports it.
    pub len: usize,
}

/// Tracks completed sends and retired writes. A write has a ring entry and up to [`EACH`] sends.
pub(super) struct Sends {
    /// Unfinished sends of each entry's write.
    left: Box<[AtomicU8]>,
    posted: AtomicU64,
    retired: AtomicU64,
    /// Sends handed to the provider, and completed sends.
    handed: AtomicU64,
    over: AtomicU64,
}

impl Sends {
    fn new(writes: usize) -> Self {
        Sends {
            left: (0..writes.max(1)).map(|_| AtomicU8::new(0)).collect(),
            posted: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            handed: AtomicU64::new(0),
            over: AtomicU64::new(0),
        }
    }

    /// Number of ring entries: most writes in flight.
    pub(crate) fn depth(&self) -> usize {
        self.left.len()
    }

    /// Index of the next write's ring entry.
    pub(crate) fn place(&self) -> usize {
        (self.posted() % self.left.len() as u64) as usize
    }

    /// Begins the next write, with this number of sends. Only the sending half calls it, and only
    /// while an entry is free.
    pub(crate) fn begin(&self, sends: u8) {
        self.left[self.place()].store(sends, Ordering::Relaxed);
        self.posted.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    pub(crate) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    pub(crate) fn count_handed(&self) {
        self.handed.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn completed(&self) -> u64 {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn under_way(&self) -> u64 {
        let over = self.completed();
        self.handed.load(Ordering::Acquire).saturating_sub(over)
    }

    /// Completes a send. The caller holds the queue's lock. Writes retire in the order of their
    /// posts, whatever the order of their sends.
    fn end(&self, send: usize) {
        self.over.fetch_add(1, Ordering::AcqRel);
        let Some(left) = self.left.get(send / EACH) else {
            return;
        };
        left.fetch_sub(1, Ordering::AcqRel);
        let (posted, mut retired) = (self.posted(), self.retired.load(Ordering::Relaxed));
        while retired < posted {
            let place = (retired % self.left.len() as u64) as usize;
            if self.left[place].load(Ordering::Acquire) > 0 {
                break;
            }
            retired += 1;
        }
        self.retired.store(retired, Ordering::Release);
    }
}

/// Completions of the provider. One lock covers both polling and recording, which each half does.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub inbox: VecDeque<Arrival>,
    shuffle: Option<Shuffle<Arrival>>,
    again: Vec<usize>,
    /// The peer's first message is not yet answered.
    owes_answer: bool,
    /// A goodbye has arrived: later failures are its consequence.
    leaving: bool,
    /// Polls so far, and completions read by them.
    pub progress: u64,
    pub cqes: u64,
    pub receives: u64,
}

impl Queue {
    /// Whether there are arrivals to report or operations to retry.
    pub(crate) fn waits(&self) -> bool {
        let held = self.shuffle.as_ref().is_some_and(Shuffle::holds);
        !self.inbox.is_empty() || held || self.owes_answer || !self.again.is_empty()
    }
}

pub(super) struct Shared {
    // Drop order: the endpoint closes before the resources that it uses.
    pub endpoint: Endpoint,
    queue: Mutex<Queue>,
    pub sends: Sends,
    pub slots: RemoteRegion,
    pub cells: Option<RemoteRegion>,
    pub form: OfiForm,
    /// Length of the first message in bytes; the peer's completion must report it.
    hello: u32,
    /// A message has crossed in both directions.
    warm: AtomicBool,
    cause: Cause,
    pub resources: Arc<OfiResources>,
}

impl Shared {
    pub(crate) fn new(
        endpoint: Endpoint,
        slots: RemoteRegion,
        cells: Option<RemoteRegion>,
        writes: usize,
        hello: u32,
        receives: usize,
        resources: Arc<OfiResources>,
    ) -> Arc<Self> {
        let device = resources.device();
        let queue = Queue {
            shuffle: device.shuffle().map(Shuffle::new),
            receives: receives as u64,
            ..Queue::default()
        };
        Arc::new(Shared {
            endpoint,
            queue: Mutex::new(queue),
            sends: Sends::new(writes),
            slots,
            cells,
            form: device.form(),
            hello,
            warm: AtomicBool::new(false),
            cause: Cause::default(),
            resources,
        })
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// The queue, unless the other half has locked it; then that half polls the provider.
    pub(crate) fn queue_if_free(&self) -> Option<MutexGuard<'_, Queue>> {
        self.queue.try_lock().ok()
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Acquire)
    }

    /// Breaks the connection; the first cause stays. The provider is polled no more, so arrivals of
    /// a silently reconnected socket are never read.
    pub(crate) fn fail(&self, cause: impl Into<Broken>) {
        self.cause.fail(cause.into(), || {});
    }

    /// The cause of the failure; `None` while the connection is up.
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.cause.get()
    }

    /// Polls the provider and records its completions. Returns their number.
    pub(crate) fn progress(&self, queue: &mut Queue) -> usize {
        if self.broken().is_some() {
            // Release arrivals from before the failure; only the shuffle of a test holds any.
            if let Some(shuffle) = &mut queue.shuffle {
                shuffle.through(&mut queue.inbox);
            }
            return 0;
        }
        queue.progress += 1;
        let mut completed = 0;
        let read = self.endpoint.poll(&mut |c| {
            completed += 1;
            self.note(queue, c);
        });
        queue.cqes += completed;
        if let Err(failed) = read {
            let leaving = queue.leaving;
            self.fail(if leaving {
                Broken::Closed
            } else {
                self.words(&failed)
            });
            return completed as usize;
        }
        self.put_back(queue);
        if queue.owes_answer {
            self.answer(queue);
        }
        if let Some(shuffle) = &mut queue.shuffle {
            shuffle.through(&mut queue.inbox);
        }
        completed as usize
    }

    fn words(&self, failed: &Failed) -> Broken {
        let device = self.resources.device();
        Broken::WorkCompletion(format!("{failed} ({})", device.name()))
    }

    fn note(&self, queue: &mut Queue, completion: Completion) {
        if let Some(receive) = completion.receive {
            queue.again.push(receive);
        }
        match completion.outcome {
            Outcome::Sent { send } => self.sends.end(send),
            Outcome::Arrived { data, len } => match OwnMessage::of(data as u32) {
                Some(OwnMessage::Hello(bytes)) => {
                    queue.owes_answer = true;
                    self.check_length(bytes, len);
                }
                Some(OwnMessage::Answer(bytes)) => {
                    self.check_length(bytes, len);
                    self.warm.store(true, Ordering::Release);
                }
                own => {
                    queue.leaving |= matches!(own, Some(OwnMessage::Close(_)));
                    queue.inbox.push_back(Arrival { data, len });
                }
            },
        }
    }

    /// Verifies with the first message that the provider reports the length of a write.
    fn check_length(&self, bytes: u32, len: usize) {
        if self.form == OfiForm::Completion && bytes as usize != len {
            let provider = self.resources.device().info().provider();
            self.fail(Broken::Device(format!(
                "provider {provider} says that a write of {bytes} bytes had {len}: it does not \
                 tell how long writes are, and cannot be used"
            )));
        }
    }

    fn put_back(&self, queue: &mut Queue) {
        while let Some(receive) = queue.again.pop() {
            match self.endpoint.receive(receive) {
                Ok(()) => queue.receives += 1,
                Err(e) if e.is_again() => return queue.again.push(receive),
                Err(e) => return self.fail(e),
            }
        }
    }

    fn answer(&self, queue: &mut Queue) {
        if self.say(
            OwnMessage::Answer(self.hello),
            EACH * self.sends.depth() + 1,
        ) {
            queue.owes_answer = false;
            self.warm.store(true, Ordering::Release);
        }
    }

    /// Sends the first message. Returns true once the provider has taken it.
    pub(crate) fn say_hello(&self) -> bool {
        self.say(OwnMessage::Hello(self.hello), EACH * self.sends.depth() + 2)
    }

    /// Sends the goodbye. Returns true once the provider has taken it.
    pub(crate) fn say_goodbye(&self, writes: u64) -> bool {
        self.say(OwnMessage::Close(writes as u32), EACH * self.sends.depth())
    }

    pub(crate) fn bare(&self, send: usize, data: Option<u64>) -> Write {
        Write {
            send,
            source: 0,
            offset: 0,
            len: 0,
            target: self.slots,
            data,
        }
    }

    fn say(&self, own: OwnMessage, send: usize) -> bool {
        let len = match own {
            OwnMessage::Hello(n) | OwnMessage::Answer(n) => n as usize,
            OwnMessage::Close(_) | OwnMessage::Count(_) => 0,
        };
        let mut write = self.bare(send, Some(own.bits().into()));
        write.len = len;
        // Counted after the hand-over: a completion may come first, and `under_way` saturates at 0.
        match self.endpoint.write(&write) {
            Ok(()) => {
                self.sends.count_handed();
                true
            }
            Err(e) if e.is_again() => false,
            Err(e) => {
                self.fail(e);
                false
            }
        }
    }
}

impl Drop for Shared {
    /// Drains the completion queue of `ofi_rxm` over queue pairs: its close frees the connection,
    /// then reads the queue and posts receives to the freed connection. Over sockets the queue
    /// needs no drain, and polling would bring new arrivals.
    fn drop(&mut self) {
        if self.resources.device().empties_its_queue() {
            for _ in 0..LAST_READS {
                if !matches!(self.endpoint.poll(&mut |_| {}), Ok(1..)) {
                    break;
                }
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a connection of {:?}", self.resources.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_retire_in_order_whatever_the_order_of_their_sends() {
        let s = Sends::new(4);
        for sends in [2, 1, 2] {
            s.begin(sends);
        }
        s.end(2);
        assert_eq!(s.retired(), 0, "the first is under way");
        s.end(4);
        s.end(0);
        assert_eq!(s.retired(), 0, "half of it is");
        s.end(1);
        assert_eq!(s.retired(), 2);
        s.end(5);
        assert_eq!((s.retired(), s.posted()), (3, 3));
        // The goodbye has no entry in the ring.
        s.end(8);
        assert_eq!(s.retired(), 3);
    }
}
