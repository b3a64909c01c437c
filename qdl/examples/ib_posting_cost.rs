//! What the `ib` fabric's software costs for each write posted, retired and received, with the
//! device stubbed at the provider's table of operations, and how often it allocates (never).
//!
//! ```text
//! cargo run --release -p qdl --features stub --example ib_posting_cost
//! ```
//!
//! Prints one JSON object. The stub's own part is in the numbers: a
//! lock for each call, a look-up and a memcpy for each write. Compare
//! runs on one machine with each other; they say nothing about a NIC.
#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::time::Instant;

use alloc_count::Counting;
use qdl::config::{NicConfig, NicFabric};
use qdl::fabric::ib::{IbCfgs, IbConnection, IbDevice, IbResources};
use qdl::fabric::{Endpoint, Event, Grants, Imm, Link, Post, Region, SourceId, Window};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Writes for each doorbell.
const BURST: usize = 64;
const BURSTS: u64 = 20_000;
const SLOTS: usize = 256;
const STRIDE: usize = 4096;

fn main() {
    let line = |name: &str, m: &Measured| {
        format!(
            "\"{name}\": {{\"post_ns\": {:.1}, \"flush_ns\": {:.1}, \"receive_ns\": {:.1}, \"work_requests\": {}, \
             \"doorbells\": {}, \"signaled\": {}, \"allocations\": {}}}",
            m.post_ns,
            m.flush_ns,
            m.receive_ns,
            m.work_requests,
            m.doorbells,
            m.signaled,
            m.allocations
        )
    };
    println!(
        "{{{}, {}, {}}}",
        line("inline_64", &measure(64, None)),
        line("region_4096", &measure(4096, None)),
        line("split_4000", &measure(4000, Some(1024)))
    );
}

struct Measured {
    post_ns: f64,
    flush_ns: f64,
    receive_ns: f64,
    work_requests: u64,
    doorbells: u64,
    signaled: u64,
    allocations: u64,
}

/// Nanoseconds for each write: `post`; `flush`, which rings the
/// doorbell and retires; the peer's `poll`, which puts receives back.
fn measure(len: u32, split_above: Option<u32>) -> Measured {
    let (mut a, mut b, grants) = links(split_above);
    let (mut posting, mut flushing, mut receiving) = (0, 0, 0);
    let mut slot = 0;
    let mut before = 0;
    for burst in 0..BURSTS + 1000 {
        if burst == 1000 {
            // Warm: queues have their size.
            (posting, flushing, receiving) = (0, 0, 0);
            before = alloc_count::of_process();
        }
        let mut imms = [Imm::new(0, 0); BURST];
        for imm in &mut imms {
            let use_count = grants.open(slot).expect("free");
            *imm = Imm::new(slot, use_count);
            slot = (slot + 1) % SLOTS as u16;
        }
        let start = Instant::now();
        for imm in imms {
            let post = Post {
                source: SourceId(0),
                offset: usize::from(imm.slot()) * STRIDE,
                len,
                at: 0,
                imm,
            };
            a.tx.post(&post).expect("room");
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
    let allocations = alloc_count::of_process() - before;
    let counts = a.tx.counts();
    let each = |nanos: u128| nanos as f64 / (BURSTS * BURST as u64) as f64;
    Measured {
        post_ns: each(posting),
        flush_ns: each(flushing),
        receive_ns: each(receiving),
        work_requests: counts.work_requests,
        doorbells: counts.doorbells,
        signaled: counts.signaled,
        allocations,
    }
}

fn links(split_above: Option<u32>) -> (Link, Link, Arc<Grants>) {
    let end = |device: &str| {
        let mut nic = NicConfig::ib(device);
        if let NicFabric::Ib(ib) = &mut nic.fabric {
            ib.adaptive_routing.split_above = split_above;
        }
        let resources = IbResources::new(IbDevice::open(&nic).expect("a stub device"));
        let resources = resources.expect("a domain");
        let grants = Arc::new(Grants::new(SLOTS));
        let region = || Arc::new(Region::new(SLOTS * STRIDE).expect("memory"));
        let endpoint = Endpoint {
            window: Window::new(region(), 0, STRIDE, grants.clone()).expect("fits"),
            sources: vec![region()],
            peer_slots: SLOTS,
            peer_stride: STRIDE,
            peer_stream: qdl::wire::Stream::None,
            send_depth: 4096,
        };
        let limits = resources.device().limits().clone();
        let cfgs = IbCfgs::resolve(&nic, &limits, SLOTS).expect("within limits");
        let half = IbConnection::prepare(&resources, endpoint, &cfgs).expect("prepared");
        (half, grants)
    };
    let ((a, _), (b, grants)) = (end("stub0"), end("stub1"));
    let (ea, eb) = (a.end(), b.end());
    let a = a.connect(&eb).expect("connected");
    (a, b.connect(&ea).expect("connected"), grants)
}
