//! From NIC threads to the program: what came of each sample, in one batch for each poll.

use std::{
    collections::VecDeque,
    ffi::c_void,
    io, mem,
    os::fd::{AsRawFd, RawFd},
    ptr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fabric::{
    clock::now_ns,
    os::{EventFd, lock},
};
use qdl::dispatch::{
    Completer, Contradiction, KeptResponse, RefusedSample, Response, ResponsePart, Sample,
};

use crate::types::{self, qdl_event};

/// Emptied batches kept for the next polls.
const SPARE: usize = 4;
/// Most lines of the log that wait to be read.
const NOTES: usize = 256;
/// Connection of a sample that no connection has answered.
const NO_CONNECTION: u32 = u32::MAX;

/// Lines for the log. A full log forgets its oldest line.
#[derive(Debug, Default)]
pub struct Notes(Mutex<VecDeque<String>>);

impl Notes {
    /// Adds a line.
    pub fn add(&self, line: &str) {
        let mut lines = lock(&self.0);
        if lines.len() == NOTES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// Passes the lines to `take`, and forgets them if it returns true.
    pub fn read(&self, take: impl FnOnce(&str) -> bool) {
        let mut lines = lock(&self.0);
        let all: Vec<_> = lines.iter().map(String::as_str).collect();
        if take(&all.join("\n")) {
            lines.clear();
        }
    }
}

/// Wakes a program that waits in a call or on the descriptor.
#[derive(Debug)]
pub struct Bell {
    event: EventFd,
    is_closed: AtomicBool,
}

impl Bell {
    /// Makes a bell.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Bell {
            event: EventFd::new()?,
            is_closed: AtomicBool::new(false),
        })
    }

    /// The descriptor, readable while something waits.
    pub fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        self.event.signal();
    }

    /// Makes the descriptor unreadable. Called before the look for what rang: a later ring stays.
    pub fn hush(&self) {
        self.event.clear();
        // A ring of `close` that was cleared.
        if self.is_closed.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Ends all waits, now and later.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Calls `look` until it returns a number above 0, the bell is closed, or `most` is over.
    pub fn wait(&self, most: Duration, mut look: impl FnMut() -> usize) -> usize {
        let end = Instant::now() + most;
        loop {
            let found = look();
            let left = end.saturating_duration_since(Instant::now());
            if found > 0 || left.is_zero() || self.is_closed.load(Ordering::SeqCst) {
                return found;
            }
            self.event.wait(left);
        }
    }
}

/// Where an event's bytes lie.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In [`Batch::bytes`], from here on.
    Bytes(usize),
    /// In the slot of this entry of [`Batch::kept`].
    Kept(usize),
}

/// Events, and the memory of their bytes.
#[derive(Debug, Default)]
struct Batch {
    events: Vec<(qdl_event, Place)>,
    bytes: Vec<u8>,
    kept: Vec<KeptResponse>,
}

// SAFETY: `qdl_event::data` is null in a batch; the rest is `Send`.
unsafe impl Send for Batch {}
// SAFETY: as above, and `&Batch` only reads.
unsafe impl Sync for Batch {}

impl Batch {
    fn push(&mut self, mut event: qdl_event, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        event.len = bytes.len() as u32;
        self.events.push((event, Place::Bytes(start)));
    }

    fn clear(&mut self) {
        self.events.clear();
        self.bytes.clear();
        self.kept.clear();
    }

    /// An event for the program, with the address of its bytes.
    fn event(&self, at: usize) -> qdl_event {
        let (event, place) = self.events[at];
        let data = match place {
            Place::Bytes(start) => self.bytes[start..].as_ptr(),
            Place::Kept(kept) => self.kept[kept].response().payload.as_ptr(),
        };
        let data: *const c_void = data.cast();
        qdl_event { data, ..event }
    }
}

/// The batch that polls take events from.
#[derive(Debug, Default)]
struct Reading {
    batch: Arc<Batch>,
    next: usize,
}

/// The events of a cluster.
#[derive(Debug)]
pub struct Events {
    bell: Bell,
    filling: Mutex<Batch>,
    reading: Mutex<Reading>,
    spare: Mutex<Vec<Batch>>,
    /// Lines for the log.
    pub notes: Notes,
    /// Why the run was aborted.
    aborted: OnceLock<String>,
    /// Nanoseconds from the clock of events to `CLOCK_MONOTONIC`.
    to_monotonic: u64,
}

