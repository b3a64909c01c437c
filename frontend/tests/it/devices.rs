//! A machine without the library of a fabric: TCP works, and a NIC entry that needs the library
//! gives one line that names it.

use std::process::Command;

use crate::common::{
    TestFolder, accelerator_by, accelerator_program, assert_has, free_ports, offline, run,
};

/// The variable that names a fabric's library, a NIC that needs it, and the error without it.
const LIBRARIES: [(&str, &str, &str); 2] = [
    (
        "QDL_LIBIBVERBS",
        "{device: absent9}",
        "no libibverbs on this machine",
    ),
    (
        "QDL_LIBFABRIC",
        "{ofi: \"tcp;ofi_rxm\", address: 127.0.0.1}",
        "no libfabric on this machine",
    ),
];

const NOWHERE: &str = "/nowhere/library.so.1";

/// Runs both programs with this NIC and without the library. Returns the error of each, which ends
/// with code 2.
fn refused(nic: &str, variable: &str) -> [String; 2] {
    let place = TestFolder::new();
    let nics = format!("nics: [{nic}]\n");
    let front = place.digest_frontend(&[1], &nics);
    let text = std::fs::read_to_string(place.digest_accelerator("acc", 0, "")).expect("written");
    let (before, rest) = text.split_once("nics:").expect("a NIC");
    let (_, after) = rest.split_once('\n').expect("a line");
    let acc = place.write("acc.yaml", format!("{before}{nics}{after}"));
    let mut accelerator = Command::new(accelerator_program());
    accelerator.arg("--config").arg(acc);
    let frontend = place.frontend(&front, "out", &["--scenario", "offline"]);
    [frontend, accelerator].map(|mut command| {
        command.env(variable, NOWHERE);
        run(&place, command).with_code(2).error().to_owned()
    })
}

#[test]
fn without_a_fabrics_library_its_nic_gives_one_clear_line() {
    for (variable, nic, words) in LIBRARIES {
        for text in refused(nic, variable) {
            assert_has(&text, &["nics[0]", words]);
        }
    }
}

#[test]
fn without_these_libraries_tcp_runs_as_ever() {
    let place = TestFolder::new();
    let [port] = free_ports();
    let without = |mut command: Command| {
        command.envs(LIBRARIES.map(|(variable, ..)| (variable, NOWHERE)));
        command
    };
    let acc = place.digest_accelerator("acc", port, "");
    let program = without(Command::new(accelerator_program()));
    let _running = accelerator_by(&place, &acc, program);
    let config = place.digest_frontend(&[port], "");
    run(
        &place,
        without(place.frontend(&config, "out", &offline("2000"))),
    )
    .with_code(0);
    assert_eq!(place.summary("out")["ledger"]["answered"], 2000);
}
