//! A NIC of a libfabric provider, for both sides.

use std::{
    io,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use super::{lock, settings};
use crate::config::{NicConfig, OfiKeys};
use fabric::{
    Endpoint, Link, OpenError,
    ib::check_memory,
    ofi::{Dialling, OfiCfgs, OfiConnection, OfiDevice, OfiEnd, OfiResources},
};

/// Number of polls without a pause. Later pauses double from `SHORTEST` to `LONGEST`.
const EAGER: u32 = 64;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(8);
/// The deadline expires only after `FAIR` polls, or after `MOST` times its duration.
const FAIR: u32 = 200;
const MOST: u32 = 3;

#[derive(Debug)]
pub(super) struct OfiNic {
    pub resources: Arc<OfiResources>,
    inline_bytes: u32,
}

impl OfiNic {
    /// Opens the NIC and checks that it can have `connections` connections.
    pub(crate) fn open(
        config: &NicConfig,
        keys: &OfiKeys,
        connections: usize,
    ) -> Result<Self, OpenError> {
        let device = OfiDevice::open(&settings::ofi_device(config, keys)?)?;
        device.check(connections)?;
        let info = device.info();
        tracing::info!(
            "{} is up: {}libfabric {}, writes arrive {}",
            device.name(),
            info.limits()
                .gbps
                .map_or(String::new(), |g| format!("{g} Gbit/s, ")),
            info.ofi().version(),
            if device.keeps_order() {
                "in order"
            } else {
                "in any order"
            },
        );
        Ok(OfiNic {
            resources: OfiResources::new(device)?,
            inline_bytes: config.inline_bytes(),
        })
    }

    /// Checks that this machine can lock `bytes` of slots, where the NIC writes them.
    pub(crate) fn check_memory(&self, bytes: usize) -> Result<(), OpenError> {
        let device = self.resources.device();
        if !device.locks_memory() {
            return Ok(());
        }
        check_memory(&device.name(), bytes)
    }

    pub(crate) fn prepare(&self, endpoint: Endpoint) -> Result<OfiConnection, OpenError> {
        let cfgs = OfiCfgs::resolve(self.resources.device(), &endpoint, self.inline_bytes)?;
        OfiConnection::prepare(&self.resources, endpoint, &cfgs)
    }

    /// Accepts a connection: returns this end's description, and the link. The peer sends first.
    pub(crate) fn accept(
        &self,
        endpoint: Endpoint,
        peer: &OfiEnd,
    ) -> Result<(OfiEnd, Link), OpenError> {
        let half = self.prepare(endpoint)?;
        let end = half.end().clone();
        Ok((end, half.accept(peer)?))
    }
}

/// A connection whose first message is in flight, shared with the polling thread. A caller that
/// gives up drops the connection while the thread still polls.
struct SharedDialling(Arc<Mutex<Option<Dialling>>>);

impl Drop for SharedDialling {
    fn drop(&mut self) {
        drop(lock(&self.0).take());
    }
}

/// Polls until the message has crossed both ways, or the deadline has passed. A process that was
/// not scheduled has not waited: the deadline also requires a minimum number of polls.
fn poll(dialling: &Mutex<Option<Dialling>>, deadline: Duration) -> Result<(), OpenError> {
    let started = Instant::now();
    let mut pause = SHORTEST;
    for looks in 0.. {
        // Only this thread polls; an empty slot means that the caller has given up.
        let Some(crossed) = lock(dialling).as_mut().map(Dialling::step) else {
            break;
        };
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
pub(super) async fn dial(
    half: OfiConnection,
    peer: &OfiEnd,
    deadline: Duration,
) -> Result<Link, OpenError> {
    let system = |source| OpenError::System {
        what: "the thread that connects",
        source,
    };
    let shared = SharedDialling(Arc::new(Mutex::new(Some(half.dial(peer)?))));
    let polled = shared.0.clone();
    spawn_blocking(move || poll(&polled, deadline))
        .await
        .map_err(|e| system(io::Error::other(e)))??;
    let taken = lock(&shared.0).take();
    match taken {
        Some(dialling) if dialling.is_up() => Ok(dialling.link()),
        Some(dialling) => Err(dialling.too_late(deadline)),
        None => Err(system(io::Error::other("it has gone"))),
    }
}
