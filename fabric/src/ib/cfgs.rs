//! Sizes and settings of a connection: resolves the depths that the configuration leaves open and
//! checks all of them against the device's limits.

use std::time::Duration;

use verbs::{DeviceLimits, Mtu};

use super::IbKeys;
use crate::{Endpoint, OpenError, keys::Auto, wire::Stream};

/// Most receives posted again in one batch.
const RECEIVE_BATCH: u32 = 64;

/// Receives for control messages: echoes, echo replies, the goodbye.
const CONTROL_RECEIVES: u32 = 16;
/// Receives posted in addition to one for each slot: those of control messages, and a spare one.
pub(super) const OWN_RECEIVES: u32 = CONTROL_RECEIVES + 1;

/// RNR (receiver not ready) retry count for "without end". The sender's NIC holds parts back until
/// the receiver has polled the earlier parts; the echo detects a receiver that has stopped polling.
const UNTIL_READY: u8 = 7;

/// Longest time to wait for the goodbye to complete.
const LINGER: Duration = Duration::from_millis(25);

/// Slots and parts per slot in each direction: the sizes that the queues must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Slots at each end; the larger number if the ends differ.
    pub slots: usize,
    /// Parts in which the peer writes each of our slots.
    pub received: Stream,
    /// Parts in which we write each of the peer's slots.
    pub sent: Stream,
}

impl Traffic {
    /// The traffic of a connection's endpoint.
    pub fn of(endpoint: &Endpoint) -> Self {
        Traffic {
            slots: endpoint.window.slots().max(endpoint.peer_slots),
            received: endpoint.window.stream(),
            sent: endpoint.peer_stream,
        }
    }
}

impl From<usize> for Traffic {
    /// Traffic with this number of slots, each written in one piece.
    fn from(slots: usize) -> Self {
        Traffic {
            slots,
            received: Stream::None,
            sent: Stream::None,
        }
    }
}

/// Resolved sizes and settings of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbCfgs {
    /// The NIC's keys. The fields below replace those of the same name.
    pub keys: IbKeys,
    /// Path MTU; `None` takes the port's active MTU.
    pub mtu: Option<Mtu>,
    /// Number of work requests of which one is signaled.
    pub signal_every: u32,
    /// Most writes in flight.
    pub writes: u32,
    /// Work requests in the send queue for these writes: two per write if writes may be split.
    pub send_depth: u32,
    /// Posted receives.
    pub receive_depth: u32,
    /// Receives posted again in one batch.
    pub receive_batch: u32,
    /// Retries after an RNR ("receiver not ready") NAK; 7 retries without end.
    pub rnr_retry: u8,
    /// Longest time to wait for the goodbye to complete.
    pub linger: Duration,
}

impl IbKeys {
    /// Most work requests per write.
    pub(super) fn each(&self) -> u32 {
        match self.adaptive_routing.split_above {
            Some(_) => 2,
            None => 1,
        }
    }
}

