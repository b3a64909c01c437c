//! Statistics of a dispatcher, during and after a run: counts, records and placement.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use super::{Connection, DispatchCounts, Dispatcher};
use crate::{
    connection::{NicThreadHandle, Placed},
    counters::{ConnectionCounts, ConnectionReading, NicTimes},
};

impl Dispatcher {
    /// Placement of each NIC's threads and of its connections' memory.
    pub fn placed(&self) -> Vec<Placed> {
        NicThreadHandle::placed_by_nic(&self.handles, &self.crew)
    }

    /// NUMA nodes of the samples' memory, as the kernel reports them.
    pub fn sample_nodes(&self) -> BTreeSet<u32> {
        let s = &*self.shared;
        let regions = s.sources.iter().chain(&s.staged_from);
        regions.flat_map(|r| r.nodes()).collect()
    }

    /// Number of NIC threads.
    pub fn nic_threads(&self) -> usize {
        self.crew.threads()
    }

    /// Which thread posts a sample: the largest burst that the issuing thread posts, in payload
    /// bytes, and whether each sample has a doorbell of its own.
    pub fn posting_rule(&self) -> (u64, bool) {
        (self.shared.post_up_to, self.shared.one_by_one)
    }

    /// Number of connections that are up.
    pub fn connections_up(&self) -> usize {
        let up = |l: &&Connection| l.up.load(Ordering::Relaxed);
        self.shared.connections.iter().filter(up).count()
    }

    /// Issue time of the first sample on [`fabric::clock`], warm-up samples excluded.
    pub fn first_issued_ns(&self) -> Option<u64> {
        match self.shared.first_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(ns),
        }
    }

    /// Samples issued and not completed.
    pub fn outstanding(&self) -> u64 {
        let c = self.counts();
        c.issued - c.completed - c.completed_empty
    }

    /// Parts handed over with parts to follow. Like completed samples, they show progress.
    pub fn parts(&self) -> u64 {
        let parts = self.shared.parts.iter();
        parts.map(|p| p.load(Ordering::Relaxed)).sum()
    }

    /// Totals so far.
    pub fn counts(&self) -> DispatchCounts {
        let s = &*self.shared;
        let (wakeups, sleeps) = NicThreadHandle::waits(&self.handles);
        let completed_empty = s.completed_empty.load(Ordering::Acquire);
        let completed = s.completed.iter().map(|c| c.load(Ordering::Acquire)).sum();
        DispatchCounts {
            completed,
            completed_empty,
            parts: self.parts(),
            // Load last: each completed sample was issued before.
            issued: s.issued.load(Ordering::Acquire),
            again: s.again.load(Ordering::Relaxed),
            refused: [0, 1, 2].map(|i| s.refused[i].load(Ordering::Relaxed)),
            posted: s
                .connections
                .iter()
                .map(Connection::posted_for_callers)
                .sum(),
            connections_lost: s.connections_lost.load(Ordering::Relaxed),
            backlog_max: s.backlog_max.load(Ordering::Relaxed),
            backlogged: s.backlogged.load(Ordering::Relaxed),
            handed_over: s.handed_over.load(Ordering::Relaxed),
            wakeups,
            sleeps,
        }
    }

    /// Work of the NIC threads so far.
    pub fn nic_use(&self) -> NicTimes {
        NicThreadHandle::uses(&self.handles)
    }

    /// Counts of each connection, final once the dispatcher has been stopped. The caller adds the
    /// names of the connections and the causes of their losses.
    pub fn connection_records(&self) -> Vec<ConnectionCounts> {
        self.shared
            .connections
            .iter()
            .map(Connection::settled)
            .collect()
    }

    /// Live figures of each connection, without rail scores. Reading them slows no other thread.
    pub fn readings(&self) -> Vec<ConnectionReading> {
        self.shared
            .connections
            .iter()
            .map(Connection::reading)
            .collect()
    }

    /// Samples copied into registered memory before they were sent (`qsl: staged`), and their
    /// bytes. They are not part of [`Self::counts`], because this call waits for the threads that
    /// send.
    pub fn staged(&self) -> (u64, u64) {
        let sent = self.shared.connections.iter().map(|c| c.send.counts());
        sent.fold((0, 0), |(n, bytes), c| {
            (n + c.staged, bytes + c.staged_bytes)
        })
    }
}
