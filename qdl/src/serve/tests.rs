//! Counts of a connection without a server.

use std::{
    num::NonZeroU32,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use super::*;
use crate::request::RequestOptions;
use fabric::wire::Stream;
use fabric::{Flushed, Imm, Post, PostError, Tx};

const SLOTS: usize = 8;

fn connection(stream: Stream) -> Arc<ServeConnection> {
    let cfgs = ServeConnectionCfgs {
        session: 1,
        connection: 0,
        epoch: 1,
        gpu: None,
        slots: SLOTS,
        request_stride: 64,
        takes_options: true,
        response_stride: 128,
        stream,
    };
    Arc::new(ServeConnection::new(cfgs).expect("memory"))
}

fn arrival(connection: &Arc<ServeConnection>, slot: u16) -> Arrival {
    let imm = Imm::new(slot, 1);
    let _ = connection.window().grants().take(imm);
    let mut arrivals = Vec::new();
    connection
        .arrive((imm, 8), 1, &mut arrivals)
        .expect("inside");
    arrivals.pop().expect("it has arrived")
}

fn part(arrival: &Arrival, from: u32, to: u32) {
    arrival.origin().part(&Part {
        ticket: arrival.ticket(),
        from,
        to,
        queue_us: 1,
        compute_us: 2,
    });
}

/// Takes every post; the first flush signals that it runs, and waits for permission to end.
#[derive(Debug)]
struct Slow {
    there: mpsc::Sender<()>,
    go_on: Option<mpsc::Receiver<()>>,
}

impl Tx for Slow {
    fn post(&mut self, _: &Post) -> Result<(), PostError> {
        Ok(())
    }
    fn flush(&mut self) -> Result<Flushed, Broken> {
        if let Some(go_on) = self.go_on.take() {
            let _ = self.there.send(());
            let _ = go_on.recv_timeout(Duration::from_secs(30));
        }
        Ok(Flushed::Done)
    }
    fn room(&self) -> usize {
        8
    }
    fn posted(&self) -> u64 {
        0
    }
    fn retired(&self) -> u64 {
        0
    }
    fn inline_limit(&self) -> usize {
        0
    }
    fn counts(&self) -> fabric::FabricCounts {
        fabric::FabricCounts::default()
    }
}

#[test]
fn figures_of_a_heartbeat_wait_for_no_sender() {
    let connection = connection(Stream::First);
    let (there, came) = mpsc::channel();
    let (go, go_on) = mpsc::channel();
    connection.send.attach(Box::new(Slow {
        there,
        go_on: Some(go_on),
    }));
    let a = arrival(&connection, 0);
    let sender = thread::spawn(move || part(&a, 0, 4));
    let patience = Duration::from_secs(10);
    came.recv_timeout(patience).expect("it has the token");
    let (tell, counts) = mpsc::channel();
    let asked = connection.clone();
    let asks = thread::spawn(move || {
        let counts = (asked.responded(), asked.parts(), asked.late());
        let _ = tell.send(counts);
    });
    let counts = counts.recv_timeout(patience);
    go.send(()).expect("it waits");
    sender.join().expect("joined");
    asks.join().expect("joined");
    assert_eq!(counts, Ok((0, 1, 0)), "asked while a thread sends");
    assert_eq!(connection.late(), 1, "the rest of the sample was dropped");
}

#[test]
fn options_lie_in_front_of_the_payload_and_are_not_in_the_answers_immediate() {
    let connection = connection(Stream::None);
    let imm = Imm::new(3, 1);
    let arrive = |len| {
        let mut arrivals = Vec::new();
        connection.arrive((imm.with_options(true), len), 1, &mut arrivals)?;
        arrivals.pop()
    };
    assert!(arrive(15).is_none(), "zeros are no block");
    let limit = RequestOptions {
        token_limit: NonZeroU32::new(2),
    };
    let at = connection.window().slot_offset(3);
    let request = [&limit.encode()[..], b"payload"].concat();
    // SAFETY: no arrival of the slot lives.
    unsafe { connection.requests().store(at, &request) }.expect("inside");
    assert!(arrive(7).is_none(), "shorter than its block");
    let a = arrive(15).expect("sound");
    assert_eq!((a.input(), a.input_len()), (&b"payload"[..], 7));
    assert_eq!(a.options(), Ok(limit));
    assert_eq!(a.ticket(), u64::from(imm.bits()));
}
