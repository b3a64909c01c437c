//! What the `ib` fabric's software costs for each write posted, retired and received, with the
//! device stubbed at the provider's table of operations, and how often it allocates (never).
//!
//! ```text
//! cargo run --release -p fabric --features stub --example ib_posting_cost
//! ```
//!
//! Prints one JSON object. The stub's own part is in the numbers: a
//! lock for each call, a look-up and a memcpy for each write. Compare
//! runs on one machine with each other; they say nothing about a NIC.
#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::time::Instant;

use fabric::ib::{IbCfgs, IbConnection, IbDevice, IbDeviceCfgs, IbResources, IbWishes};
use fabric::testkit::{
    self,
    counting::{self, Counting},
};
use fabric::{Event, Grants, Imm, Link};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Writes for each doorbell.
const BURST: usize = 64;
const BURSTS: u64 = 20_000;
const SLOTS: usize = 256;
const STRIDE: usize = 4096;

fn main() {
    println!(
        "{{{}, {}, {}}}",
        measure("inline_64", 64, None),
        measure("region_4096", 4096, None),
        measure("split_4000", 4000, Some(1024))
    );
}

/// One row: nanoseconds a write of `post`; of `flush`, which rings the doorbell and retires; of the
/// peer's `poll`, which posts receives again.
fn measure(name: &str, len: u32, split_above: Option<u32>) -> String {
    let (mut a, mut b, grants) = links(split_above);
    let (mut posting, mut flushing, mut receiving) = (0, 0, 0);
    let mut slot = 0;
    let mut before = 0;
    for burst in 0..BURSTS + 1000 {
        if burst == 1000 {
            // Warm: queues have their size.
            (posting, flushing, receiving) = (0, 0, 0);
            before = counting::of_process();
        }
        let mut imms = [Imm::new(0, 0); BURST];
        for imm in &mut imms {
            let use_count = grants.open(slot).expect("free");
            *imm = Imm::new(slot, use_count);
            slot = (slot + 1) % SLOTS as u16;
        }
        let start = Instant::now();
        for imm in imms {
            let offset = usize::from(imm.slot()) * STRIDE;
            a.tx.post(&testkit::post(offset, len, imm)).expect("room");
        }
        let posted = Instant::now();
        a.tx.flush().expect("alive");
        let flushed = Instant::now();
        let mut arrived = 0;
        b.rx.poll(BURST, &mut |e| {
            arrived += usize::from(matches!(e, Event::Arrived { .. }))
        });
        receiving += flushed.elapsed().as_nanos();
        flushing += (flushed - posted).as_nanos();
        posting += (posted - start).as_nanos();
        assert_eq!(arrived, BURST);
    }
    let allocations = counting::of_process() - before;
    let counts = a.tx.counts();
    let each = |nanos: u128| nanos as f64 / (BURSTS * BURST as u64) as f64;
    format!(
        "\"{name}\": {{\"post_ns\": {:.1}, \"flush_ns\": {:.1}, \"receive_ns\": {:.1}, \
         \"work_requests\": {}, \"doorbells\": {}, \"signaled\": {}, \"allocations\": {allocations}}}",
        each(posting),
        each(flushing),
        each(receiving),
        counts.work_requests,
        counts.doorbells,
        counts.signaled,
    )
}

fn links(split_above: Option<u32>) -> (Link, Link, Arc<Grants>) {
    let end = |device: &str| {
        let mut wishes = IbWishes::new(device);
        wishes.split_above = split_above;
        let resources =
            IbResources::new(IbDevice::open(&IbDeviceCfgs::new(device)).expect("a stub device"));
        let resources = resources.expect("a domain");
        let endpoint = testkit::endpoint(SLOTS, STRIDE, 4096);
        let grants = endpoint.window.grants().clone();
        let limits = resources.device().limits().clone();
        let cfgs = IbCfgs::resolve(&wishes, &limits, SLOTS).expect("within limits");
        let half = IbConnection::prepare(&resources, endpoint, &cfgs).expect("prepared");
        (half, grants)
    };
    let ((a, _), (b, grants)) = (end("stub0"), end("stub1"));
    let (ea, eb) = (a.end(), b.end());
    let a = a.connect(&eb).expect("connected");
    (a, b.connect(&ea).expect("connected"), grants)
}
