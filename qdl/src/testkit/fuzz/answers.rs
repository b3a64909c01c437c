//! Bytes of a data connection: into a window alone, and into a dispatcher with its tracker.

use std::{
    io::Write,
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use fabric::{
    Endpoint, Event, Grants, Imm, Region, Window,
    clock::now_ns,
    tcp::{LARGE_STRIDE, TcpKeys, link},
    testkit::sockets,
    wire::Stream,
};

use crate::{
    connection::{EchoCfgs, NicThreadCfgs, Spin},
    control::block_on,
    dispatch::{
        Completer, ConnectionCfgs, DispatchCfgs, DispatchEvent, DispatchNic, Dispatcher, Owner,
        Response, ResponsePart, Sample,
    },
    request::RequestOptions,
    response::{RESPONSE_HEADER_BYTES, Refusal, ResponseHeader, ResponseTrailer},
    testkit::eventually,
};

const SLOTS: usize = 8;
const SMALL: usize = 256;
/// Bytes before and behind the window.
const FENCE: usize = 4096;
const UNTOUCHED: u8 = 0xA5;
/// Most bytes of an input: the sockets' buffers take them while no thread reads.
const MOST: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
const HOUR: u64 = 3_600_000_000_000;

fn joined() -> (TcpStream, TcpStream) {
    let (writer, reader) = sockets();
    // Closed at once: a port that lingers would be missed after some thousand inputs.
    let _ = socket2::SockRef::from(&writer).set_linger(Some(Duration::ZERO));
    (writer, reader)
}

fn send(writer: &mut TcpStream, data: &[u8]) {
    writer.write_all(data).expect("it fits the buffers");
    writer.shutdown(Shutdown::Write).expect("open");
}

/// Bytes of a data connection. The window reports only parts within their slot, each behind the
/// part before it; uses no grant twice; changes no byte outside itself. The dispatcher completes
/// each sample once.
///
/// The first byte holds the slots' size, and whether writes come in parts or begin with options.
pub fn data_frames(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    let data = &data[..data.len().min(MOST)];
    // Headers to large slots are padded.
    let stride = [SMALL, LARGE_STRIDE][usize::from(choice & 1)];
    let stream = [Stream::None, Stream::All][usize::from(choice >> 1 & 1)];
    into_window(data, stride, stream, choice >> 2 & 1 == 1);
    into_dispatcher(data, stride, stream);
}

fn into_window(data: &[u8], stride: usize, stream: Stream, options: bool) {
    let len = FENCE + SLOTS * stride + FENCE;
    let region = Arc::new(Region::new(len).expect("memory"));
    // SAFETY: no other reference to the region exists yet.
    unsafe { region.bytes_mut(0, len) }
        .expect("inside")
        .fill(UNTOUCHED);
    let grants = Arc::new(Grants::new(SLOTS));
    (0..SLOTS as u16).for_each(|slot| _ = grants.open(slot));
    let window = Window::new(region.clone(), FENCE, stride, grants).expect("it fits");
    let endpoint = Endpoint {
        sources: vec![],
        window: window.in_parts(stream).with_options(options),
        peer_slots: 0,
        peer_stride: 0,
        peer_stream: Stream::None,
        send_depth: 1,
    };
    let cfgs = TcpKeys {
        receive_buffer_bytes: None,
        send_buffer_bytes: None,
        staging_bytes: 4096,
        ..TcpKeys::default()
    };
    let (mut writer, reader) = joined();
    let mut link = link(reader, endpoint, &cfgs).expect("a connection");
    send(&mut writer, data);
    let until = Instant::now() + PATIENCE;
    let (mut events, mut arrived) = (Vec::new(), [false; SLOTS]);
    let mut came = [0; SLOTS];
    let mut broken = false;
    while !broken {
        link.rx.poll(64, &mut |event| events.push(event));
        for event in events.drain(..) {
            assert!(!broken, "an event follows the end");
            match event {
                Event::Arrived { imm, at, len } => {
                    let slot = usize::from(imm.slot());
                    assert_eq!(at, came[slot], "a part does not follow the part before it");
                    came[slot] += len;
                    assert!(came[slot] as usize <= stride);
                    assert!(!arrived[slot], "a grant was used twice");
                    let is_part = imm.more() && stream == Stream::All;
                    arrived[slot] = !is_part;
                    assert!(is_part || options || !imm.more(), "a part");
                    if imm.has_options() && !is_part {
                        let at = FENCE + slot * stride;
                        // SAFETY: the write has closed the grant, and each slot has one.
                        let request = unsafe { region.bytes(at, len as usize) }.expect("inside");
                        let block = RequestOptions::block_len(request).map(usize::from);
                        let _ = block.map(|bytes| RequestOptions::decode(&request[..bytes]));
                    }
                }
                Event::Control(_) => {}
                Event::Broken(_) => broken = true,
            }
        }
        let is_late = Instant::now() >= until;
        assert!(!is_late, "the end of the stream was not noticed");
    }
    for (at, len) in [(0, FENCE), (len - FENCE, FENCE)] {
        // SAFETY: the connection is broken, and no thread writes to the region any more.
        let fence = unsafe { region.bytes(at, len) }.expect("inside");
        let is_whole = fence.iter().all(|b| *b == UNTOUCHED);
        assert!(is_whole, "a write outside the window");
    }
}

/// Responses and parts in sound frames, so that each input reaches the decoder of responses. The
/// dispatcher completes each sample once.
///
/// Each write is two bytes and its payload: bits 0 to 2 are the slot, bit 3 announces more parts,
/// bit 4 puts a sound header before the payload and bit 5 a sound trailer behind it, bits 6 and 7
/// mark a refusal; the second byte is the payload's length.
pub fn responses(data: &[u8]) {
    const STRIDE: usize = 512;
    let mut frames = Vec::new();
    let (mut landed, mut payloads, mut parts) = ([0; SLOTS], [0; SLOTS], [0; SLOTS]);
    let mut rest = &data[..data.len().min(MOST)];
    while let [how, len, behind @ ..] = rest {
        let (payload, behind) = behind.split_at(behind.len().min(usize::from(len % 64)));
        rest = behind;
        let slot = usize::from(how & 7);
        let refusal = [None, Some(Refusal::Whole), Some(Refusal::Cut), None][usize::from(how >> 6)];
        let mut bytes = payload.to_vec();
        payloads[slot] += payload.len() as u32;
        parts[slot] += 1;
        if how & 16 != 0 {
            let header = ResponseHeader {
                len: payload.len() as u32,
                use_count: 1,
                refusal,
                queue_us: 1,
                compute_us: 2,
            };
            bytes.splice(0..0, header.encode());
        } else if parts[slot] == 1 {
            // The input itself holds the header.
            payloads[slot] = payload.len().saturating_sub(RESPONSE_HEADER_BYTES) as u32;
        }
        if how & 32 != 0 {
            let trailer = ResponseTrailer {
                len: payloads[slot],
                parts: parts[slot],
                refusal,
                compute_us: 3,
                mean_us: 4,
            };
            bytes.extend(trailer.encode());
        }
        let mut imm = Imm::new(slot as u16, 1);
        if how & 8 != 0 {
            imm = imm.with_more();
        }
        if landed[slot] + bytes.len() > STRIDE {
            continue;
        }
        for word in [1, imm.bits(), landed[slot] as u32, bytes.len() as u32] {
            frames.extend_from_slice(&word.to_le_bytes());
        }
        landed[slot] += bytes.len();
        frames.extend(bytes);
    }
    into_dispatcher(&frames, STRIDE, Stream::All);
}

#[derive(Clone, Copy, Default)]
struct SampleEnd {
    /// Payload bytes of the parts.
    came: usize,
    firsts: u32,
    ends: u32,
}

struct Ends {
    samples: Mutex<[SampleEnd; SLOTS]>,
    lost: mpsc::Sender<()>,
    stride: usize,
}

impl Ends {
    fn with(&self, id: u64, change: impl FnOnce(&mut SampleEnd)) {
        change(&mut self.samples.lock().expect("whole")[id as usize]);
    }
}

impl Owner for Ends {
    fn complete_empty(&self, samples: &[Sample]) {
        samples
            .iter()
            .for_each(|s| self.with(s.id, |end| end.ends += 1));
    }

    fn event(&self, event: DispatchEvent) {
        if let DispatchEvent::ConnectionLost { .. } = event {
            let _ = self.lost.send(());
        }
    }
}

struct Responses(Arc<Ends>);

impl Completer for Responses {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for response in responses {
            assert!(response.payload.len() <= self.0.stride - RESPONSE_HEADER_BYTES);
            assert_eq!(response.index, 100 + response.id);
            self.0.with(response.id, |end| {
                let is_whole = response.payload.len() >= end.came;
                assert!(is_whole, "parts beyond the answer");
                end.ends += 1;
            });
        }
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        for part in parts {
            self.0.with(part.id, |end| {
                assert_eq!((end.ends, end.came), (0, part.offset as usize));
                end.came += part.payload.len();
                end.firsts += u32::from(part.has_first_token);
            });
        }
    }
}

