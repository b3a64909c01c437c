//! `cargo xtask servers`: runs a language model's server under its engine. By hand: an installation
//! takes minutes and gigabytes. `xtask/servers/task.py` does the work.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::programs::{self, QUICK};
use crate::setup;

/// Limit for several servers on slow cores.
const DEADLINE: Duration = Duration::from_secs(6 * 3600);

#[derive(clap::Args)]
pub struct Args {
    /// Server: vllm (engine `vllm`), sglang or llama-cpp (engine `http`).
    #[arg(value_parser = ["vllm", "sglang", "llama-cpp"])]
    server: String,
    /// Its versions on PyPI, for example 0.32.0.
    #[arg(required = true)]
    versions: Vec<String>,
    /// Folder of built programs [default: builds them].
    #[arg(long)]
    programs: Option<PathBuf>,
}

/// Returns the exit code of the task.
pub fn run(root: &Path, args: Args) -> Result<i32> {
    drop(setup::sources(root)?);
    setup::for_demo(root, args.server == "llama-cpp")?;
    let programs = match args.programs {
        Some(folder) => folder.canonicalize()?,
        None => programs::build(root, QUICK)?,
    };
    let mut task = setup::python(root);
    task.args(["-u", "xtask/servers/task.py"]).arg(programs);
    task.arg(args.server).args(args.versions);
    let status = launch::run("servers", &mut task, DEADLINE)?;
    Ok(status.code().unwrap_or(1))
}
