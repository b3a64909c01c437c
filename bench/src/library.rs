//! The whole library as a contender: dispatcher, tracker, arbiter, NIC threads and server. NIC
//! threads wait as by default: they spin for 50 us, yield after 2 us, then sleep. The thread that
//! completes a sample issues the next sample.

use std::{
    net::TcpStream,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use fabric::{
    Region,
    clock::now_ns,
    os::{Near, lock},
    tcp::{TcpKeys, link},
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

use crate::meter::{Deadline, Meter, SAMPLES, Shape};

const SPIN_NS: u64 = 50_000;
const TICK_NS: u64 = 25_000_000;

/// A service that answers every sample at once with `response` bytes.
struct Answer {
    response: u32,
    scratch: Mutex<Vec<Finished>>,
}

impl Service for Answer {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let mut scratch = lock(&self.scratch);
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

/// State that the completing NIC thread shares with the thread that calls [`Library::round`].
struct Exchange {
    shape: Shape,
    dispatcher: OnceLock<Weak<Dispatcher>>,
    deadline_ns: AtomicU64,
    /// Number of answers still to come before the round ends.
    left: AtomicU64,
    in_flight: AtomicU64,
    meter: Mutex<Meter>,
}

struct Reissue {
    run: Arc<Exchange>,
    dispatcher: Option<Arc<Dispatcher>>,
    recorder: Recorder,
    next: Vec<Sample>,
    sent: u64,
}

fn sample(shape: &Shape, n: u64, now: u64) -> Sample {
    Sample {
        id: n,
        index: n,
        offset: Shape::sample(n) * shape.request,
        len: shape.request as u32,
        issued_ns: now,
        ..Sample::default()
    }
}

impl Completer for Reissue {
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

struct NoOwner;

impl Owner for NoOwner {
    fn complete_empty(&self, _: &[Sample]) {}
    fn event(&self, _: DispatchEvent) {}
}

/// The dispatcher and the server, each with one NIC thread.
pub struct Library {
    run: Arc<Exchange>,
    dispatcher: Arc<Dispatcher>,
    /// The drop of this field stops the server.
    server: Server,
}

impl Library {
    /// Connects both sides over pairs of streams. The client's NIC thread runs on the first CPU,
    /// the server's on the second.
    pub fn new(shape: Shape, pairs: Vec<(TcpStream, TcpStream)>, cpus: [usize; 2]) -> Result<Self> {
        let source = Arc::new(Region::new(SAMPLES * shape.request)?);
        source.prefault();
        // Twice the slots: the completer issues a sample before the answered one frees its slot.
        let slots = 2 * shape.slots();
        let run = Arc::new(Exchange {
            shape,
            dispatcher: OnceLock::new(),
            deadline_ns: AtomicU64::new(0),
            left: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            meter: Mutex::new(Meter::new(shape.in_flight)),
        });
        let thread = |name: &str, cpu| NicThreadCfgs {
            near: Near::cpus(&[cpu]),
            ..NicThreadCfgs::new(name, Spin::new(SPIN_NS), TICK_NS)
        };
        let connection = ConnectionCfgs {
            peer: 0,
            role: Default::default(),
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
            completer: Box::new(Reissue {
                run: run.clone(),
                dispatcher: None,
                recorder: {
                    let run = run.clone();
                    Recorder::new(Arc::new(Live::new(1)), 0).observed(move |t, alike| {
                        // This lock is free: `round` takes it only while no sample is in flight.
                        let mut meter = lock(&run.meter);
                        (0..alike).for_each(|_| meter.answer(t.posted_ns, t.seen_ns));
                    })
                },
                next: Vec::with_capacity(1024),
                sent: 0,
            }),
        };
        let dispatcher = Arc::new(Dispatcher::new(cfgs, vec![front], Arc::new(NoOwner))?);
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
                takes_options: false,
                response_stride: connection.response_stride,
                stream: fabric::wire::Stream::None,
            })?);
            let tcp = TcpKeys::default();
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
        Ok(Library {
            run,
            dispatcher,
            server,
        })
    }

    /// Runs one round. The calling thread issues the first samples, then sleeps until the end.
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
        // The dispatcher records a sample after `complete`: wait for the last records.
        std::thread::sleep(Duration::from_millis(1));
        let mut mine = lock(&self.run.meter);
        *meter = std::mem::replace(&mut *mine, Meter::new(shape.in_flight));
        Ok(())
    }

    /// Counters of dispatcher, connections and server, as text.
    pub fn counts(&self) -> String {
        format!(
            "{:?}\n{:?}\n{:?} arrived, {:?}",
            self.dispatcher.counts(),
            self.dispatcher.connection_records(),
            self.server.arrived(),
            self.server.waits()
        )
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // Without this stop, the server would report each connection as lost.
        self.dispatcher.stop();
    }
}
