//! The TCP fabric, the default: the same four roles as in `ib`, over sockets.
//!
//! | role | type |
//! | --- | --- |
//! | device | [`TcpDevice`]: a local address that opens or accepts connections |
//! | configuration | [`TcpKeys`]: keys of a NIC, and sizes of its connections |
//! | resources | regions of the [`Endpoint`], which need no registration |
//! | connection | one socket, split into `TcpTx` and `TcpRx` |
//!
//! A write is a header ([`frame`]; 16 bytes, or a cache line for large slots) and its payload. One
//! `sendmsg` sends all queued writes, with payloads straight from the source region. One `recvmsg`
//! fills the rest of the current payload in its slot, and a staging buffer behind it.

mod device;
mod frame;
mod keys;
mod nic;
mod rx;
mod tx;

pub use crate::opening::ConnectionSecret;
pub use device::PREAMBLE_DEADLINE;
pub use device::{Preamble, TcpDevice};
pub use frame::{HEADER_BYTES, LARGE_STRIDE, PREAMBLE_BYTES};
pub use keys::TcpKeys;

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use super::{Endpoint, Link, PathReading};

/// The socket, shared by the two halves and closed with the last half.
#[derive(Debug)]
struct Socket(OwnedFd);

impl Socket {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Bytes sent that the peer's kernel has acknowledged.
    fn confirmed(&self) -> Option<u64> {
        // `tcpi_bytes_acked` exists since Linux 4.1.
        let info = self.tcp_info::<128>()?;
        Some(u64::from_ne_bytes(info[120..].try_into().ok()?))
    }

    /// The first `BYTES` bytes of the kernel's `struct tcp_info`.
    fn tcp_info<const BYTES: usize>(&self) -> Option<[u8; BYTES]> {
        let mut info = [0u8; BYTES];
        let mut len = BYTES as libc::socklen_t;
        // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes, the size of
        // `info`.
        let got = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &mut len,
            )
        };
        (got == 0 && len as usize == BYTES).then_some(info)
    }

    fn path(&self) -> Option<PathReading> {
        // The fields up to `tcpi_sndbuf_limited` exist since Linux 4.10.
        let info = self.tcp_info::<192>()?;
        let short = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
        // The kernel reports `u32::MAX` before the first measurement.
        let min_rtt_us = short(148).filter(|us| *us != u32::MAX).unwrap_or(0);
        Some(PathReading {
            rtt_us: u64::from(short(68)?),
            retransmits: u64::from(short(100)?),
            min_rtt_us: u64::from(min_rtt_us),
            busy_us: long(168)?,
            rwnd_limited_us: long(176)?,
        })
    }
}

/// Sets a buffer's size and returns the size that the kernel granted.
type Resize = fn(&socket2::Socket, usize) -> io::Result<usize>;

const SEND: Resize = |socket, bytes| {
    socket.set_send_buffer_size(bytes)?;
    socket.send_buffer_size()
};
const RECEIVE: Resize = |socket, bytes| {
    socket.set_recv_buffer_size(bytes)?;
    socket.recv_buffer_size()
};

/// Sets a socket's buffer size if the kernel grants it in full. A smaller buffer is worse than the
/// kernel's own sizing and cannot be undone, so a temporary socket tries the size first.
fn resize(socket: &socket2::Socket, bytes: Option<usize>, to: Resize) -> io::Result<()> {
    let Some(bytes) = bytes else {
        return Ok(());
    };
    let probe = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    if to(&probe, bytes).is_ok_and(|given| given >= bytes) {
        to(socket, bytes)?;
    }
    Ok(())
}

