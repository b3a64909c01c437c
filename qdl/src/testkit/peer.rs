//! A frontend made of plain bytes: it sends what a test wants, whatever the protocol says.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

use super::runtime;
use crate::{
    control::{
        Auth, ClientEvent, ClientSession, ConnectionGrant, ConnectionRequest, ControlError,
        LocalNode, Pending, RolePart, Timing, message::Hex,
    },
    model::ModelSpec,
    response::{RESPONSE_HEADER_BYTES, ResponseHeader},
    run::{request_stride, response_stride},
};
use fabric::{
    Imm, OpenError,
    tcp::{ConnectionSecret, HEADER_BYTES, Preamble, TcpDevice},
    wire::{End, Stream},
};
use record::NodeFacts;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A frontend's part in its sessions, without a token.
pub(crate) fn local(model: &ModelSpec) -> LocalNode {
    LocalNode {
        node: "front".to_owned(),
        auth: Auth::Unset,
        model: model.clone(),
        own: RolePart::Stream(Stream::None),
        facts: NodeFacts::default(),
        timing: Timing::default(),
    }
}

/// A request for the first epoch of a connection to slots of `model`.
pub fn request(
    connection: u16,
    slots: usize,
    model: &ModelSpec,
    transport: End,
) -> ConnectionRequest {
    ConnectionRequest {
        connection,
        nic: 0,
        gpu_turn: 0,
        epoch: 1,
        slots: slots as u32,
        request_stride: request_stride(model).expect("small") as u32,
        response_stride: response_stride(model).expect("small") as u32,
        transport,
    }
}

/// Key of a data connection.
pub type Key = Hex<32>;

/// A frontend in a session, with connections over TCP.
pub struct Peer {
    runtime: tokio::runtime::Runtime,
    pub session: ClientSession,
    pub data: Vec<TcpStream>,
}

impl Peer {
    /// Begins a session with the accelerator at `address`, without connections.
    ///
    /// # Errors
    /// The handshake failed.
    pub fn begin(
        address: &impl ToString,
        model: &ModelSpec,
        auth: Auth,
    ) -> Result<Self, ControlError> {
        let runtime = runtime();
        let own = LocalNode {
            auth,
            ..local(model)
        };
        let session = ClientSession::connect(address.to_string(), own);
        let session = runtime.block_on(session)?;
        Ok(Peer {
            runtime,
            session,
            data: Vec::new(),
        })
    }

    /// Opens so many connections to the accelerator at `address`, and starts.
    pub fn join(address: &impl ToString, model: &ModelSpec, connections: u16) -> Self {
        let mut peer = Peer::begin(address, model, Auth::Unset).expect("taken");
        let key = Key::random().expect("random bytes");
        peer.data = (peer.open(model, connections, key).iter())
            .map(|grant| connect_to(granted_address(grant), grant, &key).expect("let in"))
            .collect();
        peer.start();
        peer
    }

    /// The grants of so many connections with this key.
    pub fn open(&self, model: &ModelSpec, connections: u16, key: Key) -> Vec<ConnectionGrant> {
        let tcp = |c| request(c, 8, model, End::new("tcp", hex::encode(key.0)));
        let asked = (0..connections).map(tcp).collect();
        self.get(self.session.handle.open(asked)).expect("granted")
    }

    pub fn start(&self) {
        self.get(self.session.handle.start()).expect("ready");
    }

    pub fn get<T>(&self, asked: Pending<T>) -> Result<T, ControlError> {
        self.runtime.block_on(asked.within(PATIENCE))
    }

    /// The first use of a slot.
    pub fn send(&mut self, connection: usize, slot: u16, sample: &[u8]) {
        let mut frame = vec![1, 0, 0, 0];
        frame.extend_from_slice(&Imm::new(slot, 1).bits().to_le_bytes());
        frame.extend_from_slice(&0u32.to_le_bytes());
        frame.extend_from_slice(&(sample.len() as u32).to_le_bytes());
        assert_eq!(frame.len(), HEADER_BYTES);
        frame.extend_from_slice(sample);
        self.data[connection].write_all(&frame).expect("sent");
    }

    /// The next answer: its slot, its header, and what lies behind that.
    pub fn response(&mut self, connection: usize) -> (u16, ResponseHeader, Vec<u8>) {
        let stream = &mut self.data[connection];
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).expect("an answer");
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let mut bytes = vec![0; word(12) as usize];
        stream.read_exact(&mut bytes).expect("an answer");
        let imm = Imm::from_bits(word(4));
        let header = ResponseHeader::decode(&bytes, word(12), imm.use_count()).expect("sound");
        (imm.slot(), header, bytes.split_off(RESPONSE_HEADER_BYTES))
    }

    /// Waits for an event that `of` makes something of; the session must not end before.
    pub fn hear<T>(&mut self, mut of: impl FnMut(&ClientEvent) -> Option<T>) -> T {
        let events = &mut self.session.events;
        let heard = async {
            loop {
                let event = events.next().await;
                if let Some(it) = of(&event) {
                    return it;
                }
                assert!(!matches!(event, ClientEvent::Gone(_)), "{event:?}");
            }
        };
        let heard = async { tokio::time::timeout(PATIENCE, heard).await };
        self.runtime.block_on(heard).expect("it is said in time")
    }

    /// Says goodbye, and waits until the session is over.
    pub fn leave(self) {
        self.session.handle.bye();
        let mut events = self.session.events;
        let gone = async { while !matches!(events.next().await, ClientEvent::Gone(_)) {} };
        let gone = async { tokio::time::timeout(PATIENCE, gone).await };
        self.runtime.block_on(gone).expect("it ends");
    }
}

/// Opens a granted connection by a connection to `to`.
///
/// # Errors
/// The peer refused it, or proved nothing.
pub fn connect_to(
    to: SocketAddr,
    grant: &ConnectionGrant,
    key: &Key,
) -> Result<TcpStream, OpenError> {
    let preamble = Preamble::new(grant.connection, grant.epoch).expect("random bytes");
    let secret = ConnectionSecret {
        key: key.0,
        address: granted_address(grant),
    };
    let local = match to.is_ipv4() {
        true => Ipv4Addr::LOCALHOST.into(),
        false => Ipv6Addr::LOCALHOST.into(),
    };
    let connected = TcpDevice::connect(local, to, &preamble, &secret, None, PATIENCE);
    let stream = runtime().block_on(connected)?;
    stream.set_nonblocking(false).expect("set");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    Ok(stream)
}

pub fn granted_address(grant: &ConnectionGrant) -> SocketAddr {
    grant.transport.end.parse().expect("an address")
}
