//! What a connection is made with: the values of a NIC's entry in the configuration, with `auto`
//! resolved and every depth checked against the device.

use std::time::Duration;

use verbs::{DeviceLimits, Mtu};

use super::IbError;
use crate::{
    config::{Auto, IbKeys, NicConfig},
    fabric::Endpoint,
    wire::Stream,
};

/// Most receives that go back at once.
pub const RECEIVE_BATCH: u32 = 64;

/// Receives for control messages: echoes, their replies, the goodbye.
pub const CONTROL_RECEIVES: u32 = 16;

/// Retries after "receiver not ready" that do not end: the sender's NIC holds parts back until the
/// receiver has looked at those before them. One that never looks again is found out by the echo.
const UNTIL_READY: u8 = 7;

/// How long a goodbye may take.
const LINGER: Duration = Duration::from_millis(25);

/// What goes each way over a connection, as far as its queues must be ready for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Slots at either end.
    pub slots: usize,
    /// Parts in which the peer writes ours.
    pub received: Stream,
    /// Parts in which we write the peer's.
    pub sent: Stream,
}

impl Traffic {
    /// That of an end of a connection.
    pub fn of(endpoint: &Endpoint) -> Self {
        Traffic {
            slots: endpoint.window.slots().max(endpoint.peer_slots),
            received: endpoint.window.stream(),
            sent: endpoint.peer_stream,
        }
    }
}

impl From<usize> for Traffic {
    /// So many slots, each written in one piece.
    fn from(slots: usize) -> Self {
        Traffic {
            slots,
            received: Stream::None,
            sent: Stream::None,
        }
    }
}

/// Writes to one slot that queues are made for. There may be more of them under
/// [`Stream::All`]; then the sender's NIC waits, or the parts that follow leave together.
fn writes(stream: Stream) -> u32 {
    const MANY: u32 = 4;
    match stream.writes() {
        0 => MANY,
        n => n as u32,
    }
}

/// Sizes and settings of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbCfgs {
    /// Path MTU; `None` takes the port's.
    pub mtu: Option<Mtu>,
    /// Payloads up to this many bytes ride in the work request.
    pub inline_bytes: u32,
    /// One work request in this many is signaled.
    pub signal_every: u32,
    /// Writes that can be under way.
    pub writes: u32,
    /// Work requests in the send queue for them: two for each where writes may be split.
    pub send_depth: u32,
    /// Receives posted.
    pub receive_depth: u32,
    /// Receives that go back at once.
    pub receive_batch: u32,
    /// Marks the last write of a burst solicited, and sleeps for such alone.
    pub solicited: bool,
    /// Payloads of more bytes than this are split.
    pub split_above: Option<u32>,
    /// InfiniBand service level.
    pub service_level: u8,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Local ACK timeout, as the verbs encode it.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_count: u8,
    /// Retries after "receiver not ready".
    pub rnr_retry: u8,
    /// What senders are asked to wait before such a retry, as the verbs encode it.
    pub min_rnr_timer: u8,
    /// How long the last goodbye may take.
    pub linger: Duration,
}

impl IbCfgs {
    /// For connections with this traffic (a number of slots is one) on a device with these limits.
    ///
    /// # Errors
    /// [`IbError::Setting`] names the key and the limit.
    pub fn resolve(
        nic: &NicConfig,
        limits: &DeviceLimits,
        traffic: impl Into<Traffic>,
    ) -> Result<IbCfgs, IbError> {
        let traffic = traffic.into();
        let (default, inline_bytes) = (IbKeys::default(), nic.inline_bytes());
        let nic = nic.as_ib().unwrap_or(&default);
        let refuse = |key, problem| {
            Err(IbError::Setting {
                device: nic.device.clone(),
                key,
                problem,
            })
        };
        let slots = u32::try_from(traffic.slots).unwrap_or(u32::MAX);
        let receives = slots.saturating_mul(writes(traffic.received));
        let queue = limits.max_qp_wr.min(limits.max_cqe);
        let split_above = nic.adaptive_routing.split_above;
        let each = if split_above.is_some() { 2 } else { 1 };
        // The goodbye and the write that retires what idles have their own places.
        let spare = 2;
        let send_depth = match nic.send_depth {
            Auto::Fixed(depth) => depth,
            // A slot may be answered and used again before the write that was in it has retired;
            // those are fewer than two signals apart, so that a full send queue is never what holds
            // a sample up.
            Auto::Auto => slots
                .saturating_mul(writes(traffic.sent))
                .saturating_add(2 * nic.signal_every)
                .saturating_mul(each)
                .min(queue.saturating_sub(spare)),
        };
        if send_depth.saturating_add(spare) > queue {
            return refuse(
                "send_depth",
                format!(
                    "{send_depth} work requests (and {spare} of its own) exceed what the device \
                     takes: max_qp_wr {}, max_cqe {}",
                    limits.max_qp_wr, limits.max_cqe
                ),
            );
        }
        let least = slots.saturating_add(CONTROL_RECEIVES + 1);
        let receive_depth = match nic.receive_depth {
            Auto::Fixed(depth) => depth,
            Auto::Auto => receives
                .saturating_add(CONTROL_RECEIVES + RECEIVE_BATCH)
                .min(queue.max(least)),
        };
        if receive_depth < least {
            return refuse(
                "receive_depth",
                format!(
                    "{receive_depth} receives do not cover {slots} slots and {} control messages: \
                     set it to at least {least}, or to `auto`",
                    CONTROL_RECEIVES
                ),
            );
        }
        if receive_depth > queue {
            return refuse(
                "slots",
                format!(
                    "{slots} slots need {receive_depth} receives, and the device takes max_qp_wr \
                     {}, max_cqe {}",
                    limits.max_qp_wr, limits.max_cqe
                ),
            );
        }
        let pairs = u32::try_from(nic.queue_pairs).unwrap_or(u32::MAX);
        if pairs > limits.max_qp || pairs.saturating_mul(2) > limits.max_cq {
            return refuse(
                "queue_pairs",
                format!(
                    "{pairs} queue pairs with two completion queues each exceed the device's \
                     max_qp {}, max_cq {}",
                    limits.max_qp, limits.max_cq
                ),
            );
        }
        let mtu = nic.mtu.fixed().map(Mtu::from_bytes).transpose()?;
        Ok(IbCfgs {
            mtu,
            inline_bytes,
            signal_every: nic.signal_every.min(send_depth / 2).max(1),
            writes: (send_depth / each).max(1),
            send_depth,
            receive_depth,
            receive_batch: receive_depth
                .saturating_sub(receives.saturating_add(CONTROL_RECEIVES))
                .clamp(1, RECEIVE_BATCH),
            solicited: nic.solicited,
            split_above,
            service_level: nic.service_level,
            traffic_class: nic.traffic_class,
            timeout: nic.timeout,
            retry_count: nic.retry_count,
            rnr_retry: match traffic.sent {
                Stream::None => nic.rnr_retry,
                Stream::First | Stream::All => UNTIL_READY,
            },
            min_rnr_timer: nic.min_rnr_timer,
            linger: LINGER,
        })
    }

