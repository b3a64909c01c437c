//! The queue of tasks, in the order of their times. Tasks of the same time keep their order.

use std::{cmp::Ordering, collections::BinaryHeap};

use fabric::testkit::sim::Due;

use crate::stream::Arrives;

/// A step of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The next step of a NIC thread.
    Thread(usize),
    /// The end of a NIC thread's sleep without an event.
    Timeout { thread: usize, sleep: u64 },
    /// The fabric.
    Net(Due),
    /// A job of a server's companion thread.
    Prepare { server: usize, share: usize },
    /// The engines have work.
    Engine,
    /// An event of the plan.
    Event(usize),
    /// Bytes of a control stream arrive.
    Stream(Arrives),
    /// The accelerators greet the peers that have connected.
    Visits,
    /// The accelerators admit the connections that came over data ports.
    Guests,
    /// The millisecond at which timers of the control tasks fire.
    Tick,
    /// An accelerator starts again.
    Start(usize),
    /// The link of a NIC of the frontend is up again.
    Up(usize),
    /// The engines let go of the samples that they cannot deliver.
    Purge,
}

/// Cause of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The two ends at work: samples may wait for it.
    Work,
    /// The engines, which owe answers.
    Engine,
    /// The plan, or the control sessions in their own time: while a connection is up, no sample may
    /// wait for it.
    Outside,
    /// Only time passes.
    Idle,
}

impl Task {
    fn cause(self) -> Cause {
        match self {
            Task::Timeout { .. } | Task::Stream(_) | Task::Visits | Task::Tick => Cause::Idle,
            Task::Engine => Cause::Engine,
            Task::Event(_) | Task::Purge | Task::Start(_) | Task::Up(_) => Cause::Outside,
            _ => Cause::Work,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    number: u64,
    task: Task,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap's greatest entry is the earliest one.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Tasks by time.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Entry>,
    /// Tasks so far.
    pub planned: u64,
    /// Tasks of the two ends at work.
    pub work: usize,
    /// Tasks from outside.
    pub outside: usize,
}

impl Queue {
    fn count(&mut self, task: Task) -> Option<&mut usize> {
        match task.cause() {
            Cause::Work => Some(&mut self.work),
            Cause::Outside => Some(&mut self.outside),
            Cause::Engine | Cause::Idle => None,
        }
    }

    /// Adds a task at a time in nanoseconds.
    pub fn at(&mut self, at: u64, task: Task) {
        self.planned += 1;
        if let Some(count) = self.count(task) {
            *count += 1;
        }
        self.heap.push(Entry {
            at,
            number: self.planned,
            task,
        });
    }

    /// The earliest task with its time.
    pub fn next(&mut self) -> Option<(u64, Task)> {
        let Entry { at, task, .. } = self.heap.pop()?;
        if let Some(count) = self.count(task) {
            *count -= 1;
        }
        Some((at, task))
    }
}
