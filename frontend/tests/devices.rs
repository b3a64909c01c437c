//! A machine without RDMA: TCP does not notice, and a NIC entry with a `device` gives one line that says what is missing.

mod common;

use std::{path::Path, process::Command};

use common::{Place, accelerator, accelerator_program, free_ports, run};

/// Names the library that a program opens; none goes by this name.
const LIBRARY: (&str, &str) = ("QDL_LIBIBVERBS", "libibverbs-of-nobody.so.1");

/// Both programs with `device: mlx5_0`, and what each says before it ends with code 2.
fn refused(prepare: impl Fn(&mut Command)) -> [String; 2] {
    let place = Place::new();
    let front = place.digest_frontend(&[], "nics: [{device: mlx5_0}]\n");
    let text = std::fs::read_to_string(place.digest_accelerator("acc", 0, "")).expect("written");
    let at = text.find("nics:").expect("a NIC");
    let end = at + text[at..].find('\n').expect("a line");
    let acc = place.write(
        "acc.yaml",
        format!("{}nics: [{{device: mlx5_0}}]{}", &text[..at], &text[end..]),
    );
    let mut accelerator = Command::new(accelerator_program());
    accelerator.arg("--config").arg(acc);
    [
        place.frontend(&front, "out", &["--scenario", "offline"]),
        accelerator,
    ]
    .map(|mut command| {
        prepare(&mut command);
        let ended = run(&place, command);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let errors: Vec<_> = ended
            .stderr
            .lines()
            .filter(|l| l.starts_with("error: "))
            .collect();
        assert_eq!(errors.len(), 1, "one line: {}", ended.stderr);
        errors[0].to_owned()
    })
}

#[test]
fn without_libibverbs_a_device_gives_one_clear_line() {
    for text in refused(|c| {
        c.env(LIBRARY.0, LIBRARY.1);
    }) {
        assert!(
            text.contains("nics[0]") && text.contains("no libibverbs on this machine"),
            "{text}"
        );
    }
}

#[test]
fn with_libibverbs_and_no_device_the_line_is_another() {
    let here = |path: &str| Path::new(path).read_dir().is_ok_and(|d| d.count() > 0);
    if here("/sys/class/infiniband") {
        println!("skipped: this machine has RDMA devices");
        return;
    }
    for text in refused(|_| {}) {
        if text.contains("no libibverbs") {
            println!("skipped: this machine has no libibverbs");
        } else {
            assert!(
                text.contains("nics[0]") && text.contains("finds no RDMA device"),
                "{text}"
            );
        }
    }
}

#[test]
fn without_libibverbs_tcp_runs_as_ever() {
    let place = Place::new();
    let [port] = free_ports();
    let _running = accelerator(&place, &place.digest_accelerator("acc", port, ""));
    let config = place.digest_frontend(&[port], "");
    let arguments = ["--scenario", "offline", "--mode", "accuracy"];
    let mut command = place.frontend(&config, "out", &arguments);
    command.env(LIBRARY.0, LIBRARY.1);
    let ended = run(&place, command);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}
