//! Two devices, which the test binary above names, and a connected queue pair on each.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use verbs::{
    Access, CompChannel, Context, Cq, HostMemory, InitAttr, Mr, Mtu, Path, Payload, Pd, Qp, QpCaps,
    RecvChain, RemoteSlice, Reset, RtrAttr, Rts, RtsAttr, SendChain, Srq, Verbs, Wc, Write,
};

use super::devices;

/// Longer than anything here takes, even in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The bytes of each end's memory region.
pub const REGION: usize = 1 << 20;

/// What a test may vary.
#[derive(Clone, Copy)]
pub struct Settings {
    pub caps: QpCaps,
    pub rts: RtsAttr,
    pub shared_receives: bool,
    /// Entries of each completion queue.
    pub cqe: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            caps: QpCaps {
                max_send_wr: 128,
                max_recv_wr: 128,
                ..QpCaps::default()
            },
            // A peer that is gone shows within 17 ms.
            rts: RtsAttr {
                sq_psn: 0,
                timeout: 10,
                retry_cnt: 3,
                rnr_retry: 2,
                max_rd_atomic: 0,
            },
            shared_receives: false,
            cqe: 512,
        }
    }
}

/// One end: a device with all that a queue pair needs, and the queue pair.
pub struct End {
    pub qp: Qp<Rts>,
    pub cq: Arc<Cq>,
    pub channel: Arc<CompChannel>,
    pub srq: Option<Arc<Srq>>,
    pub mr: Arc<Mr>,
    pub memory: Arc<HostMemory>,
    pub context: Arc<Context>,
}

/// A device that is opened and not yet connected.
struct Half {
    qp: Qp<Reset>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    srq: Option<Arc<Srq>>,
    mr: Arc<Mr>,
    memory: Arc<HostMemory>,
    context: Arc<Context>,
}

/// Connects the two devices, `None` where there are none.
pub fn connect(settings: Settings) -> Option<(End, End)> {
    let (verbs, one, two) = devices()?;
    let (a, b) = (half(&verbs, &one, settings), half(&verbs, &two, settings));
    let (a_peer, b_peer) = (peer_of(&a), peer_of(&b));
    Some((finish(a, &b_peer, settings), finish(b, &a_peer, settings)))
}

fn half(verbs: &Arc<Verbs>, device: &str, settings: Settings) -> Half {
    let context = verbs.open(device).expect("the device");
    let pd = Pd::alloc(&context).expect("a domain");
    let memory = Arc::new(HostMemory::anonymous(REGION).expect("memory"));
    let mr = Mr::register(
        &pd,
        &memory,
        Access::REMOTE_WRITE | Access::RELAXED_ORDERING,
    )
    .expect("a region");
    let channel = CompChannel::create(&context).expect("a channel");
    let cq = Cq::create(&context, settings.cqe, Some(&channel), 77, 0).expect("a completion queue");
    let srq = settings
        .shared_receives
        .then(|| Srq::create(&pd, 128).expect("a shared receive queue"));
    let qp = Qp::create(&pd, &cq, &cq, srq.as_ref(), settings.caps).expect("a queue pair");
    Half {
        qp,
        cq,
        channel,
        srq,
        mr,
        memory,
        context,
    }
}

/// What the other end has to know.
struct Peer {
    qp_num: u32,
    psn: u32,
    lid: u16,
    gid: verbs::Gid,
}

fn peer_of(half: &Half) -> Peer {
    Peer {
        qp_num: half.qp.qp_num(),
        // Different at the two ends, so that a mix-up shows.
        psn: half.qp.qp_num() * 16,
        lid: half.context.query_port(1).expect("a port").lid,
        gid: half.context.auto_gid(1).expect("a GID").gid,
    }
}

fn finish(half: Half, peer: &Peer, settings: Settings) -> End {
    let port = half.context.query_port(1).expect("a port");
    let local = half.context.auto_gid(1).expect("a GID");
    let path = Path::new(1, &port, &local, peer.lid, peer.gid, 0, 0).expect("a path");
    let sq_psn = half.qp.qp_num() * 16;
    let rtr = RtrAttr {
        path,
        mtu: Mtu::B1024.min(port.active_mtu),
        dest_qp_num: peer.qp_num,
        rq_psn: peer.psn,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 1,
    };
    let qp = half
        .qp
        .into_init(&InitAttr {
            port: 1,
            pkey_index: 0,
            access: Access::REMOTE_WRITE,
        })
        .and_then(|qp| qp.into_rtr(&rtr))
        .and_then(|qp| {
            qp.into_rts(&RtsAttr {
                sq_psn,
                ..settings.rts
            })
        })
        .expect("the way to RTS");
    End {
        qp,
        cq: half.cq,
        channel: half.channel,
        srq: half.srq,
        mr: half.mr,
        memory: half.memory,
        context: half.context,
    }
}

impl End {
    /// Posts `count` receives, numbered from `first`.
    pub fn receive(&self, first: u64, count: u64) {
        let mut chain = RecvChain::new(count as usize);
        for wr_id in first..first + count {
            chain.push(wr_id).expect("room");
        }
        let posted = match &self.srq {
            Some(srq) => srq.post_recv(&mut chain),
            None => self.qp.post_recv(&mut chain),
        };
        assert_eq!(posted, Ok(count as usize));
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

    /// Where the peers write for byte `offset` of this end's region.
    pub fn at(&self, offset: u64) -> RemoteSlice {
        self.mr.remote().slice(offset, 0).expect("within")
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

    /// Asserts that nothing has completed.
    pub fn assert_idle(&self) {
        let mut wcs = [Wc::default(); 1];
        assert_eq!(self.cq.poll(&mut wcs), Ok(0), "{wcs:?}");
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: no write is under way to or from these bytes.
        unsafe { self.memory.copy_in(offset, bytes) }.expect("within");
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: the write to these bytes has completed.
        unsafe { self.memory.copy_out(offset, &mut bytes) }.expect("within");
        bytes
    }
}

/// Whether a descriptor becomes readable within the time.
pub fn readable(fd: &impl AsFd, within: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, writable, of an open descriptor.
    let count = unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) };
    assert!(count >= 0, "{}", std::io::Error::last_os_error());
    count == 1
}

/// Bytes that differ from place to place.
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