impl IbCfgs {
    /// Resolves `keys` for `traffic` (a number counts slots) within the device's `limits`.
    ///
    /// # Errors
    /// [`OpenError::Local`] names the key and the limit.
    pub fn resolve(
        keys: &IbKeys,
        limits: &DeviceLimits,
        traffic: impl Into<Traffic>,
    ) -> Result<IbCfgs, OpenError> {
        let traffic = traffic.into();
        let refuse = |key, problem: String| Err(OpenError::setting(&keys.device, key, problem));
        let slots = u32::try_from(traffic.slots).unwrap_or(u32::MAX);
        let receives = slots.saturating_mul(traffic.received.writes() as u32);
        let queue = limits.max_qp_wr.min(limits.max_cqe);
        let each = keys.each();
        // Room for the goodbye and for the empty signaled write that retires idle work requests.
        let spare = 2;
        let send_depth = match keys.send_depth {
            Auto::Fixed(depth) => depth,
            // A slot may be used again before its previous write has retired. Such writes span
            // less than two signal intervals, so a full send queue never delays a sample.
            Auto::Auto => slots
                .saturating_mul(traffic.sent.writes() as u32)
                .saturating_add(2 * keys.signal_every)
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
        let least = slots.saturating_add(OWN_RECEIVES);
        let receive_depth = match keys.receive_depth {
            Auto::Fixed(depth) => depth,
            Auto::Auto => receives
                .saturating_add(CONTROL_RECEIVES + RECEIVE_BATCH)
                .min(queue.max(least)),
        };
        if receive_depth < least {
            return refuse(
                "receive_depth",
                format!(
                    "{receive_depth} receives do not cover {slots} slots and {OWN_RECEIVES} of the \
                     connection's own: set it to at least {least}, or to `auto`"
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
        let pairs = u32::try_from(keys.queue_pairs).unwrap_or(u32::MAX);
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
        Ok(IbCfgs {
            keys: keys.clone(),
            mtu: keys.mtu.fixed().map(Mtu::from_bytes).transpose()?,
            signal_every: keys.signal_every.min(send_depth / 2).max(1),
            writes: (send_depth / each).max(1),
            send_depth,
            receive_depth,
            receive_batch: receive_depth
                .saturating_sub(receives.saturating_add(CONTROL_RECEIVES))
                .clamp(1, RECEIVE_BATCH),
            rnr_retry: match traffic.sent {
                Stream::None => keys.rnr_retry,
                Stream::First | Stream::All => UNTIL_READY,
            },
            linger: LINGER,
        })
    }

    /// The settings of a connection whose sender has at most `writes` writes in flight.
    pub(super) fn within(&self, writes: usize) -> IbCfgs {
        let (each, writes) = (self.keys.each(), u32::try_from(writes));
        let most = writes.unwrap_or(u32::MAX).max(1).saturating_mul(each);
        let send_depth = self.send_depth.min(most);
        IbCfgs {
            writes: send_depth / each,
            send_depth,
            signal_every: self.signal_every.min(send_depth / 2).max(1),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_qp_wr: u32, max_cqe: u32) -> DeviceLimits {
        DeviceLimits {
            max_qp: 100,
            max_cq: 100,
            max_qp_wr,
            max_cqe,
            ..DeviceLimits::default()
        }
    }

    fn keys() -> IbKeys {
        IbKeys::new("mlx5_0")
    }

    fn with(change: impl Fn(&mut IbKeys)) -> IbKeys {
        let mut keys = keys();
        change(&mut keys);
        keys
    }

    #[test]
    fn auto_covers_the_slots() {
        let c = IbCfgs::resolve(&keys(), &limits(32_768, 32_767), 8192).expect("fits");
        assert_eq!(
            (c.receive_depth, c.receive_batch, c.writes),
            (8192 + 80, 64, 8192 + 128)
        );
        assert_eq!(c.signal_every, 64);
        let split = with(|w| w.adaptive_routing.split_above = Some(8192));
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
            IbCfgs::resolve(&keys(), &limits, traffic(received, sent)).expect("fits")
        };
        let whole = IbCfgs::resolve(&keys(), &limits(9999, 9999), 100).expect("fits");
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
        // The device has fewer receives than parts: the sender's NIC holds parts back.
        let few = resolve(300, Stream::All, Stream::None);
        assert_eq!((few.receive_depth, few.receive_batch), (300, 1));
    }

    #[test]
    fn a_shallow_queue_is_signaled_more_often() {
        let shallow = with(|w| w.send_depth = Auto::Fixed(8));
        let c = IbCfgs::resolve(&shallow, &limits(1024, 1024), 4).expect("fits");
        assert_eq!((c.signal_every, c.writes), (4, 8));
    }

    #[test]
    fn every_limit_is_named() {
        let case = |keys: IbKeys, limits: DeviceLimits, slots, parts: &[&str]| {
            let text = IbCfgs::resolve(&keys, &limits, slots)
                .expect_err("refused")
                .to_string();
            for part in parts.iter().chain(&["mlx5_0"]) {
                assert!(text.contains(part), "{part:?} is missing in {text:?}");
            }
        };
        let (deep, shallow) = (limits(99_999, 99_999), limits(4096, 4096));
        case(
            keys(),
            limits(4096, 99_999),
            8192,
            &["slots", "max_qp_wr 4096"],
        );
        case(
            keys(),
            limits(99_999, 4096),
            8192,
            &["slots", "max_cqe 4096"],
        );
        let sends = with(|w| w.send_depth = Auto::Fixed(5000));
        case(
            sends,
            shallow.clone(),
            16,
            &["send_depth", "max_qp_wr 4096"],
        );
        let receives = with(|w| w.receive_depth = Auto::Fixed(100));
        case(receives, deep, 100, &["receive_depth", "117"]);
        let pairs = with(|w| w.queue_pairs = 101);
        case(pairs, shallow, 16, &["queue_pairs", "max_qp 100"]);
    }
}
