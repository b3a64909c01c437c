//! The start of the core: sockets, the child process and the wait for the handshake.
//!
//! ```text
//! core                          engine
//!  |-- HELLO ------------------> handshake (TCP on loopback)
//!  |<- addresses of in, out -----|
//!  |   loads the model
//!  |-- registration -----------> in  (Unix socket in a folder of mode 0700)
//!  |-- connects ---------------> out
//!  |-- READY ------------------> handshake
//! ```

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use super::{
    handshake::{Connected, Handshake, Listeners},
    with_last_error,
};
use crate::engine::{
    error::shorten,
    program::{self, ExitStatus, Launch, Program, last_line},
};
use qdl::config::VllmConfig;
use record::secrets;

const LOOK: Duration = Duration::from_millis(20);
/// Interval of log lines while the core is not ready.
const SAY: Duration = Duration::from_secs(10);

fn command(config: &VllmConfig, port: u16) -> Vec<String> {
    let n = config.data_parallel;
    let own = format!(
        "--headless --skip-tokenizer-init --no-enable-prefix-caching --data-parallel-address \
         127.0.0.1 --data-parallel-rpc-port {port} --data-parallel-size {n} \
         --data-parallel-size-local {n}"
    );
    let serve = ["serve".to_owned(), config.model.display().to_string()];
    let own = own.split(' ').map(str::to_owned);
    let all = config.command.iter().cloned().chain(serve).chain(own);
    all.chain(config.args.iter().cloned()).collect()
}

/// Starts the cores of `config` as a child process.
/// Error text: the file of variables, or the program, and why.
pub(super) fn launch(config: &VllmConfig, port: u16) -> Result<Program, String> {
    let mut env = program::read_env("engine.vllm.env_file", config.env_file.as_deref())?;
    if !config.gpus.is_empty() {
        let gpus: Vec<String> = config.gpus.iter().map(usize::to_string).collect();
        env.push(("CUDA_VISIBLE_DEVICES".to_owned(), gpus.join(",")));
    }
    let cpus = match (&config.cpus, config.numa) {
        (Some(cpus), _) => cpus.clone(),
        (None, Some(node)) => cpus_of(node)?,
        (None, None) => Vec::new(),
    };
    let launch = Launch {
        key: "engine.vllm.command",
        command: command(config, port),
        log: config.log.clone(),
        grace: config.stop_within(),
        env,
        cpus,
        node: config.numa,
    };
    let words = secrets::mask_words(&launch.command).0;
    tracing::info!("vLLM's engine core: {}", words.join(" "));
    // The thread of the sequences sees the exit, and reports it with its own words.
    Program::start(launch, |_| ())
}

fn cpus_of(node: u32) -> Result<Vec<usize>, String> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let list =
        fs::read_to_string(&path).map_err(|e| format!("engine.vllm.numa {node}: {path}: {e}"))?;
    let cpus = fabric::os::CpuList::parse(list.trim());
    let cpus = cpus.map_err(|e| format!("engine.vllm.numa {node}: {path}: {e}"))?;
    Ok(cpus.as_slice().to_vec())
}

/// Waits until all cores of `config` are ready.
/// Error text: the core ended, was not ready in time, or is not the core that is needed.
pub(super) fn connect(
    config: &VllmConfig,
    listeners: &Listeners,
    exit: Option<&ExitStatus>,
) -> Result<Connected, String> {
    let mut handshake = Handshake::new(config, listeners);
    let began = Instant::now();
    let mut said = began;
    while !handshake.step()? {
        if let Some(exit) = exit.and_then(ExitStatus::now) {
            return Err(with_last_error(
                format!("{exit} (before it was ready)"),
                &config.log,
            ));
        }
        let log = exit.map_or_else(String::new, |_| {
            let (path, line) = (&config.log, last_line(&config.log).unwrap_or_default());
            let (path, line) = (path.display(), shorten(&line));
            format!("; the last line of its log {path}: {line}")
        });
        let (waited, stage) = (began.elapsed(), handshake.stage());
        if waited > config.ready() {
            let s = waited.as_secs();
            return Err(format!(
                "not ready after {s} s ({stage}{log}): see engine.vllm.ready_s"
            ));
        }
        if said.elapsed() > SAY {
            said = Instant::now();
            let s = waited.as_secs();
            tracing::info!("waiting for vLLM's engine core for {s} s: {stage}{log}");
        }
        thread::sleep(LOOK);
    }
    handshake.finish()
}
