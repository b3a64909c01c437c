//! From runs to a submission tree: the findings of `submit`, and the runs that `--submission`
//! refuses before any measurement.

use std::{fs, path::Path};

use submission::round::newest;

use crate::common::{
    TestFolder, accelerator_in, assert_has,
    netns::Star,
    run,
    submission::{KEY, Rig, accelerator_yaml, checkout, files_with, frontend_yaml, rules},
    words,
};

#[test]
fn runs_become_a_tree_the_table_names_what_is_missing_and_long_ones_pass_whole() {
    let rig = Rig::new();
    rig.runs();
    // The printed form is not filled in.
    let form = rig.program(&["describe", "--ask"]).stdout;
    let form = form.replace("submitter: \"\"", "submitter: org");
    let form = form.replace("\nsystem: \"\"", "\nsystem: sys");
    rig.place.write("form.yaml", form);
    let ended = rig.submit("none", &[]).with_code(2);
    assert_has(&ended.stderr, &["fields.cooling: air, liquid"]);
    rig.form();
    let ended = rig.submit("tree", &[]).with_code(1);
    let found = rules(&ended.stdout);
    for rule in words(
        "run.duration record.override record.network record.machines record.build config.engine",
    ) {
        assert!(found.contains(rule), "{rule}: {}", ended.stdout);
    }
    // None of these rules depends on time, machines or missing scripts. The runs brought the
    // descriptions and configurations of the nodes.
    for rule in words(
        "run.seeds run.limits run.loaded accuracy.samples record.log record.user-conf \
         record.yaml record.described record.prefix-cache system.field tree.diagram",
    ) {
        assert!(!found.contains(rule), "{rule}: {}", ended.stdout);
    }
    let own = rig.place.path("tree/network/org");
    let scenario = own.join("results/sys/llama3.1-8b/Interactive");
    assert!(
        scenario
            .join("performance/run_1/mlperf_log_detail.txt")
            .is_file()
    );
    let readme = fs::read_to_string(scenario.join("README.md")).expect("a README");
    assert_has(&readme, &["--scenario server", "--duration-s 1"]);
    for (role, node) in [("frontend", "lg"), ("accelerator", "acc-a")] {
        let path = own.join(format!("documentation/nodes/sys/{role}-{node}.json"));
        let text = fs::read_to_string(&path).expect("a description");
        assert!(text.contains(&format!("\"node\": \"{node}\"")), "{text}");
    }
    let yaml =
        own.join("documentation/runs/sys/llama3.1-8b/Offline/accuracy/accelerator-acc-a.yaml");
    let own_yaml = fs::read_to_string(rig.place.path("acc-a.yaml")).expect("read");
    let masked = own_yaml.replace(KEY, "(masked)") + "# values that look like keys, masked: 1\n";
    assert_eq!(fs::read_to_string(yaml).expect("a copy"), masked);
    for folder in ["runs", "tree"] {
        let (count, found) = files_with(&rig.place.path(folder), KEY);
        let is_clean = count > 20 && found.is_empty();
        assert!(is_clean, "{count} files in {folder}: {found:?}");
    }
    let kept = own.join("documentation/runs/sys/llama3.1-8b/Offline/accuracy");
    let manifest = fs::read_to_string(kept.join("run.json")).expect("a record");
    assert_has(&manifest, &["\"masked\": 2"]);
    let summary = fs::read_to_string(kept.join("summary.json")).expect("a summary");
    for node in ["frontend.yaml", "accelerator-acc-a.yaml"] {
        let note = format!("{node}: values that look like keys, masked: 1");
        assert_has(&summary, &[&note]);
    }
    // `submit` does not overwrite an existing tree.
    let again = rig.submit("tree", &[]);
    assert_eq!(again.code, Some(2));
    assert_has(&again.stderr, &["is there already"]);
    // The same runs, patched to be long enough and of two machines.
    rig.nodes();
    rig.patch();
    // Without a checkout, only the results of its scripts are missing.
    let wanted = ["accuracy.hash", "accuracy.log", "test.files"];
    for (division, missing) in [("network", 3), ("closed", 3), ("open", 2)] {
        let ended = rig.submit(division, &["--division", division]);
        let said = format!("{division}: {}{}", ended.stdout, ended.stderr);
        let missing = if checkout().is_some() { 0 } else { missing };
        let wanted = wanted[..missing].iter().map(|rule| (*rule).to_owned());
        assert_eq!(rules(&ended.stdout), wanted.collect(), "{said}");
    }
}

