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
        env: gpus.into_iter().chain(of_role(config, role)).collect(),
        cpus,
        node: config.numa,
        ..Launch::default()
    })
}

/// Variables of a core with a role, unless the user has set them: a port for NIXL's handshake, as
/// all cores of a machine have the same default, and UCX's words on its transports.
fn of_role(config: &VllmConfig, role: NodeRole) -> Vec<(String, String)> {
    if role.is_both() || config.env_file.is_some() {
        return Vec::new();
    }
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr());
    let port = free.ok().map(|address| address.port().to_string());
    let port = port.map(|port| ("VLLM_NIXL_SIDE_CHANNEL_PORT", port));
    let own = port
        .into_iter()
        .chain([("UCX_LOG_LEVEL", "info".to_owned())]);
    let unset = own.filter(|(name, _)| std::env::var_os(name).is_none());
    unset
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn cpus_of(node: u32) -> Result<Vec<usize>, String> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let wrong = |e: String| format!("engine.vllm.numa {node}: {path}: {e}");
    let list = fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    let cpus = fabric::os::CpuList::parse(list.trim()).map_err(|e| wrong(e.to_string()))?;
    Ok(cpus.as_slice().to_vec())
}
