//! What the software path costs per posted and per retired work request, with the device stubbed at
//! the provider's table of operations, and how often it allocates (never).
//!
//! ```text
//! cargo run --release -p verbs --features stub --example posting_cost
//! ```
//!
//! Prints one JSON object. The provider's own part is in the numbers: about one lock for each call,
//! and a few counters for each work request. Compare runs on one machine with each other; they say
//! nothing about a NIC.
#![allow(clippy::expect_used)]

use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use alloc_count::Counting;
use verbs::{
    Access, Context, Cq, Gid, InitAttr, Memory, Mr, Mtu, Path, Payload, Pd, Qp, QpCaps, RtrAttr,
    Rts, RtsAttr, SendChain, Wc, Write, stub,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Work requests per doorbell, and per signaled one.
const BURST: u64 = 64;
const BURSTS: u64 = 100_000;

/// A megabyte that is reached through its address alone.
struct Bytes(NonNull<[u8; 1 << 20]>);

impl Default for Bytes {
    fn default() -> Self {
        Bytes(NonNull::from(Box::leak(Box::new([0; 1 << 20]))))
    }
}

// SAFETY: an address that any thread may know; nothing here follows it.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

// SAFETY: leaked, so mapped for ever, and no reference to it is left.
unsafe impl Memory for Bytes {
    fn addr(&self) -> NonNull<u8> {
        self.0.cast()
    }

    fn len(&self) -> usize {
        1 << 20
    }
}

fn main() {
    let verbs = stub::verbs();
    let context = verbs.open("stub0").expect("a stub device");
    let pd = Pd::alloc(&context).expect("a domain");
    let cq = Cq::create(&context, 1024, None, 0, 0).expect("a queue");
    let qp = connected(&context, &pd, &cq);
    stub::discard(&qp);
    let memory = Arc::new(Bytes::default());
    let region = Mr::register(&pd, &memory, Access::REMOTE_WRITE).expect("a region");
    let slice = region.slice(0, 4096).expect("within");
    let response = [7_u8; 64];
    let parts: [&[u8]; 1] = [&response];

    let by_region = measure(&qp, &cq, &region, Payload::Region(slice));
    let inline = measure(&qp, &cq, &region, Payload::Inline(&parts));
    let line = |name: &str, (post, retire, allocations): (f64, f64, u64)| {
        format!(
            "\"{name}\": {{\"post_ns\": {post:.1}, \"retire_ns\": {retire:.2}, \"allocations\": {allocations}}}"
        )
    };
    println!(
        "{{{}, {}}}",
        line("region", by_region),
        line("inline_64", inline)
    );
}

/// Nanoseconds for each posted and each retired work request, and allocations in all.
fn measure(qp: &Qp<Rts>, cq: &Cq, region: &Mr, payload: Payload<'_>) -> (f64, f64, u64) {
    let mut chain = SendChain::new(BURST as usize, 64);
    let mut wcs = [Wc::default(); 16];
    let target = region.remote();
    let (mut posting, mut retiring, mut retired) = (0, 0, 0);
    let before = alloc_count::of_process();
    for _ in 0..BURSTS {
        let start = Instant::now();
        for id in 0..BURST {
            let remote = target.slice(id * 4096, 4096).expect("within");
            let write = Write {
                wr_id: id,
                payload,
                remote,
                imm: Some(id as u32),
                signaled: id == BURST - 1,
                solicited: false,
            };
            chain.push(black_box(&write)).expect("room");
        }
        qp.post_send(&mut chain).expect("an empty queue");
        let posted = Instant::now();
        retired += cq.poll(black_box(&mut wcs)).expect("polling") as u64 * BURST;
        posting += (posted - start).as_nanos();
        retiring += posted.elapsed().as_nanos();
    }
    let allocations = alloc_count::of_process() - before;
    assert_eq!(retired, BURSTS * BURST);
    let each = |nanos: u128| nanos as f64 / (BURSTS * BURST) as f64;
    (each(posting), each(retiring), allocations)
}

/// A queue pair connected to itself: with its writes discarded, the peer does not matter.
fn connected(context: &Arc<Context>, pd: &Arc<Pd>, cq: &Arc<Cq>) -> Qp<Rts> {
    let port = context.query_port(1).expect("a port");
    let local = context.auto_gid(1).expect("a GID");
    let caps = QpCaps {
        max_send_wr: 1024,
        ..QpCaps::default()
    };
    let qp = Qp::create(pd, cq, cq, caps).expect("a queue pair");
    let path = Path::new(1, &port, &local, 0, Gid(local.gid.0), 0, 0).expect("a path");
    let rtr = RtrAttr {
        path,
        mtu: Mtu::B4096,
        dest_qp_num: qp.qp_num(),
        rq_psn: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 12,
    };
    let rts = RtsAttr {
        sq_psn: 0,
        timeout: 14,
        retry_cnt: 6,
        rnr_retry: 6,
        max_rd_atomic: 0,
    };
    qp.into_init(&InitAttr {
        port: 1,
        pkey_index: 0,
        access: Access::REMOTE_WRITE,
    })
    .and_then(|qp| qp.into_rtr(&rtr))
    .and_then(|qp| qp.into_rts(&rts))
    .expect("the way to RTS")
}
