//! Two machines on one: network namespaces with cables between them. Root may make them on most
//! machines, and nobody else.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::run_quietly;

/// Enough for `ip` on a machine that has other work.
const SOON: Duration = Duration::from_secs(60);

/// Which of the two.
#[derive(Clone, Copy)]
pub enum Side {
    Frontend,
    Accelerator,
}

/// See the module. They go when this does.
pub struct Namespaces([String; 2]);

impl Namespaces {
    /// Two of them; `name` is the program's own. Interface `cableK` of either is an end of cable
    /// `K`.
    ///
    /// # Errors
    /// The machine's: as even root is refused in many a sandbox, this is how to find out.
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
            for (name, side) in self.0.iter().zip([Side::Frontend, Side::Accelerator]) {
                let address = format!("{}/24", self.address(side, k));
                call("ip", &["-n", name, "addr", "add", &address, "dev", cable])?;
                call("ip", &["-n", name, "link", "set", cable, "up"])?;
            }
        }
        call("ip", &["netns", "exec", far, "true"]).map(|_| ())
    }

    /// The namespace's name.
    pub fn name(&self, side: Side) -> &str {
        &self.0[side as usize]
    }

    /// The address of an end of a cable.
    pub fn address(&self, side: Side, cable: usize) -> String {
        format!("10.98.{cable}.{}", side as usize + 1)
    }

    /// A program inside.
    pub fn command(&self, side: Side, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(side)]);
        command.arg(program);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            // What is left of one that was half made goes too.
            let _ = call("ip", &["netns", "del", name]);
        }
    }
}

/// Runs a small program; what it writes.
pub fn call(program: &str, arguments: &[&str]) -> Result<String> {
    run_quietly(program, Command::new(program).args(arguments), SOON)
}
