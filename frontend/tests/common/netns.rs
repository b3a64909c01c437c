//! Network namespaces joined by veth pairs. They can cut a path so that neither end is notified.
//! Needs root and iproute2.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

pub struct Namespace {
    name: String,
}

fn call(program: &str, arguments: &[&str]) {
    let said = match Command::new(program).args(arguments).output() {
        Ok(out) if out.status.success() => return,
        Ok(out) => String::from_utf8_lossy(&out.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    panic!("{program} {}: {said}", arguments.join(" "));
}

fn ip(arguments: &[&str]) {
    call("ip", arguments);
}

impl Namespace {
    pub fn new(role: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("qdl{}-{number}{role}", std::process::id());
        ip(&["netns", "add", &name]);
        let namespace = Namespace { name };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    pub fn ip(&self, arguments: &[&str]) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments);
        ip(&all);
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn tc(&self, arguments: &[&str]) {
        call("tc", &[&["-n", &self.name][..], arguments].concat());
    }

    /// Returns a command that runs a program inside; the command's process id is the program's.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .stderr(Stdio::null())
            .status();
    }
}

/// A frontend's namespace, and one for each accelerator with a cable between the two. On cable K
/// the frontend is 10.97.K.1 and the accelerator 10.97.K.2.
pub struct Star {
    pub hub: Namespace,
    pub leaves: Vec<Namespace>,
}

/// An address that [`Star::add_safe_address`] gives the frontend: no cable takes it down.
pub const SAFE: &str = "10.97.200.1";

/// One direction of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    ToLeaf,
    ToHub,
}

impl Star {
    /// A frontend and two accelerators.
    pub fn new() -> Self {
        Star::with_leaves(2)
    }

    /// A frontend and `leaves` accelerators.
    pub fn with_leaves(leaves: usize) -> Self {
        let roles = ["a", "b", "c"];
        let star = Star {
            hub: Namespace::new("hub"),
            leaves: roles[..leaves].iter().map(|r| Namespace::new(r)).collect(),
        };
        for (k, leaf) in star.leaves.iter().enumerate() {
            let (port, near, far) = (
                format!("port{k}"),
                format!("10.97.{k}.1/24"),
                format!("10.97.{k}.2/24"),
            );
            star.hub.ip(&[
                "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &leaf.name,
            ]);
            star.hub.ip(&["addr", "add", &near, "dev", &port]);
            star.hub.ip(&["link", "set", &port, "up"]);
            leaf.ip(&["addr", "add", &far, "dev", "eth0"]);
            star.set_link(k, true);
        }
        star
    }

    /// Cuts the cable: packets vanish, and neither end gets an error.
    pub fn cut(&self, leaf: usize) {
        self.leaves[leaf].ip(&["addr", "flush", "dev", "eth0"]);
        self.leaves[leaf].ip(&["link", "set", "eth0", "down"]);
    }

    /// Takes the accelerator's link down or up. Its address stays.
    pub fn set_link(&self, leaf: usize, up: bool) {
        let node = &self.leaves[leaf];
        node.ip(&["link", "set", "eth0", if up { "up" } else { "down" }]);
        if up {
            let gateway = format!("10.97.{leaf}.1");
            node.ip(&["route", "replace", "default", "via", &gateway]);
        }
    }

    /// Gives the frontend the address [`SAFE`].
    pub fn add_safe_address(&self) {
        let safe = format!("{SAFE}/32");
        self.hub.ip(&["addr", "add", &safe, "dev", "lo"]);
    }

    /// Prepares holes and refusals: other rules may come before those of local addresses.
    pub fn prepare_rules(&self) {
        for node in self.leaves.iter().chain([&self.hub]) {
            node.ip(&["rule", "add", "pref", "100", "lookup", "local"]);
            node.ip(&["rule", "del", "pref", "0"]);
        }
        for leaf in 0..self.leaves.len() {
            // An accelerator's address is the hub's too, where a rule leads packets to it.
            let theirs = format!("10.97.{leaf}.2/32");
            self.hub.ip(&["addr", "add", &theirs, "dev", "lo"]);
            let to = format!("10.97.{leaf}.2");
            let rule = ["rule", "add", "pref", "50", "to", &to, "lookup", "main"];
            self.hub.ip(&rule);
        }
    }

    /// Prepares delays: each cable gets a queue.
    pub fn prepare_queues(&self) {
        for leaf in 0..self.leaves.len() {
            for way in [Direction::ToLeaf, Direction::ToHub] {
                self.queue("add", leaf, way, FREE);
            }
        }
    }

    /// Drops one direction of one connection, of the port `there` at the accelerator and `here` at
    /// the frontend. No end gets an error.
    pub fn drop_packets(&self, leaf: usize, way: Direction, here: u16, there: u16) {
        let port = format!("port{leaf}");
        let (node, from, ports) = match way {
            Direction::ToLeaf => (&self.leaves[leaf], "eth0", [here, there]),
            Direction::ToHub => (&self.hub, port.as_str(), [there, here]),
        };
        let [source, destination] = ports.map(|p| p.to_string());
        node.ip(&[
            "rule",
            "add",
            "pref",
            "10",
            "iif",
            from,
            "ipproto",
            "tcp",
            "sport",
            &source,
            "dport",
            &destination,
            "blackhole",
        ]);
    }

    /// With `refuses`, the frontend's packets to this port of the accelerator are answered by a
    /// reset. The accelerator gets none of them.
    pub fn set_refusal(&self, leaf: usize, port: u16, refuses: bool) {
        let (to, port) = (format!("10.97.{leaf}.2"), port.to_string());
        // A connection of the hub with itself needs both rules for its reset. So the rule that
        // begins a refusal comes last and goes first.
        let (verb, sides) = match refuses {
            true => ("add", ["sport", "dport"]),
            false => ("del", ["dport", "sport"]),
        };
        for side in sides {
            let which = ["rule", verb, "pref", "20", "to", &to, "ipproto", "tcp"];
            self.hub
                .ip(&[&which[..], &[side, &port, "lookup", "local"]].concat());
        }
    }

    /// With `held`, packets wait in the cable's queue, but for the first 1,600 bytes.
    pub fn hold(&self, leaf: usize, way: Direction, held: bool) {
        self.queue("change", leaf, way, if held { HELD } else { FREE });
    }

    fn queue(&self, verb: &str, leaf: usize, way: Direction, [rate, burst]: [&str; 2]) {
        let port = format!("port{leaf}");
        let (node, link) = match way {
            Direction::ToLeaf => (&self.hub, port.as_str()),
            Direction::ToHub => (&self.leaves[leaf], "eth0"),
        };
        let queue = ["qdisc", verb, "dev", link, "root", "tbf", "rate", rate];
        node.tc(&[&queue[..], &["burst", burst, "limit", "8mb"]].concat());
    }
}

/// Rate and burst of a cable's queue.
const FREE: [&str; 2] = ["10gbit", "1mb"];
const HELD: [&str; 2] = ["8bit", "1600b"];
