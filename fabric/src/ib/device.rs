//! One port of one NIC: opened near it, asked for its
//! state whenever a connection is made, and watched.

use std::{
    fmt,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, JoinHandle},
};

use verbs::{AsyncEvent, Context, DeviceLimits, GidEntry, PortAttr, PortState, Verbs};

use super::{IbError, shared::Shared};
use crate::{
    Broken,
    os::{EventFd, Near},
};

/// Which port to open, and where its threads and memory belong.
#[derive(Clone, Debug, Default)]
pub struct IbDeviceCfgs {
    /// The device's name, such as `mlx5_0`.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// Index in the port's table of GIDs; `None` chooses an entry.
    pub gid_index: Option<u8>,
    /// The NUMA node of its queues, and the cores there.
    pub near: Near,
}

impl IbDeviceCfgs {
    /// Port 1 of a device, any GID, no NUMA node.
    pub fn new(device: &str) -> Self {
        IbDeviceCfgs {
            device: device.to_owned(),
            port: 1,
            ..IbDeviceCfgs::default()
        }
    }
}

/// See the module. Dropped, it stops watching; the
/// device itself is closed with the last connection.
pub struct IbDevice {
    watched: Arc<Watched>,
    gid_index: Option<u8>,
    near: Near,
    stop: Arc<EventFd>,
    watcher: Option<JoinHandle<()>>,
}

/// Names the library's file where it is not the system's own,
/// such as that of a vendor's package in a folder of its own.
const LIBRARY: &str = "QDL_LIBIBVERBS";

/// The device as connections and the watching thread see it.
pub(super) struct Watched {
    pub context: Arc<Context>,
    port: u8,
    connections: Mutex<Vec<Weak<Shared>>>,
}

/// State of the port at the moment a connection is made.
#[derive(Clone, Debug)]
pub(super) struct PortNow {
    pub port: u8,
    pub attr: PortAttr,
    pub gid: GidEntry,
}

impl IbDevice {
    /// Opens a port with the libibverbs of this machine, or with the file that the environment
    /// variable `QDL_LIBIBVERBS` names.
    ///
    /// # Errors
    /// [`IbError`]: no library, no device, none of that name, no such port, no GID that will do, or
    /// a port that is down.
    pub fn open(cfgs: &IbDeviceCfgs) -> Result<Arc<IbDevice>, IbError> {
        #[cfg(feature = "stub")]
        if cfgs.device.starts_with("stub") {
            return Self::open_with(&verbs::stub::verbs(), cfgs);
        }
        let verbs = match std::env::var(LIBRARY) {
            Ok(file) => Verbs::load_from(&file)?,
            Err(_) => Verbs::load()?,
        };
        Self::open_with(&verbs, cfgs)
    }

    /// As [`IbDevice::open`], with a library that is open already.
    ///
    /// # Errors
    /// As [`IbDevice::open`].
    pub fn open_with(verbs: &Arc<Verbs>, cfgs: &IbDeviceCfgs) -> Result<Arc<IbDevice>, IbError> {
        let context = cfgs.near.run(|| verbs.open(&cfgs.device))?;
        let stop = EventFd::new().map_err(|source| IbError::System {
            what: "eventfd",
            source,
        })?;
        let stop = Arc::new(stop);
        let watched = Arc::new(Watched {
            context,
            port: cfgs.port,
            connections: Mutex::default(),
        });
        let (watching, sleeper) = (watched.clone(), stop.clone());
        let watcher = thread::Builder::new()
            .name("ib-events".to_owned())
            .spawn(move || watch(&watching, &sleeper))
            .map_err(|source| IbError::System {
                what: "starting the thread for asynchronous events",
                source,
            })?;
        let device = IbDevice {
            watched,
            gid_index: cfgs.gid_index,
            near: cfgs.near.clone(),
            stop,
            watcher: Some(watcher),
        };
        device.port_now()?;
        Ok(Arc::new(device))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        self.watched.context.name()
    }

    /// The port, from 1.
    pub fn port(&self) -> u8 {
        self.watched.port
    }

    /// What the device can do at most.
    pub fn limits(&self) -> &DeviceLimits {
        self.watched.context.limits()
    }

    /// The port's data rate in Gbit/s, where the device says one that is known.
    pub fn gbps(&self) -> Option<f64> {
        let attr = self.watched.context.query_port(self.watched.port).ok()?;
        attr.gbps
    }

    /// Its NUMA node, where the machine has several, and the cores there.
    pub fn near(&self) -> &Near {
        &self.near
    }

    /// The opened device.
    pub fn context(&self) -> &Arc<Context> {
        &self.watched.context
    }

