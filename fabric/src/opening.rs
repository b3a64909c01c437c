//! How the connections of a NIC are opened, the same for each fabric.
//!
//! | step | `tcp` | `ib` | `ofi` |
//! | --- | --- | --- | --- |
//! | frontend: [`Nic::prepare`] | draws a key | queue pair | endpoint |
//! | accelerator: [`Nic::accept`] | states its address, and expects a guest | connects | connects |
//! | frontend: [`Half::connect`] | connects, proves the key | connects | exchanges hellos |
//!
//! The control session carries an [`End`] each way. Its text is the fabric's own.

use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use crate::{Endpoint, Link, OpenError, Region, wire::End};

/// The future of a link.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Link, OpenError>> + Send>>;

/// Number and epoch of a connection within its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    /// Number of the connection.
    pub connection: u16,
    /// Epoch, from 1.
    pub epoch: u32,
}

/// Allocates that many bytes of a GPU's memory for slots, or says why it cannot.
pub type DeviceSlots<'a> = dyn Fn(usize) -> Result<Arc<Region>, String> + 'a;

/// A NIC that is open and makes connections. Calls may block while a driver or provider works, so
/// the caller's thread must not serve sessions or samples.
pub trait Nic: fmt::Debug + Send + Sync {
    /// Name of the fabric in [`End::fabric`].
    fn fabric(&self) -> &'static str;

    /// Checks that `bytes`, the slots of all connections of this node, can be had and locked.
    ///
    /// # Errors
    /// [`OpenError::Local`] names the limit and the remedy.
    fn check_memory(&self, bytes: usize) -> Result<(), OpenError> {
        let _ = bytes;
        Ok(())
    }

    /// Checks what a connection with this endpoint needs on this node. Sends nothing.
    ///
    /// # Errors
    /// As a run would report it.
    fn check(&self, endpoint: Endpoint) -> Result<(), OpenError> {
        let which = Which {
            connection: 0,
            epoch: 1,
        };
        self.prepare(which, endpoint).map(drop)
    }

    /// Registers the memory of samples for as long as the NIC is open.
    ///
    /// # Errors
    /// The memory cannot be registered.
    fn keep(&self, sources: &[Arc<Region>]) -> Result<(), OpenError> {
        let _ = sources;
        Ok(())
    }

    /// Makes the frontend's half of a connection.
    ///
    /// # Errors
    /// [`OpenError`] of the step that failed; everything made until then is released.
    fn prepare(&self, which: Which, endpoint: Endpoint) -> Result<Box<dyn Half>, OpenError>;

    /// Makes the accelerator's end of a connection that a frontend with `end` requests. The
    /// frontend's session came to this node's address `reached`.
    ///
    /// # Errors
    /// [`OpenError::Refused`] names what is wrong with the frontend's end.
    fn accept(&self, endpoint: Endpoint, end: &str, reached: IpAddr)
    -> Result<Accepted, OpenError>;

    /// Memory of GPU `gpu` for slots that this NIC writes; `None`: the slots lie in host memory.
    fn device_slots(
        &self,
        gpu: Option<u32>,
        bytes: usize,
        make: &DeviceSlots<'_>,
    ) -> Option<Arc<Region>> {
        let _ = (gpu, bytes, make);
        None
    }

    /// Puts later slots for GPU `gpu` into host memory, because of `why`.
    fn no_device_slots(&self, gpu: Option<u32>, why: &str) {
        let _ = (gpu, why);
    }
}

/// A frontend's half of a connection, before the accelerator has granted it.
pub trait Half: fmt::Debug + Send {
    /// Description of this half for the accelerator.
    fn end(&self) -> String;

    /// Connects to the accelerator's end within `deadline`.
    fn connect(self: Box<Self>, end: String, deadline: Duration) -> Connecting;
}

/// Secret of one connection and epoch; its `Debug` output does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ConnectionSecret {
    /// Random key, valid for one connection and epoch only.
    pub key: [u8; 32],
    /// The granted address, to which the frontend connects.
    pub address: SocketAddr,
}

impl fmt::Debug for ConnectionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionSecret({})", self.address)
    }
}

/// An accelerator's end of a connection.
#[derive(Debug)]
pub struct Accepted {
    /// Description of the end for the frontend.
    pub end: String,
    /// What the end waits for.
    pub made: Made,
}

/// What an accelerator's end of a connection waits for.
#[derive(Debug)]
pub enum Made {
    /// Nothing: the link is there.
    Link(Link),
    /// The frontend connects to a data port, and must prove this secret.
    Awaited(ConnectionSecret),
}

/// Reads the text of an end of `fabric`.
pub(crate) fn read<T: serde::de::DeserializeOwned>(
    fabric: &'static str,
    end: &str,
) -> Result<T, OpenError> {
    serde_json::from_str(end).map_err(|e| {
        OpenError::Refused(format!(
            "the peer's end of a connection over `{fabric}` makes no sense: {e}"
        ))
    })
}

/// The text of an end.
pub(crate) fn write(end: &impl serde::Serialize) -> String {
    serde_json::to_string(end).expect("plain fields")
}

impl dyn Nic {
    /// Checks that a peer's end is of this fabric, and returns its text.
    ///
    /// # Errors
    /// The name of the peer's fabric.
    pub fn end_of<'a>(&self, end: &'a End) -> Result<&'a str, &'a str> {
        match end.fabric == self.fabric() {
            true => Ok(&end.end),
            false => Err(&end.fabric),
        }
    }
}
