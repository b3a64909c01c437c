//! Links between two ends of a libfabric provider on this machine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fabric::os::Near;
use fabric::{
    Broken, Endpoint, Event, Link, OpenError,
    ofi::{Dialling, OfiCfgs, OfiConnection, OfiDevice, OfiForm, OfiKeys, OfiResources},
};

use crate::conformance;

pub use fabric::testkit::{PATIENCE, endpoint, eventually, post};

/// A provider, a seed for reordered arrivals, and the addresses of both ends.
#[derive(Clone, Copy)]
pub struct Provider {
    pub name: &'static str,
    pub shuffle: Option<u64>,
    pub ends: [&'static str; 2],
}

impl Provider {
    pub const fn new(name: &'static str) -> Self {
        Provider::between(name, ["127.0.0.1"; 2])
    }

    pub const fn shuffled(name: &'static str, seed: u64) -> Self {
        let shuffle = Some(seed);
        Provider {
            shuffle,
            ..Provider::new(name)
        }
    }

    pub const fn between(name: &'static str, ends: [&'static str; 2]) -> Self {
        Provider {
            name,
            shuffle: None,
            ends,
        }
    }

    fn nic_at(&self, end: usize) -> OfiKeys {
        OfiKeys {
            provider: self.name.to_owned(),
            address: self.ends[end].parse().ok(),
            ..OfiKeys::default()
        }
    }

    pub fn device(&self) -> Result<Arc<OfiDevice>, OpenError> {
        self.device_at(0)
    }

    fn device_at(&self, end: usize) -> Result<Arc<OfiDevice>, OpenError> {
        OfiDevice::shuffled(&self.nic_at(end), &Near::default(), self.shuffle)
    }

    /// The error if libfabric or the provider is missing.
    pub fn is_absent(&self) -> Option<String> {
        let text = self.device().err()?.to_string();
        let absent = ["no libfabric on this machine", "offers no provider"];
        assert!(absent.iter().any(|words| text.contains(words)), "{text}");
        Some(text)
    }

    pub fn open(&self) -> Pair {
        Pair {
            resources: [0, 1].map(|end| {
                let device = self.device_at(end).expect("the provider");
                OfiResources::new(device).expect("a domain")
            }),
        }
    }
}

/// Payloads up to this many bytes are copied by `post`: the default of a NIC's entry.
pub const INLINE_BYTES: u32 = 64;

pub struct Pair {
    pub resources: [Arc<OfiResources>; 2],
}

impl Pair {
    pub fn prepare(&self, i: usize, endpoint: &Endpoint) -> OfiConnection {
        let device = self.resources[i].device();
        let mut cfgs = OfiCfgs::resolve(device, endpoint, INLINE_BYTES).expect("within limits");
        cfgs.linger = Duration::from_secs(2);
        OfiConnection::prepare(&self.resources[i], endpoint.clone(), &cfgs).expect("prepared")
    }

    pub fn link(&self, a: &Endpoint, b: &Endpoint) -> (Link, Link) {
        let (ha, hb) = (self.prepare(0, a), self.prepare(1, b));
        let (mut ea, mut eb) = (ha.end().clone(), hb.end().clone());
        // Some cases have a sender that assumes a larger window than the peer has.
        for e in [&mut ea, &mut eb] {
            e.slots.length = 1 << 30;
            if let Some(cells) = &mut e.cells {
                cells.length = 1 << 30;
            }
        }
        let mut lb = hb.accept(&ea).expect("accepted");
        let dialling = ha.dial(&eb).expect("introduced");
        (warm(dialling, &mut lb), lb)
    }
}

/// Polls both ends until the first message is answered.
pub fn warm(mut dialling: Dialling, other: &mut Link) -> Link {
    let end = Instant::now() + PATIENCE;
    while !dialling.step().expect("on its way") {
        other.rx.poll(1, &mut |e| panic!("{e:?}"));
        assert!(Instant::now() < end, "nothing crosses");
    }
    dialling.link()
}

impl conformance::Fabric for Provider {
    fn pair(&self, a: Endpoint, b: Endpoint) -> (Link, Link) {
        self.open().link(&a, &b)
    }

    fn absent(&self) -> Option<String> {
        self.is_absent()
    }

    fn keeps_order(&self) -> bool {
        self.device().expect("the provider").keeps_order()
    }

    fn takes_parts(&self) -> bool {
        let device = self.device().expect("the provider");
        device.keeps_order() && device.form() != OfiForm::Cell
    }

    fn looks_before_bytes_land(&self) -> bool {
        false
    }

    fn fills_up_unread(&self) -> bool {
        false
    }

    /// Fewer exchanges for `sockets`, which uses a slow progress thread, and for `verbs`, which
    /// runs in an emulated machine.
    fn exchanges(&self) -> usize {
        match self.name {
            "sockets" => 100,
            "verbs;ofi_rxm" => 300,
            _ => 4000,
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}

/// The next event of `link`, while `other` makes progress too.
pub fn next(link: &mut Link, other: &mut Link) -> Event {
    let mut got = None;
    eventually("nothing came", || {
        let _ = other.tx.flush();
        other.rx.poll(0, &mut |_| {});
        link.rx.poll(1, &mut |e| got = Some(e));
        got.is_some()
    });
    got.expect("just seen")
}

pub fn next_broken(link: &mut Link, other: &mut Link) -> Broken {
    loop {
        if let Event::Broken(b) = next(link, other) {
            return b;
        }
    }
}
