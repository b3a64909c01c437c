//! The program `qdl` lists its commands, and is `frontend` and `accelerator` under their names.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

fn qdl(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qdl"));
    command.args(words).output().expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn it_lists_each_command_and_each_has_help() {
    let help = text(&qdl(&["--help"]).stdout);
    let commands = [
        "init", "topology", "describe", "tune", "report", "submit", "demo",
    ];
    for command in commands {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        let output = qdl(&[command, "--help"]);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{command}"
        );
    }
    let output = qdl(&["topology", "--yaml", "--of", "accelerator"]);
    let yaml = text(&output.stdout);
    assert!(
        output.stderr.is_empty() && yaml.contains("\ncontrol:"),
        "{yaml}"
    );
    assert_eq!(qdl(&[]).status.code(), Some(2));
    assert!(text(&qdl(&["--version"]).stdout).starts_with("qdl 0.1.0 ("));
}

#[test]
fn what_is_wrong_ends_with_exit_code_2_and_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    for (words, what) in [
        (&["tnue"][..], "'tune'"),
        (&["report", "none"], "none"),
        (
            &["init", "--model", "m", "--samples", "none"],
            "--samples none",
        ),
        (
            &[
                "init",
                "--model",
                "m",
                "--samples",
                "none",
                "--name",
                "my model",
            ],
            "--samples none",
        ),
        (
            &[
                "init",
                "--model",
                "m",
                "--samples",
                "/dev/null",
                "--name",
                "my model",
            ],
            "--name",
        ),
        (
            &["demo", "--output", "/dev/null/x"],
            "--output /dev/null/x: ",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qdl"));
        let output = command
            .args(words)
            .current_dir(folder.path())
            .output()
            .expect("runs");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.starts_with("error: ") && error.contains(what),
            "{error}"
        );
    }
}

#[test]
fn under_another_programs_name_it_is_that_program() {
    for name in ["frontend", "accelerator"] {
        let own = env!("CARGO_BIN_EXE_qdl");
        let usage = format!("Usage: {name} ");
        let renamed = Command::new(own)
            .arg0(format!("/usr/bin/{name}"))
            .arg("--help")
            .output()
            .expect("runs");
        for output in [qdl(&[name, "--help"]), renamed] {
            let help = text(&output.stdout);
            assert!(help.contains(&usage), "{help}");
        }
    }
}
