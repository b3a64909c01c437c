//! Recording a sample causes no allocation. A separate program, because it counts allocations of
//! the whole process.

use std::{hint::black_box, sync::Arc};

use fabric::testkit::counting::{Counting, of_thread as asked};
use qdl::counters::{Live, Recorder, SampleTimes};
use record::BatchSizes;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn recording_allocates_nothing() {
    let before = asked();
    drop(black_box(vec![0u8; 100]));
    assert!(asked() > before, "the counter counts");

    let live = Arc::new(Live::new(1));
    let mut recorder = Recorder::new(live.clone(), 0);
    let mut sizes = BatchSizes::new(1024);
    let before = asked();
    for i in 0..200_000u64 {
        // Every magnitude up to an hour, and beyond the histograms' maximum.
        let long = 1u64 << (i % 45);
        recorder.record(&SampleTimes {
            issued_ns: 0,
            posted_ns: i,
            seen_ns: i + long,
            completed_ns: i + 2 * long,
            queue_us: i as u32,
            compute_us: 7,
            bytes_out: 150_528,
            bytes_in: 8,
            ..SampleTimes::default()
        });
        sizes.record((i % 1500) as usize);
        if i % 64 == 0 {
            recorder.show(i * 100_000);
            black_box(live.figures());
        }
    }
    assert_eq!(asked() - before, 0, "allocations in 200,000 samples");
    assert_eq!(recorder.completed(), 200_000);
}
