//! The handshake with the cores: one loop over sockets that do not block. A peer that breaks the
//! protocol, or belongs to another user, is dropped with a line in the log.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::net::UnixListener,
};

use disk::Temporary;
use socket2::Socket;

use super::{
    messages::{self, Registration, Status, read},
    versions::CoreVersion,
    zmtp::{Connection, MAX_FRAME},
};

/// Most peers of a socket at a time, beside the cores. Beyond them the oldest silent one goes.
const STRANGERS: usize = 16;
/// Most peers that a step accepts from a socket.
const AT_ONCE: usize = 64;
/// Shortest context that holds a prompt and an answer of one token each.
const MIN_CONTEXT: usize = 3;

/// The sockets that cores connect to.
pub(super) struct Listeners {
    handshake: TcpListener,
    input: UnixListener,
    output: UnixListener,
    /// Only this user may enter it.
    folder: Temporary,
}

impl Listeners {
    /// Binds all sockets; that of the handshake to `listen`, or to a free port of 127.0.0.1.
    /// Error text: the socket, and why it cannot be bound.
    pub fn bind(listen: Option<SocketAddr>) -> Result<Self, String> {
        let address = listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
        let wrong = |what: &dyn std::fmt::Display, e: io::Error| format!("{what}: {e}");
        let handshake = TcpListener::bind(address);
        let handshake =
            handshake.map_err(|e| wrong(&format!("engine.vllm.listen {address}"), e))?;
        let folder = Temporary::folder();
        let folder = folder.map_err(|e| format!("no temporary folder: {e}: see TMPDIR"))?;
        let unix = |name| {
            let path = folder.join(name);
            UnixListener::bind(&path).map_err(|e| wrong(&path.display(), e))
        };
        let (input, output) = (unix("in")?, unix("out")?);
        (handshake.set_nonblocking(true))
            .and_then(|()| input.set_nonblocking(true))
            .and_then(|()| output.set_nonblocking(true))
            .map_err(|e| wrong(&"the sockets of the handshake", e))?;
        Ok(Listeners {
            handshake,
            input,
            output,
            folder,
        })
    }

    pub fn port(&self) -> Result<u16, String> {
        let address = self.handshake.local_addr();
        address
            .map(|a| a.port())
            .map_err(|e| format!("the handshake's port: {e}"))
    }

    fn address(&self, name: &str) -> String {
        format!("ipc://{}", self.folder.join(name).display())
    }
}

/// Cores after the handshake.
pub struct Connected {
    /// Requests of each core, in the order of their indices.
    pub(super) inputs: Vec<Connection>,
    /// Outputs of all cores, in no order.
    pub(super) outputs: Vec<Connection>,
    /// Of the first core; all cores have one model and one version.
    pub(super) registration: Registration,
    pub(super) version: &'static CoreVersion,
}

/// A peer of the handshake's port.
struct Peer {
    connection: Connection,
    /// The core that it has greeted as.
    core: Option<usize>,
}

pub(super) struct Handshake<'a> {
    listeners: &'a Listeners,
    peers: Vec<Peer>,
    /// Peers of the other two sockets that have not finished the handshake of ZMTP.
    arriving: [Vec<Connection>; 2],
    greeted: Vec<bool>,
    ready: Vec<bool>,
    inputs: Vec<Option<Connection>>,
    outputs: Vec<Connection>,
    registrations: Vec<Option<Registration>>,
    /// The last peer that was dropped, and why.
    dropped: Option<String>,
}

impl<'a> Handshake<'a> {
    /// The handshake with `cores` cores.
    pub fn new(cores: usize, listeners: &'a Listeners) -> Self {
        Handshake {
            listeners,
            peers: Vec::new(),
            arriving: Default::default(),
            greeted: vec![false; cores],
            ready: vec![false; cores],
            inputs: (0..cores).map(|_| None).collect(),
            outputs: Vec::new(),
            registrations: vec![None; cores],
            dropped: None,
        }
    }

    /// The progress in words, for errors and the log.
    pub fn stage(&self) -> String {
        let cores = self.ready.len();
        let count = |of: &mut dyn Iterator<Item = bool>| of.filter(|b| *b).count();
        let greeted = count(&mut self.greeted.iter().copied());
        let ready = count(&mut self.ready.iter().copied());
        let mut words = match greeted {
            0 => "no core has connected".to_owned(),
            _ => format!("{greeted} of {cores} cores load the model, {ready} ready"),
        };
        if ready > 0 {
            for (core, registration) in self.registrations.iter().enumerate() {
                match (&self.inputs[core], registration) {
                    (None, _) => words += &format!(", no input connection of core {core}"),
                    (_, None) => words += &format!(", no registration of core {core}"),
                    _ => {}
                }
            }
            // A connection for outputs does not say whose it is.
            let outputs = self.outputs.len();
            if outputs < cores {
                words += &format!(", {outputs} of {cores} output connections");
            }
        }
        if let Some(dropped) = &self.dropped {
            words += &format!("; {dropped}");
        }
        words
    }

