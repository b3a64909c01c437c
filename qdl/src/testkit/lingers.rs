//! A link whose goodbye takes as long as a test wants.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use fabric::{Broken, FabricCounts, Flushed, Link, Post, PostError, Tx};

struct Lingers {
    tx: Box<dyn Tx>,
    is_over: Arc<AtomicBool>,
}

impl Tx for Lingers {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.tx.post(post)
    }
    fn flush(&mut self) -> Result<Flushed, Broken> {
        self.tx.flush()
    }
    fn room(&self) -> usize {
        self.tx.room()
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
        self.is_over.load(Ordering::SeqCst) && self.tx.finish()
    }
    fn counts(&self) -> FabricCounts {
        self.tx.counts()
    }
}

/// The link, whose goodbye ends once the flag is set.
pub fn lingers(link: Link) -> (Link, Arc<AtomicBool>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let tx = Box::new(Lingers {
        tx: link.tx,
        is_over: is_over.clone(),
    });
    (Link { tx, rx: link.rx }, is_over)
}
