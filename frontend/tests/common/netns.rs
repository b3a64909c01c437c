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

fn ip(arguments: &[&str]) {
    let said = match Command::new("ip").args(arguments).output() {
        Ok(out) if out.status.success() => return,
        Ok(out) => String::from_utf8_lossy(&out.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    panic!("ip {}: {said}", arguments.join(" "));
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

/// Namespaces of a frontend and two accelerators, with a cable to each accelerator. On cable K the
/// frontend is 10.97.K.1 and the accelerator 10.97.K.2.
pub struct Star {
    pub hub: Namespace,
    pub leaves: [Namespace; 2],
}

impl Star {
    pub fn new() -> Self {
        let star = Star {
            hub: Namespace::new("hub"),
            leaves: [Namespace::new("a"), Namespace::new("b")],
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
            leaf.ip(&["link", "set", "eth0", "up"]);
            leaf.ip(&["route", "add", "default", "via", &format!("10.97.{k}.1")]);
        }
        star
    }

    /// Cuts the cable: packets vanish, and neither end gets an error.
    pub fn cut(&self, leaf: usize) {
        self.leaves[leaf].ip(&["addr", "flush", "dev", "eth0"]);
        self.leaves[leaf].ip(&["link", "set", "eth0", "down"]);
    }
}