    fn drop_peer(&mut self, of: &str, why: &str) {
        let words = format!("a peer of its {of} was dropped: {why}");
        tracing::warn!("vLLM's engine core: {words}");
        self.dropped = Some(words);
    }

    /// Handles what has arrived, without waiting. Returns true once all cores are ready.
    /// Error text: a core is not the core that is needed.
    pub fn step(&mut self) -> Result<bool, String> {
        self.accept();
        for mut peer in std::mem::take(&mut self.peers) {
            match self.talk(&mut peer) {
                Ok(()) => self.peers.push(peer),
                Err(why) => self.drop_peer("handshake", &why),
            }
        }
        let [inputs, outputs] = std::mem::take(&mut self.arriving);
        for mut core in inputs {
            match core.shake() {
                Ok(false) => self.arriving[0].push(core),
                Ok(true) => match self.index(&core.identity) {
                    Some(index) if self.inputs[index].is_some() => {
                        self.drop_peer("input", &format!("core {index} has one already"));
                    }
                    Some(index) => self.inputs[index] = Some(core),
                    None => self.drop_peer("input", &self.unknown(&core.identity)),
                },
                Err(e) => self.drop_peer("input", &e.to_string()),
            }
        }
        for mut core in outputs {
            match core.shake() {
                Ok(false) => self.arriving[1].push(core),
                Ok(true) if self.outputs.len() < self.ready.len() => {
                    core.most = MAX_FRAME;
                    self.outputs.push(core);
                }
                Ok(true) => self.drop_peer("output", "each core has one already"),
                Err(e) => self.drop_peer("output", &e.to_string()),
            }
        }
        for index in 0..self.inputs.len() {
            self.register(index)?;
        }
        let registered = self.registrations.iter().all(Option::is_some);
        let connected = self.outputs.len() == self.ready.len();
        Ok(registered && connected && self.ready.iter().all(|ready| *ready))
    }

    fn accept(&mut self) {
        let most = self.ready.len() + STRANGERS;
        let next = || {
            let (stream, peer) = self.listeners.handshake.accept().ok()?;
            Some((stream.local_addr().ok()?, stream, peer))
        };
        let new: Vec<_> = std::iter::from_fn(next).take(AT_ONCE).collect();
        // Read behind the accepts: the table has all of them.
        let table = new
            .first()
            .map_or_else(String::new, |new| sockets_of(new.0));
        for (own, stream, peer) in new {
            if let Err(why) = may_connect(user_of(&table, peer, own)) {
                self.drop_peer("handshake", &why);
                continue;
            }
            match Connection::begin(stream.into(), "ROUTER", "DEALER") {
                Ok(connection) => self.peers.push(Peer {
                    connection,
                    core: None,
                }),
                Err(e) => self.drop_peer("handshake", &e.to_string()),
            }
        }
        while self.peers.len() > most {
            let silent = self.peers.iter().position(|peer| peer.core.is_none());
            self.peers.remove(silent.unwrap_or(0));
            self.drop_peer("handshake", "too many peers");
        }
        let unix = |listener: &UnixListener, own: &str, wanted| {
            let streams = std::iter::from_fn(|| listener.accept().ok()).take(AT_ONCE);
            let begun = streams.map(|(s, _)| Connection::begin(Socket::from(s), own, wanted));
            begun.collect::<Vec<_>>()
        };
        let inputs = unix(&self.listeners.input, "ROUTER", "DEALER");
        let outputs = unix(&self.listeners.output, "PULL", "PUSH");
        for (i, (of, new)) in [("input", inputs), ("output", outputs)]
            .into_iter()
            .enumerate()
        {
            for connection in new {
                match connection {
                    Ok(connection) => self.arriving[i].push(connection),
                    Err(e) => self.drop_peer(of, &e.to_string()),
                }
            }
            while self.arriving[i].len() > most {
                self.arriving[i].remove(0);
                self.drop_peer(of, "too many peers");
            }
        }
    }

    /// The index of a core, from its identity: two bytes, little-endian.
    fn index(&self, identity: &[u8]) -> Option<usize> {
        let index = usize::from(u16::from_le_bytes(identity.try_into().ok()?));
        (index < self.ready.len()).then_some(index)
    }

    fn unknown(&self, identity: &[u8]) -> String {
        let shown = &identity[..identity.len().min(16)];
        format!(
            "its identity {shown:?} is none of {} cores",
            self.ready.len()
        )
    }

