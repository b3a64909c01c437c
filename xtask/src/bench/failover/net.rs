//! Rails of the measurement's own: two network namespaces joined by a veth pair for each rail and
//! one for the control plane, the rails shaped by tbf at both ends.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::{on_path, run_quietly};

/// How long a small program may take.
const SOON: Duration = Duration::from_secs(20);
/// For links to come up.
const LINK: Duration = Duration::from_secs(10);
/// Bytes that a token bucket holds. A packet larger than its bucket would be cut by the kernel.
const BURST: &str = "128kb";
/// Bytes that may wait for tokens: more than all connections
/// of a rail have in flight, so that nothing is dropped.
const QUEUE: &str = "8mb";

/// See the module.
pub struct Rails {
    names: [String; 2],
    rails: usize,
}

/// Which of the two namespaces.
#[derive(Clone, Copy)]
pub enum Side {
    Frontend,
    Accelerator,
}

fn call(program: &str, arguments: &[&str]) -> Result<String> {
    run_quietly(program, Command::new(program).args(arguments), SOON)
}

impl Rails {
    /// `rails` of them, at `mbit` each, with this congestion control.
    pub fn new(rails: usize, mbit: u32, congestion: &str) -> Result<Self> {
        // SAFETY: no arguments, no memory.
        let root = unsafe { libc::geteuid() } == 0;
        ensure!(
            root && on_path("ip") && on_path("tc"),
            "network namespaces and shaped links take root and iproute2 (apt-get install iproute2): run this as root"
        );
        let names = ["f", "a"].map(|side| format!("qdlrails{}{side}", std::process::id()));
        let net = Rails { names, rails };
        for name in &net.names {
            call("ip", &["netns", "add", name])?;
            call("ip", &["-n", name, "link", "set", "lo", "up"])?;
            // Not every kernel has it per namespace; what is in
            // use then is the machine's own, and is printed.
            let set = format!("net.ipv4.tcp_congestion_control={congestion}");
            let _ = call("ip", &["netns", "exec", name, "sysctl", "-qw", &set]);
        }
        for k in 0..=rails {
            let (link, [near, far]) = (net.link(k), &net.names);
            let pair = ["type", "veth", "peer", "name", &link, "netns", far];
            call(
                "ip",
                &[&["-n", near, "link", "add", &link][..], &pair].concat(),
            )?;
            for (i, name) in net.names.iter().enumerate() {
                let address = format!("10.98.{k}.{}/24", i + 1);
                call("ip", &["-n", name, "addr", "add", &address, "dev", &link])?;
                call("ip", &["-n", name, "link", "set", &link, "up"])?;
            }
        }
        for k in 0..rails {
            net.shape(k, mbit)?;
        }
        Ok(net)
    }

    fn link(&self, k: usize) -> String {
        if k == self.rails {
            "ctl".to_owned()
        } else {
            format!("rail{k}")
        }
    }

    /// The address of one end of a rail; rail number `rails` is the control plane's.
    pub fn address(&self, side: Side, k: usize) -> String {
        format!("10.98.{k}.{}", side as usize + 1)
    }

    /// How many rails there are.
    pub fn count(&self) -> usize {
        self.rails
    }

    /// Shapes a rail to so many Mbit/s, both ways.
    pub fn shape(&self, k: usize, mbit: u32) -> Result<()> {
        let (link, rate) = (self.link(k), format!("{mbit}mbit"));
        for name in &self.names {
            let what = ["qdisc", "replace", "dev", &link, "root", "tbf"];
            let how = ["rate", &rate, "burst", BURST, "limit", QUEUE];
            call("tc", &[&["-n", name][..], &what, &how].concat())?;
        }
        Ok(())
    }

    /// Takes the link of a rail down, or up again, at the frontend's end.
    pub fn link_up(&self, k: usize, up: bool) -> Result<()> {
        let (link, state) = (self.link(k), if up { "up" } else { "down" });
        call("ip", &["-n", &self.names[0], "link", "set", &link, state])?;
        Ok(())
    }

    /// Waits until every rail's link says that it is up:
    /// the kernel tells of a change a second late.
    pub fn wait_up(&self) -> Result<()> {
        let end = Instant::now() + LINK;
        loop {
            let said = call("ip", &["-n", &self.names[0], "-br", "link", "show"])?;
            let is_up = |k: usize| {
                let link = self.link(k);
                said.lines().any(|l| {
                    let mut words = l.split_whitespace();
                    let name = words.next().and_then(|w| w.split('@').next());
                    name == Some(&link) && words.next() == Some("UP")
                })
            };
            if (0..self.rails).all(is_up) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "a link does not come up:\n{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts a rail without either end being told, or heals
    /// it: what the accelerator's end is sent goes nowhere.
    pub fn silent(&self, k: usize, silent: bool) -> Result<()> {
        let (link, address) = (self.link(k), format!("10.98.{k}.2/24"));
        let verb = if silent { "del" } else { "add" };
        call(
            "ip",
            &["-n", &self.names[1], "addr", verb, &address, "dev", &link],
        )?;
        Ok(())
    }

    /// Bytes that have left the frontend on each rail.
    pub fn bytes(&self) -> Result<Vec<u64>> {
        let files: Vec<_> = (0..self.rails)
            .map(|k| format!("/sys/class/net/{}/statistics/tx_bytes", self.link(k)))
            .collect();
        let mut arguments = vec!["netns", "exec", &self.names[0], "cat"];
        arguments.extend(files.iter().map(String::as_str));
        let text = call("ip", &arguments)?;
        let numbers = text.split_whitespace().map(str::parse);
        numbers.collect::<Result<_, _>>().context("tx_bytes")
    }

    /// The congestion control in use.
    pub fn congestion(&self) -> Result<String> {
        let name = "/proc/sys/net/ipv4/tcp_congestion_control";
        let text = call("ip", &["netns", "exec", &self.names[0], "cat", name])?;
        Ok(text.trim().to_owned())
    }

    /// A program inside.
    pub fn command(&self, side: Side, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side as usize]]);
        command.arg(program);
        command
    }
}

impl Drop for Rails {
    fn drop(&mut self) {
        for name in &self.names {
            // What is left of a namespace that was half made goes too.
            let _ = call("ip", &["netns", "del", name]);
        }
    }
}
