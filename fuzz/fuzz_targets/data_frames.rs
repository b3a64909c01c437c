//! Bytes of a data connection, through a socket into a window of eight
//! slots. Whatever is reported must lie within its slot, behind the parts before
//! it, no grant may be used twice, and not a byte outside the window may change.

#![no_main]

use std::{
    io::Write,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use fabric::{Endpoint, Event, Grants, Region, Window, tcp::{LARGE_STRIDE, TcpCfgs, link}};
use fabric::wire::Stream;

const SLOTS: usize = 8;
const SMALL: usize = 256;
/// Bytes before and behind the window.
const FENCE: usize = 4096;
const UNTOUCHED: u8 = 0xA5;

fn joined() -> (TcpStream, TcpStream) {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let writer = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (reader, _) = listener.accept().expect("loopback");
    (writer, reader)
}

fuzz_target!(|data: &[u8]| {
    // To large slots headers are padded.
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    let stride = [SMALL, LARGE_STRIDE][usize::from(choice & 1)];
    // More would not fit the socket's buffers while nobody reads.
    let data = &data[..data.len().min(16 << 10)];
    let len = FENCE + SLOTS * stride + FENCE;
    let region = Arc::new(Region::new(len).expect("memory"));
    // SAFETY: nobody else has the region yet.
    unsafe { region.bytes_mut(0, len) }
        .expect("inside")
        .fill(UNTOUCHED);
    let grants = Arc::new(Grants::new(SLOTS));
    (0..SLOTS as u16).for_each(|slot| {
        grants.open(slot);
    });
    let window = Window::new(region.clone(), FENCE, stride, grants).expect("it fits");
    let stream = [Stream::None, Stream::All][usize::from(choice >> 1 & 1)];
    let window = window.in_parts(stream);
    let (mut writer, reader) = joined();
    let endpoint = Endpoint {
        sources: vec![],
        window,
        peer_slots: 0,
        peer_stride: 0,
        peer_stream: Stream::None,
        send_depth: 1,
    };
    let cfgs = TcpCfgs {
        recv_buffer: None,
        send_buffer: None,
        staging_bytes: 4096,
        ..TcpCfgs::default()
    };
    let mut link = link(reader, endpoint, &cfgs).expect("a connection");
    writer.write_all(data).expect("it fits the buffers");
    writer.shutdown(Shutdown::Write).expect("open");
    let until = Instant::now() + Duration::from_secs(5);
    let (mut events, mut arrived) = (Vec::new(), [false; SLOTS]);
    let mut came = [0; SLOTS];
    let mut broken = false;
    while !broken {
        link.rx.poll(64, &mut |event| events.push(event));
        for event in events.drain(..) {
            assert!(!broken, "something was reported after the end");
            match event {
                Event::Arrived { imm, at, len } => {
                    let slot = usize::from(imm.slot());
                    assert_eq!(at, came[slot], "parts that do not follow on");
                    came[slot] += len;
                    assert!(came[slot] as usize <= stride);
                    assert!(!arrived[slot], "a grant was used twice");
                    arrived[slot] = !imm.more();
                    assert!(arrived[slot] || stream == Stream::All, "a part");
                }
                Event::Control(_) => {}
                Event::Broken(_) => broken = true,
            }
        }
        assert!(
            Instant::now() < until,
            "the end of the stream was not noticed"
        );
    }
    for (at, len) in [(0, FENCE), (len - FENCE, FENCE)] {
        // SAFETY: the connection is broken and nothing is written any more.
        let fence = unsafe { region.bytes(at, len) }.expect("inside");
        assert!(
            fence.iter().all(|b| *b == UNTOUCHED),
            "a write outside the window"
        );
    }
    // Closed at once: a port that lingers would be missed after some thousand inputs.
    let _ = socket2::SockRef::from(&writer).set_linger(Some(Duration::ZERO));
});
