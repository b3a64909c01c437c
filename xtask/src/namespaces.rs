//! Two network namespaces with cables between them, in place of two machines. Creating them needs
//! root, and a machine that permits namespaces.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use launch::run_quietly;

/// Limit for a call of `ip` on a busy machine.
const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
pub enum HostSide {
    Frontend,
    Accelerator,
}

/// Two network namespaces, deleted on drop.
pub struct Namespaces([String; 2]);

impl Namespaces {
    /// Creates both namespaces. `name` is part of their names. In both, interface `cableK` is an
    /// end of cable `K`.
    pub fn new(name: &str, cables: usize) -> Result<Self> {
        let names = ["f", "a"].map(|side| format!("qdl{name}{}{side}", std::process::id()));
        let made = Namespaces(names);
        made.make(cables).context(
            "no network namespaces with a cable: they take root and iproute2 \
             (apt-get install iproute2)",
        )?;
        Ok(made)
    }

    fn make(&self, cables: usize) -> Result<()> {
        let [near, far] = &self.0;
        for name in &self.0 {
            call("ip", &["netns", "add", name])?;
            call("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        for k in 0..cables {
            let cable = &format!("cable{k}");
            let link = ["-n", near, "link", "add", cable, "type", "veth"];
            let peer = ["peer", "name", cable, "netns", far];
            call("ip", &[&link[..], &peer].concat())?;
            for (name, side) in self
                .0
                .iter()
                .zip([HostSide::Frontend, HostSide::Accelerator])
            {
                let address = format!("{}/24", self.address(side, k));
                call("ip", &["-n", name, "addr", "add", &address, "dev", cable])?;
                call("ip", &["-n", name, "link", "set", cable, "up"])?;
            }
        }
        call("ip", &["netns", "exec", far, "true"]).map(|_| ())
    }

    pub fn name(&self, side: HostSide) -> &str {
        &self.0[side as usize]
    }

    /// IPv4 address of a side's end of a cable.
    pub fn address(&self, side: HostSide, cable: usize) -> String {
        format!("10.98.{cable}.{}", side as usize + 1)
    }

    /// A command that runs a program inside a namespace.
    pub fn command(&self, side: HostSide, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(side)]);
        command.arg(program);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            // Also deletes a namespace that was created only in part.
            let _ = call("ip", &["netns", "del", name]);
        }
    }
}

/// Runs a short program and returns its output.
pub fn call(program: &str, arguments: &[&str]) -> Result<String> {
    run_quietly(program, Command::new(program).args(arguments), SOON)
}
