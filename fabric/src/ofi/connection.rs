//! The life of an endpoint: opened with its window, connected to its peer, warmed up, closed.
//!
//! ```text
//!   frontend                                       accelerator
//!   OfiConnection::prepare
//!   open   { provider, address, form, slots } ---> prepare, accept: knows the peer
//!   dial: knows the peer <------------------------ opened { provider, address, form, slots }
//!   hello ------------------------- over the NIC ->
//!                                  <- over the NIC answer
//!   start ---------------------------------------> samples
//! ```

use std::{fmt, sync::Arc};

use ofi::{Depths, Endpoint as Raw, RemoteRegion};

use super::{
    OfiCfgs, OfiEnd, OfiForm, OfiRegion, OfiResources,
    cfgs::{EACH, SPARE},
    rx::OfiRx,
    shared::Shared,
    tx::{OfiTx, Staging},
};
use crate::{
    Broken, Endpoint, Link, OpenError, Region,
    nic::{CELL_BYTES, covers, ofi_memory, random, unfit},
};

/// Longest address in bytes, in any provider's format.
const MAX_ADDRESS: usize = 256;

/// Length of the first message in bytes, where the connection verifies lengths.
const HELLO: usize = 12;

/// Draws of a random key before a key collision becomes an error.
const DRAWS: usize = 8;

/// `FI_ENOKEY`: the key is already in use.
const NO_KEY: i32 = libc::ENOKEY;

/// An open endpoint without a known peer.
pub struct OfiConnection {
    raw: Raw,
    end: OfiEnd,
    cells: Option<Arc<Region>>,
    staging: Staging,
    endpoint: Endpoint,
    cfgs: OfiCfgs,
    resources: Arc<OfiResources>,
}

impl OfiConnection {
    /// Opens an endpoint, registers the window for the peer's writes, and posts receives if needed.
    ///
    /// # Errors
    /// [`OpenError`] of the first step that fails. Everything opened until then is released.
    pub fn prepare(
        resources: &Arc<OfiResources>,
        endpoint: Endpoint,
        cfgs: &OfiCfgs,
    ) -> Result<Self, OpenError> {
        let device = resources.device();
        let form = device.form();
        let staging = Staging::new(cfgs.writes, cfgs.inline_bytes, &device.near().nodes)?;
        let mut sources = vec![resources.source(staging.region())?];
        for region in &endpoint.sources {
            sources.push(resources.source(region)?);
        }
        let depths = Depths {
            sends: EACH * cfgs.writes + SPARE,
            receives: cfgs.receives,
            completions: cfgs.completions,
        };
        let mut raw = device
            .near()
            .run(|| Raw::open(resources.domain(), sources, depths))?;
        let window = &endpoint.window;
        let slots = (window.slot_offset(0), window.slots() * window.stride());
        let slots = expose(&mut raw, window.region(), slots)?;
        let cells = match form {
            OfiForm::Cell => {
                let bytes = window.slots() * CELL_BYTES;
                let region = Arc::new(Region::on_nodes(bytes, &device.near().nodes)?);
                let cells = expose(&mut raw, &region, (0, bytes))?;
                Some((region, cells))
            }
            _ => None,
        };
        for receive in 0..cfgs.receives {
            raw.receive(receive).map_err(|e| {
                let problem = format!("posting {} receives: {e}", cfgs.receives);
                OpenError::setting(device.name(), "slots", problem)
            })?;
        }
        let end = OfiEnd {
            provider: device.info().provider().to_owned(),
            address: hex::encode(raw.address()?),
            form,
            slots: region(slots),
            cells: cells.as_ref().map(|(_, r)| region(*r)),
        };
        Ok(OfiConnection {
            raw,
            end,
            cells: cells.map(|(region, _)| region),
            staging,
            endpoint,
            cfgs: cfgs.clone(),
            resources: resources.clone(),
        })
    }

    /// This end's address, keys and form, for the peer to connect.
    pub fn end(&self) -> &OfiEnd {
        &self.end
    }

    /// Connects to the peer, which sends the first message. Post nothing before that message comes.
    ///
    /// # Errors
    /// [`OpenError::Refused`] names the field, [`OpenError::Local`] the failed call.
    pub fn accept(self, peer: &OfiEnd) -> Result<Link, OpenError> {
        Ok(self.dial(peer)?.link)
    }