    /// Moves every queue pair on this device to ERR behind its connection's back, as a device does
    /// that has found an error. For tests.
    #[cfg(feature = "stub")]
    pub fn force_error(&self) {
        for c in self.watched.connections().iter().filter_map(Weak::upgrade) {
            if let Err(e) = c.qp.set_error() {
                tracing::warn!("{e}");
            }
        }
    }

    pub(super) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// The port's state and address, now: both may have changed since the device was opened.
    pub(super) fn port_now(&self) -> Result<PortNow, IbError> {
        let (context, port) = (&self.watched.context, self.watched.port);
        let attr = context.query_port(port)?;
        if attr.state != PortState::Active {
            return Err(IbError::PortDown {
                device: context.name().to_owned(),
                port,
                state: format!("{:?}", attr.state),
            });
        }
        let gid =
            match self.gid_index {
                None => context.auto_gid(port)?,
                Some(index) => context.gid(port, u32::from(index))?.ok_or_else(|| {
                    IbError::Setting {
                        device: context.name().to_owned(),
                        key: "gid_index",
                        problem: format!(
                            "entry {index} of port {port} is empty; `auto` chooses one that is not"
                        ),
                    }
                })?,
            };
        Ok(PortNow { port, attr, gid })
    }
}

impl Drop for IbDevice {
    fn drop(&mut self) {
        self.stop.signal();
        // The watching thread may hold the last connection, and with it the device, for a moment.
        let own = |t: &JoinHandle<()>| t.thread().id() == thread::current().id();
        if let Some(t) = self.watcher.take().filter(|t| !own(t)) {
            // A panic there has said so already.
            let _ = t.join();
        }
    }
}

impl fmt::Debug for IbDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IbDevice({}:{})", self.name(), self.port())
    }
}

impl Watched {
    fn connections(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a connection of this device's events from now on.
    pub fn add(&self, connection: &Arc<Shared>) {
        let mut all = self.connections();
        all.retain(|c| c.strong_count() > 0);
        all.push(Arc::downgrade(connection));
    }

    /// Acts on every event that has come. From any thread; never waits.
    /// Returns false once the device tells nothing any more, as when it was unplugged.
    pub fn pump(&self) -> bool {
        loop {
            match self.context.next_async_event() {
                Ok(Some(event)) => self.event(event),
                Ok(None) => return true,
                Err(e) => {
                    tracing::warn!("{e}");
                    self.fail(&e.to_string(), |_| true);
                    return false;
                }
            }
        }
    }

    fn event(&self, event: AsyncEvent) {
        let name = self.context.name();
        match event {
            // The device leaves its queue pairs as they are, and they would try until their retries
            // end.
            AsyncEvent::PortDown { port } if port == self.port => {
                self.fail(&format!("port {port} of {name} is down"), |_| true);
            }
            AsyncEvent::DeviceFatal => self.fail(&format!("{name} has failed"), |_| true),
            AsyncEvent::QpFatal { qp_num, cause } => {
                let cause = format!("{name}: queue pair {qp_num} failed: {cause}");
                self.fail(&cause, |connection| connection.qp_num() == qp_num);
            }
            AsyncEvent::CqError { token } => {
                let cause = format!("{name}: a completion queue overflowed");
                self.fail(&cause, |connection| connection.owns(token));
            }
            other => tracing::debug!("{name}: {other:?}"),
        }
    }

    /// Breaks the connections that an event concerns.
    fn fail(&self, cause: &str, concerns: impl Fn(&Shared) -> bool) {
        let all: Vec<_> = self
            .connections()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for c in all.iter().filter(|c| concerns(c)) {
            c.fail(Broken::Device(cause.to_owned()));
        }
    }
}

fn watch(watched: &Watched, stop: &EventFd) {
    let mut fds =
        [watched.context.async_fd().as_raw_fd(), stop.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
    loop {
        // SAFETY: two structures of a live array, with
        // descriptors that `watched` and `stop` keep open.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        if fds[1].revents != 0 {
            return;
        }
        if !watched.pump() {
            // A negative descriptor is not waited for: its error would be told for ever.
            fds[0].fd = -1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let open = |device: &str, port| {
            let mut cfgs = IbDeviceCfgs::new(device);
            cfgs.port = port;
            IbDevice::open(&cfgs).expect_err("refused").to_string()
        };
        assert!(open("stub9", 1).contains("stub9"));
        assert!(open("stub0", 7).contains("port 7"));
        let mut cfgs = IbDeviceCfgs::new("stub0");
        cfgs.gid_index = Some(5);
        let text = IbDevice::open(&cfgs).expect_err("refused").to_string();
        assert!(
            text.contains("gid_index") && text.contains("entry 5"),
            "{text}"
        );
    }
}