/// Passes `data` to a dispatcher with a sample in each slot, as its peer's bytes.
fn into_dispatcher(data: &[u8], stride: usize, stream: Stream) {
    let source = Arc::new(Region::new(4096).expect("memory"));
    let (lost, is_lost) = mpsc::channel();
    let samples = Mutex::default();
    let ends = Arc::new(Ends {
        samples,
        lost,
        stride,
    });
    let cfgs = DispatchCfgs {
        echo: EchoCfgs {
            interval_ns: HOUR,
            timeout_ns: HOUR,
        },
        sources: vec![source],
        connections: vec![ConnectionCfgs {
            peer: 0,
            role: record::NodeRole::Both,
            nic_index: 0,
            slots: SLOTS,
            response_stride: stride,
            request_stride: 64,
        }],
        stream,
        ..DispatchCfgs::default()
    };
    let nic = DispatchNic {
        cfgs: NicThreadCfgs::new("fuzz", Spin::new(20_000), 5_000_000),
        completer: Box::new(Responses(ends.clone())),
    };
    let dispatcher = Dispatcher::new(cfgs, vec![nic], ends.clone()).expect("a dispatcher");
    let sample = |id: u64| Sample {
        id,
        index: 100 + id,
        len: 4,
        issued_ns: now_ns(),
        ..Sample::default()
    };
    let (mut writer, reader) = joined();
    let link = link(reader, dispatcher.endpoint(0), &TcpKeys::default()).expect("a connection");
    dispatcher.attach(0, 1, link);
    eventually("the connection is up", || dispatcher.connections_up() == 1);
    let samples: Vec<_> = (0..SLOTS as u64).map(sample).collect();
    dispatcher.issue(&samples);
    let is_posted = || dispatcher.counts().posted == SLOTS as u64;
    eventually("all are posted", is_posted);
    send(&mut writer, data);
    is_lost
        .recv_timeout(PATIENCE)
        .expect("the end of the stream is noticed");
    dispatcher.abort("the end");
    assert!(
        block_on(dispatcher.drain(PATIENCE)),
        "{:?}",
        dispatcher.counts()
    );
    drop(dispatcher);
    for (id, end) in ends.samples.lock().expect("whole").iter().enumerate() {
        assert_eq!(end.ends, 1, "completions of sample {id}");
        assert!(end.firsts <= 1, "sample {id} has two first tokens");
    }
}
