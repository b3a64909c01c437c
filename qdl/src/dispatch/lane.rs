//! One connection as the frontend sees it over the whole run: its slots, its tracker, and, while it is up,
//! the sending half of its link behind the send token.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crossbeam_queue::ArrayQueue;

use super::doorbell::Doorbell;
use crate::{
    clock::now_ns,
    drive::Driven,
    fabric::{
        Broken, Endpoint, FabricCounts, Flushed, Grants, Imm, Mailbox, Post, PostError, Region,
        RegionError, SourceId, Tx, Window,
    },
    rails::Load,
    tracker::{Sample, Tracker},
};

/// Samples posted before the doorbell is rung and the connection lets others look: enough to make a
/// system call worth its while, few enough that several connections share a backlog evenly.
const BURST: usize = 64;

/// What a lane is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCfgs {
    /// Index of the accelerator it leads to.
    pub peer: usize,
    /// Index of the rail thread that polls it.
    pub rail: usize,
    /// Slots at either end.
    pub slots: usize,
    /// Bytes from one response slot to the next, header included.
    pub response_stride: usize,
    /// Bytes from one request slot to the next, at the peer.
    pub request_stride: usize,
}

/// Counts of a lane's links, past and present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LaneCounts {
    /// Requests.
    pub sent: FabricCounts,
    /// Responses.
    pub received: FabricCounts,
    /// Samples copied into registered memory before they were sent (`qsl: staged`).
    pub staged: u64,
    /// Bytes of those.
    pub staged_bytes: u64,
    /// Most samples it had in flight at once.
    pub in_flight_max: u64,
    /// Doorbells after which something was left that its socket or queue pair had no room for.
    pub blocked: u64,
    /// Times that its rail thread slept and was woken by what came over it.
    pub wakeups: u64,
    /// Samples posted on it, those sent again included.
    pub posted: u64,
    /// Responses taken from it.
    pub taken: u64,
    /// Samples that warmed it up: in none of the numbers above but the fabric's own and the wake-ups.
    pub warmed: u64,
}

/// Sending half of a lane. `link` is there while the lane is up.
#[derive(Debug, Default)]
pub(super) struct LaneTx {
    pub link: Option<Box<dyn Tx>>,
    counted: Counted,
    doorbell: Doorbell,
}

/// What a sending half counts beside the fabric.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    staged: u64,
    staged_bytes: u64,
    in_flight_max: u64,
    blocked: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lane {
    pub index: usize,
    pub cfgs: LaneCfgs,
    /// Under a policy by health: samples that were given to this lane and are not posted yet, at most as many as
    /// it has slots. They were picked and must be completed or taken back.
    pub assigned: Option<ArrayQueue<Sample>>,
    pub tracker: Tracker,
    pub window: Window,
    pub send: Driven<LaneTx>,
    pub up: AtomicBool,
    /// The last flush did not get rid of everything.
    blocked: AtomicBool,
    /// A flush is under way, and whether it gets rid of everything is not written down yet.
    flushing: AtomicBool,
    /// Why nothing can be sent any more, until the rail thread takes it: whoever posts finds it out, and only the rail
    /// thread can take the lane down.
    failed: Mutex<Option<Broken>>,
    /// Whether there is something in `failed`.
    has_failed: AtomicBool,
    /// Writes were posted whose doorbell is left to the rail thread, or to the next who issues.
    pub unrung: AtomicBool,
    /// An echo to be sent, and one to be answered, with the next doorbell.
    pub ask: Mailbox,
    pub answer: Mailbox,
    pub counts: Mutex<LaneCounts>,
    /// Samples posted, for the reconciliation; those that warmed it up included.
    pub posted: AtomicU64,
    /// Answers to samples that warmed it up.
    pub warmed: AtomicU64,
    doorbell_wait_ns: u64,
    /// Where samples are copied to that do not lie in registered memory.
    staging: Option<Arc<Region>>,
}

/// What a drive achieved.
#[derive(Clone, Debug, Default)]
pub(super) struct Posted {
    pub posted: usize,
    /// Stopped because the fabric or the slots are full.
    pub full: bool,
    pub broken: Option<Broken>,
}

impl Posted {
    fn note(&mut self, result: Result<(), PostError>) {
        match result {
            Err(PostError::Broken(b)) => self.broken = Some(b),
            Err(e @ PostError::OutOfBounds { .. }) => {
                self.broken = Some(Broken::GivenUp(format!("a sample cannot be sent: {e}")));
            }
            Ok(()) | Err(PostError::Full) => {}
        }
    }
}

/// Source index of the lane's own staging region, after those of the caller.
fn staging_source(sources: usize) -> SourceId {
    SourceId(sources as u16)
}

