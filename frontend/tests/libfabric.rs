//! Both programs over a libfabric provider, `tcp;ofi_rxm` or the one in `QDL_TEST_OFI`, and several
//! NICs from one line. With that variable, all other tests of this folder also use the provider.
//! Without libfabric these tests print so and pass; `devices.rs` tests the error of such a NIC.

mod common;

use std::{path::Path, process::Command};

use common::{
    ProgramEnd, Running, TestFolder, accelerator_in, accelerator_program, free_ports,
    netns::Namespace, offline, run, two_of_digests, words,
};
use serde_json::Value;

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

/// Checks that every sample has one answer with its own digest, whether the run is VALID or not.
fn once(place: &TestFolder, out: &str, ended: &ProgramEnd) -> Value {
    let done = matches!(ended.code, Some(0 | 1));
    assert!(done, "{out}: {}{}", ended.stdout, ended.stderr);
    let s = place.summary(out);
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0), "{out}");
    let ledger = &s["ledger"];
    assert_eq!(ledger["issued"], ledger["answered"], "{out}: {ledger}");
    assert_eq!(ledger["emptied"], 0, "{out}: {ledger}");
    s
}

#[test]
fn every_scenario_and_ragged_digests_over_two_accelerators() {
    let Some(place) = place() else { return };
    let (config, _running) = two_of_digests(&place, PATIENT, PATIENT_TOO);
    let many = offline("5000");
    let short = ["--duration-s", "0.3", "--set", "target_latency=10000"];
    let of = |scenario, qps| [&["--scenario", scenario, "--target-qps", qps][..], &short].concat();
    for (out, arguments) in [
        ("offline", many.to_vec()),
        ("server", of("server", "2000")),
        ("single-stream", of("single-stream", "20000")),
        ("multi-stream", of("multi-stream", "5000")),
    ] {
        let s = once(&place, out, &place.run(&config, out, &arguments));
        assert_eq!(s["connections"].as_array().map(Vec::len), Some(6), "{out}");
        let fabric = s["fabric"].as_str();
        assert!(fabric.is_none_or(|f| f.contains("ofi")), "{fabric:?}");
        assert_eq!(s["staged_copies"], 0, "{out}");
    }
}

#[test]
fn one_of_two_accelerators_is_killed_over_libfabric() {
    let Some(place) = place() else { return };
    let (config, [victim, _other]) = two_of_digests(&place, "", "");
    let server = "--scenario server --target-qps 1000 --duration-s 2 --set target_latency=30000";
    let command = place.frontend(&config, "out", &words(server));
    let mut frontend = Running::start(&place, "frontend", command);
    frontend.wait_until_it_says(" warmed ");
    std::thread::sleep(std::time::Duration::from_millis(300));
    victim.signal(libc::SIGKILL);
    let s = once(&place, "out", &frontend.end());
    assert_eq!(s["ledger"]["lost_connections"], 3);
}

/// Creates interfaces `qdK` with address 10.98.K.1, each one end of a cable.
fn interfaces(n: usize) -> Option<Namespace> {
    // SAFETY: `geteuid` has no arguments and only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: a network namespace needs root");
        return None;
    }
    let namespace = Namespace::new("many");
    for k in 0..n {
        let (name, end) = (format!("qd{k}"), format!("end{k}"));
        namespace.ip(&["link", "add", &name, "type", "veth", "peer", "name", &end]);
        namespace.ip(&["addr", "add", &format!("10.98.{k}.1/24"), "dev", &name]);
        namespace.ip(&["link", "set", &name, "up"]);
        namespace.ip(&["link", "set", &end, "up"]);
    }
    Some(namespace)
}

#[test]
fn a_line_for_four_nics_is_spelled_out_in_the_summary_and_by_check() {
    let Some(place) = place() else { return };
    let Some(namespace) = interfaces(4) else {
        return;
    };
    let nics = |more: &str| {
        let provider = provider();
        format!("nics: [{{ofi: \"{provider}\", match: \"qd?\", group_by: gpu{more}}}]\n")
    };
    let acc = place.write(
        "acc.yaml",
        format!(
            "node: acc\ncontrol: {{listen: \"127.0.0.1:7400\"}}\n\
             model: {{name: digest, max_input_bytes: 20000}}\nengine: {{kind: digest}}\n{}",
            nics("")
        ),
    );
    let _acc = accelerator_in(&namespace, &place, &acc);
    let config = place.digest_frontend(&[7400], &nics(", connections: 1, slots: 32"));
    let arguments = |out: &str, more: &[&str]| {
        let mut command = namespace.command(Path::new(env!("CARGO_BIN_EXE_frontend")));
        command.arg("--config").arg(&config).args(more);
        command.arg("--output").arg(place.path(out));
        place.sparing(&mut command);
        run(&place, command)
    };
    let page = arguments("checked", &["--scenario", "offline", "--check"]);
    assert_eq!(page.code, Some(0), "{}", page.stderr);
    let names: Vec<String> = (0..4).map(|k| format!("{}:qd{k}", provider())).collect();
    for name in &names {
        assert!(page.stdout.contains(name), "{name}: {}", page.stdout);
    }
    let s = once(&place, "out", &arguments("out", &offline("4000")));
    let connections = s["connections"].as_array().expect("a list");
    assert_eq!(connections.len(), 4);
    // Every pair of NICs was warmed up.
    assert!(connections.iter().all(|c| c["warmed"].as_u64() > Some(1)));
    // The settings list every NIC with its values and their line.
    let settings = s["settings"].to_string();
    for k in 0..4 {
        assert!(settings.contains(&format!("nics[{k}].slots")), "{settings}");
    }
}