    /// Reads from a peer of the handshake and answers. Error text: why to drop the peer.
    fn talk(&mut self, peer: &mut Peer) -> Result<(), String> {
        let connection = &mut peer.connection;
        if !connection.shake().map_err(|e| e.to_string())? {
            return Ok(());
        }
        let Some(index) = self.index(&connection.identity) else {
            return Err(self.unknown(&connection.identity));
        };
        let is_open = connection.fill();
        while let Some(message) = connection.next().map_err(|e| e.to_string())? {
            match read::<Status<'_>>(message).map(|s| s.status) {
                Some("HELLO") => {
                    (self.greeted[index], peer.core) = (true, Some(index));
                    let addresses = ["in", "out"].map(|name| self.listeners.address(name));
                    connection.queue(&[&messages::addresses(&addresses[0], &addresses[1])]);
                }
                Some("READY") if peer.core.is_some() => self.ready[index] = true,
                Some("READY") => return Err("it sent READY before HELLO".to_owned()),
                _ => return Err("it sent no HELLO and no READY".to_owned()),
            }
        }
        let flushed = connection.flush();
        flushed.and(is_open).map(|_| ()).map_err(|e| e.to_string())
    }

    fn register(&mut self, index: usize) -> Result<(), String> {
        let Some(core) = &mut self.inputs[index] else {
            return Ok(());
        };
        if self.registrations[index].is_some() {
            return Ok(());
        }
        core.fill().map_err(|e| format!("its input: {e}"))?;
        let message = core.next().map_err(|e| format!("its registration: {e}"))?;
        let Some(message) = message else {
            return Ok(());
        };
        let registration: Option<Registration> = read(message);
        let registration = registration.ok_or("its registration is not understood")?;
        check(&registration)?;
        self.registrations[index] = Some(registration);
        Ok(())
    }

    pub fn finish(self) -> Result<Connected, String> {
        let registration = self.registrations.into_iter().flatten().next();
        let registration = registration.ok_or("no core has registered")?;
        let version = CoreVersion::of(&registration.vllm_version)?;
        Ok(Connected {
            version,
            inputs: self.inputs.into_iter().flatten().collect(),
            outputs: self.outputs,
            registration,
        })
    }
}

fn check(registration: &Registration) -> Result<(), String> {
    CoreVersion::of(&registration.vllm_version)?;
    let context = registration.max_model_len;
    if context < MIN_CONTEXT {
        return Err(format!(
            "its context has {context} tokens (max_model_len), and {MIN_CONTEXT} are needed"
        ));
    }
    if registration.data_parallel_size > 1 {
        return Err(EXPERTS.to_owned());
    }
    Ok(())
}

pub(super) const EXPERTS: &str = "a mixture of experts cannot run on several independent cores: \
     its cores exchange data in each step through a coordinator, which this engine is not; set \
     data_parallel: 1 and --tensor-parallel-size or --enable-expert-parallel in args, or use \
     engine `http`";

/// The kernel's table of the TCP sockets of the family of `own`; empty if it cannot be read.
fn sockets_of(own: SocketAddr) -> String {
    let path = if own.is_ipv4() {
        "/proc/net/tcp"
    } else {
        "/proc/net/tcp6"
    };
    fs::read_to_string(path).unwrap_or_default()
}

/// The user of the socket at `peer` that is connected to `own`, in a table of [`sockets_of`].
fn user_of(table: &str, peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let (peer, own) = (hexadecimal(peer), hexadecimal(own));
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = fields.next()? == peer && fields.next()? == own;
        // State, queues, timer, retransmits; then the user.
        is_it.then(|| fields.nth(4)?.parse().ok()).flatten()
    })
}

/// An address as the kernel's tables have it: words of 32 bits in the machine's order.
fn hexadecimal(address: SocketAddr) -> String {
    let octets = match address {
        SocketAddr::V4(a) => a.ip().octets().to_vec(),
        SocketAddr::V6(a) => a.ip().octets().to_vec(),
    };
    let (words, _) = octets.as_chunks::<4>();
    let words = words
        .iter()
        .map(|w| format!("{:08X}", u32::from_ne_bytes(*w)));
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

/// Whether a peer of this user may take part in the handshake: this process's user, or root.
fn may_connect(user: Option<u32>) -> Result<(), String> {
    // SAFETY: a plain system call.
    let own = unsafe { libc::geteuid() };
    match user {
        Some(user) if user == own || user == 0 => Ok(()),
        Some(user) => Err(format!("it belongs to user {user}, not {own}")),
        None => Err("/proc/net/tcp does not name its user".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_a_peer_is_known() {
        // SAFETY: a plain system call.
        let own_user = unsafe { libc::geteuid() };
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
            let own = listener.local_addr().expect("bound");
            let stream = TcpStream::connect(own).expect("connected");
            let peer = stream.local_addr().expect("bound");
            let table = sockets_of(own);
            assert_eq!(user_of(&table, peer, own), Some(own_user), "{at}");
            assert_eq!(user_of(&table, own, own), None, "{at}");
            let (from, to) = (hexadecimal(peer), hexadecimal(own));
            let line = format!(" 9: {from} {to} 01 00000000:00000000 00:00000000 0 65534 0 1");
            let user = user_of(&line, peer, own);
            assert_eq!(user, Some(65534));
            let why = may_connect(user).expect_err("another user");
            assert!(why.starts_with("it belongs to user 65534"), "{why}");
        }
        assert!(may_connect(Some(own_user)).is_ok() && may_connect(Some(0)).is_ok());
        assert!(may_connect(None).is_err());
    }
}