#[test]
fn one_command_on_the_frontend_describes_every_node() {
    let rig = Rig::new();
    let config = rig.config("llama3_1-8b", "");
    let config = config.to_string_lossy().into_owned();
    rig.program(&["describe", "--config", &config, "--output", "nodes"])
        .with_code(0);
    for (node, role) in [("lg", "frontend"), ("acc-a", "accelerator")] {
        let path = rig.place.path(&format!("nodes/node-{node}.json"));
        let text = fs::read_to_string(&path).expect("a description");
        let said: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&said["node"], &said["role"]), (&node.into(), &role.into()));
        assert!(said["memory"]["bytes"].as_u64() > Some(0), "{text}");
    }
    let copy = fs::read_to_string(rig.place.path("nodes/accelerator-acc-a.yaml")).expect("a copy");
    let own = fs::read_to_string(rig.place.path("acc-a.yaml")).expect("read");
    assert!(copy.starts_with(&own.replace(KEY, "(masked)")), "{copy}");
    // The accelerator still serves; an incomplete configuration is refused.
    let wrong = rig.place.write("wrong.yaml", "node: lg\n");
    let wrong = wrong.to_string_lossy().into_owned();
    rig.program(&["describe", "--config", &wrong, "--output", "more"])
        .with_code(2);
}

#[test]
fn what_would_not_count_is_refused_before_anything_is_measured() {
    let rig = Rig::new();
    let model = "llama3_1-8b-interactive";
    let refused = |more: &str, flags: &[&str]| {
        let all = [&["--scenario", "server"][..], flags].concat();
        let command = rig.place.frontend(&rig.config(model, more), "out", &all);
        let ended = run(&rig.place, command).with_code(2);
        assert_has(&ended.stderr, &["nothing was measured"]);
        let log = rig.place.path("out/mlperf_log_detail.txt");
        assert!(!log.exists(), "it was measured");
        ended.stderr
    };
    let with = |flags: &[&str]| {
        let all = [&["--submission", newest()][..], flags].concat();
        refused("", &all)
    };
    // A made-up data set and loopback are refused before a node is asked; the target is the
    // submitter's.
    let said = with(&["--set", "server_target_qps=60"]);
    for rule in [
        "config.dataset: ",
        "record.network: nics[0] is at 127.0.0.1",
        "record.network: an accelerator is at 127.0.0.1",
    ] {
        assert_eq!(said.matches(rule).count(), 1, "{said}");
    }
    assert_has(&said, &[": use two machines"]);
    for rule in words(
        "record.override run.seeds run.limits run.loaded run.query record.user-conf \
         record.prefix-cache",
    ) {
        assert!(!said.contains(rule), "{said}");
    }
    // The same round, set in the YAML.
    let round = format!("submission: {}\n", newest());
    let other = refused(&round, &["--set", "server_target_qps=60"]);
    let error = |said: &str| said.split("error:").last().map(str::to_owned);
    assert_eq!(error(&other), error(&said));
    // submission::guard's tests try every rule.
    let said = with(&["--set", "min_duration_ms=1000"]);
    assert_has(
        &said,
        &["record.override: `--set min_duration_ms=1000` goes before user.conf"],
    );
    let duration = "run.duration: min_duration_ms is 1000 (--set), the round's 600000";
    assert_has(&said, &[duration]);
    let said = refused(&(round + "qsl: staged\n"), &["--local"]);
    assert_has(&said, &["record.network: --local", "config.staged"]);
    let flags = ["--scenario", "server", "--submission", "v0.0"];
    let ended = rig.run("llama3_1-8b", "out", &flags);
    assert!(
        ended.code == Some(2) && ended.stderr.contains(newest()),
        "{}",
        ended.stderr
    );
    drop(rig.accelerator);
}

#[test]
fn a_run_that_would_not_count_says_so_in_its_summary() {
    let rig = Rig::new();
    let flags = ["--scenario", "offline", "--duration-s", "1"];
    let ended = rig.run("llama3_1-8b", "out", &flags);
    assert_has(&ended.stdout, &["; not a submission: "]);
    let summary = rig.place.summary("out");
    let all = summary["would_not_count"].to_string();
    assert_has(&all, &["run.duration", "record.machines"]);
}

#[test]
#[ignore = "takes network namespaces, and root to make them: a step of `cargo xtask test`"]
fn two_namespaces_of_one_host_are_one_host() {
    let place = TestFolder::new();
    let star = Star::new();
    place.write("user.conf", "llama3_1-8b.Offline.target_qps = 50\n");
    let yaml = accelerator_yaml("10.97.0.2:7460", "10.97.0.2:7461") + "auth: none\n";
    let _accelerator = accelerator_in(&star.leaves[0], &place, &place.write("acc-a.yaml", yaml));
    let yaml = frontend_yaml("10.97.0.2:7460", "10.97.0.1", "llama3_1-8b");
    let yaml = yaml + "auth: none\n";
    let config = place.write("front.yaml", yaml);
    let mut command = star.hub.command(Path::new(env!("CARGO_BIN_EXE_frontend")));
    command.arg("--config").arg(config);
    command.arg("--output").arg(place.path("out"));
    command.args(["--scenario", "offline", "--duration-s", "1"]);
    run(&place, command);
    let rules = place.summary("out")["would_not_count"].to_string();
    assert_has(
        &rules,
        &["record.machines: acc-a runs on the frontend's machine"],
    );
}
