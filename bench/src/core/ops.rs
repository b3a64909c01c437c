//! The operations. Each does, over and over, what the hot path does once for each sample.

use std::{collections::VecDeque, hint::black_box, sync::Arc};

use accelerator::batcher::{Batcher, Policy, Step};
use qdl::{
    connection::{
        token::SendToken,
        tracker::{Sample, Tracker},
    },
    fabric::{Grants, Imm, SourceId},
    rails::{self, Arbiter, Load},
    stats::{Live, Recorder, SampleTimes},
};

/// Slots over all connections.
const SLOTS: usize = 8192;
/// Samples in a batch.
const BATCH: usize = 64;

/// Does `n` operations.
pub trait Op {
    /// See the trait.
    fn run(&mut self, n: usize);
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A slot's whole round, answers in the order of the requests.
    Tracker,
    /// The same, answers in any order.
    TrackerShuffled,
    /// A choice among the connections.
    Arbiter,
    /// A sample in, and a sixty-fourth of a batch out.
    Batcher,
    /// A sample's times, into every stage's histogram.
    Histogram,
    /// Taking the send token and giving it back.
    Drive,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 6] = [
        Operation::Tracker,
        Operation::TrackerShuffled,
        Operation::Arbiter,
        Operation::Batcher,
        Operation::Histogram,
        Operation::Drive,
    ];

    /// Its key in JSON and on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Operation::Tracker => "tracker",
            Operation::TrackerShuffled => "tracker_shuffled",
            Operation::Arbiter => "arbiter",
            Operation::Batcher => "batcher",
            Operation::Histogram => "histogram",
            Operation::Drive => "drive",
        }
    }

    /// Its structure, with `in_flight` samples in it.
    pub fn make(self, connections: usize, in_flight: usize) -> Box<dyn Op> {
        match self {
            Operation::Tracker => Box::new(Track::new(connections, in_flight, false)),
            Operation::TrackerShuffled => Box::new(Track::new(connections, in_flight, true)),
            Operation::Arbiter => Box::new(Arbitrate::new(connections, in_flight)),
            Operation::Batcher => Box::new(Batch::new(in_flight)),
            Operation::Histogram => Box::new(Record::new(connections, in_flight)),
            Operation::Drive => Box::new(Drive::new(connections)),
        }
    }
}

/// A small generator of numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

struct Track {
    trackers: Vec<(Tracker, Arc<Grants>)>,
    in_flight: VecDeque<(usize, Imm)>,
    shuffled: bool,
    random: Random,
    next: u64,
}

impl Track {
    fn new(connections: usize, in_flight: usize, shuffled: bool) -> Self {
        let trackers = (0..connections)
            .map(|_| {
                let grants = Arc::new(Grants::new(SLOTS / connections));
                (Tracker::new(grants.clone()), grants)
            })
            .collect();
        let mut track = Track {
            trackers,
            in_flight: VecDeque::with_capacity(in_flight + 1),
            shuffled,
            random: Random(0x9e37_79b9_7f4a_7c15),
            next: 0,
        };
        for i in 0..in_flight {
            track.begin(i % connections);
        }
        track
    }

    fn begin(&mut self, connection: usize) {
        let tracker = &self.trackers[connection].0;
        let slot = tracker.reserve().expect("one was just released");
        let sample = Sample {
            id: self.next,
            index: self.next,
            source: SourceId(0),
            offset: 0,
            len: 64,
            issued_ns: self.next,
            first: None,
            losses: 0,
        };
        let imm = tracker.begin(slot, &sample, self.next).expect("reserved");
        self.next += 1;
        self.in_flight.push_back((connection, imm));
    }
}

impl Op for Track {
    fn run(&mut self, n: usize) {
        for _ in 0..n {
            if self.shuffled {
                let other = (self.random.next() % self.in_flight.len() as u64) as usize;
                self.in_flight.swap(0, other);
            }
            let Some((connection, imm)) = self.in_flight.pop_front() else {
                return;
            };
            let (tracker, grants) = &self.trackers[connection];
            grants.take(imm).expect("granted");
            black_box(tracker.arrived(imm.slot()));
            tracker.release(imm.slot());
            self.begin(connection);
        }
    }
}

