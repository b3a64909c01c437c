//! Network namespaces of a test's own, joined by veth pairs: the one way to cut a path without
//! either end being told. Needs root and iproute2.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// One namespace; deleted, with its interfaces, when dropped.
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

    /// `ip` inside.
    pub fn ip(&self, arguments: &[&str]) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments);
        ip(&all);
    }

    /// A program inside; its process id is the command's.
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

/// A frontend's namespace and two accelerators', a cable to each: the frontend is 10.97.K.1 and the
/// accelerator 10.97.K.2 on cable K.
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

    /// Pulls the cable out. Nobody is told: the interface at either end goes silent.
    pub fn cut(&self, leaf: usize) {
        self.leaves[leaf].ip(&["addr", "flush", "dev", "eth0"]);
        self.leaves[leaf].ip(&["link", "set", "eth0", "down"]);
    }
}