/// Makes the two halves of a connection from a connected stream.
///
/// # Errors
/// A socket option is refused, or the window lies in a device's memory.
pub fn link(stream: std::net::TcpStream, endpoint: Endpoint, keys: &TcpKeys) -> io::Result<Link> {
    if let Some(device) = endpoint.window.region().device() {
        // The CPU copies a socket's bytes.
        let text = format!("a socket cannot write the memory of {}", device.device());
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let s = socket2::SockRef::from(&stream);
    resize(&s, keys.send_buffer_bytes, SEND)?;
    resize(&s, keys.receive_buffer_bytes, RECEIVE)?;
    s.set_tcp_user_timeout(Some(std::time::Duration::from_millis(
        keys.user_timeout_ms.into(),
    )))?;
    let socket = Arc::new(Socket(stream.into()));
    Ok(Link {
        rx: Box::new(rx::TcpRx::new(
            socket.clone(),
            endpoint.window.clone(),
            keys.staging_bytes,
        )),
        tx: Box::new(tx::TcpTx::new(socket, endpoint, keys.inline_bytes as usize)),
    })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
        sync::Arc,
    };

    use super::*;
    use crate::{
        Broken, Event, Flushed, Region,
        testkit::{self, eventually, next, sockets},
    };

    #[test]
    fn a_system_confirms_what_it_took() {
        let (a, mut b) = sockets();
        let near = Socket(a.try_clone().expect("cloned").into());
        let before = near.confirmed().expect("Linux says");
        (&a).write_all(&[7; 5000]).expect("written");
        eventually("not confirmed", || near.confirmed() == Some(before + 5000));
        b.write_all(&[1]).expect("written");
        assert_eq!(near.confirmed(), Some(before + 5000));
    }

    #[test]
    fn a_buffer_is_as_large_as_asked_or_the_systems_own() {
        let (a, _b) = sockets();
        let socket = socket2::SockRef::from(&a);
        let own = socket.send_buffer_size().expect("asked");
        // The system refuses 1 GiB and grants 100,000 bytes.
        resize(&socket, Some(1 << 30), SEND).expect("asked");
        assert_eq!(socket.send_buffer_size().expect("asked"), own);
        resize(&socket, None, SEND).expect("nothing to do");
        assert_eq!(socket.send_buffer_size().expect("asked"), own);
        let wanted = 100_000;
        assert_ne!(own, 2 * wanted);
        resize(&socket, Some(wanted), SEND).expect("granted");
        assert_eq!(socket.send_buffer_size().expect("asked"), 2 * wanted);
    }

    fn receiver() -> (TcpStream, Link) {
        receiver_of(128)
    }

    /// An endpoint of four slots with open grants, which believes that the peer has four slots too.
    fn endpoint(stride: usize) -> Endpoint {
        let endpoint = testkit::endpoint(4, stride, 4);
        (0..4).for_each(|slot| {
            endpoint.window.grants().open(slot);
        });
        endpoint
    }

    fn receiver_of(stride: usize) -> (TcpStream, Link) {
        let (a, b) = sockets();
        let link = link(b, endpoint(stride), &TcpKeys::default());
        (a, link.expect("linked"))
    }

    #[test]
    fn bytes_that_are_no_frame_break_the_connection_with_the_field() {
        for (bytes, what) in [
            ([0u8; 16], "kind"),
            ([1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "reserved"),
            (
                [1, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0],
                "control message",
            ),
            (
                [1, 0, 0, 0, 1, 0, 0, 0x80, 0, 0, 0, 0, 9, 0, 0, 0],
                "control length",
            ),
        ] {
            let (mut a, mut b) = receiver();
            a.write_all(&bytes).expect("written");
            match next(&mut b) {
                Event::Broken(Broken::BadFrame { what: w, .. }) => assert_eq!(w, what),
                other => panic!("{what}: {other:?}"),
            }
        }
    }

    #[test]
    fn on_the_way_to_large_slots_payloads_begin_on_a_cache_line() {
        let frame = |padding: u8, bytes: usize| {
            let mut frame = frame::encode(crate::Imm::new(1, 1), 0, 5).to_vec();
            frame.resize(frame.len() + bytes, padding);
            frame.extend(b"bytes");
            frame
        };
        for (stride, zeros) in [(LARGE_STRIDE - 1, 0), (LARGE_STRIDE, 48)] {
            let (mut a, mut b) = receiver_of(stride);
            a.write_all(&frame(0, zeros)).expect("written");
            let arrived = next(&mut b);
            assert!(
                matches!(arrived, Event::Arrived { len: 5, .. }),
                "{arrived:?}"
            );
        }
        let (mut a, mut b) = receiver_of(LARGE_STRIDE);
        a.write_all(&frame(9, 48)).expect("written");
        let broken = Event::Broken(Broken::BadFrame {
            what: "padding",
            value: 9,
        });
        assert_eq!(next(&mut b), broken);
    }

    #[test]
    fn large_payloads_that_come_one_by_one_are_read_in_place() {
        const LEN: usize = 32 << 10;
        let frame = |slot: u16, len: usize| {
            let mut frame = frame::encode(crate::Imm::new(slot, 1), 0, len as u32).to_vec();
            frame.resize(frame::header_bytes(LEN), 0);
            frame.resize(frame.len() + len, slot as u8);
            frame
        };
        let (mut a, mut b) = receiver_of(LEN);
        let mut copied = |slot: u16, len: usize| {
            let before = b.rx.counts().copied_bytes;
            a.write_all(&frame(slot, len)).expect("written");
            let arrived = next(&mut b);
            assert!(
                matches!(arrived, Event::Arrived { imm, .. } if imm.slot() == slot),
                "{arrived:?}"
            );
            b.rx.counts().copied_bytes - before
        };
        // The receiver does not expect the first large payload and copies all of it. Of each next
        // payload it copies at most the bytes that came with the header.
        copied(0, LEN);
        assert!(copied(1, LEN) < 256);
        assert!(copied(2, 1000) < 256);
        // Small payloads are again read together with the bytes behind them.
        assert_eq!(copied(3, 1000), 1000);
    }

    #[test]
    fn bytes_of_a_payload_count_as_carried_before_it_has_arrived() {
        let (mut a, mut b) = receiver();
        let half = [&frame::encode(crate::Imm::new(1, 1), 0, 100)[..], &[7; 50]].concat();
        let carried = |b: &mut Link, bytes: u64| {
            eventually("bytes are missing", || {
                assert_eq!(b.rx.poll(8, &mut |e| panic!("{e:?}")), 0);
                b.rx.carried() == bytes
            });
        };
        a.write_all(&half).expect("written");
        carried(&mut b, half.len() as u64);
        a.write_all(&[7; 49]).expect("written");
        carried(&mut b, half.len() as u64 + 49);
        a.write_all(&[7]).expect("written");
        assert!(matches!(next(&mut b), Event::Arrived { len: 100, .. }));
        assert_eq!(b.rx.carried(), half.len() as u64 + 50);
        // No byte arrives, so `carried` is unchanged.
        b.rx.poll(8, &mut |e| panic!("{e:?}"));
        assert_eq!(b.rx.carried(), half.len() as u64 + 50);
    }

    #[test]
    fn bytes_that_a_full_socket_took_count_as_carried() {
        const LEN: usize = 64 << 20;
        let (a, mut b) = sockets();
        b.set_read_timeout(Some(testkit::PATIENCE)).expect("set");
        let endpoint = Endpoint {
            sources: vec![Arc::new(Region::new(LEN).expect("memory"))],
            peer_stride: LEN,
            ..endpoint(128)
        };
        let mut a = link(a, endpoint, &TcpKeys::default()).expect("linked");
        assert_eq!(a.tx.flush(), Ok(Flushed::Done));
        assert_eq!(a.tx.carried(), 0);
        let post = testkit::post(0, LEN as u32, crate::Imm::new(0, 1));
        a.tx.post(&post).expect("posted");
        // Fills the socket buffers of both ends.
        eventually("the buffers never fill up", || {
            let before = a.tx.carried();
            assert_eq!(a.tx.flush(), Ok(Flushed::Blocked));
            std::thread::sleep(std::time::Duration::from_millis(20));
            before > 0 && a.tx.carried() == before
        });
        let before = a.tx.carried();
        assert!(before < LEN as u64);
        let mut some = vec![0; 64 << 10];
        eventually("nothing more is carried", || {
            assert!(b.read(&mut some).expect("read") > 0);
            assert_eq!(a.tx.flush(), Ok(Flushed::Blocked));
            a.tx.carried() > before
        });
    }

    #[test]
    fn a_frame_cut_short_is_a_closed_connection() {
        let (mut a, mut b) = receiver();
        a.write_all(&frame::encode(crate::Imm::new(1, 1), 0, 100))
            .expect("written");
        a.write_all(&[7; 50]).expect("written");
        drop(a);
        assert_eq!(next(&mut b), Event::Broken(Broken::Closed));
    }
}
