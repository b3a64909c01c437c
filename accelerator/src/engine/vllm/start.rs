//! The start of the core: sockets, the child process and the handshake.
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
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    thread,
    time::{Duration, Instant},
};

use qdl::config::VllmConfig;
use record::secrets;
use socket2::Socket;
use tempfile::TempDir;

use super::{
    messages::{self, Registration, Status, read},
    with_last_error,
    zmtp::Connection,
};
use crate::engine::{
    VLLM_VERSIONS,
    child::last_line,
    error::shorten,
    program::{self, ExitStatus, Launch, Program},
};

/// Time limit of a peer's greeting: a stranger on the loopback port delays the start by no more.
const SHAKE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);
/// Interval of log lines while the core is not ready.
const SAY: Duration = Duration::from_secs(10);
/// Most peers of the handshake at a time, beside the cores.
const STRANGERS: usize = 16;

/// The sockets that cores connect to.
pub(super) struct Listeners {
    handshake: TcpListener,
    input: UnixListener,
    output: UnixListener,
    /// Only this user may enter it.
    folder: TempDir,
}

impl Listeners {
    /// Binds all sockets: the handshake to `listen`, or to a free port of 127.0.0.1.
    /// Error text: the socket, and why it cannot be bound.
    pub fn bind(listen: Option<SocketAddr>) -> Result<Self, String> {
        let address = listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
        let wrong = |what: &dyn std::fmt::Display, e: io::Error| format!("{what}: {e}");
        let handshake = TcpListener::bind(address);
        let handshake =
            handshake.map_err(|e| wrong(&format!("engine.vllm.listen {address}"), e))?;
        let folder = tempfile::Builder::new().prefix("qdl-vllm-").tempdir();
        let folder = folder.map_err(|e| format!("no temporary folder: {e}: see TMPDIR"))?;
        let unix = |name| {
            let path = folder.path().join(name);
            UnixListener::bind(&path).map_err(|e| wrong(&path.display(), e))
        };
        let (input, output) = (unix("in")?, unix("out")?);
        (handshake.set_nonblocking(true))
            .and_then(|()| input.set_nonblocking(true))
            .and_then(|()| output.set_nonblocking(true))
            .map_err(|e| wrong(&"the sockets of the handshake", e))?;
        Ok(Listeners {
            handshake,
            input,
            output,
            folder,
        })
    }

    pub fn port(&self) -> Result<u16, String> {
        let address = self.handshake.local_addr();
        address
            .map(|a| a.port())
            .map_err(|e| format!("the handshake's port: {e}"))
    }

    fn address(&self, name: &str) -> String {
        format!("ipc://{}", self.folder.path().join(name).display())
    }
}

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

/// Cores after the handshake. The sockets are no longer blocking.
pub(super) struct Connected {
    /// Requests of each core, in the order of their indices.
    pub inputs: Vec<Connection>,
    /// Outputs of all cores, in no order.
    pub outputs: Vec<Connection>,
    /// Of the first core; all cores have one model and one version.
    pub registration: Registration,
}

struct Handshake<'a> {
    config: &'a VllmConfig,
    listeners: &'a Listeners,
    /// Peers of the handshake; those without a core are strangers.
    peers: Vec<Connection>,
    greeted: Vec<bool>,
    ready: Vec<bool>,
    inputs: Vec<Option<Connection>>,
    outputs: Vec<Connection>,
    registrations: Vec<Option<Registration>>,
}

