//! Data transfer: payloads, immediates, lengths, and their completions.

use std::time::Duration;

use verbs::raw::{IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM};
use verbs::{Notify, QpCaps, SendChain, Write};

use super::rig::{CAPS, connect, pattern, readable};

const SOON: Duration = Duration::from_secs(5);
const NEVER: Duration = Duration::from_millis(100);

pub fn a_write_with_immediate_arrives_with_its_bytes_number_and_length() {
    let (a, b) = connect(CAPS);
    let payload = pattern(150_528, 1);
    a.fill(0, &payload);
    b.receive(1);
    a.send(&[Write {
        imm: Some(0xdead_beef),
        ..a.write(&b, 5, payload.len())
    }]);

    let arrived = b.completions(1)[0];
    assert!(arrived.is_success(), "{arrived:?}");
    assert_eq!(arrived.opcode(), IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(
        (arrived.imm(), arrived.byte_len()),
        (Some(0xdead_beef), 150_528)
    );
    assert_eq!(arrived.qp_num(), b.qp.qp_num());
    assert!(b.bytes(0, payload.len()) == payload, "the payload differs");

    let retired = a.completions(1)[0];
    assert!(retired.is_success(), "{retired:?}");
    assert_eq!((retired.wr_id(), retired.opcode()), (5, IBV_WC_RDMA_WRITE));
}

pub fn only_a_solicited_write_wakes_who_sleeps_for_those() {
    let (a, b) = connect(CAPS);
    b.receive(4);
    b.cq.arm(Notify::Solicited).expect("arming");
    a.send(&[a.write(&b, 0, 8)]);
    assert!(
        !readable(&b.channel, NEVER),
        "an unsolicited write woke the sleeper"
    );
    a.send(&[Write {
        solicited: true,
        ..a.write(&b, 1, 8)
    }]);
    assert!(
        readable(&b.channel, SOON),
        "the solicited write woke nobody"
    );
    let mut tokens = Vec::new();
    assert_eq!(b.channel.take_events(|token| tokens.push(token)), Ok(1));
    assert_eq!(tokens, [77]);
    assert_eq!(b.completions(2).len(), 2);
}

pub fn a_full_send_queue_takes_what_it_can_and_the_rest_later() {
    let caps = QpCaps {
        max_send_wr: 16,
        max_recv_wr: 600,
        ..CAPS
    };
    let (a, b) = connect(caps);
    let depth = a.qp.caps().max_send_wr as usize;
    let total = 4 * depth;
    assert!(total <= 500, "the device made the queue {depth} deep");
    b.receive(total);
    let mut chain = SendChain::new(total, 0);
    for id in 0..total as u64 {
        chain.push(&a.write(&b, id, 64)).expect("room");
    }
    let (mut posted, mut retired, mut full) = (0, 0, 0);
    while posted < total {
        match a.qp.post_send(&mut chain) {
            Ok(count) => posted += count,
            Err(error) => {
                assert!(error.is_full(), "{error}");
                assert_eq!(error.left, chain.len());
                posted += error.posted;
                full += 1;
                retired += a.completions(1).len();
            }
        }
    }
    a.completions(total - retired);
    let numbers: Vec<_> = b
        .completions(total)
        .iter()
        .filter_map(verbs::Wc::imm)
        .collect();
    assert_eq!(
        numbers,
        (0..total as u32).collect::<Vec<_>>(),
        "lost, doubled or out of order"
    );
    assert!(full > 0, "the queue was never full");
}
