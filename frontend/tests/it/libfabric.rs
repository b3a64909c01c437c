//! Both programs over a libfabric provider, `tcp;ofi_rxm` or the one in `QDL_TEST_OFI`. With that
//! variable, all other tests of this folder also use the provider. Without libfabric this test
//! prints so and passes; `devices.rs` tests the error of such a NIC.

use std::process::Command;

use crate::common::{TestFolder, accelerator_program, free_ports, offline, two_of_digests};

/// Long deadlines, for a busy machine.
const PATIENT: &str = "deadlines: {echo_timeout_ms: 8000, heartbeat_timeout_ms: 10000}\n";
const PATIENT_TOO: &str =
    "deadlines: {echo_timeout_ms: 8000, heartbeat_timeout_ms: 10000, lost_ms: 12000}\n";

fn provider() -> String {
    std::env::var("QDL_TEST_OFI").unwrap_or_else(|_| "tcp;ofi_rxm".to_owned())
}

/// Returns a folder for runs over the provider; prints the reason and returns `None` if the machine
/// lacks it.
fn place() -> Option<TestFolder> {
    let place = TestFolder::over(&provider());
    let [port] = free_ports();
    let config = place.digest_accelerator("probe", port, "");
    let mut probe = Command::new(accelerator_program());
    probe.args(["--check", "--config"]).arg(&config);
    let said = probe.output().expect("it runs");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    for none in ["no libfabric on this machine", "offers no provider"] {
        if let Some(line) = said.lines().find(|l| l.contains(none)) {
            println!("skipped: {line}");
            return None;
        }
    }
    Some(place)
}

#[test]
fn each_sample_has_its_answer_over_two_accelerators() {
    let Some(place) = place() else { return };
    let (config, _running) = two_of_digests(&place, PATIENT, PATIENT_TOO);
    place.run(&config, "out", &offline("5000")).judged();
    let s = place.summary("out");
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
    let ledger = &s["ledger"];
    assert_eq!(
        (&ledger["answered"], &ledger["emptied"]),
        (&s["samples"], &0.into())
    );
    assert_eq!(s["connections"].as_array().map(Vec::len), Some(6));
    assert_eq!(s["verified"]["mismatches"], 0);
}
