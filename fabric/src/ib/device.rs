//! One port of one NIC: opened on its NUMA node, queried for its state at each new connection, and
//! watched for asynchronous events by a thread.

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

/// Which port to open, and the NUMA node of its threads and memory.
#[derive(Clone, Debug, Default)]
pub struct IbDeviceCfgs {
    /// The device's name, such as `mlx5_0`.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// Index in the port's GID table; `None` chooses an entry.
    pub gid_index: Option<u8>,
    /// NUMA node of the device's queues, and the cores of that node.
    pub near: Near,
}

impl IbDeviceCfgs {
    /// Port 1 of `device`, an automatic GID, no NUMA node.
    pub fn new(device: &str) -> Self {
        IbDeviceCfgs {
            device: device.to_owned(),
            port: 1,
            ..IbDeviceCfgs::default()
        }
    }
}

/// An open port of a NIC. Dropping it stops the watching thread; the last connection closes the
/// device.
pub struct IbDevice {
    watched: Arc<Watched>,
    gid_index: Option<u8>,
    near: Near,
    stop: Arc<EventFd>,
    watcher: Option<JoinHandle<()>>,
}

/// Environment variable with the path of libibverbs, for a vendor package outside the system's
/// library folders.
const LIBRARY: &str = "QDL_LIBIBVERBS";

/// The part of the device that connections and the watching thread share.
pub(super) struct Watched {
    pub context: Arc<Context>,
    port: u8,
    connections: Mutex<Vec<Weak<Shared>>>,
}

/// State of the port at the time of a new connection.
#[derive(Clone, Debug)]
pub(super) struct PortNow {
    pub port: u8,
    pub attr: PortAttr,
    pub gid: GidEntry,
}

impl IbDevice {
    /// Opens a port with the system's libibverbs, or with the file in the environment variable
    /// `QDL_LIBIBVERBS`.
    ///
    /// # Errors
    /// [`IbError`]: libibverbs is missing, no device has this name, the port does not exist, no GID
    /// is usable, or the port is down.
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

    /// Opens a port as [`IbDevice::open`] does, with a library that is already loaded.
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

    /// The device's limits.
    pub fn limits(&self) -> &DeviceLimits {
        self.watched.context.limits()
    }

    /// The port's data rate in Gbit/s; `None` if the query fails or the rate is unknown.
    pub fn gbps(&self) -> Option<f64> {
        let attr = self.watched.context.query_port(self.watched.port).ok()?;
        attr.gbps
    }

    /// The device's NUMA node and its cores; empty on a machine with one node.
    pub fn near(&self) -> &Near {
        &self.near
    }

    /// The device's open context.
    pub fn context(&self) -> &Arc<Context> {
        &self.watched.context
    }

    /// Moves every queue pair of this device to ERR without notice to its connection, as a failing
    /// device does. For tests.
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

    /// Queries the port's state and GID: both may have changed since the device was opened.
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
        // The watching thread may drop the device itself, and cannot join itself.
        let own = |t: &JoinHandle<()>| t.thread().id() == thread::current().id();
        if let Some(t) = self.watcher.take().filter(|t| !own(t)) {
            // The panic hook has reported a panic of this thread.
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

    /// Adds a connection to those that receive this device's events.
    pub fn add(&self, connection: &Arc<Shared>) {
        let mut all = self.connections();
        all.retain(|c| c.strong_count() > 0);
        all.push(Arc::downgrade(connection));
    }

    /// Handles every pending event. Any thread may call it; it never blocks. Returns false after
    /// the device has failed to deliver events, as when it is unplugged.
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
            // The device leaves its queue pairs in RTS; without this, they retry until their
            // retries run out.
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

    /// Breaks the connections that `concerns` selects.
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
        // SAFETY: `fds` is a live array of two structures; `watched` and `stop` keep both
        // descriptors open.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        if fds[1].revents != 0 {
            return;
        }
        if !watched.pump() {
            // `poll` ignores a negative descriptor; a failed one would be readable for ever.
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
