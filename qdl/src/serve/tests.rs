//! A connection without a server: its counts, its grants, its reasons and its options.

use std::{
    num::NonZeroU32,
    sync::{Mutex, atomic::AtomicBool, mpsc},
    thread,
    time::Duration,
};

use super::*;
use crate::{
    connection::{ArrivedWrite, SendCounts, Spin, WriteSource, nic_thread::by_hand::HandTurned},
    request::RequestOptions,
    response::{RESPONSE_HEADER_BYTES, Refusal, ResponseHeader},
    testkit::{lingers::lingers, rig::finished},
};
use fabric::{
    Endpoint, Event, Grants, Imm, Region, Tx, Window,
    testkit::{
        dice::Dice,
        endpoint, memory, post,
        sim::{PathCfgs, Sim},
    },
    wire::Stream,
};

const SLOTS: usize = 8;

fn connection(stream: Stream) -> Arc<ServeConnection> {
    numbered(0, stream)
}

fn numbered(connection: u16, stream: Stream) -> Arc<ServeConnection> {
    let cfgs = ServeConnectionCfgs {
        session: 1,
        connection,
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

fn region() -> Arc<Region> {
    Arc::new(Region::new(SLOTS * 128).expect("memory"))
}

fn arrival(connection: &Arc<ServeConnection>, slot: u16) -> Arrival {
    let imm = Imm::new(slot, 1);
    let _ = connection.window().grants().take(imm);
    let mut arrivals = Vec::new();
    let write = ArrivedWrite {
        imm,
        slot_offset: 0,
        len: 8,
    };
    connection.arrive(write, 1, &mut arrivals).expect("inside");
    arrivals.pop().expect("it has arrived")
}

fn part(arrival: &Arrival, from: u32, to: u32) {
    arrival.origin().parts(&[OutputPart {
        ticket: arrival.ticket(),
        from,
        to,
        queue_us: 1,
        compute_us: 2,
    }]);
}

/// Reads the counts of a connection while it owns the send token.
struct Asks<'a>(&'a Arc<ServeConnection>, Option<[u64; 3]>);

impl WriteSource for Asks<'_> {
    fn begin(&mut self) -> usize {
        1
    }
    fn post_next(&mut self, _: &mut dyn Tx, _: &mut SendCounts) -> Result<bool, Box<Broken>> {
        Ok(false)
    }
    fn end(&mut self, _: usize, _: &mut SendCounts) -> bool {
        false
    }
    fn down(&mut self) {
        let (tell, counts) = mpsc::channel();
        let asked = self.0.clone();
        thread::spawn(move || tell.send([asked.responded(), asked.parts(), asked.late()]));
        self.1 = counts.recv_timeout(Duration::from_secs(10)).ok();
    }
}

#[test]
fn figures_of_a_heartbeat_wait_for_no_sender() {
    let connection = connection(Stream::First);
    let mut asks = Asks(&connection, None);
    connection.send.post_from(&mut asks);
    assert_eq!(asks.1, Some([0; 3]), "asked while a thread sends");
}

#[test]
fn a_slot_is_granted_again_only_after_its_response_has_been_posted() {
    for stream in [Stream::None, Stream::All] {
        let connection = connection(stream);
        let ours = connection.endpoint(1);
        let window = Window::new(region(), 0, 128, Grants::new(SLOTS).into());
        let far = Endpoint {
            window: window.expect("fits").in_parts(stream),
            sources: vec![],
            peer_slots: SLOTS,
            peer_stride: 64,
            peer_stream: Stream::None,
            send_depth: 1,
        };
        let theirs = far.window.grants().clone();
        // The fabric takes one response and queues a second one.
        let path = PathCfgs {
            delay_ns: 0,
            jitter_ns: 0,
            capacity: 1,
            partial: 0,
            room_by_landing: false,
            linger_ns: 0,
        };
        let sim = Sim::default();
        let (link, mut far, _) = sim.pair(ours, far, [0, 1].map(|n| (path, Dice::of(n, &[]))));
        connection.send.attach(link.tx);
        let responds = |slot| {
            theirs.open(slot);
            let a = arrival(&connection, slot);
            let sent = match stream {
                Stream::None => Sent::default(),
                _ => {
                    part(&a, 0, 4);
                    Sent {
                        bytes: 4,
                        parts: 1,
                        sum_us: 0,
                    }
                }
            };
            let done = finished(&a, 8, sent);
            respond_all([(a, done)], &mut Vec::new());
            connection.window().grants().is_open(slot)
        };
        let granted: Vec<_> = (0..3).map(responds).collect();
        assert!(
            !granted[2],
            "{stream:?}: the fabric has no room: {granted:?}"
        );
        while connection.responded() < 3 {
            let mut due = Vec::new();
            sim.take_due(&mut due);
            due.into_iter().for_each(|(_, due)| sim.handle(due));
            far.rx.poll(8, &mut |event| {
                assert!(matches!(event, Event::Arrived { .. }))
            });
            connection.post_ready();
        }
        assert!((0..3).all(|slot| connection.window().grants().is_open(slot)));
    }
}

#[derive(Default)]
struct Counted(AtomicU64);

impl Service for Counted {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        self.0.fetch_add(arrivals.len() as u64, Ordering::SeqCst);
    }
}

