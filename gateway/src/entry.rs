//! The program `qdl gateway`: its command line and its process.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use clap::{CommandFactory, Parser};
use fabric::{
    clock::now_ns,
    os::{cannot_listen, lock, more_open_files, open_files},
};
use program::{
    cli::{self, Screen},
    signals,
    web::Access,
};
use qdl::{
    control::Token,
    dispatch::{Sample, WARM_UP_ID},
    run::{Cluster, ClusterEvent, SampleMemory, settle_connections},
    topology::{pinning_warnings, spell_out},
};
use socket2::{Domain, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedSender, unbounded_channel},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::GatewayFile,
    gate::{AnswerCounts, Gate},
    inbox::{Inbox, Router},
    nodes::GatewayNodes,
    prompts::Prompts,
    record::RequestLog,
    run_file::{self, GatewayRun},
    text::Text,
    worker,
};

const OK: u8 = 0;
/// The setup failed: nothing was served.
const SETUP: u8 = 2;
/// The accelerators were lost.
const LOST: u8 = 3;

/// Connections that wait for `accept`, as far as the kernel allows (`net.core.somaxconn`).
const BACKLOG: i32 = 16 << 10;
/// Ids of the warm-up's prompt, and most tokens of its answer.
const WARM_UP: usize = 8;
/// Descriptors beside those of connections: files, NICs, sessions.
const OWN_DESCRIPTORS: u64 = 1024;
/// Time between two looks at requests that are in flight at the end.
const LOOK: Duration = Duration::from_millis(5);

/// The exit codes in `--help`.
const EXIT_CODES: &str = "\
Exit codes:
  0  stopped by SIGINT or SIGTERM, or nothing wrong (--check)
  2  usage, configuration, tokenizer, an address that is taken, or no accelerator
  3  the accelerators were lost";

/// Serves OpenAI's HTTP API in front of the accelerators: `/v1/completions` with token ids or text,
/// `/v1/chat/completions`, `/v1/models`, `/health` and `/metrics`.
///
/// Each request goes to the accelerator with the fewest requests in flight. SIGTERM and SIGINT end
/// the gateway after the requests in flight.
#[derive(Parser)]
#[command(name = "gateway", after_help = EXIT_CODES, max_term_width = 100)]
struct Arguments {
    /// Configuration of this gateway, a YAML file: the keys of a frontend's network, and `gateway`
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Write the nodes to DIR/nodes.json at the start, a line on each request to DIR/requests.csv,
    /// and the run's figures to DIR/gateway.json at the end
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Read configuration and tokenizer, and end without serving
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    screen: Screen,
}

/// Runs the program with these arguments, of which the first is its name, and ends the process.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ! {
    program::begin();
    // Before any thread starts: each inherits the mask.
    let signals = signals::block();
    let program = Arguments::command().version(cli::version());
    let matches = cli::parse(&program, arguments);
    let arguments: Arguments = cli::arguments(&matches);
    arguments.screen.log(tracing::Level::INFO);
    let code = run(&arguments, signals).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        SETUP
    });
    // Ignore the error: standard output may be closed.
    let _ = io::stdout().flush();
    disk::sweep();
    std::process::exit(i32::from(code))
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn run(arguments: &Arguments, signals: signals::Blocked) -> Result<u8, Error> {
    let mut file = GatewayFile::load(&arguments.config)?;
    let nics = spell_out(&file.cluster.nics, false)?;
    file.cluster.nics = nics.into_iter().map(|(_, nic)| nic).collect();
    settle_connections(&mut file.cluster);
    for warning in pinning_warnings(&file.cluster.nics) {
        tracing::warn!("{warning}");
    }
    let text = file.gateway.model_dir.as_deref().map(Text::open);
    let text = text.transpose()?.map(Arc::new);
    let token = file.gateway.token_file.as_deref();
    let token = token.map(|path| Token::from_file("gateway.token_file", path));
    let token = token.transpose()?;
    check_round_trip(text.as_deref());
    if arguments.check {
        println!("{}", described(&file, text.as_deref()));
        return Ok(OK);
    }
    let listener = bind(&file)?;
    let address = listener.local_addr()?;
    allow_descriptors(file.gateway.connections);

    let prompts = Arc::new(Prompts::new(file.gateway.prompt_mib << 20)?);
    let threads = file.gateway.threads();
    let inboxes: Arc<[Inbox]> = (0..threads).map(|_| Inbox::default()).collect();
    let end = End::default();
    let cluster = connect(&file, &prompts, &inboxes, &end)?;
    let log = arguments.output.as_deref().map(|folder| {
        let log = RequestLog::create(folder, cluster.connection_names())?;
        GatewayNodes::ask(&cluster, &file.cluster.node).write(folder)?;
        Ok::<_, io::Error>(log)
    });
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let gate = Arc::new(Gate {
        node: file.cluster.node.clone(),
        model: file.cluster.model.name.clone(),
        sizes: file.sizes(),
        config: file.gateway.clone(),
        text,
        access: token.map(Access::Token),
        options: cluster.options(),
        has_roles: (cluster.engines().iter()).any(|(_, engine)| !engine.role.is_both()),
        cluster,
        prompts,
        inboxes,
        log: log.transpose()?,
        started: started.map_or(0, |d| d.as_secs()),
        began_ns: now_ns(),
        is_draining: AtomicBool::new(false),
        closed: CancellationToken::new(),
        in_flight: AtomicUsize::new(0),
        connections: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
        closes: tokio::sync::Notify::new(),
        answers: AnswerCounts::default(),
        diverged: Default::default(),
        stalled: Default::default(),
        tokens: Default::default(),
        left: Default::default(),
    });
    let (workers, senders) = start_workers(&gate)?;
    let stop = end.clone();
    let waits = std::thread::Builder::new().name("gateway-signal".to_owned());
    waits.spawn(move || {
        let signal = signals.wait();
        stop.note(OK, format!("stopped by signal {signal}"));
    })?;
    println!("{}", ready_line(&gate, address));
    // Ignore the error: standard output may be closed.
    let _ = io::stdout().flush();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(accept(&gate, listener, &senders, &end))?;
    let folder = arguments.output.as_deref();
    Ok(leave(gate, folder, &runtime, workers, senders, &end))
}

