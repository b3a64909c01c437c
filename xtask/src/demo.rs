//! `cargo xtask demo`: sets up, builds, and runs `qdl demo`.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use launch::run;

use crate::programs::{self, QUICK};
use crate::setup;

/// Limit for all runs of a demo on slow cores.
const RUNS: Duration = Duration::from_secs(1800);

/// Returns the exit code of `qdl demo`. A flag runs the language model in place of the digits.
pub fn run_demo(root: &Path, flag: Option<&str>) -> Result<i32> {
    let began = Instant::now();
    let lock = setup::sources(root)?;
    println!("\n== building the programs, and fetching the rest");
    let built = thread::scope(|scope| {
        let rest = scope.spawn(|| setup::for_demo(root, flag.is_some()));
        let built = programs::build(root, QUICK);
        // A panic of the thread is printed already.
        rest.join().unwrap_or_else(|_| bail!("setup failed"))?;
        built
    });
    let programs = built?;
    drop(lock);
    let ready = began.elapsed().as_secs_f64();
    let mut demo = Command::new(programs.join("qdl"));
    demo.args(["demo", "--output", "target/demo"]);
    demo.args(flag).current_dir(root);
    let status = run("qdl demo", &mut demo, RUNS)?;
    let runs = began.elapsed().as_secs_f64() - ready;
    println!("setup and build {ready:.0} s, runs {runs:.0} s");
    Ok(status.code().unwrap_or(1))
}
