//! The whole library as a contender: dispatcher, tracker, arbiter, NIC threads, server, with the
//! configuration's defaults (spin 50 us, yield after 2, then sleep). The completing thread issues a
//! new sample for each answer.

use std::{
    net::TcpStream,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use fabric::{
    Region, SourceId,
    clock::now_ns,
    os::Near,
    tcp::{TcpCfgs, link},
};
use qdl::{
    connection::{NicThreadCfgs, Spin},
    counters::{Live, Recorder},
    dispatch::{
        Completer, ConnectionCfgs, DispatchCfgs, DispatchEvent, DispatchNic, Dispatcher, Owner,
        Response, Sample,
    },
    response::RESPONSE_HEADER_BYTES,
    serve::{
        Arrival, Finished, OnConnectionLost, ServeConnection, ServeConnectionCfgs, Server, Service,
        respond_all,
    },
};

use super::{
    meter::{Deadline, Meter},
    shape::{SAMPLES, Shape},
};

const SPIN_NS: u64 = 50_000;
const TICK_NS: u64 = 25_000_000;

/// A service that answers at once with `response` bytes.
struct Answer {
    response: u32,
    scratch: Mutex<Vec<Finished>>,
}

impl Service for Answer {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = arrivals.drain(..).map(|a| {
            let finished = Finished {
                ticket: a.ticket(),
                len: self.response,
                queue_us: 0,
                compute_us: 0,
                sent: qdl::serve::Sent::default(),
            };
            (a, finished)
        });
        respond_all(answered, &mut scratch);
    }
}

/// State shared by the completing thread and the harness.
struct Run {
    shape: Shape,
    dispatcher: OnceLock<Weak<Dispatcher>>,
    deadline_ns: AtomicU64,
    /// Answers left until the round's end.
    left: AtomicU64,
    in_flight: AtomicU64,
    meter: Mutex<Meter>,
}

struct Again {
    run: Arc<Run>,
    dispatcher: Option<Arc<Dispatcher>>,
    recorder: Recorder,
    next: Vec<Sample>,
    sent: u64,
}

fn sample(shape: &Shape, n: u64, now: u64) -> Sample {
    Sample {
        id: n,
        index: n,
        source: SourceId(0),
        offset: Shape::sample(n, SAMPLES) * shape.request,
        len: shape.request as u32,
        issued_ns: now,
        first: None,
        tries: Default::default(),
    }
}

impl Completer for Again {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        let n = responses.len() as u64;
        responses.for_each(|r| {
            std::hint::black_box(r.payload);
        });
        let now = now_ns();
        let left = self.run.left.load(Ordering::Relaxed);
        if now >= self.run.deadline_ns.load(Ordering::Relaxed) || left == 0 {
            self.run.in_flight.fetch_sub(n, Ordering::Relaxed);
            return;
        }
        // Only the completing thread writes `left` during a round.
        self.run
            .left
            .store(left.saturating_sub(n), Ordering::Relaxed);
        if self.dispatcher.is_none() {
            self.dispatcher = self.run.dispatcher.get().and_then(Weak::upgrade);
        }
        self.next.clear();
        for _ in 0..n {
            self.next.push(sample(&self.run.shape, self.sent, now));
            self.sent += 1;
        }
        if let Some(d) = &self.dispatcher {
            d.issue(&self.next);
        }
    }

    fn recorder(&mut self, _: u64) -> Option<&mut Recorder> {
        Some(&mut self.recorder)
    }
}

struct Nobody;

impl Owner for Nobody {
    fn complete_empty(&self, _: &[Sample]) {}
    fn event(&self, _: DispatchEvent) {}
}

/// The dispatcher and the server, each on its own NIC thread.
pub struct Rails {
    run: Arc<Run>,
    dispatcher: Arc<Dispatcher>,
    /// Dropping it stops the server.
    server: Server,
}

