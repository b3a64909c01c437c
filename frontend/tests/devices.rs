//! A machine without RDMA: TCP does not notice, and a NIC entry
//! with a `device` gives one line that says what is missing.

mod common;

use std::{path::Path, process::Command};

use common::{Place, accelerator, accelerator_program, assert_has, free_ports, run};

/// Names the library that a program opens; none goes by this name.
const LIBRARY: (&str, &str) = ("QDL_LIBIBVERBS", "libibverbs-of-nobody.so.1");

/// Both programs with `device: absent9`, and what each says before it ends with code 2.
fn refused(prepare: impl Fn(&mut Command)) -> [String; 2] {
    let place = Place::new();
    let front = place.digest_frontend(&[], "nics: [{device: absent9}]\n");
    let text = std::fs::read_to_string(place.digest_accelerator("acc", 0, "")).expect("written");
    let at = text.find("nics:").expect("a NIC");
    let end = at + text[at..].find('\n').expect("a line");
    let acc = place.write(
        "acc.yaml",
        format!("{}nics: [{{device: absent9}}]{}", &text[..at], &text[end..]),
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
        assert_has(&text, &["nics[0]", "no libibverbs on this machine"]);
    }
}

#[test]
fn a_device_that_is_not_there_gives_one_line_that_says_what_is() {
    let devices: Vec<_> = Path::new("/sys/class/infiniband")
        .read_dir()
        .map(|entries| entries.flatten().map(|e| e.file_name()).collect())
        .unwrap_or_default();
    for text in refused(|_| {}) {
        assert!(text.contains("nics[0]"), "{text}");
        // Which line it is depends on this machine; each of the three is looked at.
        let said = match devices.first() {
            _ if text.contains("no libibverbs on this machine") => continue,
            None => "finds no RDMA device".to_owned(),
            Some(first) => first.to_string_lossy().into_owned(),
        };
        assert!(text.contains(&said), "`{said}` is not in: {text}");
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
