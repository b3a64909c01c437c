//! Defaults that are stated twice agree. Every key of `docs/configuration.md` has an effect
//! ([`keys`]), and so has every field of the configuration's types ([`fields`]).

mod fields;
mod keys;

use super::*;
use crate::connection::Wait;

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
    let expected = fabric::ib::IbWishes {
        queue_pairs: keys.queue_pairs,
        ..fabric::ib::IbWishes::new("mlx5_0")
    };
    assert_eq!(ib(&nic, keys), expected);
    let echo = DispatchCfgs::default().echo;
    assert_eq!(ns(d.echo_interval_ms), echo.interval_ns);
    assert_eq!(ns(d.echo_timeout_ms), echo.timeout_ns);
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
