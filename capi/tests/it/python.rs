//! The package in Python and its examples, with the Python of `.deps`.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use launch::{Running, run_quietly};

use super::header::{MOST, here, with_library};

/// A Python that imports these packages, with ours and the library of this build; `None`, and a
/// line, without such a Python.
fn python(folder: &Path, packages: &str) -> Option<Command> {
    let own = here().join("../.deps/venv/bin/python");
    let python = std::env::var_os("QDL_LOADGEN_PYTHON").map_or(own, PathBuf::from);
    let new = || {
        let mut command = Command::new(&python);
        command.env("PYTHONPATH", here().join("python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("QDL_LIBRARY", folder.join("libqdl.so"));
        command
    };
    let mut asks = new();
    asks.args(["-c", &format!("import {packages}")]);
    if run_quietly("python", &mut asks, MOST).is_err() {
        println!("skipped: {} does not import {packages}", python.display());
        return None;
    }
    Some(new())
}

fn fault(name: &str) {
    let Some(folder) = with_library() else { return };
    let Some(mut python) = python(folder.path(), "numpy") else {
        return;
    };
    python.arg(here().join("tests/faults.py")).arg(name);
    if let Err(why) = run_quietly(name, &mut python, MOST) {
        panic!("{why:#}");
    }
}

macro_rules! faults {
    ($($name:ident)+) => {$(
        #[test]
        fn $name() {
            fault(stringify!($name));
        }
    )+};
}

faults! {
    an_exception_refuses_its_samples_and_the_node_goes_on
    a_callback_that_sleeps_loses_nothing
    an_array_in_flight_outlives_its_name
    a_fork_is_refused_by_name
    two_threads_that_poll_get_each_event_once
    a_killed_node_is_replaced_by_the_other
    a_killed_harness_leaves_the_node_to_the_next
    asyncio_waits_without_blocking_the_loop
    options_are_written_and_kept_in_range
}

/// A node of the example, and its address.
fn example_node(mut python: Command) -> (Running, String) {
    python.arg(here().join("examples/node_numpy.py"));
    let mut node = Running::start("node", python.stdout(Stdio::piped())).expect("a node");
    let mut line = String::new();
    let said = node.stdout().expect("its output");
    BufReader::new(said).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("ready: ").expect("ready");
    (node, address.to_owned())
}

#[test]
fn loadgens_package_measures_two_nodes_in_numpy() {
    let Some(folder) = with_library() else { return };
    let python = || python(folder.path(), "numpy, mlperf_loadgen");
    let (Some(a), Some(b)) = (python(), python()) else {
        return;
    };
    let nodes = [example_node(a), example_node(b)];
    let controls = nodes.iter().map(|(_, a)| format!("{{control: \"{a}\"}}"));
    let controls = controls.collect::<Vec<_>>().join(", ");
    let config = folder.path().join("frontend.yaml");
    let model = "name: counting, \
                 inputs: [{name: prompt, dtype: i32, shape: [64], ragged: true}], \
                 output: {name: tokens, dtype: i32, shape: [8], ragged: true}";
    let text = format!(
        "node: harness\nmodel: {{{model}}}\naccelerators: [{controls}]\n\
         nics: [{{address: 127.0.0.1}}]\n"
    );
    std::fs::write(&config, text).expect("a file");
    let samples = folder.path().join("samples.npy");
    let mut make = python().expect("as before");
    let script = "import numpy, sys; numpy.save(sys.argv[1], numpy.ones((100, 16), 'i4'))";
    make.args(["-c", script]).arg(&samples);
    run_quietly("numpy", &mut make, MOST).expect("samples");
    for (scenario, figure) in [
        ("Offline", "Tokens per second"),
        ("Server", "Mean First Token latency"),
    ] {
        let out = folder.path().join(scenario);
        std::fs::create_dir(&out).expect("a folder");
        let mut harness = python().expect("as before");
        harness.arg(here().join("examples/harness_loadgen.py"));
        harness.arg(&config).arg(&samples).arg(&out);
        harness.args([
            "--scenario",
            scenario,
            "--tokens",
            "--qps",
            "400",
            "--ms",
            "0",
        ]);
        harness.args(["--queries", "700", "--limit_ms", "60000"]);
        let said = run_quietly("harness", &mut harness, MOST).expect("it ends well");
        let said: serde_json::Value = serde_json::from_str(said.trim()).expect("a line of JSON");
        let summary = std::fs::read_to_string(out.join("mlperf_log_summary.txt")).expect("logs");
        assert!(summary.contains("Result is : VALID"), "{summary}");
        assert!(summary.contains(figure), "{summary}");
        let ledger = &said["ledger"];
        assert_eq!(ledger["issued"], ledger["answered"], "{said}");
        let detail = std::fs::read_to_string(out.join("mlperf_log_detail.txt")).expect("logs");
        assert_eq!(count(&detail), ledger["issued"].as_u64(), "{said}");
    }
}

/// Number of samples that LoadGen's log says were issued.
fn count(detail: &str) -> Option<u64> {
    let lines = detail
        .lines()
        .filter_map(|line| line.strip_prefix(":::MLLOG "));
    let values = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let values: Vec<_> = values.collect();
    let last = |key: &str| values.iter().rev().find(|value| value["key"] == key)?["value"].as_u64();
    Some(last("result_query_count")? * last("generated_samples_per_query")?)
}
