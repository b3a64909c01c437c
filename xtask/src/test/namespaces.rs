//! The frontend's tests that cut a path, or want a machine of their own: each takes network
//! namespaces, which root may make on most machines and nobody else. They are marked `#[ignore]`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::process::{on_path, run_quietly};

/// Enough for `ip` on a machine that has other work.
const SOON: Duration = Duration::from_secs(60);

/// Why no namespaces with a cable between them can be made here, where that is so. Tried, as even
/// root is refused in many a sandbox.
pub fn refused() -> Option<String> {
    let names = ["a", "b"].map(|end| format!("qdltry{}{end}", std::process::id()));
    let tried = cable(&names);
    for name in &names {
        // What was not made cannot be deleted.
        let _ = ip(&["netns", "del", name]);
    }
    let error = tried.err()?.to_string();
    let last = error.lines().last().unwrap_or_default();
    Some(format!("no network namespaces with a cable: {last}"))
}

fn cable([near, far]: &[String; 2]) -> Result<()> {
    ip(&["netns", "add", near])?;
    ip(&["netns", "add", far])?;
    let link = ["-n", near, "link", "add", "port", "type", "veth"];
    ip(&[&link[..], &["peer", "name", "eth0", "netns", far]].concat())?;
    ip(&["-n", far, "addr", "add", "10.97.0.2/24", "dev", "eth0"])?;
    ip(&["-n", far, "link", "set", "eth0", "up"])?;
    ip(&["netns", "exec", far, "true"])
}

fn ip(arguments: &[&str]) -> Result<()> {
    run_quietly("ip", Command::new("ip").args(arguments), SOON).map(|_| ())
}

/// The tests, in the build of all others.
pub fn tests(root: &Path) -> Command {
    if on_path("cargo-nextest") {
        let arguments = [
            "nextest",
            "run",
            "--workspace",
            "--locked",
            "--no-fail-fast",
            "--run-ignored",
            "only",
            "-E",
            "package(frontend)",
        ];
        super::with(root, &arguments)
    } else {
        let mut command = super::with(root, &["test", "--workspace", "--locked", "--no-fail-fast"]);
        command.args([
            "--test",
            "faults",
            "--test",
            "token_faults",
            "--test",
            "topology",
            "--test",
            "own_model",
            "--test",
            "submission",
            "--",
            "--ignored",
        ]);
        command
    }
}