impl Lane {
    pub fn new(
        index: usize,
        cfgs: LaneCfgs,
        nodes: &[u32],
        staged: bool,
        by_health: bool,
        doorbell_wait_ns: u64,
    ) -> Result<Self, RegionError> {
        let grants = Arc::new(Grants::new(cfgs.slots));
        let map = |stride| Region::on_nodes(cfgs.slots * stride, nodes).map(Arc::new);
        let region = map(cfgs.response_stride)?;
        let staging = staged.then(|| map(cfgs.request_stride)).transpose()?;
        Ok(Lane {
            index,
            assigned: by_health.then(|| ArrayQueue::new(cfgs.slots)),
            tracker: Tracker::new(grants.clone()),
            window: Window::new(region, 0, cfgs.response_stride, grants)?,
            send: Driven::new(LaneTx::default()),
            up: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            flushing: AtomicBool::new(false),
            failed: Mutex::default(),
            has_failed: AtomicBool::new(false),
            unrung: AtomicBool::new(false),
            ask: Mailbox::default(),
            answer: Mailbox::default(),
            counts: Mutex::default(),
            posted: AtomicU64::new(0),
            warmed: AtomicU64::new(0),
            doorbell_wait_ns,
            staging,
            cfgs,
        })
    }

    /// What a link of this lane is made with.
    pub fn endpoint(&self, sources: &[Arc<Region>], send_depth: usize) -> Endpoint {
        let mut sources = sources.to_vec();
        sources.extend(self.staging.clone());
        Endpoint {
            window: self.window.clone(),
            sources,
            peer_slots: self.cfgs.slots,
            peer_stride: self.cfgs.request_stride,
            send_depth,
        }
    }

    pub fn load(&self) -> Load {
        Load {
            up: self.up.load(Ordering::Relaxed),
            in_flight: self.tracker.in_flight() + self.assigned(),
            slots: self.cfgs.slots,
        }
    }

    /// Samples given to it and not posted yet.
    pub fn assigned(&self) -> usize {
        self.assigned.as_ref().map_or(0, ArrayQueue::len)
    }

    /// Could it post a sample now?
    pub fn takes(&self) -> bool {
        self.up.load(Ordering::SeqCst)
            && self.tracker.has_free()
            && !self.blocked.load(Ordering::SeqCst)
    }

    /// Whether something may be left that the fabric had no room for. A flush that is under way counts: what would wake
    /// the rail thread may come between the flush and its result, and whoever flushes looks again for those who drove the
    /// lane meanwhile.
    pub fn held_up(&self) -> bool {
        // In this order: whoever sees the flush over sees its result.
        self.flushing.load(Ordering::SeqCst) || self.blocked.load(Ordering::SeqCst)
    }

