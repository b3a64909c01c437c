//! The queue from NIC threads to workers: lock-free, almost in order, of unlimited length.

use crossbeam_queue::{ArrayQueue, SegQueue};

/// A preallocated ring, and an overflow queue that allocates. The overflow takes LoadGen's Offline
/// query of `frontend --local`, which has more samples than the ring has room.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    ring: ArrayQueue<T>,
    overflow: SegQueue<T>,
}

impl<T> Queue<T> {
    pub fn new(capacity: usize) -> Self {
        Queue {
            ring: ArrayQueue::new(capacity.max(1)),
            overflow: SegQueue::new(),
        }
    }

    /// Pushes an item; never blocks. An item in the ring may overtake an older item in the
    /// overflow; the batcher orders samples by arrival time.
    pub fn push(&self, item: T) {
        if !self.overflow.is_empty() {
            self.overflow.push(item);
        } else if let Err(item) = self.ring.push(item) {
            self.overflow.push(item);
        }
    }

    pub fn pop(&self) -> Option<T> {
        self.ring.pop().or_else(|| self.overflow.pop())
    }

    pub fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.overflow.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_keeps_order_and_loses_nothing() {
        let q = Queue::new(4);
        for i in 0..100 {
            q.push(i);
        }
        assert_eq!((q.pop(), q.pop()), (Some(0), Some(1)));
        // The ring has room again, but items in the overflow are older.
        q.push(100);
        let rest: Vec<_> = std::iter::from_fn(|| q.pop()).collect();
        assert_eq!(rest, (2..=100).collect::<Vec<_>>());
        assert!(q.is_empty());
    }
}
