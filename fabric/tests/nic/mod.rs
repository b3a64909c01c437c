//! Endpoints and writes for the tests of the NIC fabrics.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fabric::{Endpoint, Grants, Imm, Post, Region, SourceId, Window, wire::Stream};

/// Deadline that no test reaches, even in an emulated machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn endpoint(slots: usize, stride: usize, send_depth: usize) -> Endpoint {
    let region = Arc::new(Region::new(slots * stride).expect("memory"));
    Endpoint {
        window: Window::new(region, 0, stride, Arc::new(Grants::new(slots))).expect("fits"),
        sources: vec![Arc::new(Region::new(slots * stride).expect("memory"))],
        peer_slots: slots,
        peer_stride: stride,
        peer_stream: Stream::None,
        send_depth,
    }
}

pub fn post(offset: usize, len: u32, imm: Imm) -> Post {
    Post {
        source: SourceId(0),
        offset,
        len,
        at: 0,
        imm,
    }
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}
