//! One port of one NIC: opened on its NUMA node, queried for its state at each new connection, and
//! watched for asynchronous events by a thread.

use std::{
    fmt,
    os::fd::AsRawFd,
    sync::Arc,
    thread::{self, JoinHandle},
};

use verbs::{Context, DeviceLimits, GidEntry, PortAttr, PortState, Verbs};

use super::{IbKeys, shared::Watched};
use crate::{
    OpenError,
    os::{EventFd, Near},
};

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

#[derive(Clone, Debug)]
pub(super) struct PortNow {
    pub port: u8,
    pub attr: PortAttr,
    pub gid: GidEntry,
}

impl IbDevice {
    /// Opens the port of these keys, with queues on the NUMA node `near`. Uses the system's
    /// libibverbs, or the file in the environment variable `QDL_LIBIBVERBS`.
    ///
    /// # Errors
    /// [`OpenError`]: libibverbs is missing, no device has this name, the port does not exist, no
    /// GID is usable, or the port is down.
    pub fn open(keys: &IbKeys, near: &Near) -> Result<Arc<IbDevice>, OpenError> {
        let verbs = library(&keys.device)?;
        let context = near.run(|| verbs.open(&keys.device))?;
        let stop = Arc::new(EventFd::new().map_err(OpenError::system("eventfd"))?);
        let watched = Arc::new(Watched::new(context, keys.port));
        let (watching, sleeper) = (watched.clone(), stop.clone());
        let watcher = thread::Builder::new()
            .name("ib-events".to_owned())
            .spawn(move || watch(&watching, &sleeper))
            .map_err(OpenError::system(
                "starting the thread for asynchronous events",
            ))?;
        let device = IbDevice {
            watched,
            gid_index: keys.gid_index.fixed(),
            near: near.clone(),
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
        for connection in self.watched.connections() {
            if let Err(e) = connection.qp.set_error() {
                tracing::warn!("{e}");
            }
        }
    }

    pub(super) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Queries the port's state and GID: both may have changed since the device was opened.
    pub(super) fn port_now(&self) -> Result<PortNow, OpenError> {
        let (context, port) = (&self.watched.context, self.watched.port);
        let attr = context.query_port(port)?;
        if attr.state != PortState::ACTIVE {
            let (device, state) = (context.name(), attr.state);
            return Err(OpenError::Refused(format!(
                "{device} port {port} is not active ({state}): check the cable, the switch and \
                 `ip link`"
            )));
        }
        let empty = |index| {
            let problem =
                format!("entry {index} of port {port} is empty; `auto` chooses one that is not");
            OpenError::setting(context.name(), "gid_index", problem)
        };
        let gid = match self.gid_index {
            None => context.auto_gid(port)?,
            Some(index) => {
                let gid = context.gid(port, u32::from(index))?;
                gid.ok_or_else(|| empty(index))?
            }
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
            // The panic hook has reported a panic of the watching thread.
            let _ = t.join();
        }
    }
}

impl fmt::Debug for IbDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IbDevice({}:{})", self.name(), self.port())
    }
}

/// Loads the file in `QDL_LIBIBVERBS`, or else the system's library; the stub for `stub*`.
fn library(device: &str) -> Result<Arc<Verbs>, OpenError> {
    #[cfg(feature = "stub")]
    if device.starts_with("stub") {
        return Ok(verbs::stub::verbs());
    }
    let _ = device;
    Ok(Verbs::load(std::env::var(LIBRARY).ok().as_deref())?)
}

fn watch(watched: &Watched, stop: &EventFd) {
    let mut fds = [watched.context.async_fd(), stop.as_raw_fd()].map(|fd| libc::pollfd {
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
            // `poll` ignores a negative descriptor; a failed descriptor would be readable for ever.
            fds[0].fd = -1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{keys::Auto, testkit::assert_has};

    #[test]
    fn what_is_missing_is_named() {
        let open = |keys: IbKeys| {
            let refused = IbDevice::open(&keys, &Near::default());
            refused.expect_err("refused").to_string()
        };
        let text = open(IbKeys::new("stub9"));
        assert!(text.contains("stub9") && text.contains("stub0"), "{text}");
        let mut keys = IbKeys::new("stub0");
        keys.port = 7;
        assert!(open(keys).contains("port 7"));
        let mut keys = IbKeys::new("stub0");
        keys.gid_index = Auto::Fixed(5);
        let text = open(keys);
        assert_has(&text, &["gid_index", "entry 5"]);
    }
}
