//! One poll takes half of the writes in flight, so that the peer works on the rest meanwhile.

use std::sync::Arc;

use super::{rig::*, tampered::*, *};
use fabric::{Flushed, Tx};

#[test]
fn a_poll_takes_half_of_the_writes_in_flight() {
    let b = Bench::new(RigCfgs::new(1, 2048), Arc::new(Hoard::default()));
    let asked = Arc::new(Asked::default());
    let flush = |tx: &mut dyn Tx| -> Result<Flushed, Broken> { tx.flush() };
    let _faults = b.connect_noting(0, flush, &asked);
    b.wait_up(1);
    let mut issued = 0;
    for (in_flight, half) in [(600, 300), (900, 450)] {
        b.issue(issued..in_flight);
        issued = in_flight;
        eventually_or(
            || format!("{asked:?}, {in_flight} in flight"),
            || asked.most.load(Ordering::SeqCst) == half,
        );
    }
    b.dispatcher.abort("the test is over");
}