/// Waits until all cores of `config` are ready.
/// Error text: the core ended, was not ready in time, or is not the core that is needed.
pub(super) fn connect(
    config: &VllmConfig,
    listeners: &Listeners,
    exit: Option<&ExitStatus>,
) -> Result<Connected, String> {
    let cores = config.data_parallel;
    let mut handshake = Handshake {
        config,
        listeners,
        peers: Vec::new(),
        greeted: vec![false; cores],
        ready: vec![false; cores],
        inputs: (0..cores).map(|_| None).collect(),
        outputs: Vec::new(),
        registrations: vec![None; cores],
    };
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

impl Handshake<'_> {
    fn stage(&self) -> String {
        let (cores, count) = (self.ready.len(), |of: &[bool]| {
            of.iter().filter(|b| **b).count()
        });
        match (count(&self.greeted), count(&self.ready)) {
            (0, _) => "no core has connected".to_owned(),
            (greeted, ready) => format!("{greeted} of {cores} cores load the model, {ready} ready"),
        }
    }

    /// Handles what has arrived. Returns true once all cores are ready.
    fn step(&mut self) -> Result<bool, String> {
        while let Ok((stream, _)) = self.listeners.handshake.accept() {
            if self.peers.len() < self.ready.len() + STRANGERS
                && let Some(peer) = shake(stream.into(), "ROUTER", "DEALER")
            {
                self.peers.push(peer);
            }
        }
        while let Ok((stream, _)) = self.listeners.input.accept() {
            let core = shake(stream.into(), "ROUTER", "DEALER");
            let core = core.and_then(|c| Some((self.index(&c.identity)?, c)));
            if let Some((index, core)) = core {
                self.inputs[index] = Some(core);
            }
        }
        while let Ok((stream, _)) = self.listeners.output.accept() {
            if self.outputs.len() < self.ready.len() {
                self.outputs.extend(shake(stream.into(), "PULL", "PUSH"));
            }
        }
        for mut peer in std::mem::take(&mut self.peers) {
            if self.handshake(&mut peer)? {
                self.peers.push(peer);
            }
        }
        for index in 0..self.inputs.len() {
            self.register(index)?;
        }
        let registered = self.registrations.iter().all(Option::is_some);
        let connected = self.outputs.len() == self.ready.len();
        Ok(registered && connected && self.ready.iter().all(|ready| *ready))
    }

    /// The index of a core, from its identity: two bytes, little-endian.
    fn index(&self, identity: &[u8]) -> Option<usize> {
        let index = usize::from(u16::from_le_bytes(identity.try_into().ok()?));
        (index < self.ready.len()).then_some(index)
    }

    /// Reads from a peer of the handshake; false once the peer is gone.
    fn handshake(&mut self, peer: &mut Connection) -> Result<bool, String> {
        let Some(index) = self.index(&peer.identity) else {
            let (cores, identity) = (self.ready.len(), &peer.identity);
            tracing::warn!("a peer of the handshake is none of {cores} cores: {identity:?}");
            return Ok(false);
        };
        let is_open = peer.fill().is_ok();
        loop {
            match peer.next() {
                Ok(Some(message)) => match read::<Status<'_>>(message).map(|s| s.status) {
                    Some("HELLO") => {
                        self.greeted[index] = true;
                        let addresses = ["in", "out"].map(|name| self.listeners.address(name));
                        peer.queue(&[&messages::addresses(&addresses[0], &addresses[1])]);
                    }
                    Some("READY") => self.ready[index] = true,
                    _ => return Err("it sent no HELLO and no READY".to_owned()),
                },
                Ok(None) => break,
                Err(e) => return Err(format!("its handshake: {e}")),
            }
        }
        Ok(peer.flush().is_ok() && is_open)
    }

    fn register(&mut self, index: usize) -> Result<(), String> {
        let Some(core) = &mut self.inputs[index] else {
            return Ok(());
        };
        if self.registrations[index].is_some() {
            return Ok(());
        }
        core.fill().map_err(|e| format!("its input: {e}"))?;
        let message = core.next().map_err(|e| format!("its registration: {e}"))?;
        let Some(message) = message else {
            return Ok(());
        };
        let registration: Option<Registration> = read(message);
        let registration = registration.ok_or("its registration is not understood")?;
        check(&registration, self.config.any_version)?;
        self.registrations[index] = Some(registration);
        Ok(())
    }

    fn finish(self) -> Result<Connected, String> {
        let registration = self.registrations.into_iter().flatten().next();
        let registration = registration.ok_or("no core has registered")?;
        Ok(Connected {
            inputs: self.inputs.into_iter().flatten().collect(),
            outputs: self.outputs,
            registration,
        })
    }
}

fn check(registration: &Registration, any_version: bool) -> Result<(), String> {
    let version = &registration.vllm_version;
    // A build for the CPU is 0.24.0+cpu.
    let base = version.split('+').next().unwrap_or_default();
    if !VLLM_VERSIONS.contains(&base) {
        let known = VLLM_VERSIONS.join(", ");
        if !any_version {
            return Err(format!(
                "it is vLLM {version}, and this engine has run with {known}: install one of these \
                 (`pip install vllm=={}`), use engine `http`, or set engine.vllm.any_version: true",
                VLLM_VERSIONS[0]
            ));
        }
        tracing::warn!("vLLM {version}: this engine has run with {known}");
    }
    if registration.data_parallel_size > 1 {
        return Err(EXPERTS.to_owned());
    }
    Ok(())
}

pub(super) const EXPERTS: &str = "a mixture of experts cannot run on several independent cores: \
     its cores exchange data in each step through a coordinator, which this engine is not; set \
     data_parallel: 1 and --tensor-parallel-size or --enable-expert-parallel in args, or use \
     engine `http`";

/// The handshake of ZMTP with a new peer; `None`, with a line in the log, if the peer fails it.
fn shake(stream: Socket, own: &str, wanted: &str) -> Option<Connection> {
    let shaken = (|| {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(SHAKE))?;
        stream.set_write_timeout(Some(SHAKE))?;
        let connection = Connection::shake(stream, own, wanted)?;
        connection.stream.set_nonblocking(true)?;
        Ok::<_, io::Error>(connection)
    })();
    let log = |e: &io::Error| tracing::warn!("a peer of the handshake was refused: {e}");
    shaken.inspect_err(log).ok()
}