#[test]
fn a_goodbye_holds_up_no_other_connection_of_its_nic() {
    let counted = Arc::new(Counted::default());
    let service: Arc<dyn Service> = counted.clone();
    let losses = Arc::new(AtomicU64::new(0));
    let reported = losses.clone();
    let lost: Arc<OnConnectionLost> =
        Arc::new(move |_| _ = reported.fetch_add(1, Ordering::SeqCst));
    let cfgs = NicThreadCfgs::new("back", Spin::new(0), u64::MAX);
    let made = Server::assemble(vec![cfgs], &CrewPlan::each(1), &service, &lost);
    let (server, mut nics, companions) = made.expect("descriptors");
    let mut nic = HandTurned::new(nics.pop().expect("one"));
    let attach = |number, wrap: fn(Link) -> (Link, Arc<AtomicBool>)| {
        let connection = numbered(number, Stream::None);
        let front = endpoint(SLOTS, 128, 8);
        let (near, far, _faults) = memory::pair(front, connection.endpoint(8)).expect("joined");
        let (far, is_over) = wrap(far);
        server.attach(0, connection, far);
        (near, is_over)
    };
    let (mut near, _) = attach(0, |far| (far, Arc::default()));
    let (_leaving, is_over) = attach(1, lingers);
    while companions[0].step() {}
    nic.turn(&mut |_| {});
    server.give_up(|c| c.connection == 1, &Broken::Closed);
    while companions[0].step() {}
    // The goodbye keeps the thread turning.
    nic.turn(&mut |_| {});
    near.tx.post(&post(0, 8, Imm::new(0, 1))).expect("room");
    near.tx.flush().expect("alive");
    nic.turn(&mut |_| {});
    let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
    assert_eq!((of(&counted.0), of(&losses)), (1, 0));
    is_over.store(true, Ordering::SeqCst);
    nic.turn(&mut |_| {});
    assert_eq!(of(&losses), 1);
}

#[test]
fn a_long_reason_is_cut_between_words_and_the_control_plane_gets_the_whole() {
    let connection = connection(Stream::None);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    connection.on_reason(Box::new(move |imm, why, is_cut| {
        hears
            .lock()
            .expect("alive")
            .push((imm.slot(), why.len(), is_cut));
    }));
    // A response slot of 128 bytes has room for 112 of a reason.
    for (slot, why, kept) in [
        (0, "HTTP 500".to_owned(), 8),
        (1, "overloaded ".repeat(20), 109),
        (2, "x".repeat(200), 112),
    ] {
        arrival(&connection, slot).refuse(&why);
        let at = connection.output_offset(slot);
        // SAFETY: no link reads or writes the output.
        let bytes = unsafe { connection.output.bytes(at, RESPONSE_HEADER_BYTES + kept) };
        let bytes = bytes.expect("inside");
        let header = ResponseHeader::decode(bytes, bytes.len() as u32, 1).expect("so long");
        let is_cut = kept < why.len();
        let refusal = if is_cut { Refusal::Cut } else { Refusal::Whole };
        assert_eq!(header.refusal, Some(refusal));
        assert_eq!(&bytes[RESPONSE_HEADER_BYTES..], &why.as_bytes()[..kept]);
        let last = heard.lock().expect("alive").pop();
        assert_eq!(last, Some((slot, why.len(), is_cut)));
    }
}

#[test]
fn options_lie_in_front_of_the_payload_and_are_not_in_the_answers_immediate() {
    let connection = connection(Stream::None);
    let imm = Imm::new(3, 1);
    let arrive = |len| {
        let mut arrivals = Vec::new();
        let imm = imm.with_options(true);
        connection.arrive(
            ArrivedWrite {
                imm,
                slot_offset: 0,
                len,
            },
            1,
            &mut arrivals,
        )?;
        arrivals.pop()
    };
    assert!(arrive(15).is_none(), "zeros are no block");
    let limit = RequestOptions {
        token_limit: NonZeroU32::new(2),
        ..RequestOptions::default()
    };
    let at = connection.window().slot_offset(3);
    let request = [&RequestOptions::limit_block(2)[..], b"payload"].concat();
    // SAFETY: no arrival of the slot lives.
    unsafe { connection.requests().store(at, &request) }.expect("inside");
    assert!(arrive(7).is_none(), "shorter than its block");
    let a = arrive(15).expect("sound");
    assert_eq!((a.input(), a.input_len()), (&b"payload"[..], 7));
    assert_eq!(a.options(), Ok(limit.clone()));
    assert_eq!(a.ticket(), u64::from(imm.bits()));
}

#[test]
fn a_cancel_concerns_one_use_of_a_slot() {
    let connection = connection(Stream::None);
    let (a, b) = (arrival(&connection, 0), arrival(&connection, 1));
    connection.cancel(Imm::new(0, 2));
    connection.cancel(Imm::new(1, 1));
    connection.cancel(Imm::new(SLOTS as u16, 1));
    assert!(a.is_wanted() && !b.is_wanted());
    drop((a, b));
    // The cancelled one is refused.
    let at = connection.output_offset(1);
    // SAFETY: no link reads or writes the output.
    let bytes = unsafe { connection.output.bytes(at, RESPONSE_HEADER_BYTES + 9) };
    let header = ResponseHeader::decode(bytes.expect("inside"), 25, 1).expect("a refusal");
    assert_eq!(header.refusal, Some(Refusal::Whole));
    // A mark that comes too late goes with the next arrival.
    connection.cancel(Imm::new(2, 0));
    assert!(arrival(&connection, 2).is_wanted());
    assert!(!connection.is_cancelled(Imm::new(2, 0).bits().into()));
}
