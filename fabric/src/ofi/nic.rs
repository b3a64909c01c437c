//! A NIC of a libfabric provider, for both ends.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use super::{Dialling, OfiCfgs, OfiConnection, OfiEnd, OfiResources};
use crate::{
    Endpoint, Link, OpenError, Region,
    ib::check_memory,
    opening::{self, Accepted, Connecting, Half, Made, Nic, Which},
};

/// Number of polls without a pause. Later pauses double from `SHORTEST` to `LONGEST`.
const EAGER: u32 = 64;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(8);
/// The deadline expires only after `FAIR` polls, or after `MOST` times its duration.
const FAIR: u32 = 200;
const MOST: u32 = 3;

/// A libfabric NIC that opens connections.
#[derive(Debug)]
pub struct OfiNic {
    /// The NIC's domain and registrations.
    pub resources: Arc<OfiResources>,
    /// Payloads of at most this many bytes are copied at `post`.
    pub inline_bytes: u32,
}

impl OfiNic {
    fn half(&self, endpoint: Endpoint) -> Result<OfiConnection, OpenError> {
        let cfgs = OfiCfgs::resolve(self.resources.device(), &endpoint, self.inline_bytes)?;
        OfiConnection::prepare(&self.resources, endpoint, &cfgs)
    }
}

impl Nic for OfiNic {
    fn fabric(&self) -> &'static str {
        "ofi"
    }

    /// Only a NIC that writes the slots itself needs them locked.
    fn check_memory(&self, bytes: usize) -> Result<(), OpenError> {
        let device = self.resources.device();
        match device.locks_memory() {
            true => check_memory(&device.name(), bytes),
            false => Ok(()),
        }
    }

    fn keep(&self, sources: &[Arc<Region>]) -> Result<(), OpenError> {
        self.resources.keep(sources)
    }

    fn prepare(&self, _: Which, endpoint: Endpoint) -> Result<Box<dyn Half>, OpenError> {
        Ok(Box::new(self.half(endpoint)?))
    }

    /// The peer sends first.
    fn accept(&self, endpoint: Endpoint, end: &str, _: IpAddr) -> Result<Accepted, OpenError> {
        let peer: OfiEnd = opening::read("ofi", end)?;
        let half = self.half(endpoint)?;
        let end = opening::write(half.end());
        let made = Made::Link(half.accept(&peer)?);
        Ok(Accepted { end, made })
    }
}

impl Half for OfiConnection {
    fn end(&self) -> String {
        opening::write(OfiConnection::end(self))
    }

    fn connect(self: Box<Self>, end: String, deadline: Duration) -> Connecting {
        Box::pin(async move { dial(*self, &opening::read("ofi", &end)?, deadline).await })
    }
}

/// A connection whose first message is in flight, shared with the polling thread. A caller that
/// gives up drops the connection while the thread still polls.
struct SharedDialling(Arc<Mutex<Option<Dialling>>>);

impl SharedDialling {
    fn take(&self) -> Option<Dialling> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for SharedDialling {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Polls until the message has crossed both ways, or the deadline has passed. A process that was
/// not scheduled has not waited: the deadline also requires a minimum number of polls.
fn poll(dialling: &Mutex<Option<Dialling>>, deadline: Duration) -> Result<(), OpenError> {
    let started = Instant::now();
    let mut pause = SHORTEST;
    for looks in 0.. {
        // Only this thread polls; an empty slot means that the caller has given up.
        let mut slot = dialling.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(crossed) = slot.as_mut().map(Dialling::step) else {
            break;
        };
        drop(slot);
        let waited = started.elapsed();
        let late = waited >= deadline && (looks >= FAIR || waited >= MOST * deadline);
        if crossed? || late {
            break;
        }
        if looks < EAGER {
            thread::yield_now();
        } else {
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }
    Ok(())
}

/// Connects to the peer and waits until a message has crossed both ways. The provider may block, so
/// a second thread drives it.
async fn dial(half: OfiConnection, peer: &OfiEnd, deadline: Duration) -> Result<Link, OpenError> {
    let system = |source| OpenError::System {
        what: "the thread that connects",
        source,
    };
    let shared = SharedDialling(Arc::new(Mutex::new(Some(half.dial(peer)?))));
    let polled = shared.0.clone();
    spawn_blocking(move || poll(&polled, deadline))
        .await
        .map_err(|e| system(io::Error::other(e)))??;
    match shared.take() {
        Some(dialling) if dialling.is_up() => Ok(dialling.link()),
        Some(dialling) => Err(dialling.too_late(deadline)),
        None => Err(system(io::Error::other("it has gone"))),
    }
}
