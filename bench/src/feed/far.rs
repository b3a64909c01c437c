//! The frontend's dispatcher over stubbed NICs, each of whose queue pairs has a null engine at its
//! far end.

use std::{
    net::Ipv6Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use frontend::backend::Backend;
use qdl::{
    config::FrontendConfig,
    dispatch::{Completer, DispatchCfgs, DispatchEvent, DispatchNic, Dispatcher, Owner, Sample},
    fabric::{
        Control, Imm, Link, Post, Region,
        ib::{IbCfgs, IbConnection, IbDevice, IbEnd, IbRegion, IbResources, Traffic},
    },
    os::Near,
    response::{RESPONSE_HEADER_BYTES, ResponseHeader},
    run::made_of,
    stats::SystemRecord,
    wire::EngineInfo,
};
use verbs::stub::answering::{self, Answered};

/// How long connections may take to come up.
const UP: Duration = Duration::from_secs(10);
/// Where the peer's slots would be: nothing follows it.
const ELSEWHERE: u64 = 1 << 40;

/// What the far end of every queue pair does.
#[derive(Clone, Copy, Debug)]
pub struct FarEnd {
    /// From a doorbell to its answers, in nanoseconds.
    pub delay_ns: u64,
    /// Bytes of a response.
    pub response: usize,
}

/// Nobody is lost here.
struct Nobody;

impl Owner for Nobody {
    fn complete_empty(&self, _: &[Sample]) {}

    fn event(&self, event: DispatchEvent) {
        eprintln!("error: {event:?}");
    }
}

/// The dispatcher with every connection up.
pub struct Feed {
    /// The frontend's.
    pub dispatcher: Arc<Dispatcher>,
    /// Keep the devices open.
    _nics: Vec<Arc<IbResources>>,
}

impl Feed {
    /// Opens the devices of a configuration and connects everything. Samples lie in `samples`.
    pub fn new(
        config: &FrontendConfig,
        samples: Arc<Region>,
        far: FarEnd,
        completer: &mut dyn FnMut(usize) -> Box<dyn Completer>,
    ) -> Result<Self> {
        let (connections, _) = made_of::plan(config)?;
        let cfgs = DispatchCfgs {
            sources: vec![samples],
            connections,
            ..made_of::dispatch(config)
        };
        let count = cfgs.connections.len();
        let nics = (0..config.nics.len())
            .map(|i| DispatchNic {
                cfgs: made_of::frontend_nic_thread(i, config, &Near::default()),
                completer: completer(i),
            })
            .collect();
        let dispatcher = Arc::new(Dispatcher::new(cfgs, nics, Arc::new(Nobody))?);
        let verbs = answering::verbs();
        let open = |nic| Ok(IbResources::new(IbDevice::open_with(&verbs, nic)?)?);
        let opened = config.nics.iter().map(open).collect::<Result<Vec<_>>>()?;
        for connection in 0..count {
            let at = dispatcher.connection(connection).nic_index;
            let link = connect(&dispatcher, connection, &config.nics[at], &opened[at], far)
                .with_context(|| format!("connection {connection}"))?;
            dispatcher.attach(connection, 1, link);
        }
        let end = Instant::now() + UP;
        while dispatcher.connections_up() < count {
            ensure!(
                Instant::now() < end,
                "{} of {count} connections came up within {UP:?}",
                dispatcher.connections_up()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Feed {
            dispatcher,
            _nics: opened,
        })
    }
}

fn connect(
    dispatcher: &Dispatcher,
    connection: usize,
    nic: &qdl::config::NicConfig,
    resources: &Arc<IbResources>,
    far: FarEnd,
) -> Result<Link> {
    let mut endpoint = dispatcher.endpoint(connection);
    let limits = resources.device().limits();
    let cfgs = IbCfgs::resolve(nic, limits, Traffic::of(&endpoint))?;
    endpoint.send_depth = cfgs.writes as usize;
    let window = endpoint.window.clone();
    let (slots, stride) = (endpoint.peer_slots, endpoint.peer_stride);
    let half = IbConnection::prepare(resources, endpoint, &cfgs)?;
    let region = |length: usize| IbRegion {
        address: ELSEWHERE,
        length: length as u64,
        rkey: 1,
    };
    let (memory, responses) = (window.region().clone(), window.stride());
    let number = answering::far_end(far.delay_ns, move |bits| {
        answer(Imm::from_bits(bits), far.response, |imm, header| {
            let at = usize::from(imm.slot()) * responses;
            // SAFETY: the sample that was posted has opened the grant of this slot, so that it is
            // the far end's to write until its answer is reported, which is after this.
            unsafe { memory.store(at, header) }.is_ok()
        })
    });
    Ok(half.connect(&IbEnd {
        qp_num: number,
        psn: 0,
        lid: 0,
        gid: Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, 0x0009]),
        mtu: 4096,
        solicited: true,
        slots: region(slots * stride),
        // One descriptor cell of 16 bytes for each.
        cells: region(slots * 16),
    })?)
}

/// What a null engine answers: a header, and a payload that is what lies there. `write` puts the
/// header into the slot.
fn answer(
    imm: Imm,
    response: usize,
    write: impl FnOnce(Imm, &[u8; RESPONSE_HEADER_BYTES]) -> bool,
) -> Option<Answered> {
    if imm.is_control() {
        let Some(Control::Echo(v)) = imm.message() else {
            return None;
        };
        let imm = Post::control(Control::EchoReply(v)).imm.bits();
        return Some(Answered { imm, len: 0 });
    }
    let header = ResponseHeader {
        len: response as u32,
        use_count: imm.use_count(),
        queue_us: 0,
        compute_us: 0,
    };
    write(imm, &header.encode()).then(|| Answered {
        imm: imm.bits(),
        len: (RESPONSE_HEADER_BYTES + response) as u32,
    })
}

impl Backend for Feed {
    fn issue(&self, samples: &[Sample]) {
        self.dispatcher.issue(samples);
    }

    fn fabric(&self) -> (&'static str, Vec<String>) {
        ("ib", vec!["stubbed NICs".to_owned()])
    }

    fn name(&self) -> (String, Option<Duration>) {
        ("stubbed NICs".to_owned(), None)
    }

    fn engines(&self) -> Vec<(String, EngineInfo)> {
        Vec::new()
    }

    fn outstanding(&self) -> u64 {
        self.dispatcher.outstanding()
    }

    fn completed(&self) -> u64 {
        self.dispatcher.counts().completed
    }

    fn abort(&self, cause: &str) {
        self.dispatcher.abort(cause);
    }

    fn finish(&self) -> SystemRecord {
        self.dispatcher.stop();
        SystemRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_answered_into_its_slot_and_an_echo_is_returned() {
        let imm = Imm::new(7, 3);
        let mut written = None;
        let answered = answer(imm, 8, |imm, header| {
            written = Some((imm.slot(), ResponseHeader::decode(header, 24, 3)));
            true
        });
        assert_eq!(answered.map(|a| (a.imm, a.len)), Some((imm.bits(), 24)));
        let (slot, header) = written.expect("written");
        assert_eq!((slot, header.map(|h| h.len)), (7, Some(8)));

        let echo = Post::control(Control::Echo(5)).imm;
        let reply = answer(echo, 8, |_, _| false).expect("a reply");
        let message = Imm::from_bits(reply.imm).message();
        assert_eq!((message, reply.len), (Some(Control::EchoReply(5)), 0));
    }
}
