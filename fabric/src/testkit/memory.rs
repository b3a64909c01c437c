//! The in-memory fabric: two ends in one process, for tests of the layers above. [`MemoryFaults`]
//! cuts the connection.

use std::{
    collections::VecDeque,
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::os::EventFd;
use crate::{
    Armed, Broken, Endpoint, Event, FabricCounts, Flushed, Imm, Link, Post, PostError, Rx, Tx,
    parts::Parts,
};

/// Longest payload that `post` copies, in bytes.
const INLINE_LIMIT: usize = 64;

#[derive(Debug)]
struct Frame {
    imm: Imm,
    at: u32,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct Pipe {
    frames: Mutex<VecDeque<Frame>>,
    capacity: usize,
    /// The sender is gone, or the test has cut the connection.
    closed: AtomicBool,
    deaf: AtomicBool,
    /// Wakes the receiving end when a frame comes or the connection ends.
    readable: Arc<EventFd>,
    /// Wakes the sending end when there is room or the connection ends.
    writable: Arc<EventFd>,
}

impl Pipe {
    fn frames(&self) -> MutexGuard<'_, VecDeque<Frame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.readable.signal();
        self.writable.signal();
    }
}

/// Handle that cuts a pair of memory links.
#[derive(Clone, Debug)]
pub struct MemoryFaults {
    pipes: [Arc<Pipe>; 2],
}

impl MemoryFaults {
    /// Breaks both ends.
    pub fn cut(&self) {
        self.pipes.iter().for_each(|p| p.close());
    }
}

/// Joins two endpoints.
///
/// # Errors
/// The kernel has no descriptor left.
pub fn pair(a: Endpoint, b: Endpoint) -> std::io::Result<(Link, Link, MemoryFaults)> {
    let (wake_a, wake_b) = (Arc::new(EventFd::new()?), Arc::new(EventFd::new()?));
    let pipe = |to: &Arc<EventFd>, from: &Arc<EventFd>, capacity| {
        Arc::new(Pipe {
            frames: Mutex::new(VecDeque::new()),
            capacity,
            closed: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            readable: to.clone(),
            writable: from.clone(),
        })
    };
    let ab = pipe(&wake_b, &wake_a, a.send_depth);
    let ba = pipe(&wake_a, &wake_b, b.send_depth);
    let link = |out: &Arc<Pipe>, input: &Arc<Pipe>, endpoint: Endpoint| Link {
        rx: Box::new(MemoryRx {
            pipe: input.clone(),
            parts: Parts::new(endpoint.window.clone()),
            broken: false,
            counts: FabricCounts::default(),
        }),
        tx: Box::new(MemoryTx {
            pipe: out.clone(),
            queue: VecDeque::with_capacity(endpoint.send_depth),
            endpoint,
            posted: 0,
            retired: 0,
            counts: FabricCounts::default(),
        }),
    };
    let faults = MemoryFaults {
        pipes: [ab.clone(), ba.clone()],
    };
    Ok((link(&ab, &ba, a), link(&ba, &ab, b), faults))
}

#[derive(Debug)]
struct MemoryTx {
    pipe: Arc<Pipe>,
    endpoint: Endpoint,
    /// Posts that wait for a flush, each with its payload if `post` copied the payload.
    queue: VecDeque<(Post, Option<Vec<u8>>)>,
    posted: u64,
    retired: u64,
    counts: FabricCounts,
}

impl MemoryTx {
    fn payload(&self, post: &Post) -> Vec<u8> {
        if post.len == 0 {
            return Vec::new();
        }
        let source = &self.endpoint.sources[usize::from(post.source.0)];
        // SAFETY: the poster leaves these bytes unchanged until the write retires (the contract).
        unsafe { source.bytes(post.offset, post.len as usize) }
            .map(<[u8]>::to_vec)
            .unwrap_or_default()
    }

    fn alive(&self) -> Result<(), Broken> {
        if self.pipe.closed.load(Ordering::Acquire) || self.pipe.deaf.load(Ordering::Acquire) {
            Err(Broken::Closed)
        } else {
            Ok(())
        }
    }
}

impl Tx for MemoryTx {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.alive()?;
        self.endpoint.check(post)?;
        if self.room() == 0 {
            return Err(PostError::Full);
        }
        let inline = (post.len as usize <= INLINE_LIMIT).then(|| self.payload(post));
        self.counts.inline += u64::from(inline.is_some());
        post.count(self.endpoint.peer_stream, &mut self.counts);
        self.queue.push_back((*post, inline));
        self.posted += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<Flushed, Broken> {
        self.alive()?;
        let mut moved = false;
        let mut frames = self.pipe.frames();
        while frames.len() < self.pipe.capacity
            && let Some((post, inline)) = self.queue.pop_front()
        {
            let payload = inline.unwrap_or_else(|| self.payload(&post));
            frames.push_back(Frame {
                imm: post.imm,
                at: post.at,
                payload,
            });
            self.retired += 1;
            moved = true;
        }
        drop(frames);
        if moved {
            self.counts.syscalls += 1;
            self.pipe.readable.signal();
        }
        Ok(if self.queue.is_empty() {
            Flushed::Done
        } else {
            Flushed::Blocked
        })
    }

    fn room(&self) -> usize {
        self.endpoint.send_depth - self.queue.len()
    }

    fn posted(&self) -> u64 {
        self.posted
    }

    fn retired(&self) -> u64 {
        self.retired
    }

    fn inline_limit(&self) -> usize {
        INLINE_LIMIT
    }

    fn counts(&self) -> FabricCounts {
        self.counts
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        self.pipe.close();
    }
}

#[derive(Debug)]
struct MemoryRx {
    pipe: Arc<Pipe>,
    parts: Parts,
    broken: bool,
    counts: FabricCounts,
}

impl MemoryRx {
    fn land(&mut self, frame: &Frame) -> Result<Event, Broken> {
        let len = frame.payload.len() as u32;
        if frame.imm.is_control() {
            self.counts.control += 1;
            return frame.imm.control_event();
        }
        let to = self.parts.landing(frame.imm, Some(frame.at), len)?;
        let region = self.parts.window().region();
        // SAFETY: the grant is open, so the sender owns the slot behind the parts that have
        // arrived, and this half writes those bytes for the sender.
        let stored = unsafe { region.store(to.offset, &frame.payload) };
        stored.map_err(|e| Broken::Device(e.to_string()))?;
        self.parts.land(frame.imm, to.at, len, &mut self.counts)
    }
}

impl Rx for MemoryRx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize {
        let mut events = 0;
        while events < budget && !self.broken {
            // Load `closed` before the queue: frames sent before the end are reported before the
            // end.
            let closed = self.pipe.closed.load(Ordering::Acquire);
            let frame = self.pipe.frames().pop_front();
            let event = match frame {
                Some(frame) => {
                    self.pipe.writable.signal();
                    self.land(&frame).unwrap_or_else(Event::Broken)
                }
                None if closed => Event::Broken(Broken::Closed),
                None => break,
            };
            self.broken = matches!(event, Event::Broken(_));
            sink(event);
            events += 1;
        }
        events
    }

    fn arm(&mut self) -> Armed {
        self.pipe.readable.clear();
        let something = !self.pipe.frames().is_empty() || self.pipe.closed.load(Ordering::Acquire);
        if something && !self.broken {
            Armed::Ready
        } else {
            Armed::Sleep
        }
    }

    fn fd(&self) -> RawFd {
        self.pipe.readable.as_raw_fd()
    }

    fn counts(&self) -> FabricCounts {
        self.counts
    }
}

impl Drop for MemoryRx {
    fn drop(&mut self) {
        self.pipe.deaf.store(true, Ordering::Release);
        self.pipe.writable.signal();
    }
}
