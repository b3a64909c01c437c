//! Links that misbehave.

use std::{os::fd::RawFd, sync::Arc, time::Duration};

use super::{rig::Bench, *};
use crate::serve::{ConnectionLost, ServeConnection};
use fabric::{
    Armed, Event, FabricCounts, Flushed, Post, PostError, Rx, Tx,
    testkit::{memory, memory::MemoryFaults},
};

pub(crate) trait Tamper: Send + 'static {
    fn post(&mut self, tx: &mut dyn Tx, post: &Post) -> Result<(), PostError> {
        tx.post(post)
    }
    fn flush(&mut self, tx: &mut dyn Tx) -> Result<Flushed, Broken> {
        tx.flush()
    }
    fn room(&self, tx: &dyn Tx) -> usize {
        tx.room()
    }
    fn finish(&mut self, tx: &mut dyn Tx) -> bool {
        tx.finish()
    }
}

impl<F: FnMut(&mut dyn Tx) -> Result<Flushed, Broken> + Send + 'static> Tamper for F {
    fn flush(&mut self, tx: &mut dyn Tx) -> Result<Flushed, Broken> {
        self(tx)
    }
}

struct Tampered<T> {
    tx: Box<dyn Tx>,
    tamper: T,
}

impl<T: Tamper> Tx for Tampered<T> {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.tamper.post(&mut *self.tx, post)
    }
    fn flush(&mut self) -> Result<Flushed, Broken> {
        self.tamper.flush(&mut *self.tx)
    }
    fn room(&self) -> usize {
        self.tamper.room(&*self.tx)
    }
    fn posted(&self) -> u64 {
        self.tx.posted()
    }
    fn retired(&self) -> u64 {
        self.tx.retired()
    }
    fn inline_limit(&self) -> usize {
        self.tx.inline_limit()
    }
    fn finish(&mut self) -> bool {
        self.tamper.finish(&mut *self.tx)
    }
    fn counts(&self) -> FabricCounts {
        self.tx.counts()
    }
}

/// Calls that a NIC thread makes to a receiving half.
#[derive(Debug, Default)]
pub struct Asked {
    pub armed: AtomicU64,
    pub most: AtomicU64,
}

/// A receiving half that records its calls.
struct Noting {
    rx: Box<dyn Rx>,
    asked: Arc<Asked>,
}

impl Rx for Noting {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize {
        self.asked.most.store(budget as u64, Ordering::SeqCst);
        self.rx.poll(budget, sink)
    }
    fn arm(&mut self) -> Armed {
        self.asked.armed.fetch_add(1, Ordering::SeqCst);
        self.rx.arm()
    }
    fn fd(&self) -> RawFd {
        self.rx.fd()
    }
    fn counts(&self) -> FabricCounts {
        self.rx.counts()
    }
}

pub(crate) fn tampered(link: Link, tamper: impl Tamper) -> Link {
    let tx = Box::new(Tampered {
        tx: link.tx,
        tamper,
    });
    Link { tx, rx: link.rx }
}

impl Bench {
    /// Joins both ends of a connection over memory, and leaves it to the test to attach them.
    pub(crate) fn halves(
        &self,
        connection: usize,
    ) -> (Arc<ServeConnection>, Link, Link, MemoryFaults) {
        let serve = self.serve_connection(connection, 1);
        let ends = (self.dispatcher.endpoint(connection), serve.endpoint(64));
        let (near, far, faults) = memory::pair(ends.0, ends.1).expect("joined");
        (serve, near, far, faults)
    }

    /// Waits until the server reports a loss.
    pub(crate) fn next_lost(&self) -> ConnectionLost {
        let lost = self.lost().recv_timeout(Duration::from_secs(10));
        lost.expect("reported")
    }

    /// Joins both ends of a connection over memory; the dispatcher's end is tampered with.
    pub(crate) fn connect_tampered(&self, connection: usize, tamper: impl Tamper) -> MemoryFaults {
        self.connect_noting(connection, tamper, &Arc::default())
    }

    /// As [`Self::connect_tampered`], recording the NIC thread's calls in `asked`.
    pub(crate) fn connect_noting(
        &self,
        connection: usize,
        tamper: impl Tamper,
        asked: &Arc<Asked>,
    ) -> MemoryFaults {
        let (serve, near, far, faults) = self.halves(connection);
        self.server.attach(connection % 2, serve, far);
        let Link { tx, rx } = tampered(near, tamper);
        let asked = asked.clone();
        let rx = Box::new(Noting { rx, asked });
        self.dispatcher.attach(connection, 1, Link { tx, rx });
        faults
    }
}
