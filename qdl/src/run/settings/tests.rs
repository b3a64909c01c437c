//! Defaults that are stated twice agree, and each key sets the field of its name.

use std::{path::Path, time::Duration};

use super::*;
use crate::{
    config::{Policy, parse_frontend},
    connection::Wait,
};
use fabric::wire::Stream;

#[test]
fn the_defaults_of_a_file_are_those_of_what_it_sets() {
    assert_eq!(spin(&Completion::default()), Spin::new(50_000));
    let d = Deadlines::default();
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
nics: [{address: 127.0.0.1, post_from_issue_thread_up_to: 22, completion: {spin_us: 23}}]
";
    let c = parse_frontend(yaml, "f.yaml", Path::new("/")).unwrap_or_else(|e| panic!("{e}"));
    let ms = Duration::from_millis;
    let (every, gone_after) = (ms(13), ms(14));
    let heartbeat = HeartbeatCfgs { every, gone_after };
    let step = ms(7);
    assert_eq!(timing(&c.deadlines), Timing { step, heartbeat });
    let d = dispatch(&c);
    assert_eq!((d.policy, d.stream), (Policy::RoundRobin, Stream::All));
    let echo = (d.echo.interval_ns, d.echo.timeout_ns);
    assert_eq!(echo, (11_000_000, 12_000_000));
    let posting = (d.post_up_to, d.affinity_ns, d.one_by_one);
    assert_eq!(
        posting,
        (22, 0, true),
        "a request of tokens stays with no connection"
    );
    assert!(d.by_peer);
    let yaml = yaml.replace("i32", "u8").replace("stream: all\n", "");
    let bytes = parse_frontend(&yaml, "f.yaml", Path::new("/"));
    let d = dispatch(&bytes.unwrap_or_else(|e| panic!("{e}")));
    assert_eq!((d.affinity_ns, d.by_peer), (23_000, false));
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
