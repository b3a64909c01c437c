//! The allocator's counter counts each kind of allocation, by allocating thread.

use fabric::testkit::counting::{Counting, of_process, of_thread};
use std::{hint::black_box, sync::mpsc, thread};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations of this thread during `it`.
fn asked(it: impl FnOnce()) -> u64 {
    let before = of_thread();
    it();
    of_thread() - before
}

#[test]
fn each_way_to_ask_counts_once() {
    assert_eq!(asked(|| drop(black_box(Box::new(1u64)))), 1, "plain");
    assert_eq!(asked(|| drop(black_box(vec![0u8; 100]))), 1, "zeroed");
    let mut grows = Vec::<u64>::with_capacity(1);
    assert_eq!(
        asked(|| black_box(&mut grows).reserve_exact(1000)),
        1,
        "grown"
    );
    assert_eq!(asked(|| drop(grows)), 0, "given back");
}

#[test]
fn what_another_thread_asks_for_counts_for_the_process_alone() {
    let (go, wait) = mpsc::sync_channel::<()>(0);
    let other = thread::spawn(move || {
        wait.recv().expect("told to begin");
        asked(|| (0..10).for_each(|_| drop(black_box(Box::new(1u64)))))
    });
    let (mine, all) = (of_thread(), of_process());
    go.send(()).expect("it waits");
    assert_eq!(other.join().expect("ended"), 10);
    assert!(of_process() >= all + 10);
    // `join` and `send` may allocate a little, but fewer than ten times.
    assert!(of_thread() < mine + 10, "{} asked here", of_thread() - mine);
}
