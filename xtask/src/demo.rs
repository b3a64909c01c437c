//! `cargo xtask demo`: sets up, builds, and runs `qdl demo`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process::run;
use crate::programs::{self, QUICK};
use crate::setup::{self, Models};

/// Limit for all runs of a demo on slow cores.
const RUNS: Duration = Duration::from_secs(1800);

/// Returns the exit code of `qdl demo`.
pub fn run_demo(root: &Path, llm: bool) -> Result<i32> {
    let began = Instant::now();
    setup::run(root, Models::Digits)?;
    let ready = began.elapsed().as_secs_f64();
    println!("\n== building the programs");
    let programs = programs::build(root, QUICK)?;
    let built = began.elapsed().as_secs_f64();
    let mut demo = Command::new(programs.join("qdl"));
    demo.args(["demo", "--output", "target/demo"]);
    demo.args(llm.then_some("--llm")).current_dir(root);
    let status = run("qdl demo", &mut demo, RUNS)?;
    let all = began.elapsed().as_secs_f64();
    println!(
        "setup {ready:.0} s, build {:.0} s, runs {:.0} s",
        built - ready,
        all - built
    );
    Ok(status.code().unwrap_or(1))
}