/// Keeps the memory of polled events.
#[derive(Debug)]
pub struct Lease {
    batch: Arc<Batch>,
    of: Arc<Events>,
}

impl Lease {
    /// Frees the memory and the slots, if no other poll has taken events of the same batch.
    pub fn release(self) {
        self.of.recycle(self.batch);
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one structure, which lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Events {
    /// No event.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Events {
            bell: Bell::new()?,
            filling: Mutex::default(),
            reading: Mutex::default(),
            spare: Mutex::default(),
            notes: Notes::default(),
            aborted: OnceLock::new(),
            to_monotonic: monotonic_ns().wrapping_sub(now_ns()),
        })
    }

    /// The bell that rings for new events.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Notes why the run is aborted: the reason of all later failures.
    pub fn abort(&self, cause: &str) {
        self.notes.add(&format!("aborted: {cause}"));
        // An error means that a first cause is known.
        let _ = self.aborted.set(cause.to_owned());
    }

    fn now(&self) -> u64 {
        now_ns().wrapping_add(self.to_monotonic)
    }

    /// Adds events under the lock, and rings for the first of them.
    fn fill(&self, add: impl FnOnce(&mut Batch)) {
        let has_first = {
            let mut batch = lock(&self.filling);
            let was_empty = batch.events.is_empty();
            add(&mut batch);
            was_empty && !batch.events.is_empty()
        };
        if has_first {
            self.bell.ring();
        }
    }

    /// Ends samples that no accelerator answers any more, or that are cancelled.
    pub fn lose(&self, samples: &[Sample]) {
        let why = match self.aborted.get() {
            Some(cause) => format!("aborted: {cause}"),
            None => "cancelled".to_owned(),
        };
        let at_ns = self.now();
        self.fill(|batch| {
            for sample in samples {
                let event = new_event(types::QDL_FAILED, sample.id, NO_CONNECTION, at_ns);
                batch.push(event, why.as_bytes());
            }
        });
    }

    /// Waits for events and writes them to `out`. Returns their number, and what keeps the memory
    /// of their bytes. Each event goes to one poll, from whatever thread.
    pub fn poll(self: &Arc<Self>, out: &mut [qdl_event], most: Duration) -> (usize, Option<Lease>) {
        let mut lease = None;
        let found = self.bell.wait(most, || {
            let (n, taken) = self.look(out);
            lease = taken;
            n
        });
        (found, lease)
    }

    fn look(self: &Arc<Self>, out: &mut [qdl_event]) -> (usize, Option<Lease>) {
        let mut reading = lock(&self.reading);
        let mut before = None;
        if reading.next == reading.batch.events.len() {
            self.bell.hush();
            let mut fresh = lock(&self.spare).pop().unwrap_or_default();
            mem::swap(&mut *lock(&self.filling), &mut fresh);
            before = Some(mem::replace(&mut reading.batch, Arc::new(fresh)));
            reading.next = 0;
        }
        let start = reading.next;
        let n = out.len().min(reading.batch.events.len() - start);
        for (i, to) in out[..n].iter_mut().enumerate() {
            *to = reading.batch.event(start + i);
        }
        reading.next += n;
        let is_rest = reading.next < reading.batch.events.len();
        if start > 0 && !is_rest {
            self.bell.hush();
        }
        // Ring for a rest, and for events whose ring was hushed just now.
        if is_rest || start > 0 && !lock(&self.filling).events.is_empty() {
            self.bell.ring();
        }
        let lease = (n > 0).then(|| Lease {
            batch: reading.batch.clone(),
            of: self.clone(),
        });
        drop(reading);
        before.into_iter().for_each(|batch| self.recycle(batch));
        (n, lease)
    }

    /// Empties a batch without readers. Holds no lock meanwhile: a freed slot may end
    /// samples.
    fn recycle(&self, batch: Arc<Batch>) {
        if let Some(mut batch) = Arc::into_inner(batch) {
            batch.clear();
            let mut spare = lock(&self.spare);
            if spare.len() < SPARE {
                spare.push(batch);
            }
        }
    }
}

fn new_event(kind: u16, id: u64, connection: u32, at_ns: u64) -> qdl_event {
    qdl_event {
        id,
        data: ptr::null(),
        at_ns,
        len: 0,
        offset: 0,
        connection,
        kind,
        flags: 0,
    }
}

