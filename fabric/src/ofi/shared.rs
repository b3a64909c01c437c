//! What the two halves of a connection have in common: the endpoint, what has come and gone, and
//! why it broke.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use ofi::{Completion, Endpoint, Failed, Outcome, Target, Write};

use super::{OfiForm, OfiResources, Own, cfgs::EACH, shuffle::Shuffle};
use crate::{Broken, nic::Cause};

/// Reads of the queue of a connection that ends, at most: each takes several entries.
const LAST_READS: usize = 1024;

/// What a write of the peer brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub data: u64,
    /// Its length as the provider has it.
    pub len: usize,
}

/// Which sends and writes are over. A write takes its place in a ring, and up to [`EACH`] sends.
pub(super) struct Sends {
    /// Sends of the write in each place that are not over.
    left: Box<[AtomicU8]>,
    posted: AtomicU64,
    retired: AtomicU64,
    /// Sends given to the provider, and those that are over.
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

    /// Writes there is room for.
    pub fn depth(&self) -> usize {
        self.left.len()
    }

    /// The place of the next write.
    pub fn place(&self) -> usize {
        (self.posted() % self.left.len() as u64) as usize
    }

    /// The next write has been made ready, with so many sends. Only the sending half calls it, and
    /// only where there is room.
    pub fn begin(&self, sends: u8) {
        self.left[self.place()].store(sends, Ordering::Relaxed);
        self.posted.fetch_add(1, Ordering::Release);
    }

    pub fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    pub fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    pub fn handed(&self) {
        self.handed.fetch_add(1, Ordering::AcqRel);
    }

    pub fn over(&self) -> u64 {
        self.over.load(Ordering::Acquire)
    }

    /// Sends that the provider has and that are not over.
    pub fn under_way(&self) -> u64 {
        let over = self.over();
        self.handed.load(Ordering::Acquire).saturating_sub(over)
    }

    /// A send is over. Under the queue's lock. Writes retire in the order they were posted,
    /// whatever the order of their sends.
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

/// What comes out of the provider, under a lock: reading it and noting what was read have to be
/// one step, since either half may do both.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub inbox: VecDeque<Arrival>,
    shuffle: Option<Shuffle<Arrival>>,
    /// Receives that are to be posted again.
    again: Vec<usize>,
    /// The peer's first message is to be answered.
    owes_answer: bool,
    /// A goodbye has come: what fails from now on fails because of it.
    leaving: bool,
    /// Looks so far, and completions read by them.
    pub progress: u64,
    pub cqes: u64,
    pub receives: u64,
}

impl Queue {
    /// Whether there is something to report, or to do.
    pub fn waits(&self) -> bool {
        let held = self.shuffle.as_ref().is_some_and(Shuffle::holds);
        !self.inbox.is_empty() || held || self.owes_answer || !self.again.is_empty()
    }
}

pub(super) struct Shared {
    // Closed before anything that it works with.
    pub endpoint: Endpoint,
    queue: Mutex<Queue>,
    pub sends: Sends,
    /// Where the peer's slots and cells are.
    pub slots: Target,
    pub cells: Option<Target>,
    pub form: OfiForm,
    /// Bytes of the first message: its length has to come through.
    hello: u32,
    /// A message has crossed in both directions.
    warm: AtomicBool,
    cause: Cause,
    pub resources: Arc<OfiResources>,
}

impl Shared {
    pub fn new(
        endpoint: Endpoint,
        slots: Target,
        cells: Option<Target>,
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

    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue, unless the other half has it: then that lets the provider work.
    pub fn queue_if_free(&self) -> Option<MutexGuard<'_, Queue>> {
        self.queue.try_lock().ok()
    }

    pub fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Acquire)
    }

    /// Breaks the connection: the first cause stands. Nothing is asked of the provider any more, so
    /// that what a connection brings that it makes again by itself is never seen.
    pub fn fail(&self, cause: impl Into<Broken>) {
        self.cause.fail(cause.into(), || {});
    }

    /// Why it broke, if it did.
    pub fn broken(&self) -> Option<&Broken> {
        self.cause.get()
    }

    /// Lets the provider work, and notes what has completed. Returns how much that was.
    pub fn progress(&self, queue: &mut Queue) -> usize {
        if self.broken().is_some() {
            // What came before it was held back for a trial alone.
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
            Outcome::Arrived { data, len } => match Own::of(data as u32) {
                Some(Own::Hello(bytes)) => {
                    queue.owes_answer = true;
                    self.check_length(bytes, len);
                }
                Some(Own::Answer(bytes)) => {
                    self.check_length(bytes, len);
                    self.warm.store(true, Ordering::Release);
                }
                own => {
                    queue.leaving |= matches!(own, Some(Own::Close(_)));
                    queue.inbox.push_back(Arrival { data, len });
                }
            },
        }
    }

    /// The first message shows whether the provider tells how long a write was.
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
        if self.say(Own::Answer(self.hello), EACH * self.sends.depth() + 1) {
            queue.owes_answer = false;
            self.warm.store(true, Ordering::Release);
        }
    }

    /// Sends the first message. True once the provider has taken it.
    pub fn say_hello(&self) -> bool {
        self.say(Own::Hello(self.hello), EACH * self.sends.depth() + 2)
    }

    /// Sends the goodbye, likewise.
    pub fn say_goodbye(&self, writes: u64) -> bool {
        self.say(Own::Close(writes as u32), EACH * self.sends.depth())
    }

    /// A send of nothing to the peer's slots.
    pub fn bare(&self, send: usize, data: Option<u64>) -> Write {
        Write {
            send,
            source: 0,
            offset: 0,
            len: 0,
            target: self.slots,
            data,
        }
    }

    fn say(&self, own: Own, send: usize) -> bool {
        let len = match own {
            Own::Hello(n) | Own::Answer(n) => n as usize,
            Own::Close(_) | Own::Count(_) => 0,
        };
        let mut write = self.bare(send, Some(own.bits().into()));
        write.len = len;
        // Before the provider has it: it may be over at once, by the other half's look.
        match self.endpoint.write(&write) {
            Ok(()) => {
                self.sends.handed();
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
    /// `ofi_rxm` over queue pairs first frees a connection and then reads what its queue
    /// still holds, posting receives again to what it has freed. So the queue is left empty. Over
    /// sockets it holds nothing of the kind, and reading would bring more in.
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
        // The goodbye is no write.
        s.end(8);
        assert_eq!(s.retired(), 3);
    }
}
