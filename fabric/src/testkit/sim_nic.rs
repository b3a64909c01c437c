//! NICs of the simulated fabric: they open connections as RDMA NICs do. The frontend's half waits
//! as an offer, which the accelerator's end takes up; the link of each end is there at once.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    dice::Dice,
    sim::{PathCfgs, Sim},
};
use crate::{Accepted, Connecting, Endpoint, Half, Link, Made, Nic, OpenError, Which};

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
    opened: Vec<Opened>,
}

/// The NICs of one simulation.
#[derive(Clone)]
pub struct SimNics {
    sim: Sim,
    paths: Arc<Paths>,
    state: Arc<Mutex<State>>,
}

impl SimNics {
    /// NICs whose connections have these paths.
    pub fn new(sim: Sim, paths: Arc<Paths>) -> Self {
        SimNics {
            sim,
            paths,
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn accept(&self, mut endpoint: Endpoint, end: &str, _: IpAddr) -> Result<Accepted, OpenError> {
        let unknown = || OpenError::Refused(format!("no half {end} waits"));
        let number: u64 = end.parse().map_err(|_| unknown())?;
        let offer = self.nics.state().offers.remove(&number);
        let (which, near) = offer.ok_or_else(unknown)?;
        endpoint.send_depth = self.send_depth;
        let paths = (self.nics.paths)(self.node, which);
        let (near, far, pipe) = self.nics.sim.pair(near, endpoint, paths);
        let mut state = self.nics.state();
        state.opened.push(Opened {
            node: self.node,
            which,
            pipe,
        });
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
        drop(state);
        drop(link);
    }
}
