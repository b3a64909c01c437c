//! A frontend that leaves in order, seen from the accelerator: after the answer to a drain, no
//! event on the sockets counts as a lost connection or a lost frontend.
#![cfg(not(qdl_loom))]

#[path = "cluster/harness.rs"]
mod harness;

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use fabric::{
    Imm,
    tcp::{HEADER_BYTES, Preamble},
    wire::Stream,
};
use harness::*;
use qdl::{
    control::{
        Auth, ClientEvent, ClientParams, ClientSession, ConnectionRequest, GrantTransport,
        RequestTransport, Timing,
    },
    model::ModelSpec,
    run::{request_stride, response_stride},
    serve::Service,
};
use record::{NodeFacts, ServedReport};

const PATIENCE: Duration = Duration::from_secs(20);

fn small() -> ModelSpec {
    ModelSpec::opaque("digest", 64, 8)
}

fn node() -> (Running, Receiver<ServedReport>) {
    let service: Arc<dyn Service> = Arc::new(Digest);
    Running::reporting("acc", &small(), 1 << 20, tcp_nic(), &service)
}

/// A frontend with one connection that sends raw bytes.
struct Front {
    runtime: tokio::runtime::Runtime,
    session: ClientSession,
    data: TcpStream,
}

impl Front {
    fn join(node: &Running) -> Front {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let params = ClientParams {
            address: node.address.to_string(),
            node: "front".to_owned(),
            auth: Auth::Unset,
            model: small(),
            stream: Stream::None,
            facts: NodeFacts::default(),
            timing: Timing::default(),
        };
        let request = ConnectionRequest {
            connection: 0,
            nic: 0,
            gpu_turn: 0,
            epoch: 1,
            slots: 8,
            request_stride: request_stride(&small()).expect("small") as u32,
            response_stride: response_stride(&small()).expect("small") as u32,
            transport: RequestTransport::Tcp {},
        };
        let (session, grant) = runtime.block_on(async {
            let session = ClientSession::connect(params).await.expect("taken");
            let mut grants = session
                .handle
                .open(vec![request])
                .within(PATIENCE)
                .await
                .expect("granted");
            (session, grants.remove(0))
        });
        let GrantTransport::Tcp { address } = grant.transport else {
            panic!("not over TCP");
        };
        let mut data = TcpStream::connect(address).expect("connected");
        data.set_read_timeout(Some(PATIENCE)).expect("set");
        let preamble = Preamble {
            connection: 0,
            epoch: 1,
            key: grant.key.0,
        };
        data.write_all(&preamble.encode()).expect("sent");
        let mut answer = [0; 8];
        data.read_exact(&mut answer).expect("let in");
        let front = Front {
            runtime,
            session,
            data,
        };
        let start = front.session.handle.start();
        let ready = front.runtime.block_on(start.within(PATIENCE));
        ready.expect("ready");
        front
    }

    /// Sends a sample to slot 3 and receives its answer.
    fn ask(&mut self) {
        let mut frame = vec![1, 0, 0, 0];
        frame.extend_from_slice(&Imm::new(3, 1).bits().to_le_bytes());
        frame.extend_from_slice(&0u32.to_le_bytes());
        frame.extend_from_slice(&64u32.to_le_bytes());
        frame.extend_from_slice(&[7; 64]);
        self.data.write_all(&frame).expect("sent");
        let mut answer = [0; HEADER_BYTES + 24];
        self.data.read_exact(&mut answer).expect("an answer");
    }

    fn drain(&self) {
        let drained = self.session.handle.drain().within(PATIENCE);
        let (counters, ..) = self.runtime.block_on(drained).expect("drained");
        assert_eq!((counters.arrived, counters.responded), (1, 1));
    }

    /// Gives the connection up, and waits until the accelerator has processed that.
    fn give_up(&mut self) {
        let handle = &self.session.handle;
        handle.connection_lost(0, 1, "its thread was stopped");
        handle.connection_reset(0, 1);
        self.heard();
    }

    /// Waits until the accelerator has processed all earlier messages.
    fn heard(&self) {
        let name = self.session.handle.name().within(PATIENCE);
        self.runtime.block_on(name).expect("it answers");
    }

    /// Violates the protocol, and waits until the accelerator reports the loss.
    fn spoil(&mut self) {
        self.data.write_all(&[9; HEADER_BYTES]).expect("sent");
        let events = &mut self.session.events;
        let lost = async {
            loop {
                match events.next().await.expect("an event") {
                    ClientEvent::ConnectionLost { .. } => return,
                    ClientEvent::Gone(e) => panic!("the session ended: {e}"),
                    _ => {}
                }
            }
        };
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, lost).await })
            .expect("it is seen");
    }

    fn bye(self) {
        self.session.handle.bye();
        let mut events = self.session.events;
        let gone = async { while events.next().await.is_some() {} };
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, gone).await })
            .expect("it ends");
    }
}

fn report(told: &Receiver<ServedReport>) -> ServedReport {
    told.recv_timeout(PATIENCE).expect("a report")
}

#[test]
fn connections_that_end_behind_a_drain_are_not_lost() {
    let (node, told) = node();
    let mut front = Front::join(&node);
    front.ask();
    front.drain();
    front.give_up();
    front.bye();
    let report = report(&told);
    assert!(report.clean && !report.total().lost, "{report:?}");
    assert_eq!(report.total().arrived, 1);
}

#[test]
fn a_frontend_whose_last_word_does_not_come_has_left_if_it_had_drained() {
    let (node, told) = node();
    let mut front = Front::join(&node);
    front.ask();
    front.drain();
    // The frontend's tasks end with it, without a message.
    drop(front);
    let report = report(&told);
    assert!(report.clean && !report.total().lost, "{report:?}");
}

#[test]
fn what_is_given_up_in_the_middle_is_lost() {
    let (node, told) = node();
    let mut front = Front::join(&node);
    front.ask();
    front.give_up();
    front.bye();
    let given_up = report(&told);
    assert!(given_up.clean && given_up.total().lost, "{given_up:?}");

    // A frontend that disappears without a message is lost, even with nothing in flight.
    let mut front = Front::join(&node);
    front.ask();
    drop(front);
    let gone = report(&told);
    assert!(!gone.clean, "{gone:?}");
}

#[test]
fn a_drain_is_not_the_end_where_samples_come_after_it() {
    let (node, told) = node();
    let mut front = Front::join(&node);
    let drained = front.session.handle.drain().within(PATIENCE);
    front.runtime.block_on(drained).expect("drained");
    front.ask();
    front.give_up();
    front.bye();
    let report = report(&told);
    assert!(report.total().lost, "{report:?}");
}

#[test]
fn a_connection_that_breaks_the_protocol_is_lost_whenever_it_does() {
    let (node, told) = node();
    let mut front = Front::join(&node);
    front.ask();
    front.drain();
    front.spoil();
    front.bye();
    let report = report(&told);
    assert!(report.total().lost, "{report:?}");
}
