//! `qdl tune` over loopback.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command, time::Duration};

use crate::common::{Running, TestFolder, assert_has, one_of_digests, qdl_command, words};

/// A session on a system of about 400 samples/s, with a bound that a busy machine keeps.
fn tune(config: &Path, session: &Path, more: &[&str]) -> Command {
    let mut command = qdl_command();
    command.arg("tune").arg("--config").arg(config);
    command.arg("--output").arg(session);
    let flags = "--scenario server --from 200 --seconds 0.3 --within 30 --full-s 0.5 \
        --warm-up-ms 20 --knobs none --set target_latency=500";
    command.args(words(flags));
    command.args(more);
    command
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_session_that_was_interrupted_goes_on_and_writes_its_page_and_its_configuration() {
    let place = TestFolder::new();
    let engine = "engine: {kind: digest, max_batch: 8, delay_us: 20000, threads: 1}";
    let (config, accelerator) = one_of_digests(&place, engine, "");
    let session = place.path("session");
    let journal = session.join("journal.jsonl");

    let command = tune(&config, &session, &["--budget-min", "5"]);
    let mut running = Running::start(&place, "tune", command);
    running.wait_until("three trials", || lines(&journal).len() >= 4);
    running.signal(libc::SIGTERM);
    let ended = running.end().with_code(130);
    let before = lines(&journal);
    let trials = before.len() - 1;
    assert!(trials >= 3, "{}", ended.stderr);
    let page = fs::read_to_string(session.join("tune.html")).expect("a page");
    assert_has(&page, &["interrupted", "<td class=\"f\">200</td>"]);

    // A short budget ends the session within two minutes on any machine.
    let command = tune(&config, &session, &["--budget-min", "0.6"]);
    let ended = Running::start(&place, "tune", command)
        .end_within(Duration::from_secs(120))
        .judged();
    assert_has(
        &ended.stderr,
        &[&format!("going on behind {trials} trials")],
    );
    let after = lines(&journal);
    assert_eq!(after[..before.len()], before[..]);
    let page = fs::read_to_string(session.join("tune.html")).expect("a page");
    let certified = page.contains("<td>certified</td>");
    assert_has(
        &ended.stdout,
        &[if certified {
            "certified: "
        } else {
            "best so far: "
        }],
    );
    assert_eq!(session.join("tuned.yaml").is_file(), certified, "{page}");

    let command = tune(&config, &session, &["--seed", "2"]);
    let ended = Running::start(&place, "tune", command).end().with_code(2);
    assert_has(&ended.stderr, &["another session"]);

    drop(accelerator);
    let command = tune(&config, &place.path("other"), &[]);
    let ended = Running::start(&place, "tune", command).end().with_code(2);
    assert_has(&ended.stdout, &["did not measure: exit code 2"]);
}

#[test]
fn a_rate_that_no_full_run_confirms_is_not_offered() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[7400], "");
    let program = place.write(
        "frontend.sh",
        "#!/bin/sh\nwhile [ \"$1\" != --output ]; do shift; done\n\
         case $2 in */full) valid=false ;; *) valid=true ;; esac\n\
         echo '{\"valid\": '$valid', \"reasons\": [\"the clock was set; repeat the run\"],\n\
         \"loadgen\": {\"valid\": true}}' >\"$2/summary.json\"\n",
    );
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("a mode");
    let session = place.path("session");
    fs::create_dir(&session).expect("a folder");
    let tuned = place.write("session/tuned.yaml", "of an earlier session");
    let mut command = tune(
        &config,
        &session,
        &words("--most 200 --least 150 --program"),
    );
    command.arg(program);
    let ended = Running::start(&place, "tune", command).end().with_code(1);
    let line = "not confirmed: the full run at 153.8 queries/s is INVALID: the clock was set";
    assert_eq!(ended.stdout.lines().next(), Some(line));
    assert!(!ended.stdout.contains("\n+ ") && !tuned.exists());
    let page = fs::read_to_string(session.join("tune.html")).expect("a page");
    let line = "The full run at 153.8: INVALID: the clock was set";
    assert_has(&page, &["NOT CONFIRMED", line]);
}
