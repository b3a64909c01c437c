//! What joins the programs: cables between network namespaces, or two RDMA devices.

use std::{env, fmt::Write, path::Path, process::Command};

use world::plan::{Event, Kind, Shape};

use crate::{
    common::netns::{SAFE, Star},
    plans::Connections,
    strike::{CONTROL, DATA},
};

/// What joins the programs.
pub enum Wires {
    /// TCP over cables; a namespace for each program.
    Cables(Star),
    /// Queue pairs between the device of the frontend and that of all accelerators, in the
    /// namespace of this process.
    Devices([String; 2]),
}

/// The RDMA devices of `QDL_RDMA_DEVICES`.
fn devices() -> Option<[String; 2]> {
    let names = env::var("QDL_RDMA_DEVICES").ok()?;
    let (one, two) = names.split_once(',').expect("two devices");
    Some([one, two].map(str::to_owned))
}

/// Whether a fault can be made. Others than those of a process or of a session need cables or
/// data sockets.
pub fn can_make(e: &Event, shape: &Shape) -> bool {
    let is_possible = match e.kind {
        Kind::Stop | Kind::Leave | Kind::Abort => true,
        Kind::Cut => e.on.is_multiple_of(shape.all()),
        _ => false,
    };
    is_possible || devices().is_none()
}

/// Times of deadlines, as a multiple of those over TCP: devices are those of an emulated machine.
pub fn slowness() -> u32 {
    if devices().is_some() { 3 } else { 1 }
}

impl Wires {
    /// The wires of this process, for so many accelerators.
    pub fn new(servers: usize) -> Self {
        match devices() {
            Some(names) => Wires::Devices(names),
            None => Wires::Cables(Star::with_leaves(servers)),
        }
    }

    /// The cables.
    pub fn star(&self) -> &Star {
        match self {
            Wires::Cables(star) => star,
            Wires::Devices(_) => panic!("this fault needs a cable"),
        }
    }

    /// Names of the namespaces.
    pub fn namespaces(&self) -> Vec<String> {
        match self {
            Wires::Cables(star) => {
                let all = star.leaves.iter().chain([&star.hub]);
                all.map(|n| n.name().to_owned()).collect()
            }
            Wires::Devices(_) => Vec::new(),
        }
    }

    /// A command that runs a program of accelerator `k`, or of the frontend.
    pub fn command(&self, k: Option<usize>, program: &Path) -> Command {
        match (self, k) {
            (Wires::Cables(star), Some(k)) => star.leaves[k].command(program),
            (Wires::Cables(star), None) => star.hub.command(program),
            (Wires::Devices(_), _) => Command::new(program),
        }
    }

    /// Control port of accelerator `k`.
    pub fn control_port(&self, k: usize) -> u16 {
        match self {
            Wires::Cables(_) => CONTROL,
            Wires::Devices(_) => CONTROL + k as u16,
        }
    }

    /// Control address of accelerator `k`.
    pub fn control(&self, k: usize) -> String {
        let port = self.control_port(k);
        match self {
            Wires::Cables(_) => format!("10.97.{k}.2:{port}"),
            Wires::Devices(_) => format!("127.0.0.1:{port}"),
        }
    }

    /// The NIC of accelerator `k`, as YAML.
    pub fn accelerator_nic(&self, k: usize) -> String {
        match self {
            Wires::Cables(_) => format!("{{listen: \"10.97.{k}.2:{DATA}\"}}"),
            Wires::Devices([_, two]) => format!("{{device: {two}, timeout: {TIMEOUT}}}"),
        }
    }

    /// NICs of the frontend, as lines of YAML.
    pub fn frontend_nics(&self, shape: &Shape) -> String {
        let (each, slots) = (shape.each, shape.slots);
        let mut text = "nics:\n".to_owned();
        for address in [SAFE, "10.97.0.1"].iter().take(shape.nics as usize) {
            let keys = match self {
                Wires::Cables(_) => format!("address: {address}, connections: {each}"),
                Wires::Devices([one, _]) => {
                    format!("device: {one}, queue_pairs: {each}, timeout: {TIMEOUT}")
                }
            };
            writeln!(text, "  - {{{keys}, slots: {slots}}}").expect("a string");
        }
        text
    }
}

/// An emulated machine delays acknowledgements for long; by default that counts as a loss.
const TIMEOUT: u8 = 18;
