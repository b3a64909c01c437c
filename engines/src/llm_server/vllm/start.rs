//! The program of the cores: its command, variables and place.
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
    fs,
    net::{Ipv4Addr, TcpListener},
};

use record::NodeRole;

use crate::config::VllmConfig;

use crate::child::Launch;

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

/// The program of the cores of `config`, which connects to `port`.
/// Error text: the processors of the NUMA node are unknown.
pub(super) fn launch(config: &VllmConfig, port: u16, role: NodeRole) -> Result<Launch, String> {
    let gpus: Vec<String> = config.gpus.iter().map(usize::to_string).collect();
    let gpus = (!gpus.is_empty()).then(|| ("CUDA_VISIBLE_DEVICES".to_owned(), gpus.join(",")));
    let cpus = match (&config.cpus, config.numa) {
        (Some(cpus), _) => cpus.clone(),
        (None, Some(node)) => cpus_of(node)?,
        (None, None) => Vec::new(),
    };
    Ok(Launch {
        command: command(config, port),
        env: gpus.into_iter().chain(side_channel(config, role)).collect(),
        cpus,
        node: config.numa,
        ..Launch::default()
    })
}

/// A port for NIXL's handshake between cores with roles, unless the user gives one: all cores of a
/// machine have the same default.
fn side_channel(config: &VllmConfig, role: NodeRole) -> Option<(String, String)> {
    const NAME: &str = "VLLM_NIXL_SIDE_CHANNEL_PORT";
    if role.is_both() || config.env_file.is_some() || std::env::var_os(NAME).is_some() {
        return None;
    }
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    Some((NAME.to_owned(), free.local_addr().ok()?.port().to_string()))
}

fn cpus_of(node: u32) -> Result<Vec<usize>, String> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let wrong = |e: String| format!("engine.vllm.numa {node}: {path}: {e}");
    let list = fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    let cpus = fabric::os::CpuList::parse(list.trim()).map_err(|e| wrong(e.to_string()))?;
    Ok(cpus.as_slice().to_vec())
}
