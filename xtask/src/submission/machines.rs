//! The two machines of a rehearsal: network namespaces with a cable between them, or, where none
//! can be made, this machine over loopback.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::process::run_quietly;
use crate::test::namespaces;

/// Enough for `ip` on a machine that has other work.
const SOON: Duration = Duration::from_secs(60);

/// Which of the two.
#[derive(Clone, Copy)]
pub enum Side {
    Frontend,
    Accelerator,
}

/// See the module. Namespaces go when this does.
pub struct Machines {
    /// None: loopback.
    names: Option<[String; 2]>,
}

fn ip(arguments: &[&str]) -> Result<()> {
    run_quietly("ip", Command::new("ip").args(arguments), SOON).map(|_| ())
}

impl Machines {
    /// Namespaces, or why there are none.
    pub fn new() -> Result<(Self, Option<String>)> {
        if let Some(why) = namespaces::refused() {
            return Ok((Machines { names: None }, Some(why)));
        }
        let names = ["f", "a"].map(|side| format!("qdlsub{}{side}", std::process::id()));
        let machines = Machines {
            names: Some(names.clone()),
        };
        let [near, far] = &names;
        for name in &names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let link = ["-n", near, "link", "add", "eth0", "type", "veth"];
        ip(&[&link[..], &["peer", "name", "eth0", "netns", far]].concat())?;
        for (i, name) in names.iter().enumerate() {
            let address = format!("10.96.0.{}/24", i + 1);
            ip(&["-n", name, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
        }
        Ok((machines, None))
    }

    /// The address of one of them.
    pub fn address(&self, side: Side) -> String {
        match self.names {
            Some(_) => format!("10.96.0.{}", side as usize + 1),
            None => "127.0.0.1".to_owned(),
        }
    }

    /// A program on one of them.
    pub fn command(&self, side: Side, program: &Path) -> Command {
        match &self.names {
            Some(names) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &names[side as usize]]);
                command.arg(program);
                command
            }
            None => Command::new(program),
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in self.names.iter().flatten() {
            // What is left of a namespace that was half made goes too.
            let _ = ip(&["netns", "del", name]);
        }
    }
}
