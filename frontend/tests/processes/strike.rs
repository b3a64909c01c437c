//! Makes faults, and ends those that last for a time.

use std::{
    collections::BTreeSet,
    io::Write,
    net::{IpAddr, SocketAddr, TcpStream},
};

use world::plan::{Event, Kind, Plan};

use crate::{
    common::{Running, netns::Direction, sockets},
    plans::Connections,
    wires::Wires,
};

/// Ports of each accelerator.
pub const CONTROL: u16 = 7400;
pub const DATA: u16 = 7410;

/// A fault that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lasting {
    /// A process is stopped.
    Stopped(usize),
    /// An accelerator's link is down.
    Down(usize),
    /// A port of an accelerator refuses.
    Refused(usize, u16),
    /// A direction of a cable holds its frames.
    Held(usize, Direction),
}

/// The signal that ended an accelerator.
pub type Left = Option<i32>;

/// What faults hit.
pub struct Nodes<'s> {
    pub plan: &'s Plan,
    pub wires: &'s Wires,
    pub frontend: Running,
    pub accelerators: Vec<(Running, Left)>,
    pub lasting: BTreeSet<Lasting>,
    /// Paths that carry nothing more, with the port at the frontend.
    pub dropped: BTreeSet<(usize, Direction, u16)>,
    pub is_aborted: bool,
}

impl Nodes<'_> {
    /// Makes a fault. Returns the fault if it lasts, and whether it hit anything.
    pub fn strike(&mut self, e: &Event) -> (Option<Lasting>, bool) {
        let on = e.on as usize;
        let lasting = match e.kind {
            Kind::Stop => Some(Lasting::Stopped(on)),
            Kind::Away => Some(Lasting::Down(on)),
            Kind::Busy => Some(Lasting::Refused(on / 2, [CONTROL, DATA][on % 2])),
            Kind::Delay => Some(Lasting::Held(on / 2, way(e.on))),
            _ => None,
        };
        if let Some(lasting) = lasting {
            let is_new = self.lasting.insert(lasting);
            if is_new {
                self.set(lasting, true);
            }
            return (is_new.then_some(lasting), is_new);
        }
        let is_hit = match e.kind {
            Kind::Leave => self.end_accelerator(on, e.n),
            Kind::Abort => {
                self.is_aborted = true;
                self.frontend.signal(libc::SIGINT);
                true
            }
            Kind::Cut | Kind::Silent => self.hit_connection(e, e.on, Direction::ToLeaf),
            _ => self.hit_connection(e, e.on / 2, way(e.on)),
        };
        (None, is_hit)
    }

    /// Ends a lasting fault.
    pub fn mend(&mut self, lasting: Lasting) {
        if self.lasting.remove(&lasting) {
            self.set(lasting, false);
        }
    }

    /// Ends all lasting faults.
    pub fn mend_all(&mut self) {
        while let Some(lasting) = self.lasting.first().copied() {
            self.mend(lasting);
        }
    }

    fn set(&mut self, lasting: Lasting, is_on: bool) {
        match lasting {
            Lasting::Stopped(process) => {
                let signal = if is_on { libc::SIGSTOP } else { libc::SIGCONT };
                match process.checked_sub(1) {
                    None => self.frontend.signal(signal),
                    Some(k) => self.accelerators[k].0.signal(signal),
                }
            }
            Lasting::Down(k) => self.wires.star().set_link(k, !is_on),
            Lasting::Refused(k, port) => self.wires.star().set_refusal(k, port, is_on),
            Lasting::Held(k, way) => self.wires.star().hold(k, way, is_on),
        }
    }

    fn end_accelerator(&mut self, k: usize, n: u64) -> bool {
        let (running, left) = &mut self.accelerators[k];
        if left.is_some() {
            return false;
        }
        let signal = if n.is_multiple_of(2) {
            libc::SIGTERM
        } else {
            libc::SIGKILL
        };
        running.signal(signal);
        *left = Some(signal);
        true
    }

    /// Hits a connection; false if there is none of this number.
    fn hit_connection(&mut self, e: &Event, connection: u64, way: Direction) -> bool {
        let all = self.plan.shape.all();
        let (k, i) = ((connection / all) as usize, (connection % all) as usize);
        let Some(ends) = self.ends(k, i) else {
            return false;
        };
        let sender = match way {
            Direction::ToLeaf => &ends.here,
            Direction::ToHub => &ends.there,
        };
        let [here, there] = ends.ports;
        let ways: &[Direction] = match e.kind {
            Kind::Silent => &[Direction::ToLeaf, Direction::ToHub],
            Kind::Hole => &[way],
            _ => &[],
        };
        for way in ways {
            if self.dropped.insert((k, *way, here)) {
                self.wires.star().drop_packets(k, *way, here, there);
            }
        }
        match e.kind {
            Kind::Cut => sockets::end(&ends.there),
            Kind::Silent if e.n == 1 => sockets::reset(&ends.here),
            Kind::Silent if e.n == 2 => sockets::reset(&ends.there),
            Kind::Silent | Kind::Hole => {}
            // A full socket takes no byte of it.
            Kind::Stray => drop((&mut &*sender).write_all(&[0xa5; 64])),
            _ => sockets::reset(sender),
        }
        true
    }

    /// Both ends of connection `i` of an accelerator: 0 is the control connection.
    fn ends(&self, k: usize, i: usize) -> Option<Ends> {
        let (accelerator, left) = &self.accelerators[k];
        if left.is_some() {
            return None;
        }
        let port = if i == 0 {
            self.wires.control_port(k)
        } else {
            DATA
        };
        let all = sockets::accepted(accelerator.id(), port).ok()?;
        let there = all.into_iter().nth(i.saturating_sub(1))?;
        let (peer, own) = (there.peer_addr().ok()?, there.local_addr().ok()?);
        let ports = [peer.port(), own.port()];
        let ends = [peer, own].map(plain);
        let is_other = |[local, peer]: [SocketAddr; 2]| [plain(local), plain(peer)] == ends;
        let here = sockets::of_process(self.frontend.id(), is_other).ok()?;
        Some(Ends {
            here: here.into_iter().next()?,
            there,
            ports,
        })
    }
}

/// An IPv4 address that a socket for both families shows as IPv6.
fn plain(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

fn way(path: u64) -> Direction {
    match path % 2 {
        0 => Direction::ToLeaf,
        _ => Direction::ToHub,
    }
}

/// Both ends of a connection, and the ports of frontend and accelerator.
struct Ends {
    here: TcpStream,
    there: TcpStream,
    ports: [u16; 2],
}
