//! What really crosses a network interface under RoCE v2: counts the opcodes of its packets, each
//! sender's for itself.
//!
//! ```text
//! roce_capture va          until SIGTERM or SIGINT, as root; then one line for each sender
//! ```
//!
//! A packet number that comes again with the same opcode is one that was sent again. Two things
//! never follow from what a program posted, and are the sending device's own doing: a packet number
//! that comes again with another opcode, and an immediate of a slot that comes again under another
//! packet number (no slot's use count is posted twice).

use std::{
    collections::{BTreeMap, HashMap},
    ffi::CString,
    fs::File,
    io::{self, Read},
    mem::{size_of_val, zeroed},
    net::Ipv4Addr,
    os::fd::{AsRawFd, FromRawFd},
    sync::atomic::{AtomicBool, Ordering},
};

/// Enough of a packet: Ethernet, IPv4, UDP, BTH, RETH and the immediate end at byte 74.
const ENOUGH: usize = 96;
const ETHERNET: usize = 14;
/// UDP port of RoCE v2.
const ROCE: u16 = 4791;
/// Set in the immediate of what is no slot's.
const CONTROL: u32 = 1 << 31;

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// What is looked at of a RoCE packet.
#[derive(Clone, Copy)]
struct Packet {
    from: Ipv4Addr,
    opcode: u8,
    queue_pair: u32,
    psn: u32,
    imm: Option<u32>,
}

impl Packet {
    fn read(frame: &[u8]) -> Option<Packet> {
        let word = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let ip = frame.get(ETHERNET..)?;
        if half(12)? != 0x0800 || ip.first()? >> 4 != 4 || *ip.get(9)? != 17 {
            return None;
        }
        let udp = ETHERNET + usize::from(ip[0] & 15) * 4;
        if half(udp + 2)? != ROCE {
            return None;
        }
        let bth = udp + 8;
        let opcode = *frame.get(bth)?;
        // Behind the base header an immediate follows at once, or after the address and key of a
        // write.
        let imm = match opcode {
            0x09 => Some(word(bth + 12)?),
            0x0b => Some(word(bth + 28)?),
            _ => None,
        };
        Some(Packet {
            from: Ipv4Addr::from(word(ETHERNET + 12)?),
            opcode,
            queue_pair: word(bth + 4)? & 0xff_ffff,
            psn: word(bth + 8)? & 0xff_ffff,
            imm,
        })
    }

    fn is_request(&self) -> bool {
        self.opcode <= 0x0c
    }
}

/// The name of the specification, where the opcode is one that occurs.
fn name(opcode: u8) -> String {
    let known = match opcode {
        0x06 => "WRITE_FIRST",
        0x07 => "WRITE_MIDDLE",
        0x08 => "WRITE_LAST",
        0x09 => "WRITE_LAST_WITH_IMM",
        0x0a => "WRITE_ONLY",
        0x0b => "WRITE_ONLY_WITH_IMM",
        0x11 => "ACKNOWLEDGE",
        other => return format!("opcode_{other:#04x}"),
    };
    known.to_owned()
}

/// One sender's packets.
#[derive(Default)]
struct Sender {
    /// First transmissions, by opcode.
    opcodes: BTreeMap<u8, u64>,
    again: u64,
    /// Not what a program can cause.
    other_opcode: u64,
    imm_under_other_psn: u64,
    seen: HashMap<(u32, u32), u8>,
    imms: HashMap<(u32, u32), u32>,
}