struct Arbitrate {
    arbiter: Arbiter,
    loads: Vec<Load>,
}

impl Arbitrate {
    fn new(connections: usize, in_flight: usize) -> Self {
        let slots = SLOTS / connections;
        Arbitrate {
            arbiter: Arbiter::new(rails::Policy::LeastOutstanding),
            loads: (0..connections)
                .map(|i| Load {
                    up: true,
                    // One fewer than there are, so that somebody takes the next.
                    in_flight: ((in_flight + i) / connections).min(slots - 1),
                    slots,
                })
                .collect(),
        }
    }
}

impl Op for Arbitrate {
    fn run(&mut self, n: usize) {
        for _ in 0..n {
            let loads = &self.loads;
            black_box(self.arbiter.pick(loads.len(), |i| loads[i]));
        }
    }
}

struct Batch {
    batcher: Batcher<[usize; 7]>,
    batch: Vec<[usize; 7]>,
    now: u64,
    in_flight: usize,
}

impl Batch {
    fn new(in_flight: usize) -> Self {
        Batch {
            batcher: Batcher::new(
                Policy {
                    max_batch: BATCH,
                    max_delay_ns: 1_000_000,
                    latency_ns: None,
                    begin_apart_ns: 0,
                },
                &[],
            ),
            batch: Vec::with_capacity(BATCH),
            now: 0,
            in_flight,
        }
    }
}

impl Op for Batch {
    fn run(&mut self, n: usize) {
        for _ in 0..n {
            self.now += 1;
            self.batcher.push(self.now, [self.now as usize; 7]);
            // A free worker asks whenever something has come.
            let step = black_box(self.batcher.step(self.now, 1));
            if self.batcher.len() >= self.in_flight {
                debug_assert!(step != Step::Wait);
                self.batch.clear();
                self.batcher.take(self.now, &mut self.batch);
                black_box(&self.batch);
            }
        }
    }
}

struct Record {
    recorders: Vec<Recorder>,
    random: Random,
    in_flight: u64,
}

impl Record {
    fn new(connections: usize, in_flight: usize) -> Self {
        // One for each NIC thread: at most eight.
        let rails = connections.min(8);
        let live = Arc::new(Live::new(rails));
        Record {
            recorders: (0..rails).map(|i| Recorder::new(live.clone(), i)).collect(),
            random: Random(0x2545_f491_4f6c_dd1d),
            in_flight: in_flight as u64,
        }
    }
}

impl Op for Record {
    fn run(&mut self, n: usize) {
        let rails = self.recorders.len();
        for i in 0..n {
            // The more there are in flight, the longer each takes: 1 us each, give or take a
            // quarter.
            let typical = 1_000 * self.in_flight;
            let took = typical * 3 / 4 + self.random.next() % (typical / 2);
            let times = SampleTimes {
                issued_ns: 1_000,
                posted_ns: 1_200,
                seen_ns: 1_200 + took,
                completed_ns: 1_500 + took,
                queue_us: 0,
                compute_us: 0,
                bytes_out: 64,
                bytes_in: 64,
                ..SampleTimes::default()
            };
            self.recorders[i % rails].record(&times);
        }
    }
}

struct Drive {
    tokens: Vec<SendToken<u64>>,
}

impl Drive {
    fn new(connections: usize) -> Self {
        Drive {
            tokens: (0..connections).map(|_| SendToken::new(0)).collect(),
        }
    }
}

impl Op for Drive {
    fn run(&mut self, n: usize) {
        let connections = self.tokens.len();
        for i in 0..n {
            self.tokens[i % connections].drive(|sent| *sent += 1);
        }
        black_box(&self.tokens);
    }
}
