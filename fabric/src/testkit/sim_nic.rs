//! NICs of the simulated fabric. They open connections as RDMA NICs do: the frontend's half waits
//! as an offer, which the accelerator's end takes up; the link of each end is there at once. Or as
//! TCP does: the half connects once it is granted, and the accelerator's end comes as a [`Guest`].

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    dice::Dice,
    sim::{PathCfgs, Sim},
};
use crate::{
    Accepted, Connecting, ConnectionSecret, Endpoint, Half, Link, Made, Nic, OpenError, Which,
    os::lock,
};

/// Name of the fabric.
const FABRIC: &str = "sim";

/// A connection that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The accelerator.
    pub node: usize,
    /// Number and epoch in the session with that accelerator.
    pub which: Which,
    /// The frontend's outgoing pipe; the other one has one number more.
    pub pipe: usize,
}

/// The accelerator's end of a connection that came over its data port.
#[derive(Debug)]
pub struct Guest {
    /// The accelerator.
    pub node: usize,
    /// Number and epoch in the session with that accelerator.
    pub which: Which,
    /// Key that the frontend's half has.
    pub key: [u8; 32],
    /// The accelerator's end.
    pub link: Link,
}

/// The key of a half.
fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// Draws the paths of a connection: from the frontend, and to it.
pub type Paths = dyn Fn(usize, Which) -> [(PathCfgs, Dice); 2] + Send + Sync;

#[derive(Default)]
struct State {
    next: u64,
    /// Halves without an accelerator's end. A half that was dropped leaves its offer.
    offers: BTreeMap<u64, (Which, Endpoint)>,
    /// Links that wait for their halves.
    links: BTreeMap<u64, Link>,
    /// Halves that live.
    halves: BTreeMap<u64, ()>,
    /// Granted halves that have not connected: the accelerator, and both ends.
    granted: BTreeMap<u64, (usize, Which, [Endpoint; 2])>,
    guests: Vec<Guest>,
    opened: Vec<Opened>,
}

/// The NICs of one simulation.
#[derive(Clone)]
pub struct SimNics {
    sim: Sim,
    paths: Arc<Paths>,
    has_ports: bool,
    state: Arc<Mutex<State>>,
}

impl SimNics {
    /// NICs whose connections have these paths. With `has_ports`, they come over data ports.
    pub fn new(sim: Sim, paths: Arc<Paths>, has_ports: bool) -> Self {
        SimNics {
            sim,
            paths,
            has_ports,
            state: Arc::default(),
        }
    }

    /// A NIC of node `node`, whose connections queue `send_depth` writes.
    pub fn nic(&self, node: usize, send_depth: usize) -> SimNic {
        SimNic {
            nics: self.clone(),
            node,
            send_depth,
        }
    }

    /// Connections that were opened since the last call.
    pub fn take_opened(&self) -> Vec<Opened> {
        std::mem::take(&mut self.state().opened)
    }

    /// Connections that came over data ports since the last call.
    pub fn take_guests(&self) -> Vec<Guest> {
        std::mem::take(&mut self.state().guests)
    }

    /// Makes both ends of a connection: of the frontend, and of the accelerator `node`.
    fn pair(&self, node: usize, which: Which, [near, far]: [Endpoint; 2]) -> (Link, Link) {
        let (near, far, pipe) = self.sim.pair(near, far, (self.paths)(node, which));
        let mut state = self.state();
        state.opened.push(Opened { node, which, pipe });
        (near, far)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A NIC of the simulated fabric.
pub struct SimNic {
    nics: SimNics,
    node: usize,
    send_depth: usize,
}

impl fmt::Debug for SimNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimNic(node {})", self.node)
    }
}

impl Nic for SimNic {
    fn fabric(&self) -> &'static str {
        FABRIC
    }

    fn prepare(&self, which: Which, endpoint: Endpoint) -> Result<Box<dyn Half>, OpenError> {
        let mut state = self.nics.state();
        state.next += 1;
        let number = state.next;
        state.offers.insert(number, (which, endpoint));
        state.halves.insert(number, ());
        Ok(Box::new(SimHalf {
            nics: self.nics.clone(),
            number,
        }))
    }

    fn accept(
        &self,
        mut endpoint: Endpoint,
        end: &str,
        reached: IpAddr,
    ) -> Result<Accepted, OpenError> {
        let unknown = || OpenError::Refused(format!("no half {end} waits"));
        let number: u64 = end.parse().map_err(|_| unknown())?;
        let offer = self.nics.state().offers.remove(&number);
        let (which, near) = offer.ok_or_else(unknown)?;
        endpoint.send_depth = self.send_depth;
        let ends = [near, endpoint];
        if self.nics.has_ports {
            let granted = (self.node, which, ends);
            self.nics.state().granted.insert(number, granted);
            return Ok(Accepted {
                end: number.to_string(),
                made: Made::Awaited(ConnectionSecret {
                    key: key(number),
                    address: (reached, 0).into(),
                }),
            });
        }
        let (near, far) = self.nics.pair(self.node, which, ends);
        let mut state = self.nics.state();
        // A half that was dropped has let go of its end of the link.
        let unwanted = match state.halves.contains_key(&number) {
            true => state.links.insert(number, near),
            false => Some(near),
        };
        drop(state);
        drop(unwanted);
        Ok(Accepted {
            end: number.to_string(),
            made: Made::Link(far),
        })
    }
}

struct SimHalf {
    nics: SimNics,
    number: u64,
}

impl fmt::Debug for SimHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimHalf({})", self.number)
    }
}

impl Half for SimHalf {
    fn end(&self) -> String {
        self.number.to_string()
    }

    fn connect(self: Box<Self>, end: String, _: Duration) -> Connecting {
        Box::pin(async move {
            let granted = self.nics.state().granted.remove(&self.number);
            if let Some((node, which, ends)) = granted {
                let (near, link) = self.nics.pair(node, which, ends);
                self.nics.state().guests.push(Guest {
                    node,
                    which,
                    key: key(self.number),
                    link,
                });
                return Ok(near);
            }
            let link = self.nics.state().links.remove(&self.number);
            link.ok_or_else(|| OpenError::Refused(format!("no link of {end} waits")))
        })
    }
}

impl Drop for SimHalf {
    fn drop(&mut self) {
        let mut state = self.nics.state();
        state.halves.remove(&self.number);
        let link = state.links.remove(&self.number);
        let granted = state.granted.remove(&self.number);
        drop(state);
        drop((link, granted));
    }
}