/// Why the gateway ends, and the exit code.
#[derive(Clone, Default)]
struct End {
    cause: Arc<Mutex<Option<(u8, String)>>>,
    noted: Arc<tokio::sync::Notify>,
}

impl End {
    /// Notes the first cause.
    fn note(&self, code: u8, cause: String) {
        lock(&self.cause).get_or_insert((code, cause));
        self.noted.notify_one();
    }

    fn cause(&self) -> Option<(u8, String)> {
        lock(&self.cause).clone()
    }
}

fn bind(file: &GatewayFile) -> Result<std::net::TcpListener, Error> {
    let address = file.gateway.listen;
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bound().map_err(|e| cannot_listen(address, &e).into())
}

/// Raises the limit of descriptors to what the connections need, or says what is missing.
fn allow_descriptors(connections: usize) {
    let wanted = connections as u64 + OWN_DESCRIPTORS;
    let Ok(limit) = open_files() else { return };
    let (before, more) = more_open_files(wanted.saturating_sub(limit.rlim_cur));
    let allowed = before + more;
    if allowed < wanted {
        tracing::warn!(
            "{allowed} file descriptors allowed, and {connections} connections want {wanted}: \
             raise `ulimit -Hn`, or lower `gateway.connections`"
        );
    }
}

fn connect(
    file: &GatewayFile,
    prompts: &Arc<Prompts>,
    inboxes: &Arc<[Inbox]>,
    end: &End,
) -> Result<Cluster, Error> {
    let (own, end) = (inboxes.clone(), end.clone());
    let on_event = move |event: ClusterEvent<'_>| match event {
        ClusterEvent::CompleteEmpty(samples) => Inbox::lose(&own, samples),
        ClusterEvent::Aborted(cause) => end.note(LOST, cause.to_owned()),
        ClusterEvent::Note(line) => tracing::warn!("{line}"),
        ClusterEvent::Waiting(line) => tracing::info!("{line}"),
    };
    let memory = SampleMemory {
        sources: vec![prompts.region().clone()],
        staged_from: None,
    };
    let mut make = |_| Box::new(Router::new(inboxes)) as _;
    let cluster = Cluster::connect(&file.cluster, memory, &mut make, Arc::new(on_event))?;
    let ids = vec![1; file.sizes().prompt.min(WARM_UP)];
    let options = crate::options::warm_up();
    let Some(room) = prompts.store(&options, &ids) else {
        return Err("gateway.prompt_mib: no room for the warm-up's prompt".into());
    };
    let sample = Sample {
        id: WARM_UP_ID,
        offset: room.offset,
        len: room.len,
        has_options: true,
        ..Sample::default()
    };
    if let Some(done) = cluster.warm_up(vec![sample])? {
        let (samples, connections, ms) = (done.samples, done.connections, done.took_ms);
        tracing::info!("{samples} samples warmed {connections} connections up in {ms:.0} ms");
    }
    Ok(cluster)
}

/// Says whether a client that counts tokens again from text gets the same numbers.
fn check_round_trip(text: Option<&Text>) {
    let Some(text) = text else { return };
    let mut random = fastrand::Rng::with_seed(1);
    let ids = i32::try_from(text.vocabulary_len()).unwrap_or(i32::MAX);
    let sample = |_| {
        (0..64)
            .map(|_| random.i32(0..ids.max(1)))
            .collect::<Vec<_>>()
    };
    let samples: Vec<Vec<i32>> = (0..1000).map(sample).collect();
    let trip = text.check_round_trip(samples.iter().map(|ids| &ids[..]));
    if trip.differing > 0 {
        tracing::info!(
            "of {} answers of 64 random ids, {} have another number of tokens when their text is \
             tokenized again: a client that counts so differs from the gateway's counts",
            trip.tried,
            trip.differing
        );
    }
}

