//! Defaults that are stated twice agree, and each key sets the field of its name.

use std::{path::Path, time::Duration};

use super::*;
use crate::{
    config::{AdaptiveRouting, Auto, IbKeys, Policy, parse_frontend},
    connection::Wait,
};
use fabric::{ib::IbWishes, wire::Stream};

#[test]
fn the_defaults_of_a_file_are_those_of_what_it_sets() {
    assert_eq!(spin(&Completion::default()), Spin::new(50_000));
    let d = Deadlines::default();
    assert_eq!(
        tcp(&NicConfig::default(), &TcpKeys::default(), &d),
        TcpCfgs::default()
    );
    let nic = NicConfig::ib("mlx5_0");
    let keys = nic.as_ib().expect("an RDMA device");
    let expected = IbWishes {
        queue_pairs: keys.queue_pairs,
        ..IbWishes::new("mlx5_0")
    };
    assert_eq!(ib(&nic, keys), expected);
    let echo = DispatchCfgs::default().echo;
    assert_eq!(ns(d.echo_interval_ms), echo.interval_ns);
    assert_eq!(ns(d.echo_timeout_ms), echo.timeout_ns);
}

/// Each value is unlike all others and unlike its default, so that no key takes another's place.
#[test]
fn each_key_sets_the_field_of_its_name() {
    let yaml = "\
node: f
model:
  {name: m, inputs: [{name: i, dtype: u8, shape: [4]}],
   output: {name: o, dtype: i32, shape: [2], ragged: true}}
dataset: {kind: random}
accelerators: [{control: '127.0.0.1:1'}]
arbiter: round_robin
one_by_one: true
stream: all
deadlines: {connect_ms: 7, echo_interval_ms: 11, echo_timeout_ms: 12,
            heartbeat_interval_ms: 13, heartbeat_timeout_ms: 14}
nics: [{address: 127.0.0.1, inline_bytes: 21, send_buffer_bytes: 4097,
        post_from_issue_thread_up_to: 22, completion: {spin_us: 23}}]
";
    let c = parse_frontend(yaml, "f.yaml", Path::new("/")).unwrap_or_else(|e| panic!("{e}"));
    let NicFabric::Tcp(keys) = &c.nics[0].fabric else {
        panic!("{:?}", c.nics)
    };
    let expected = TcpCfgs {
        send_buffer: Some(4097),
        inline_bytes: 21,
        user_timeout_ms: 12,
        ..TcpCfgs::default()
    };
    assert_eq!(tcp(&c.nics[0], keys, &c.deadlines), expected);
    let ms = Duration::from_millis;
    let (every, gone_after) = (ms(13), ms(14));
    let heartbeat = HeartbeatCfgs { every, gone_after };
    let step = ms(7);
    assert_eq!(timing(&c.deadlines), Timing { step, heartbeat });
    let d = dispatch(&c);
    assert_eq!((d.policy, d.stream), (Policy::RoundRobin, Stream::All));
    let echo = (d.echo.interval_ns, d.echo.timeout_ns);
    assert_eq!(echo, (11_000_000, 12_000_000));
    let posting = (d.post_up_to, d.stay_ns, d.one_by_one);
    assert_eq!(posting, (22, 23_000, true));

    let keys = IbKeys {
        device: "d".to_owned(),
        port: 2,
        gid_index: Auto::Fixed(3),
        mtu: Auto::Fixed(512),
        queue_pairs: 5,
        signal_every: 6,
        send_depth: Auto::Fixed(70),
        receive_depth: Auto::Fixed(80),
        gpudirect: false,
        solicited: false,
        adaptive_routing: AdaptiveRouting {
            split_above: Some(9),
        },
        service_level: 10,
        traffic_class: 11,
        timeout: 12,
        retry_count: 4,
        rnr_retry: 1,
        min_rnr_timer: 13,
    };
    let nic = NicConfig {
        inline_bytes: Some(14),
        ..NicFabric::Ib(keys.clone()).into()
    };
    let port = ib_device(&Topology::default(), &nic, &keys);
    let of_port = (port.device.as_str(), port.port, port.gid_index);
    assert_eq!(of_port, ("d", 2, Some(3)));
    let expected = IbWishes {
        device: "d".to_owned(),
        queue_pairs: 5,
        send_depth: Some(70),
        receive_depth: Some(80),
        mtu: Some(512),
        inline_bytes: 14,
        signal_every: 6,
        solicited: false,
        split_above: Some(9),
        service_level: 10,
        traffic_class: 11,
        timeout: 12,
        retry_count: 4,
        rnr_retry: 1,
        min_rnr_timer: 13,
    };
    assert_eq!(ib(&nic, &keys), expected);
}

#[test]
fn how_a_nic_thread_spins() {
    let with = |mode, yield_after_us| {
        spin(&Completion {
            mode,
            yield_after_us,
            ..Completion::default()
        })
    };
    let usual = spin(&Completion::default());
    assert_eq!(usual.wait(1_999), Wait::Look);
    assert_eq!(usual.wait(2_000), Wait::Yield);
    assert_eq!(usual.wait(50_000), Wait::Sleep);
    let alone = with(CompletionMode::Poll, None);
    assert_eq!(alone.wait(u64::MAX - 1), Wait::Look);
    assert_eq!(with(CompletionMode::Event, Some(2)).wait(0), Wait::Sleep);
    let polite = with(CompletionMode::Adaptive, Some(0));
    assert_eq!(polite.wait(0), Wait::Yield);
}

#[test]
fn a_congestion_control_that_cannot_be_had_is_refused_by_name() {
    let keys = TcpKeys {
        congestion: fabric::os::Congestion::Named("no_such_one".to_owned()),
        ..TcpKeys::default()
    };
    let told = congestion(&keys, "eth0")
        .expect_err("there is none")
        .to_string();
    for part in ["`no_such_one`", "tcp_available_congestion_control"] {
        assert!(told.contains(part), "no {part}: {told}");
    }
}
