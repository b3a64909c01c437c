//! Tests the fabrics that need no device by the conformance suite: TCP over loopback, and memory.

use fabric::{
    Endpoint, Link,
    tcp::{TcpKeys, link},
    testkit::{memory, sockets},
};

struct Tcp(TcpKeys);

impl crate::conformance::Fabric for Tcp {
    fn pair(&self, a: Endpoint, b: Endpoint) -> (Link, Link) {
        let (near, far) = sockets();
        let link = |socket, end| link(socket, end, &self.0).expect("linked");
        (link(near, a), link(far, b))
    }
}

struct Memory;

impl crate::conformance::Fabric for Memory {
    fn pair(&self, a: Endpoint, b: Endpoint) -> (Link, Link) {
        let (a, b, _) = memory::pair(a, b).expect("descriptors");
        (a, b)
    }

    fn looks_before_bytes_land(&self) -> bool {
        false
    }

    fn fills_up_unread(&self) -> bool {
        false
    }
}

mod tcp {
    fabric_conformance!(super::super::Tcp(fabric::tcp::TcpKeys::default()));
}

/// A small staging buffer splits payloads at every place.
mod tcp_with_small_buffers {
    fabric_conformance!(super::super::Tcp(fabric::tcp::TcpKeys {
        send_buffer_bytes: Some(4096),
        receive_buffer_bytes: None,
        inline_bytes: 64,
        staging_bytes: 100,
        ..Default::default()
    }));
}

mod memory_of_a_process {
    fabric_conformance!(super::super::Memory);
}
