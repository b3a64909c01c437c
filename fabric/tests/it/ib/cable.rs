//! Disturbs or pulls the guest's cable, and restores it on drop.

use std::{process::Command, sync::Mutex, time::Duration};

use fabric::{Endpoint, Link};

use super::rig::{DEVICE_PATIENCE, Pair};
use crate::conformance;

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.is_ok_and(|s| s.success()), "{program} {arguments:?}");
}

/// Keeps the cable unplugged until it is dropped.
pub struct Pulled;

impl Pulled {
    pub fn pull() -> Self {
        run("ip", &["link", "set", "va", "down"]);
        Pulled
    }
}

impl Drop for Pulled {
    fn drop(&mut self) {
        run("ip", &["link", "set", "va", "up"]);
        // Taking the interface down removed its route.
        let route = "route replace 10.9.1.2/32 dev va src 10.9.1.1 table 101";
        run("ip", &route.split(' ').collect::<Vec<_>>());
    }
}

/// The fabric over a link that netem disturbs in both directions.
pub struct Disturbed(pub &'static [&'static str]);

/// The current arguments of netem.
static NOW: Mutex<&[&str]> = Mutex::new(&[]);

impl Disturbed {
    /// Removes the disturbance that an earlier test may have left.
    pub fn no_more() {
        Disturbed(&[]).disturb();
    }

    fn disturb(&self) {
        let mut now = NOW.lock().expect("no test panics here");
        if *now != self.0 {
            for interface in ["va", "vb"] {
                let replace = ["qdisc", "replace", "dev", interface, "root"];
                let kind: &[&str] = if self.0.is_empty() {
                    &["noqueue"]
                } else {
                    &["netem", "limit", "100000"]
                };
                run("tc", &[&replace[..], kind, self.0].concat());
            }
            *now = self.0;
        }
    }
}

impl conformance::Fabric for Disturbed {
    fn pair(&self, a: Endpoint, b: Endpoint) -> (Link, Link) {
        self.disturb();
        Pair::open(|_| {}).link(&a, &b)
    }

    fn looks_before_bytes_land(&self) -> bool {
        false
    }

    fn fills_up_unread(&self) -> bool {
        false
    }

    fn exchanges(&self) -> usize {
        100
    }

    fn patience(&self) -> Duration {
        DEVICE_PATIENCE
    }
}