impl Sender {
    fn take(&mut self, p: Packet) {
        if !p.is_request() {
            *self.opcodes.entry(p.opcode).or_default() += 1;
            return;
        }
        match self.seen.insert((p.queue_pair, p.psn), p.opcode) {
            None => *self.opcodes.entry(p.opcode).or_default() += 1,
            Some(same) if same == p.opcode => self.again += 1,
            Some(other) => {
                self.other_opcode += 1;
                println!(
                    "queue pair {}: packet {} was {} and is {}",
                    p.queue_pair,
                    p.psn,
                    name(other),
                    name(p.opcode)
                );
            }
        }
        let Some(imm) = p.imm.filter(|i| i & CONTROL == 0) else {
            return;
        };
        if let Some(psn) = self.imms.insert((p.queue_pair, imm), p.psn)
            && psn != p.psn
        {
            self.imm_under_other_psn += 1;
            println!(
                "queue pair {}: immediate {imm:#010x} of packet {psn} comes again as packet {}",
                p.queue_pair, p.psn
            );
        }
    }
}

/// A socket that sees every packet of the interface.
fn open(interface: &str) -> io::Result<File> {
    let check = |result: libc::c_int| match result {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(result),
    };
    let name = CString::new(interface)?;
    let all = (libc::ETH_P_ALL as u16).to_be();
    let bytes: libc::c_int = 256 << 20;
    let wait = libc::timeval {
        tv_sec: 0,
        tv_usec: 200_000,
    };
    // SAFETY: plain system calls; every structure is a live local of the size that is handed over
    // with it, all-zero bytes are a `sockaddr_ll`, and the descriptor has no other owner.
    unsafe {
        let mut address: libc::sockaddr_ll = zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        if address.sll_ifindex == 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = check(libc::socket(libc::AF_PACKET, libc::SOCK_RAW, all.into()))?;
        let set = |option, value: *const libc::c_void, size: usize| {
            check(libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                option,
                value,
                size as u32,
            ))
        };
        set(
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            size_of_val(&bytes),
        )?;
        set(
            libc::SO_RCVTIMEO,
            (&raw const wait).cast(),
            size_of_val(&wait),
        )?;
        let size = size_of_val(&address) as u32;
        check(libc::bind(fd, (&raw const address).cast(), size))?;
        Ok(File::from_raw_fd(fd))
    }
}

/// Packets that the socket had no room for.
fn dropped(socket: &File) -> u32 {
    let mut statistics = [0_u32; 2];
    let mut size = size_of_val(&statistics) as u32;
    // SAFETY: the result is writable for the size that is handed over.
    unsafe {
        let at = statistics.as_mut_ptr().cast();
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        libc::getsockopt(socket.as_raw_fd(), level, option, at, &raw mut size);
    }
    statistics[1]
}

fn main() -> io::Result<()> {
    let interface = std::env::args().nth(1).ok_or_else(|| {
        io::Error::other("which interface? `roce_capture va` counts until SIGTERM")
    })?;
    let mut socket = open(&interface)?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler stores to an atomic and does nothing else. `read` returns by itself.
        unsafe { libc::signal(signal, stop as extern "C" fn(libc::c_int) as usize) };
    }
    println!("counting on {interface}");
    let mut senders: BTreeMap<Ipv4Addr, Sender> = BTreeMap::new();
    let mut frame = [0; ENOUGH];
    loop {
        // What does not fit into the frame is cut off.
        match socket.read(&mut frame) {
            Ok(length) => {
                if let Some(p) = Packet::read(&frame[..length]) {
                    senders.entry(p.from).or_default().take(p);
                }
            }
            // Nothing for a while, or a signal: what was there before the signal has been counted.
            Err(_) if STOP.load(Ordering::Relaxed) => break,
            Err(_) => {}
        }
    }
    for (from, sender) in &senders {
        let counts: Vec<_> = sender
            .opcodes
            .iter()
            .map(|(opcode, n)| format!("{} {n}", name(*opcode)))
            .collect();
        println!(
            "from {from}: {}; sent again {}; of those with another opcode {}; immediates under another packet number {}",
            counts.join(", "),
            sender.again,
            sender.other_opcode,
            sender.imm_under_other_psn
        );
    }
    println!("packets missed: {}", dropped(&socket));
    Ok(())
}
