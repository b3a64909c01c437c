//! Tests of keys that are valid alone and must agree.

use super::*;
use crate::wire::Score;
use fabric::wire::Stream;

#[test]
fn policies_by_health() {
    let arbiter = |text: &str| frontend(&format!("{FRONTEND}{REST}{text}\n"));
    assert_eq!(good(arbiter("arbiter: best")).arbiter, Policy::Best);
    let c = arbiter(
        "arbiter: {health_spray: {delta: 0.25}}\nhealth: {probe_one_in: 200, out_below: 0.2}",
    );
    let c = c.unwrap();
    let delta = Score::try_from(0.25).unwrap();
    let spray = Policy::HealthSpray {
        delta,
        above_only: false,
    };
    assert_eq!(c.arbiter, spray);
    let expected = HealthConfig {
        probe_one_in: 200,
        out_below: Score::try_from(0.2).unwrap(),
        ..HealthConfig::default()
    };
    assert_eq!(c.health, expected);
    assert_eq!(
        good(arbiter("arbiter: best")).health,
        HealthConfig::default()
    );
    assert_refused(
        |keys| arbiter(&format!("arbiter: {keys}").replace("; ", "\n")),
        "{health_spray: {delta: 1.5}} => 1.5
         {health_spray: {}} => delta
         best; health: {out_below: 0.7} => out_below is 0.700
         best; health: {failed_hold_ms: 70000} => failed_hold_max_ms is 60000",
    );
}

#[test]
fn addresses_need_a_token_off_loopback() {
    let open = ACCELERATOR.replace("127.0.0.1:7410", "0.0.0.0:7410");
    assert_eq!(
        text(accelerator(&open)),
        "\
a.yaml:5:17: 0.0.0.0:7410 is not a loopback address, and there is no token
  |
5 | nics: [{listen: 0.0.0.0:7410}]
  |                 ^^^^^^^^^^^^
  = add `token_file: PATH` with the same token on both nodes, or `auth: none` if the network is \
trusted"
    );
    let none = good(accelerator(&format!("{open}auth: none\n")));
    assert_eq!(none.auth(), Auth::None);
    let token = good(accelerator(&format!("{open}token_file: t\n")));
    assert_eq!(token.auth(), Auth::Token(Path::new("/base/t")));
    let both = accelerator(&format!("{open}token_file: t\nauth: none\n"));
    assert_eq!(
        problems(both),
        ["7:7 `auth: none` and `token_file` contradict each other"]
    );
    for (control, fine) in [
        ("localhost:1", true),
        ("'[::1]:1'", true),
        ("127.8.8.8:1", true),
        ("10.0.0.1:1", false),
        ("dgx-01:1", false),
    ] {
        let text = format!("{FRONTEND}{REST}").replace("127.0.0.1:7400", control);
        assert_eq!(frontend(&text).is_ok(), fine, "{control}");
        assert!(
            frontend(&format!("{text}auth: none\n")).is_ok(),
            "{control}"
        );
    }
}

#[test]
fn relations_between_keys() {
    assert_problems(
        |more| frontend(&format!("{FRONTEND}{REST}{more}\n")),
        "deadlines: {echo_interval_ms: 2000} == 9:31 echo_interval_ms is 2000, no shorter than \
         echo_timeout_ms, 2000
         deadlines: {lost_ms: 2250} == 9:22 lost_ms is 2250, but losing a connection alone takes \
         echo_interval_ms + echo_timeout_ms = 2250
         deadlines: {watchdog_s: 5} == 9:25 watchdog_s is 5 s, no longer than lost_ms, 5000 ms",
    );
    let twice = "[{control: localhost:1}, {control: localhost:1}, {control: localhost}]";
    assert_problems(
        |lists| {
            let lists = lists.replace("TWICE", twice).replace(" | ", "\nnics: ");
            frontend(&format!("{FRONTEND}accelerators: {lists}\n"))
        },
        "[] | [] == 7:1 the list of accelerators is empty; 8:1 the list of NICs is empty
         TWICE | [{address: '127.0.0.1:3'}] == 8:18 `127.0.0.1:3` is not an IP address
         TWICE | [{address: '127.0.0.1'}] == 7:50 localhost:1 is listed twice; \
         7:74 `localhost` is not HOST:PORT",
    );
    assert_problems(
        |change| accelerator(&changed(ACCELERATOR, change)),
        "7410 -> 7400 == 5:17 127.0.0.1:7400 is taken by `control.listen`",
    );
}

#[test]
fn answers_in_tokens_need_a_ragged_output() {
    let with = |keys: &str, output: &str| {
        let ragged = format!("{output}, shape: [8], ragged: true");
        let text = format!("{FRONTEND}{REST}{keys}\n");
        frontend(&text.replace("u8, shape: [8]", &ragged))
    };
    let config = good(with("stream: first", "i32"));
    assert_eq!(config.stream, Some(Stream::First));
    let config = good(with("stream: none", "i32"));
    assert_eq!(config.stream, Some(Stream::None));
    assert_problems(
        |keys| frontend(&format!("{FRONTEND}{REST}{keys}\n")),
        "stream: first == 9:9 `stream: first` is for answers in tokens, the model's output is \
         o: u8[8]",
    );
}

#[test]
fn shapes_that_cannot_be() {
    assert_refused(
        |shape| {
            frontend(&changed(
                &format!("{FRONTEND}{REST}"),
                &format!("[4] -> {shape}"),
            ))
        },
        "[0] => f.yaml:4:33: u8[0] is no shape of a sample
         [4, 18446744073709551615] => f.yaml:4:33: u8[4, 18446744073709551615] is no shape of
         [1073741825] => f.yaml:4:33: u8[1073741825] is no shape of a sample",
    );
}
