//! The same through io_uring.

use std::{net::TcpStream, os::fd::AsRawFd};

use anyhow::{Result, bail, ensure};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::Work;

/// Sends and receives under way at once, linked to one another so that they keep their order.
const DEPTH: u32 = 8;

/// Sends all payloads. With `zerocopy`, from registered buffers; `None` is told of copies, as the
/// kernel says that per notification only where it is asked to report.
pub fn send(stream: &TcpStream, work: &Work, zerocopy: bool) -> Result<Option<f64>> {
    let fd = types::Fd(stream.as_raw_fd());
    let mut ring = IoUring::new(DEPTH * 4)?;
    let payloads = work.payloads.len() / work.bytes;
    if zerocopy {
        let all = libc::iovec {
            iov_base: work.payloads.as_ptr().cast_mut().cast(),
            iov_len: work.payloads.len(),
        };
        // SAFETY: the payloads live until the ring is gone, as it ends before `work`.
        unsafe { ring.submitter().register_buffers(&[all]) }?;
    }
    let (mut reported, mut copied) = (0_u64, 0_u64);
    let mut sent = 0;
    while sent < work.count {
        let burst = (work.count - sent).min(DEPTH as usize);
        for i in 0..burst {
            let at = (sent + i) * 37 % payloads * work.bytes;
            let from = work.payloads[at..at + work.bytes].as_ptr();
            // MSG_WAITALL: a send that is cut short goes on by itself.
            let len = work.bytes as u32;
            let entry = if zerocopy {
                opcode::SendZc::new(fd, from, len)
                    .buf_index(Some(0))
                    .flags(libc::MSG_WAITALL)
                    // linux/io_uring.h: IORING_SEND_ZC_REPORT_USAGE.
                    .zc_flags(1 << 3)
                    .build()
            } else {
                opcode::Send::new(fd, from, len)
                    .flags(libc::MSG_WAITALL)
                    .build()
            };
            let entry = entry.user_data(i as u64);
            let last = i + 1 == burst;
            let entry = if last {
                entry
            } else {
                entry.flags(squeue::Flags::IO_LINK)
            };
            // SAFETY: the entry's memory lives until all of the burst's completions were seen.
            unsafe { ring.submission().push(&entry) }?;
        }
        // A zero-copy send has two completions: it was sent, and its memory is free.
        let mut open = if zerocopy { 2 * burst } else { burst };
        while open > 0 {
            ring.submit_and_wait(1)?;
            for done in ring.completion() {
                open -= 1;
                if cqueue::notif(done.flags()) {
                    reported += 1;
                    // IORING_NOTIF_USAGE_ZC_COPIED.
                    copied += u64::from(done.result() as u32 >> 31);
                    continue;
                }
                // Without a notification to come there is one completion.
                if zerocopy && !cqueue::more(done.flags()) {
                    open -= 1;
                }
                let whole = done.result() == work.bytes as i32;
                ensure!(whole, "a send of {} B gave {}", work.bytes, done.result());
            }
        }
        sent += burst;
    }
    Ok(zerocopy.then(|| copied as f64 / reported.max(1) as f64))
}

/// Receives so many bytes into the slots, round and round.
pub fn receive(stream: &TcpStream, slots: &mut [u8], all: usize) -> Result<()> {
    let fd = types::Fd(stream.as_raw_fd());
    let mut ring = IoUring::new(DEPTH)?;
    let (mut at, mut left) = (0, all);
    while left > 0 {
        let end = slots.len().min(at + left);
        let to = &mut slots[at..end];
        let entry = opcode::Recv::new(fd, to.as_mut_ptr(), to.len().min(1 << 30) as u32).build();
        // SAFETY: `to` is not touched until the entry's completion was seen below.
        unsafe { ring.submission().push(&entry) }?;
        ring.submit_and_wait(1)?;
        let Some(done) = ring.completion().next() else {
            bail!("io_uring waited for a completion and has none");
        };
        ensure!(done.result() > 0, "recv gave {}", done.result());
        left -= done.result() as usize;
        at = (at + done.result() as usize) % slots.len();
    }
    Ok(())
}
