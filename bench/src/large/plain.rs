//! System calls: `sendmsg` with and without `MSG_ZEROCOPY`, `recv`.

use std::{
    io::{self, Read},
    net::TcpStream,
    os::fd::AsRawFd,
};

use anyhow::{Result, bail, ensure};

use super::Work;

/// linux/errqueue.h.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
/// Sends in flight before the error queue is read, with `MSG_ZEROCOPY`.
const LOOK_EVERY: usize = 16;

/// Sends all payloads, each from where it lies. With `zerocopy`, the share that the kernel says it
/// copied after all.
pub fn send(stream: &TcpStream, work: &Work, zerocopy: bool) -> Result<Option<f64>> {
    let fd = stream.as_raw_fd();
    if zerocopy {
        let on: libc::c_int = 1;
        // SAFETY: the option's value is an int that lives through the call.
        let set = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        ensure!(set == 0, "SO_ZEROCOPY: {}", io::Error::last_os_error());
    }
    let flags = libc::MSG_NOSIGNAL | if zerocopy { libc::MSG_ZEROCOPY } else { 0 };
    let payloads = work.payloads.len() / work.bytes;
    let (mut sends, mut told, mut copied) = (0_u64, 0_u64, 0_u64);
    for n in 0..work.count {
        let at = n * 37 % payloads * work.bytes;
        let mut rest = &work.payloads[at..at + work.bytes];
        while !rest.is_empty() {
            // SAFETY: `rest` is readable; with MSG_ZEROCOPY the kernel reads it until it tells so
            // on the error queue, and the payloads live until the socket is closed.
            let sent = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), flags) };
            match sent {
                1.. => {
                    rest = &rest[sent as usize..];
                    sends += 1;
                }
                _ => {
                    let e = io::Error::last_os_error();
                    match e.raw_os_error() {
                        Some(libc::EINTR) => {}
                        // No memory for another notification: some are waiting to be read.
                        Some(libc::ENOBUFS) if zerocopy => {
                            notifications(fd, &mut told, &mut copied)?
                        }
                        _ => bail!("send: {e}"),
                    }
                }
            }
        }
        if zerocopy && n % LOOK_EVERY == 0 {
            notifications(fd, &mut told, &mut copied)?;
        }
    }
    while zerocopy && told < sends {
        notifications(fd, &mut told, &mut copied)?;
    }
    Ok(zerocopy.then(|| copied as f64 / told.max(1) as f64))
}

/// Reads the error queue until it is empty: how many sends are done with, and how many of those
/// the kernel copied.
fn notifications(fd: libc::c_int, told: &mut u64, copied: &mut u64) -> Result<()> {
    /// A control message of this kind: its header, `sock_extended_err`, and an address.
    const ROOM: usize = 128;
    loop {
        let mut control = [0_u64; ROOM / 8];
        // SAFETY: an all-zero msghdr is valid; the fields that matter are set below.
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = ROOM;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: `msg` names memory that is writable through the call.
        let got = unsafe { libc::recvmsg(fd, &raw mut msg, flags) };
        if got < 0 {
            let e = io::Error::last_os_error();
            match e.kind() {
                io::ErrorKind::WouldBlock => return Ok(()),
                io::ErrorKind::Interrupted => continue,
                _ => bail!("recvmsg of the error queue: {e}"),
            }
        }
        // SAFETY: the kernel has filled `msg` with control messages inside `control`.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const msg).as_ref() };
        let Some(header) = first else { continue };
        // SAFETY: a message of the error queue holds a sock_extended_err, which is copied out.
        let error: libc::sock_extended_err =
            unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(header).cast()) };
        if error.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
            let range = u64::from(error.ee_data.wrapping_sub(error.ee_info)) + 1;
            *told += range;
            *copied += if error.ee_code == SO_EE_CODE_ZEROCOPY_COPIED {
                range
            } else {
                0
            };
        }
    }
}

/// Receives so many bytes into the slots, round and round.
pub fn receive(mut stream: &TcpStream, slots: &mut [u8], all: usize) -> Result<()> {
    let (mut at, mut left) = (0, all);
    while left > 0 {
        let end = slots.len().min(at + left);
        let got = stream.read(&mut slots[at..end])?;
        ensure!(got > 0, "the connection was closed");
        left -= got;
        at = (at + got) % slots.len();
    }
    Ok(())
}