fn described(file: &GatewayFile, text: Option<&Text>) -> String {
    let sizes = file.sizes();
    let text = match text {
        Some(text) => format!("a tokenizer of {} ids", text.vocabulary_len()),
        None => "token ids alone (no `gateway.model_dir`)".to_owned(),
    };
    format!(
        "gateway {}: model {}, prompts up to {} tokens, answers up to {}; {text}; {} threads, \
         {} MiB for prompts",
        file.cluster.node,
        file.cluster.model.name,
        sizes.prompt,
        sizes.answer,
        file.gateway.threads(),
        file.gateway.prompt_mib
    )
}

fn ready_line(gate: &Gate, address: std::net::SocketAddr) -> String {
    let accelerators = gate.cluster.engines().len();
    format!(
        "ready: gateway {}, http://{address}/v1, model {}, {accelerators} accelerators",
        gate.node, gate.model
    )
}

type Workers = Vec<JoinHandle<()>>;
type Senders = Vec<UnboundedSender<std::net::TcpStream>>;

fn start_workers(gate: &Arc<Gate>) -> Result<(Workers, Senders), Error> {
    let (mut workers, mut senders) = (Vec::new(), Vec::new());
    for thread in 0..gate.inboxes.len() {
        let (send, accepted) = unbounded_channel();
        let gate = gate.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let builder = std::thread::Builder::new().name(format!("gateway-{thread}"));
        let serve = move || {
            runtime.block_on(worker::run(gate, thread as u8, accepted));
            runtime.shutdown_background();
        };
        workers.push(builder.spawn(serve)?);
        senders.push(send);
    }
    Ok((workers, senders))
}

/// Accepts connections until the gateway ends, and gives each to the thread with the fewest.
async fn accept(
    gate: &Gate,
    listener: std::net::TcpListener,
    senders: &Senders,
    end: &End,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let has_room = gate.open_connections() < gate.config.connections;
        tokio::select! {
            () = end.noted.notified() => return Ok(()),
            () = gate.closes.notified(), if !has_room => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, _)) => give(gate, senders, stream),
                // Out of descriptors: those that are open go on.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
        }
    }
}

fn give(gate: &Gate, senders: &Senders, stream: TcpStream) {
    let loads = gate.connections.iter().map(|n| n.load(Ordering::Relaxed));
    let Some((thread, _)) = loads.enumerate().min_by_key(|(_, open)| *open) else {
        return;
    };
    // A stream belongs to the runtime that it was made in.
    let Ok(stream) = stream.into_std() else {
        return;
    };
    gate.connections[thread].fetch_add(1, Ordering::Relaxed);
    // Ignore the error: the gateway ends.
    let _ = senders[thread].send(stream);
}

/// Lets requests in flight end, then ends threads and cluster. Returns the exit code.
fn leave(
    gate: Arc<Gate>,
    folder: Option<&Path>,
    runtime: &tokio::runtime::Runtime,
    workers: Workers,
    senders: Senders,
    end: &End,
) -> u8 {
    let (code, cause) = end.cause().unwrap_or((OK, String::new()));
    gate.is_draining.store(true, Ordering::SeqCst);
    tracing::info!("the gateway ends: {cause}");
    let deadline = Duration::from_secs(gate.config.drain_s);
    let drained = async {
        while gate.in_flight.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(LOOK).await;
        }
        // The last events are on their way to the sockets.
        tokio::time::sleep(10 * LOOK).await;
    };
    if runtime
        .block_on(async { tokio::time::timeout(deadline, drained).await })
        .is_err()
    {
        let open = gate.in_flight.load(Ordering::Relaxed);
        tracing::warn!("{open} requests were cut off after {deadline:?} (`gateway.drain_s`)");
    }
    drop(senders);
    gate.closed.cancel();
    for worker in workers {
        // Ignore a panic: the panic hook has printed it.
        let _ = worker.join();
    }
    if let Ok(mut gate) = Arc::try_unwrap(gate) {
        if let Some((log, folder)) = gate.log.take().zip(folder) {
            write_run(&gate, log, folder);
        }
        gate.cluster.finish();
    }
    if code != OK {
        eprintln!("error: {cause}");
    }
    code
}

fn write_run(gate: &Gate, log: RequestLog, folder: &Path) {
    let (totals, dropped) = match log.finish() {
        Ok(written) => written,
        Err(error) => return tracing::warn!("requests.csv is not complete: {error}"),
    };
    if dropped > 0 {
        tracing::warn!("requests.csv lacks {dropped} requests: the disk was too slow");
    }
    if let Err(error) = GatewayRun::of(gate, totals, dropped).write(folder) {
        let path = folder.join(run_file::FILE);
        tracing::warn!("{} is not written: {error}", path.display());
    }
}