    /// Notes that nothing can be sent any more. With the send token: a link that is being replaced tells nothing of the new.
    fn fail(&self, cause: &Broken) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert_with(|| cause.clone());
        self.has_failed.store(true, Ordering::SeqCst);
    }

    /// Whether nothing can be sent any more, and the rail thread does not know.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Why nothing can be sent any more, once.
    pub fn take_failed(&self) -> Option<Broken> {
        if !self.has_failed.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Puts the lane up with a fresh link.
    pub fn attach(&self, tx: Box<dyn Tx>) {
        self.window.grants().reset();
        self.send.exclusive(|s| {
            s.link = Some(tx);
            s.doorbell = Doorbell::new(self.doorbell_wait_ns);
            let _ = self.take_failed();
        });
        self.blocked.store(false, Ordering::SeqCst);
        self.unrung.store(false, Ordering::SeqCst);
        self.up.store(true, Ordering::SeqCst);
    }

    /// Takes the lane down: afterwards nobody posts on it. The receiving half is the caller's to drop
    /// before it sweeps.
    pub fn detach(&self) {
        self.up.store(false, Ordering::SeqCst);
        self.blocked.store(false, Ordering::SeqCst);
        self.unrung.store(false, Ordering::SeqCst);
        let link = self.send.exclusive(|s| s.link.take());
        if let Some(mut tx) = link {
            tx.finish();
            self.counts().sent.add(&tx.counts());
        }
    }

    pub fn counts(&self) -> std::sync::MutexGuard<'_, LaneCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts what `next` yields for as long as there are slots and room, and rings the doorbell once for
    /// each burst, or, `lazily`, leaves that to the rail thread where the doorbell may wait. Called with the send token.
    /// Samples that could not be posted after all go to `back`. That the link failed is noted for the rail thread, which
    /// the caller wakes.
    pub fn post_all(
        &self,
        tx: &mut LaneTx,
        lazily: bool,
        sources: usize,
        staged_from: Option<&Region>,
        next: impl FnMut() -> Option<Sample>,
        back: impl FnMut(Sample),
    ) -> Posted {
        let done = self.post_while_it_lasts(tx, lazily, sources, staged_from, next, back);
        if let Some(cause) = &done.broken {
            self.fail(cause);
        }
        done
    }

    fn post_while_it_lasts(
        &self,
        tx: &mut LaneTx,
        lazily: bool,
        sources: usize,
        staged_from: Option<&Region>,
        mut next: impl FnMut() -> Option<Sample>,
        mut back: impl FnMut(Sample),
    ) -> Posted {
        let mut done = Posted::default();
        let Some(link) = tx.link.as_mut() else {
            return done;
        };
        let mut must_flush =
            self.blocked.load(Ordering::Relaxed) || (!lazily && tx.doorbell.waits());
        loop {
            for mailbox in [&self.ask, &self.answer] {
                if link.room() > 0
                    && let Some(message) = mailbox.take()
                {
                    done.note(link.post(&Post::control(message)));
                    must_flush = true;
                }
            }
            let mut burst = 0;
            let now = now_ns();
            while burst < BURST && done.broken.is_none() {
                if link.room() == 0 || !self.tracker.has_free() {
                    done.full = true;
                    break;
                }
                let Some(sample) = next() else { break };
                match self.post_one(link.as_mut(), sources, staged_from, &sample, now) {
                    Ok(copied) => {
                        tx.counted.staged += u64::from(copied > 0);
                        tx.counted.staged_bytes += copied as u64;
                        burst += 1;
                    }
                    Err(e) => {
                        back(sample);
                        done.note(Err(e));
                        done.full = true;
                        break;
                    }
                }
            }
            done.posted += burst;
            let in_flight = self.tracker.in_flight() as u64;
            tx.counted.in_flight_max = tx.counted.in_flight_max.max(in_flight);
            self.posted.fetch_add(burst as u64, Ordering::Relaxed);
            must_flush |= done.full && tx.doorbell.waits();
            if lazily
                && burst > 0
                && !must_flush
                && done.broken.is_none()
                && tx.doorbell.wait(burst, in_flight as usize, now)
            {
                self.unrung.store(true, Ordering::SeqCst);
                return done;
            }
            if (burst > 0 || must_flush) && done.broken.is_none() {
                tx.doorbell.rung(now);
                self.unrung.store(false, Ordering::SeqCst);
                self.flushing.store(true, Ordering::SeqCst);
                match link.flush() {
                    Ok(Flushed::Done) => self.blocked.store(false, Ordering::SeqCst),
                    Ok(Flushed::Blocked) => {
                        self.blocked.store(true, Ordering::SeqCst);
                        tx.counted.blocked += 1;
                        done.full = true;
                    }
                    Err(b) => done.broken = Some(b),
                }
                self.flushing.store(false, Ordering::SeqCst);
                must_flush = false;
            }
            if burst < BURST || done.full || done.broken.is_some() {
                return done;
            }
        }
    }

    /// Moves the sending half's counts into the lane's.
    pub fn settle(&self) {
        let mut counts = self.counts();
        self.send.exclusive(|s| {
            let c = &mut s.counted;
            counts.staged += std::mem::take(&mut c.staged);
            counts.staged_bytes += std::mem::take(&mut c.staged_bytes);
            counts.blocked += std::mem::take(&mut c.blocked);
            counts.in_flight_max = counts.in_flight_max.max(c.in_flight_max);
        });
        counts.posted = self.posted_for_callers();
        counts.warmed = self.warmed.load(Ordering::Relaxed);
    }

    /// Samples of the caller's that were posted.
    pub fn posted_for_callers(&self) -> u64 {
        let warmed = self.warmed.load(Ordering::Relaxed);
        self.posted.load(Ordering::Relaxed).saturating_sub(warmed)
    }

    /// What the sending half has counted, but for the fabric's own counts.
    pub fn counted(&self) -> Counted {
        self.send.exclusive(|s| s.counted)
    }

    /// Forgets what warming up has counted, but for the fabric's own counts: sets what was counted before it.
    pub fn forget_warm_up(&self, before: Counted) {
        self.send.exclusive(|s| s.counted = before);
    }

    fn post_one(
        &self,
        link: &mut dyn Tx,
        sources: usize,
        staged_from: Option<&Region>,
        sample: &Sample,
        now: u64,
    ) -> Result<usize, PostError> {
        let Some(slot) = self.tracker.reserve() else {
            return Err(PostError::Full);
        };
        let mut post = Post {
            source: sample.source,
            offset: sample.offset,
            len: sample.len,
            at: 0,
            imm: Imm::new(slot, 0),
        };
        let mut copied = 0;
        if let (Some(from), Some(to)) = (staged_from, &self.staging) {
            let offset = usize::from(slot) * self.cfgs.request_stride;
            let len = sample.len as usize;
            if len <= self.cfgs.request_stride {
                // SAFETY: the QSL does not change a loaded sample, and the staging slot belongs to this slot's
                // owner, who was reserved just now.
                let copy = unsafe { (from.bytes(sample.offset, len), to.bytes_mut(offset, len)) };
                if let (Ok(from), Ok(to)) = copy {
                    to.copy_from_slice(from);
                    copied = len;
                    post.source = staging_source(sources);
                    post.offset = offset;
                }
            }
        }
        let Some(imm) = self.tracker.begin(slot, sample, now) else {
            self.tracker.release(slot);
            return Err(PostError::Full);
        };
        post.imm = imm;
        link.post(&post).map(|()| copied).inspect_err(|_| {
            // It never left, so nobody can have answered it.
            if self.window.grants().revoke(slot) {
                self.tracker.release(slot);
            }
        })
    }
}
