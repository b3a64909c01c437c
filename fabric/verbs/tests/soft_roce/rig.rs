//! Connected queue pairs on two devices, which the including test binary names.

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use verbs::{
    Access, CompChannel, Context, Cq, Memory, Mr, Mtu, Path, Payload, Pd, Qp, QpCaps, RecvChain,
    RemoteSlice, Reset, RtrAttr, Rts, RtsAttr, SendChain, Verbs, Wc, Write,
};

use super::devices;

/// Deadline that no test reaches, even in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Size of each end's memory region in bytes.
pub const REGION: usize = 1 << 20;

/// Zeroed memory for a region, accessed through pointers only.
pub struct Bytes(Box<[UnsafeCell<u8>]>);

// SAFETY: the type returns an address and a length, and no reference.
unsafe impl Sync for Bytes {}

impl Bytes {
    pub fn new(len: usize) -> Self {
        Self((0..len).map(|_| UnsafeCell::new(0)).collect())
    }
}

// SAFETY: the box is live and writable as long as the value, and no code makes a reference to its
// bytes.
unsafe impl Memory for Bytes {
    fn addr(&self) -> NonNull<u8> {
        NonNull::from(&*self.0).cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Queue sizes that suffice for most tests.
pub const CAPS: QpCaps = QpCaps {
    max_send_wr: 128,
    max_recv_wr: 128,
    max_inline_data: 64,
};

/// Entries of each completion queue.
const CQE: u32 = 1024;

/// One end: an open device, the objects of a queue pair, and the queue pair.
pub struct End<Q = Qp<Rts>> {
    pub qp: Q,
    pub cq: Arc<Cq>,
    pub channel: Arc<CompChannel>,
    pub mr: Arc<Mr>,
    pub memory: Arc<Bytes>,
    pub context: Arc<Context>,
}

/// Connects a queue pair on each of the two devices.
pub fn connect(caps: QpCaps) -> (End, End) {
    let (verbs, one, two) = devices();
    let (a, b) = (half(&verbs, &one, caps), half(&verbs, &two, caps));
    let (a_peer, b_peer) = (peer_of(&a), peer_of(&b));
    (finish(a, &b_peer), finish(b, &a_peer))
}

fn half(verbs: &Arc<Verbs>, device: &str, caps: QpCaps) -> End<Qp<Reset>> {
    let context = verbs.open(device).expect("the device");
    let pd = Pd::alloc(&context).expect("a domain");
    let memory = Arc::new(Bytes::new(REGION));
    let mr = Mr::register(&pd, &memory, Access::RemoteWrite).expect("a region");
    let channel = CompChannel::create(&context).expect("a channel");
    let cq = Cq::create(&context, CQE, Some(&channel), 77, 0).expect("a completion queue");
    let qp = Qp::create(&pd, &cq, &cq, caps).expect("a queue pair");
    End {
        qp,
        cq,
        channel,
        mr,
        memory,
        context,
    }
}

/// The peer's queue pair number, LID and GID.
type Peer = (u32, u16, std::net::Ipv6Addr);

/// First packet sequence number; differs between the ends, so that a mix-up fails.
fn psn(qp_num: u32) -> u32 {
    qp_num * 16
}

fn peer_of(half: &End<Qp<Reset>>) -> Peer {
    (
        half.qp.qp_num(),
        half.context.query_port(1).expect("a port").lid,
        half.context.auto_gid(1).expect("a GID").gid,
    )
}

fn finish(half: End<Qp<Reset>>, &(dest_qp_num, lid, gid): &Peer) -> End {
    let port = half.context.query_port(1).expect("a port");
    let local = half.context.auto_gid(1).expect("a GID");
    let rtr = RtrAttr {
        path: Path::new(1, &port, &local, lid, gid, 0, 0).expect("a path"),
        mtu: Mtu::from_bytes(1024).expect("an MTU").min(port.active_mtu),
        dest_qp_num,
        rq_psn: psn(dest_qp_num),
        min_rnr_timer: 1,
    };
    // A lost peer fails the write within 17 ms.
    let rts = RtsAttr {
        sq_psn: psn(half.qp.qp_num()),
        timeout: 10,
        retry_cnt: 3,
        rnr_retry: 2,
    };
    let qp = half.qp.into_init(1).and_then(|qp| qp.into_rtr(&rtr));
    let qp = qp.and_then(|qp| qp.into_rts(&rts));
    End {
        qp: qp.expect("the way to RTS"),
        cq: half.cq,
        channel: half.channel,
        mr: half.mr,
        memory: half.memory,
        context: half.context,
    }
}

impl End {
    /// Posts `count` receives.
    pub fn receive(&self, count: usize) {
        let posted = self.qp.post_recv(&mut RecvChain::new(count), count);
        assert_eq!(posted, Ok(count));
    }

    /// Posts the writes with one doorbell.
    pub fn send(&self, writes: &[Write<'_>]) {
        let mut chain = SendChain::new(writes.len(), self.qp.caps().max_inline_data as usize);
        for write in writes {
            chain.push(write).expect("room");
        }
        assert_eq!(self.qp.post_send(&mut chain), Ok(writes.len()));
    }

    /// A signaled write of `len` bytes from the region's start to the peer's, with an immediate.
    pub fn write<'a>(&self, peer: &Self, wr_id: u64, len: usize) -> Write<'a> {
        Write {
            wr_id,
            payload: Payload::Region(self.mr.slice(0, len).expect("within")),
            remote: peer.at(0),
            imm: Some(wr_id as u32),
            signaled: true,
            solicited: false,
        }
    }

    /// Target of the peer's writes to byte `offset` of this end's region.
    pub fn at(&self, offset: u64) -> RemoteSlice {
        let region = self.mr.remote();
        let (addr, rkey) = (region.addr + offset, region.rkey);
        RemoteSlice { addr, rkey }
    }

    /// Waits for `count` completions.
    pub fn completions(&self, count: usize) -> Vec<Wc> {
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        while found.len() < count {
            let mut wcs = [Wc::default(); 16];
            let room = wcs.len().min(count - found.len());
            let taken = self.cq.poll(&mut wcs[..room]).expect("polling");
            found.extend_from_slice(&wcs[..taken]);
            assert!(
                Instant::now() < deadline,
                "{} of {count} completions came: {found:?}",
                found.len()
            );
            if taken == 0 {
                thread::sleep(Duration::from_micros(200));
            }
        }
        found
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= REGION);
        // SAFETY: the bytes are within the region, and no write accesses them now.
        unsafe {
            let to = self.memory.addr().add(offset).as_ptr();
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(offset + len <= REGION);
        // SAFETY: the bytes are within the region, and the write to them has completed.
        unsafe {
            let from = self.memory.addr().add(offset).as_ptr();
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
        }
        bytes
    }
}

/// Whether `fd` becomes readable within this time.
pub fn readable(fd: &impl AsFd, within: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `poll` points to one writable structure with an open descriptor.
    let count = unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) };
    assert!(count >= 0, "{}", std::io::Error::last_os_error());
    count == 1
}

/// A byte pattern that depends on the offset and `seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| {
            (at as u8)
                .wrapping_mul(31)
                .wrapping_add(seed)
                .wrapping_add((at >> 8) as u8)
        })
        .collect()
}

/// Makes a test of every case that real devices and the in-process provider share.
macro_rules! common_cases {
    ($($attributes:tt)*) => {
        cases!([$($attributes)*]
            control:
                the_devices_are_listed_and_described
                auto_finds_the_ipv4_gid
                another_device_is_refused_with_the_names_there_are
                beyond_a_limit_the_limit_is_named
                a_region_outlives_everything_that_made_it
                another_devices_queue_is_refused;
            data:
                a_write_with_immediate_arrives_with_its_bytes_number_and_length
                only_a_solicited_write_wakes_who_sleeps_for_those
                a_full_send_queue_takes_what_it_can_and_the_rest_later;
            failure:
                one_byte_beyond_the_region_is_refused
                no_receive_exhausts_the_rnr_retries
                a_peer_that_is_gone_exhausts_the_retries
                err_gives_back_what_is_posted_and_what_comes_later;
        );
    };
}