fn done(response: &Response<'_>, at_ns: u64) -> qdl_event {
    let connection = response.connection as u32;
    let mut event = new_event(types::QDL_DONE, response.id, connection, at_ns);
    event.flags = if response.whole { types::QDL_FIRST } else { 0 };
    event
}

/// Passes the answers of a NIC thread to [`Events`]: a lock for each turn.
pub struct Filler {
    /// The cluster's events.
    pub events: Arc<Events>,
    /// Answers stay in their slots until the program releases them. Otherwise a turn's answers are
    /// copied behind one another, and their slots are free at once.
    pub keeps: bool,
}

impl Completer for Filler {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        let at_ns = self.events.now();
        self.events.fill(|batch| {
            for response in responses {
                batch.push(done(&response, at_ns), response.payload);
            }
        });
    }

    fn keeps(&self) -> bool {
        self.keeps
    }

    fn complete_kept(&mut self, responses: &mut dyn ExactSizeIterator<Item = KeptResponse>) {
        let at_ns = self.events.now();
        self.events.fill(|batch| {
            for kept in responses {
                let mut event = done(&kept.response(), at_ns);
                event.len = kept.response().payload.len() as u32;
                batch.events.push((event, Place::Kept(batch.kept.len())));
                batch.kept.push(kept);
            }
        });
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        let at_ns = self.events.now();
        self.events.fill(|batch| {
            for part in parts {
                let mut event = new_event(types::QDL_PART, part.id, NO_CONNECTION, at_ns);
                event.offset = part.offset;
                if part.has_first_token {
                    event.flags |= types::QDL_FIRST;
                }
                if part.losses > 0 {
                    event.flags |= types::QDL_AGAIN;
                }
                batch.push(event, part.payload);
            }
        });
    }

    fn refused(&mut self, id: u64, refused: &RefusedSample) -> bool {
        let at_ns = self.events.now();
        let connection = refused.connection as u32;
        let event = new_event(types::QDL_FAILED, id, connection, at_ns);
        self.events
            .fill(|batch| batch.push(event, refused.reason.as_bytes()));
        true
    }

    fn contradicted(&mut self, what: Contradiction) {
        let Contradiction {
            index,
            reported,
            repeated,
            ..
        } = what;
        self.events.notes.add(&format!(
            "sample {index}: its first token was {reported}; after the loss of a connection its \
             answer begins with {repeated}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(ids: std::ops::Range<u64>) -> Arc<Events> {
        let events = Arc::new(Events::new().expect("a descriptor"));
        let samples: Vec<_> = ids.map(|id| Sample::now(id, 0, 0)).collect();
        events.lose(&samples);
        events
    }

    #[test]
    fn two_threads_that_poll_get_each_event_once() {
        let events = filled(0..1000);
        let poll = || {
            let (mut ids, mut out) = (Vec::new(), [qdl_event::ZERO; 7]);
            while let (n @ 1.., Some(lease)) = events.poll(&mut out, Duration::ZERO) {
                ids.extend(out[..n].iter().map(|e| e.id));
                lease.release();
            }
            ids
        };
        let mut ids = std::thread::scope(|scope| {
            let other = scope.spawn(poll);
            [poll(), other.join().expect("no panic")].concat()
        });
        ids.sort_unstable();
        assert_eq!(ids, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_descriptor_is_readable_while_events_wait() {
        let events = filled(0..3);
        let mut out = [qdl_event::ZERO; 2];
        for (more, n) in [(true, 2), (true, 1), (false, 0)] {
            assert_eq!(events.bell.event.wait(Duration::ZERO), more);
            assert_eq!(events.poll(&mut out, Duration::ZERO).0, n);
        }
        assert!(!events.bell.event.wait(Duration::ZERO));
        events.lose(&[Sample::now(9, 0, 0)]);
        assert!(events.bell.event.wait(Duration::ZERO));
    }

    #[test]
    fn bytes_stay_until_their_lease_is_released() {
        let events = filled(0..1);
        let mut out = [qdl_event::ZERO; 4];
        let (n, lease) = events.poll(&mut out, Duration::ZERO);
        assert_eq!(n, 1);
        events.lose(&[Sample::now(1, 0, 0)]);
        assert_eq!(events.poll(&mut out[1..], Duration::ZERO).0, 1);
        // SAFETY: `lease` keeps the bytes.
        let said =
            unsafe { std::slice::from_raw_parts(out[0].data.cast::<u8>(), out[0].len as usize) };
        assert_eq!(said, b"cancelled");
        lease.expect("a lease").release();
    }
}
