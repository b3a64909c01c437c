//! A configuration that `topology --yaml` printed starts the program that printed it.

mod common;

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use common::{Place, Running, accelerator_in, accelerator_program, netns::Star};

fn printed(mut command: Command) -> String {
    let out = command
        .args(["topology", "--yaml", "--tcp"])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    String::from_utf8(out.stdout).expect("text")
}

#[test]
#[ignore = "takes network namespaces, and root to make them: a step of `cargo xtask test`"]
fn what_topology_prints_starts_both_programs_unchanged() {
    let place = Place::new();
    // A machine with one interface, on which both programs run.
    let star = Star::new();
    let machine = &star.leaves[0];
    let frontend = Path::new(env!("CARGO_BIN_EXE_frontend"));
    // A link takes a moment to be up.
    let end = Instant::now() + Duration::from_secs(10);
    while !printed(machine.command(frontend)).contains("10.97.0.2") {
        assert!(Instant::now() < end, "the interface does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let near = printed(machine.command(frontend));
    let far = printed(machine.command(accelerator_program()));
    assert!(
        near.contains("10.97.0.2") && far.contains("10.97.0.2:7400"),
        "{near}{far}"
    );
    let (near, far) = (place.write("near.yaml", near), place.write("far.yaml", far));
    let _accelerator = accelerator_in(machine, &place, &far);
    let mut command = machine.command(frontend);
    command
        .arg("--config")
        .arg(near)
        .arg("--output")
        .arg(place.path("out"));
    command.args(["--samples", "500", "--set", "min_duration=0"]);
    let ended = Running::start(&place, "frontend", command).end();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let s = place.summary("out");
    assert_eq!((&s["valid"], &s["samples"]), (&true.into(), &500.into()));
    // Its own address, and no loopback: one machine all the same.
    let notes = s["fabric_notes"].as_array().expect("a list");
    let said = |words: &str| {
        notes
            .iter()
            .any(|n| n.as_str().is_some_and(|n| n.contains(words)))
    };
    assert!(said("is on this very machine"), "{notes:?}");
    assert!(said("is a virtual interface"), "{notes:?}");
    assert!(!said("loopback"), "{notes:?}");
}
