//! The NIC threads of all nodes, one step at a time: a turn, or the attempt to sleep.

use std::{collections::BTreeSet, os::fd::RawFd};

use fabric::testkit::dice::Dice;
use qdl::connection::{
    NicThread,
    nic_thread::by_hand::{HandTurned, Step},
};

use crate::queue::{Queue, Task};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Awake,
    /// It has nothing to do, and announces its sleep next.
    Idle,
    /// It has announced its sleep, and arms next.
    Arming,
    Asleep,
    /// It is asleep, and an event has ended the sleep.
    Waking,
    Ended,
}

struct Thread {
    turned: HandTurned,
    stage: Stage,
    /// Node: 0 for the frontend.
    process: usize,
    dice: Dice,
    fds: BTreeSet<RawFd>,
    /// Edges since it has last armed: descriptor, and whether it is writable.
    edges: Vec<(RawFd, bool)>,
    sleeps: u64,
}

/// All NIC threads.
pub struct Threads {
    all: Vec<Thread>,
    /// Per node: the end of its stop.
    pub stopped: Vec<u64>,
}

impl Threads {
    /// No threads, of so many nodes.
    pub fn new(processes: usize) -> Self {
        Threads {
            all: Vec::new(),
            stopped: vec![0; processes],
        }
    }

    /// Adds a thread of node `process`, awake.
    pub fn add(&mut self, process: usize, thread: NicThread, seed: u64, queue: &mut Queue) {
        let number = self.all.len();
        self.all.push(Thread {
            turned: HandTurned::new(thread),
            stage: Stage::Awake,
            process,
            dice: Dice::of(seed, &[20, number as u64]),
            fds: BTreeSet::new(),
            edges: Vec::new(),
            sleeps: 0,
        });
        queue.at(1_000 + number as u64, Task::Thread(number));
    }

    /// Takes the next step of a thread.
    pub fn step(&mut self, i: usize, now: u64, queue: &mut Queue) {
        let t = &mut self.all[i];
        let until = self.stopped[t.process];
        if until > now {
            return queue.at(until, Task::Thread(i));
        }
        let within = match t.stage {
            Stage::Ended | Stage::Asleep => return,
            Stage::Arming => match t.turned.arm() {
                None => {
                    t.turned.wake(false, &[]);
                    t.stage = Stage::Awake;
                    500
                }
                Some(ns) => {
                    // `arm` has seen the arrivals before it, but no edge of writability.
                    t.edges.retain(|(_, writable)| *writable);
                    t.stage = Stage::Asleep;
                    t.sleeps += 1;
                    let (thread, sleep) = (i, t.sleeps);
                    let at = now.saturating_add(ns);
                    return queue.at(at, Task::Timeout { thread, sleep });
                }
            },
            Stage::Idle => {
                t.turned.announce();
                t.stage = Stage::Arming;
                600
            }
            Stage::Waking | Stage::Awake => {
                if t.stage == Stage::Waking {
                    let is_event = !t.edges.is_empty() || t.turned.is_woken();
                    let fds: Vec<_> = t.edges.drain(..).map(|(fd, _)| fd).collect();
                    t.turned.wake(is_event, &fds);
                }
                let Thread { turned, fds, .. } = t;
                let (stage, within) = match turned.turn_only(&mut |fd| _ = fds.insert(fd)) {
                    Step::End => (Stage::Ended, 0),
                    Step::Turn => (Stage::Awake, 3_000),
                    Step::Arm => (Stage::Idle, 300),
                };
                t.stage = stage;
                if stage == Stage::Ended {
                    return;
                }
                within
            }
        };
        // Now and then another thread has the core.
        let within = if t.dice.percent(2) { 150_000 } else { within };
        queue.at(now + 1 + t.dice.below(within), Task::Thread(i));
    }

    /// Ends a sleep without an event. Returns false if the thread does not sleep it any more.
    pub fn time_out(&mut self, i: usize, sleep: u64) -> bool {
        let t = &mut self.all[i];
        let ends = t.stage == Stage::Asleep && t.sleeps == sleep;
        if ends {
            t.stage = Stage::Waking;
        }
        ends
    }

    /// Notes an edge of a descriptor.
    pub fn signal(&mut self, edge: (RawFd, bool)) {
        let mut all = self.all.iter_mut();
        if let Some(t) = all.find(|t| t.fds.contains(&edge.0)) {
            t.edges.push(edge);
        }
    }

    /// Wakes the sleepers that an edge or a second thread has woken.
    pub fn wake(&mut self, now: u64, queue: &mut Queue) {
        for (i, t) in self.all.iter_mut().enumerate() {
            if t.stage == Stage::Asleep && (!t.edges.is_empty() || t.turned.is_woken()) {
                t.stage = Stage::Waking;
                let within = if t.dice.percent(5) { 100_000 } else { 8_000 };
                queue.at(now + 1 + t.dice.below(within), Task::Thread(i));
            }
        }
    }

    /// Whether all threads of the frontend, or of the accelerators, have ended.
    pub fn have_ended(&self, of_frontend: bool) -> bool {
        let mut all = self.all.iter();
        all.all(|t| (t.process == 0) != of_frontend || t.stage == Stage::Ended)
    }
}
