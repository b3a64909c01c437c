//! Answers in parts through a server, over a connection that has no room for a while.

use super::{
    rig::{Bench, Hoard, RigCfgs, Wait, finished},
    tampered::{Tamper, tampered},
    *,
};
use crate::{
    response::{RESPONSE_HEADER_BYTES, RESPONSE_TRAILER_BYTES, ResponseHeader, ResponseTrailer},
    serve::{self, Sent, respond_all},
};
use fabric::{Event, Flushed, Imm, Post, SourceId, Tx, wire::Stream};

struct Gate(Arc<AtomicBool>);

impl Tamper for Gate {
    fn room(&self, tx: &dyn Tx) -> usize {
        if self.0.load(Ordering::SeqCst) {
            tx.room()
        } else {
            0
        }
    }
    fn flush(&mut self, tx: &mut dyn Tx) -> Result<Flushed, Broken> {
        match tx.flush()? {
            Flushed::Done if !self.0.load(Ordering::SeqCst) => Ok(Flushed::Blocked),
            flushed => Ok(flushed),
        }
    }
}

#[test]
fn parts_that_wait_for_room_leave_together_and_the_first_by_itself() {
    for stream in [Stream::First, Stream::All] {
        let hoard = Arc::new(Hoard::default());
        let cfgs = RigCfgs {
            response: 128,
            stream,
            wait: Wait::patient(),
            ..RigCfgs::new(1, 16)
        };
        let b = Bench::new(cfgs, hoard.clone());
        let (serve, mut near, far, _faults) = b.halves(0);
        let open = Arc::new(AtomicBool::new(false));
        b.server
            .attach(0, serve.clone(), tampered(far, Gate(open.clone())));
        let window = &b.dispatcher.shared.connections[0].window;
        window.grants().open(3);
        let imm = Imm::new(3, 1);
        let request = Post {
            source: SourceId(0),
            offset: 0,
            len: 16,
            at: 0,
            imm,
        };
        near.tx.post(&request).expect("room");
        near.tx.flush().expect("alive");
        let mut arrived = None;
        eventually("it arrives", || {
            arrived = hoard.0.lock().expect("alive").pop();
            arrived.is_some()
        });
        let mut arrival = arrived.expect("just seen");
        let (origin, mut sent) = (arrival.origin().clone(), Sent::default());
        let tokens: Vec<u8> = (50u32..60).flat_map(u32::to_le_bytes).collect();
        for (at, two) in (0..).step_by(8).zip(tokens.chunks(8)) {
            arrival.output_from(at)[..8].copy_from_slice(two);
            if at < 32 && (at == 0 || stream == Stream::All) {
                let to = at as u32 + 8;
                origin.part(&serve::Part {
                    ticket: arrival.ticket(),
                    from: sent.bytes,
                    to,
                    queue_us: 1,
                    compute_us: 2,
                });
                (sent.bytes, sent.parts) = (to, sent.parts + 1);
                sent.sum_us += 3;
            }
        }
        let done = finished(&arrival, 40, sent);
        respond_all([(arrival, done)], &mut Vec::new());
        assert!(
            !serve.window().grants().is_open(3),
            "its answer is not posted"
        );
        open.store(true, Ordering::SeqCst);
        let mut came = Vec::new();
        eventually("both come", || {
            near.rx.poll(4, &mut |e| came.push(e));
            came.len() >= 2
        });
        let at = RESPONSE_HEADER_BYTES as u32 + 8;
        let first = Event::Arrived {
            imm: imm.with_more(),
            at: 0,
            len: at,
        };
        let rest = Event::Arrived {
            imm,
            at,
            len: 8 * 4 + RESPONSE_TRAILER_BYTES as u32,
        };
        assert_eq!(came, [first, rest], "{stream:?}");
        let (begin, len) = (window.slot_offset(3), 16 + 40 + 16);
        // SAFETY: all of these bytes have arrived.
        let bytes = unsafe { window.region().bytes(begin, len) }.expect("inside");
        let header = ResponseHeader::decode(&bytes[..at as usize], at, 1).expect("a header");
        assert_eq!((header.len, header.queue_us, header.compute_us), (8, 1, 2));
        assert_eq!(bytes[16..56], tokens);
        let trailer = bytes[56..].first_chunk().expect("16 bytes");
        let trailer = ResponseTrailer::decode(trailer, 40, 2).expect("two parts");
        assert_eq!((trailer.compute_us, trailer.mean_us), (2, 3));
        eventually("it is granted again", || {
            serve.window().grants().is_open(3) && serve.responded() == 1
        });
        assert_eq!((serve.responded(), serve.parts()), (1, 1));
    }
}
