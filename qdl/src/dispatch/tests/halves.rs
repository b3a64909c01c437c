//! One poll takes half of the writes in flight, so that the peer works on the rest meanwhile.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{rig::*, tampered::*, *};
use fabric::{Flushed, Tx};

#[test]
fn a_poll_takes_half_of_what_is_in_flight_not_of_what_may_be() {
    let b = Bench::new(1, 2048, Arc::new(Hoard::default()), false, 1 << 20);
    let asked = Arc::new(Asked::default());
    let flush = |tx: &mut dyn Tx| -> Result<Flushed, Broken> { tx.flush() };
    let _faults = b.connect_noting(0, flush, &asked);
    b.wait_up(1);
    let mut issued = 0;
    for (in_flight, half) in [(600, 300), (900, 450)] {
        let samples: Vec<_> = (issued..in_flight).map(|id| b.sample(id)).collect();
        b.dispatcher.issue(&samples);
        issued = in_flight;
        let end = Instant::now() + Duration::from_secs(10);
        while asked.most.load(Ordering::SeqCst) != half {
            assert!(Instant::now() < end, "{asked:?}, {in_flight} in flight");
            std::thread::yield_now();
        }
    }
    b.dispatcher.abort("the test is over");
}
