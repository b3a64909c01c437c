//! The program `qdl` refuses wrong usage, and is `frontend` and `accelerator` under their names.

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