    /// Connects to a peer that has already accepted this end.
    ///
    /// # Errors
    /// As [`OfiConnection::accept`].
    pub fn dial(self, peer: &OfiEnd) -> Result<Dialling, OpenError> {
        let e = &self.endpoint;
        let mine = &self.end;
        if peer.provider != mine.provider {
            let wanted = format!(
                "and `ofi: {}` is this end's: both must be the same",
                mine.provider
            );
            return Err(unfit("provider", &peer.provider, wanted));
        }
        if peer.form != mine.form {
            let wanted = format!("this end's is {}: the same libfabric is needed", mine.form);
            return Err(unfit("form", peer.form, wanted));
        }
        let address = hex::decode(&peer.address).unwrap_or_default();
        if address.is_empty() || address.len() > MAX_ADDRESS {
            let wanted = format!("1 to {MAX_ADDRESS} bytes in hexadecimal are an address");
            return Err(unfit("address", &peer.address, wanted));
        }
        let slots = target("slots.length", &peer.slots, e.peer_slots, e.peer_stride)?;
        let cells = match (mine.form, &peer.cells) {
            (OfiForm::Cell, Some(c)) => Some(target("cells.length", c, e.peer_slots, CELL_BYTES)?),
            (OfiForm::Cell, None) => {
                return Err(unfit("cells", "missing", "this form needs them"));
            }
            _ => None,
        };
        self.raw.introduce(&address)?;
        let hello = match mine.form {
            OfiForm::Completion => HELLO.min(e.peer_stride),
            _ => 0,
        };
        let words = self.raw.words(&address);
        let shared = Shared::new(
            self.raw,
            slots,
            cells,
            self.cfgs.writes,
            hello as u32,
            self.cfgs.receives,
            self.resources,
        );
        let rx = OfiRx::new(shared.clone(), self.endpoint.window.clone(), self.cells)?;
        let tx = OfiTx::new(
            shared.clone(),
            self.endpoint,
            self.staging,
            self.cfgs.linger,
        );
        Ok(Dialling {
            link: Link {
                tx: Box::new(tx),
                rx: Box::new(rx),
            },
            shared,
            peer: words,
            said: false,
        })
    }
}

/// A connection to a known peer during its warm-up.
#[derive(Debug)]
pub struct Dialling {
    link: Link,
    shared: Arc<Shared>,
    peer: String,
    said: bool,
}

impl Dialling {
    /// Sends the first message and polls for its answer. Returns true once the answer has arrived.
    /// Never blocks: call it until a deadline.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if the connection broke.
    pub fn step(&mut self) -> Result<bool, OpenError> {
        self.said = self.said || self.shared.say_hello();
        let mut queue = self.shared.queue();
        self.shared.progress(&mut queue);
        drop(queue);
        match self.shared.broken() {
            Some(cause) => Err(self.not_warm(cause)),
            None => Ok(self.shared.is_warm()),
        }
    }

    /// Whether the warm-up is over and the connection is not broken.
    pub fn is_up(&self) -> bool {
        self.shared.is_warm() && self.shared.broken().is_none()
    }

    /// The error if no answer has come within `after`.
    pub fn too_late(&self, after: std::time::Duration) -> OpenError {
        let ms = after.as_millis();
        self.not_warm(&Broken::Silent(format!("no answer within {ms} ms")))
    }

    fn not_warm(&self, cause: &Broken) -> OpenError {
        let provider = self.shared.resources.device().info().provider();
        let peer = &self.peer;
        OpenError::Refused(format!(
            "{provider}: no message has crossed to {peer}: {cause}"
        ))
    }

    /// Returns the connection, which is up once [`Dialling::step`] has returned true.
    pub fn link(self) -> Link {
        self.link
    }
}

/// Registers `len` bytes at `offset` for the peer under a random unused key.
fn expose(
    raw: &mut Raw,
    region: &Arc<Region>,
    (offset, len): (usize, usize),
) -> Result<RemoteRegion, OpenError> {
    for draw in 1.. {
        let memory = ofi_memory(region, offset, len)?;
        match raw.expose(memory, random("random key")?) {
            Err(ofi::Error::Call { errno: NO_KEY, .. }) if draw < DRAWS => {}
            other => return Ok(other?),
        }
    }
    unreachable!("the last draw returns")
}

fn region(r: RemoteRegion) -> OfiRegion {
    OfiRegion {
        address: r.addr,
        length: r.len,
        key: r.key,
    }
}

fn target(
    field: &'static str,
    r: &OfiRegion,
    slots: usize,
    stride: usize,
) -> Result<RemoteRegion, OpenError> {
    covers(field, (r.address, r.length), slots, stride)?;
    Ok(RemoteRegion {
        addr: r.address,
        len: r.length,
        key: r.key,
    })
}

impl fmt::Debug for OfiConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfiConnection(of {:?})", self.resources.device())
    }
}
