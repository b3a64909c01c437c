//! The configurations that `topology --yaml` prints run unchanged and give a VALID run.

use qdl::testkit::eventually;
use std::{path::Path, process::Command};

use crate::common::{
    TestFolder, accelerator_in, accelerator_program, netns::Star, program_beside, run,
};

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
fn what_topology_prints_is_a_valid_run_unchanged() {
    let place = TestFolder::new();
    // A namespace with one interface stands for the machine that runs both programs.
    let star = Star::new();
    let machine = &star.leaves[0];
    let frontend = Path::new(env!("CARGO_BIN_EXE_frontend"));
    let qdl = program_beside("qdl");
    // The link may need a moment to come up.
    eventually("the interface does not come up", || {
        printed(machine.command(qdl)).contains("10.97.0.2")
    });
    let near = printed(machine.command(qdl));
    let far = printed(machine.command(accelerator_program()));
    assert!(
        near.contains("10.97.0.2") && far.contains("10.97.0.2:7400"),
        "{near}{far}"
    );
    let (near, far) = (place.write("near.yaml", near), place.write("far.yaml", far));
    for (program, config) in [(frontend, &near), (accelerator_program(), &far)] {
        let mut command = machine.command(program);
        command.arg("--check").arg("--config").arg(config);
        let checked = command.output().expect("runs");
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{said}");
    }
    let _accelerator = accelerator_in(machine, &place, &far);
    let mut command = machine.command(frontend);
    command.arg("--config").arg(near);
    command.arg("--output").arg(place.path("out"));
    run(&place, command).with_code(0);
    let s = place.summary("out");
    assert_eq!(s["valid"], true);
    assert_eq!(s["scenario"], "SingleStream");
    // The address is the interface's, not loopback, but the notes say that there is one machine.
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
