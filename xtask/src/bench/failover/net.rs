//! The measurement's rails: cables between two network namespaces, shaped by tbf at both ends. One
//! more cable carries the control plane.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::namespaces::{HostSide, Namespaces, call};

const LINK: Duration = Duration::from_secs(10);
/// Size of the token bucket. The kernel would split packets larger than the bucket.
const BURST: &str = "128kb";
/// Limit of bytes that wait for tokens: above the bytes in flight on a rail, so that tbf drops
/// none.
const QUEUE: &str = "8mb";

pub struct Rails {
    pub net: Namespaces,
    /// Number of rails; the cable of this index is the control plane's.
    pub count: usize,
}

impl Rails {
    /// Creates `count` rails of `mbit` Mbit/s each, with this congestion control.
    pub fn new(count: usize, mbit: u32, congestion: &str) -> Result<Self> {
        let net = Namespaces::new("rails", count + 1)?;
        let rails = Rails { net, count };
        for side in [HostSide::Frontend, HostSide::Accelerator] {
            // Some kernels lack this setting per namespace: then the machine's own setting applies,
            // and the caller prints it.
            let set = format!("net.ipv4.tcp_congestion_control={congestion}");
            let _ = rails.inside(side, &["sysctl", "-qw", &set]);
        }
        for k in 0..count {
            rails.shape(k, mbit)?;
        }
        Ok(rails)
    }

    fn inside(&self, side: HostSide, words: &[&str]) -> Result<String> {
        let exec = ["netns", "exec", self.net.name(side)];
        call("ip", &[&exec[..], words].concat())
    }

    pub fn shape(&self, k: usize, mbit: u32) -> Result<()> {
        let (cable, rate) = (format!("cable{k}"), format!("{mbit}mbit"));
        for side in [HostSide::Frontend, HostSide::Accelerator] {
            let what = ["tc", "qdisc", "replace", "dev", &cable, "root", "tbf"];
            let how = ["rate", &rate, "burst", BURST, "limit", QUEUE];
            self.inside(side, &[&what[..], &how].concat())?;
        }
        Ok(())
    }

    /// Takes a rail's link down or up at the frontend's end.
    pub fn link_up(&self, k: usize, up: bool) -> Result<()> {
        let (cable, state) = (format!("cable{k}"), if up { "up" } else { "down" });
        self.inside(HostSide::Frontend, &["ip", "link", "set", &cable, state])?;
        Ok(())
    }

    /// Waits until every rail's link is up: the kernel reports a change up to a second late.
    pub fn wait_up(&self) -> Result<()> {
        let end = Instant::now() + LINK;
        loop {
            let said = self.inside(HostSide::Frontend, &["ip", "-br", "link", "show", "up"])?;
            let is_up = |k: usize| {
                let cable = format!("cable{k}@");
                let line = said.lines().find(|line| line.starts_with(&cable));
                line.is_some_and(|line| line.split_whitespace().nth(1) == Some("UP"))
            };
            if (0..self.count).all(is_up) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "a link does not come up:\n{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Heals a rail, or cuts the rail silently: packets to the accelerator's end are lost, and
    /// neither end gets an error.
    pub fn set_path(&self, k: usize, works: bool) -> Result<()> {
        let cable = format!("cable{k}");
        let address = format!("{}/24", self.net.address(HostSide::Accelerator, k));
        let verb = if works { "add" } else { "del" };
        let words = ["ip", "addr", verb, &address, "dev", &cable];
        self.inside(HostSide::Accelerator, &words)?;
        Ok(())
    }

    /// Bytes that the frontend has sent on each rail.
    pub fn bytes(&self) -> Result<Vec<u64>> {
        let file = |k| format!("/sys/class/net/cable{k}/statistics/tx_bytes");
        let files: Vec<_> = (0..self.count).map(file).collect();
        let mut words = vec!["cat"];
        words.extend(files.iter().map(String::as_str));
        let text = self.inside(HostSide::Frontend, &words)?;
        let numbers = text.split_whitespace().map(str::parse);
        numbers.collect::<Result<_, _>>().context("tx_bytes")
    }

    pub fn congestion(&self) -> Result<String> {
        let name = "/proc/sys/net/ipv4/tcp_congestion_control";
        let text = self.inside(HostSide::Frontend, &["cat", name])?;
        Ok(text.trim().to_owned())
    }
}
