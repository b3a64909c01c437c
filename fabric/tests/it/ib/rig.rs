//! Links between two devices: those of `QDL_RDMA_DEVICES`, or two of the in-process provider.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fabric::{
    Endpoint, Link,
    ib::{IbCfgs, IbConnection, IbDevice, IbKeys, IbResources, Traffic},
    os::{Near, lock},
};

use super::cable::Disturbed;
use crate::conformance;

pub use fabric::testkit::{assert_has, endpoint, eventually, next, next_broken, post};

pub type Change = fn(&mut IbKeys);

/// Limit for an event of a real device, in an emulated machine.
pub const DEVICE_PATIENCE: Duration = Duration::from_secs(60);

/// The two real devices, if the environment names them.
fn named() -> Option<[String; 2]> {
    let names = std::env::var("QDL_RDMA_DEVICES").ok()?;
    let (one, two) = names
        .split_once(',')
        .expect("two names with a comma between");
    Some([one, two].map(str::to_owned))
}

/// Ends the disturbance that an earlier test may have left on the cable of real devices.
fn settle() {
    if named().is_some() {
        Disturbed::no_more();
    }
}

/// Two devices, opened for one test, so that tests share neither events nor counters.
pub struct Pair {
    pub keys: [IbKeys; 2],
    pub resources: [Arc<IbResources>; 2],
}

impl Pair {
    pub fn open(change: impl Fn(&mut IbKeys)) -> Self {
        let devices = named().unwrap_or(["stub0", "stub1"].map(str::to_owned));
        let keys = devices.map(|d| {
            let mut keys = IbKeys::new(&d);
            change(&mut keys);
            keys
        });
        let resources = [0, 1].map(|i| {
            let device = IbDevice::open(&keys[i], &Near::default());
            IbResources::new(device.expect("the device")).expect("a domain")
        });
        Pair { keys, resources }
    }

    pub fn prepare(&self, i: usize, endpoint: &Endpoint, slots: usize) -> IbConnection {
        let limits = self.resources[i].device().limits().clone();
        let traffic = Traffic {
            slots,
            ..Traffic::of(endpoint)
        };
        let mut cfgs = IbCfgs::resolve(&self.keys[i], &limits, traffic).expect("within limits");
        cfgs.linger = Duration::from_secs(2);
        IbConnection::prepare(&self.resources[i], endpoint.clone(), &cfgs).expect("prepared")
    }

    pub fn link(&self, a: &Endpoint, b: &Endpoint) -> (Link, Link) {
        let slots = a.window.slots().max(b.window.slots());
        let (ha, hb) = (self.prepare(0, a, slots), self.prepare(1, b, slots));
        let (mut ea, mut eb) = (ha.end(), hb.end());
        // Some cases have a sender that assumes a larger window than the peer has.
        for e in [&mut ea, &mut eb] {
            e.slots.length = 1 << 30;
            e.cells.length = 1 << 30;
        }
        let la = ha.connect(&eb).expect("connected");
        (la, hb.connect(&ea).expect("connected"))
    }
}

/// The fabric under the conformance suite.
pub struct Ib(pub Change);

impl conformance::Fabric for Ib {
    fn pair(&self, a: Endpoint, b: Endpoint) -> (Link, Link) {
        settle();
        Pair::open(self.0).link(&a, &b)
    }

    fn looks_before_bytes_land(&self) -> bool {
        false
    }

    fn fills_up_unread(&self) -> bool {
        false
    }

    fn exchanges(&self) -> usize {
        let given = std::env::var("QDL_EXCHANGES").ok();
        given.and_then(|n| n.parse().ok()).unwrap_or(4000)
    }

    fn patience(&self) -> Duration {
        DEVICE_PATIENCE
    }
}

/// Serialises tests: some count the events of a shared device, some pull its cable.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = lock(&ALONE);
    settle();
    alone
}