    /// Work requests that one write takes at most.
    pub(super) fn each(&self) -> u32 {
        if self.split_above.is_some() { 2 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AdaptiveRouting;

    fn limits(max_qp_wr: u32, max_cqe: u32) -> DeviceLimits {
        DeviceLimits {
            max_qp: 100,
            max_cq: 100,
            max_qp_wr,
            max_cqe,
            ..DeviceLimits::default()
        }
    }

    fn nic() -> NicConfig {
        NicConfig::ib("mlx5_0")
    }

    use crate::testkit::ib_keys;

    #[test]
    fn auto_covers_the_slots() {
        let c = IbCfgs::resolve(&nic(), &limits(32_768, 32_767), 8192).expect("fits");
        assert_eq!(
            (c.receive_depth, c.receive_batch, c.writes),
            (8192 + 80, 64, 8192 + 128)
        );
        assert_eq!(c.signal_every, 64);
        let mut split = nic();
        ib_keys(&mut split).adaptive_routing = AdaptiveRouting {
            split_above: Some(8192),
        };
        let c = IbCfgs::resolve(&split, &limits(32_768, 32_767), 100).expect("fits");
        assert_eq!((c.writes, c.send_depth), (228, 456));
    }

    #[test]
    fn parts_have_receives_of_their_own() {
        let traffic = |received, sent| Traffic {
            slots: 100,
            received,
            sent,
        };
        let resolve = |limit, received, sent| {
            let limits = limits(limit, limit);
            IbCfgs::resolve(&nic(), &limits, traffic(received, sent)).expect("fits")
        };
        let whole = IbCfgs::resolve(&nic(), &limits(9999, 9999), 100).expect("fits");
        assert_eq!(resolve(9999, Stream::None, Stream::None), whole);
        for (stream, each) in [(Stream::First, 2), (Stream::All, 4)] {
            let (near, far) = (
                resolve(9999, stream, Stream::None),
                resolve(9999, Stream::None, stream),
            );
            assert_eq!(near.receive_depth, 100 * each + CONTROL_RECEIVES + 64);
            assert_eq!(near.receive_batch, 64);
            assert_eq!((near.send_depth, near.rnr_retry), (whole.send_depth, 6));
            assert_eq!((far.send_depth, far.rnr_retry), (100 * each + 128, 7));
            assert_eq!(far.receive_depth, whole.receive_depth);
        }
        // What the device does not have room for is held back by the sender's NIC.
        let few = resolve(300, Stream::All, Stream::None);
        assert_eq!((few.receive_depth, few.receive_batch), (300, 1));
    }

    #[test]
    fn a_shallow_queue_is_signaled_more_often() {
        let mut shallow = nic();
        ib_keys(&mut shallow).send_depth = Auto::Fixed(8);
        let c = IbCfgs::resolve(&shallow, &limits(1024, 1024), 4).expect("fits");
        assert_eq!((c.signal_every, c.writes), (4, 8));
    }

    #[test]
    fn every_limit_is_named() {
        let case = |nic: NicConfig, limits: DeviceLimits, slots, parts: &[&str]| {
            let text = IbCfgs::resolve(&nic, &limits, slots)
                .expect_err("refused")
                .to_string();
            for part in parts.iter().chain(&["mlx5_0"]) {
                assert!(text.contains(part), "{part:?} is missing in {text:?}");
            }
        };
        case(
            nic(),
            limits(4096, 99_999),
            8192,
            &["slots", "max_qp_wr 4096"],
        );
        case(
            nic(),
            limits(99_999, 4096),
            8192,
            &["slots", "max_cqe 4096"],
        );
        let mut deep = nic();
        ib_keys(&mut deep).send_depth = Auto::Fixed(5000);
        case(
            deep,
            limits(4096, 4096),
            16,
            &["send_depth", "max_qp_wr 4096"],
        );
        let mut few = nic();
        ib_keys(&mut few).receive_depth = Auto::Fixed(100);
        case(few, limits(4096, 4096), 100, &["receive_depth", "117"]);
        let mut many = nic();
        ib_keys(&mut many).queue_pairs = 101;
        case(many, limits(4096, 4096), 16, &["queue_pairs", "max_qp 100"]);
    }
}