impl Rails {
    /// Connects both sides over pairs of streams. The client's NIC thread runs on the first CPU,
    /// the server's on the second.
    pub fn new(shape: Shape, pairs: Vec<(TcpStream, TcpStream)>, cpus: [usize; 2]) -> Result<Self> {
        let source = Arc::new(Region::new(SAMPLES * shape.request)?);
        source.prefault();
        // Twice the slots: a new sample is issued before the answered one's slot is free.
        let slots = 2 * shape.slots();
        let run = Arc::new(Run {
            shape,
            dispatcher: OnceLock::new(),
            deadline_ns: AtomicU64::new(0),
            left: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            meter: Mutex::new(Meter::new(shape.in_flight)),
        });
        let thread = |name: &str, cpu| NicThreadCfgs {
            name: name.to_owned(),
            spin: Spin::new(SPIN_NS),
            tick_ns: TICK_NS,
            near: Near::cpus(&[cpu]),
            begin: None,
        };
        let connection = ConnectionCfgs {
            peer: 0,
            nic_index: 0,
            slots,
            response_stride: RESPONSE_HEADER_BYTES + shape.response,
            request_stride: shape.request,
        };
        let cfgs = DispatchCfgs {
            sources: vec![source],
            connections: vec![connection; shape.connections],
            send_depth: slots.max(64),
            ..DispatchCfgs::default()
        };
        let front = DispatchNic {
            cfgs: thread("front", cpus[0]),
            completer: Box::new(Again {
                run: run.clone(),
                dispatcher: None,
                recorder: {
                    let run = run.clone();
                    Recorder::new(Arc::new(Live::new(1)), 0).observed(move |t, alike| {
                        // Uncontended: the harness takes it when no sample is in flight.
                        let mut meter = run.meter.lock().unwrap_or_else(PoisonError::into_inner);
                        (0..alike).for_each(|_| meter.answer(t.posted_ns, t.seen_ns));
                    })
                },
                next: Vec::with_capacity(1024),
                sent: 0,
            }),
        };
        let dispatcher = Arc::new(Dispatcher::new(cfgs, vec![front], Arc::new(Nobody))?);
        let _ = run.dispatcher.set(Arc::downgrade(&dispatcher));
        let service: Arc<dyn Service> = Arc::new(Answer {
            response: shape.response as u32,
            scratch: Mutex::default(),
        });
        let lost: Arc<OnConnectionLost> = Arc::new(|_| {});
        let server = Server::new(vec![thread("back", cpus[1])], &service, &lost)?;
        for (i, (near, far)) in pairs.into_iter().enumerate() {
            let serve = Arc::new(ServeConnection::new(ServeConnectionCfgs {
                gpu: None,
                session: 1,
                connection: i as u16,
                epoch: 1,
                slots,
                request_stride: connection.request_stride,
                response_stride: connection.response_stride,
                stream: fabric::wire::Stream::None,
            })?);
            let tcp = TcpCfgs::default();
            let far = link(far, serve.endpoint(slots.max(64)), &tcp)?;
            let near = link(near, dispatcher.endpoint(i), &tcp)?;
            server.attach(0, serve, far);
            dispatcher.attach(i, 1, near);
        }
        let end = now_ns() + 5_000_000_000;
        while dispatcher.connections_up() < shape.connections {
            ensure!(now_ns() < end, "the connections did not come up");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Rails {
            run,
            dispatcher,
            server,
        })
    }

    /// Runs one round. The calling thread starts it, then sleeps.
    pub fn round(&mut self, deadline: Deadline, meter: &mut Meter) -> Result<()> {
        let shape = self.run.shape;
        self.run.left.store(deadline.samples, Ordering::Relaxed);
        self.run
            .deadline_ns
            .store(deadline.at_ns, Ordering::Relaxed);
        let n = shape.in_flight as u64;
        self.run.in_flight.store(n, Ordering::Relaxed);
        let now = now_ns();
        let first: Vec<_> = (0..n).map(|i| sample(&shape, i, now)).collect();
        self.dispatcher.issue(&first);
        let mut left = match deadline.samples {
            u64::MAX => deadline.at_ns.saturating_sub(now_ns()),
            _ => 200_000,
        };
        loop {
            std::thread::sleep(Duration::from_nanos(left));
            if self.run.in_flight.load(Ordering::Relaxed) == 0 && self.dispatcher.outstanding() == 0
            {
                break;
            }
            ensure!(
                now_ns() < deadline.at_ns + 10_000_000_000,
                "the dispatcher did not answer"
            );
            left = 200_000;
        }
        // `record` follows `complete`: give the last samples time to be recorded.
        std::thread::sleep(Duration::from_millis(1));
        let mut mine = self
            .run
            .meter
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *meter = std::mem::replace(&mut *mine, Meter::new(shape.in_flight));
        Ok(())
    }

    /// Counters of both sides, as text.
    pub fn counts(&self) -> String {
        format!(
            "{:?}\n{:?}\n{:?}",
            self.dispatcher.counts(),
            self.dispatcher.connection_records(),
            self.server.counts()
        )
    }
}

impl Drop for Rails {
    fn drop(&mut self) {
        // Without the stop, the server would report each connection as lost.
        self.dispatcher.stop();
    }
}
