//! One run of the two programs with a cause planted, and what its last line says.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::plants::{During, Net, Plant};
use crate::bench::failover::net::{Rails, Side};
use crate::demo::programs::Accelerator;
use crate::process::Running;

/// For a run: some seconds when all is well.
const RUN: Duration = Duration::from_secs(300);
/// For LoadGen to begin.
const BEGIN: Duration = Duration::from_secs(60);
/// What the first NIC thread of a frontend is called.
const FIRST_NIC: &str = "nic-0";
/// Threads that never sleep, where LoadGen's or a NIC thread shares a core with them.
const CROWD: usize = 2;
/// How little that thread counts beside them, to the scheduler: it is to wait for its core.
const NICE: libc::c_int = 15;

/// What a run's last line says.
pub struct Said {
    /// As `summary.json` names it, or `nothing`.
    pub cause: String,
    /// What the page's advice names first, or `nothing`.
    pub page: String,
    /// The line.
    pub line: String,
    /// All that `summary.json` has of it.
    pub limits: Value,
}

/// Starts both programs, plants the cause, and reads what was said.
///
/// # Errors
/// A program cannot be started, or the run came to no result.
pub fn once(root: &Path, programs: &Path, plant: &Plant) -> Result<Said> {
    let folder = root.join("target/bench/limits").join(plant.name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let rails = match plant.net {
        Net::Loopback => None,
        Net::Shaped(mbit) => Some(Rails::new(1, mbit, "cubic")?),
        Net::OneSlow(mbit, slow) => {
            let rails = Rails::new(plant.net.lines(), mbit, "cubic")?;
            rails.shape(1, slow)?;
            Some(rails)
        }
    };
    let last = last_core()?;
    let nodes = Nodes::of(plant, rails.as_ref(), last)?;
    let configs = [
        folder.join("accelerator.yaml"),
        folder.join("frontend.yaml"),
    ];
    fs::write(&configs[0], &nodes.accelerator)?;
    fs::write(&configs[1], &nodes.frontend)?;
    let command = |program: &str, side: Side| match &rails {
        Some(rails) => rails.command(side, &programs.join(program)),
        None => Command::new(programs.join(program)),
    };
    let mut accelerator = command("accelerator", Side::Accelerator);
    accelerator.arg("--config").arg(&configs[0]);
    let accelerator = Accelerator::start_in(&mut accelerator, &folder.join("accelerator.log"))?;
    let out = folder.join("run");
    // An earlier run's must not be taken for this one's.
    let _ = fs::remove_dir_all(&out);
    let mut frontend = command("frontend", Side::Frontend);
    frontend
        .arg("--config")
        .arg(&configs[1])
        .args(plant.arguments)
        .arg("--output")
        .arg(&out)
        .stdout(fs::File::create(folder.join("frontend.stdout"))?)
        .stderr(fs::File::create(folder.join("frontend.stderr"))?);
    let mut frontend = Running::start("frontend", &mut frontend)?;
    let crowd = meanwhile(plant.during, &mut frontend, &accelerator, &out)?;
    let status = frontend.wait(RUN)?;
    drop(crowd);
    if !matches!(status.code(), Some(0 | 1)) {
        let said = fs::read_to_string(folder.join("frontend.stderr")).unwrap_or_default();
        bail!("frontend: {status}\n{}", said.trim_end());
    }
    let path = out.join("summary.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let summary: Value = serde_json::from_str(&text)?;
    let limits = summary["limits"].clone();
    let cause = limits["findings"][0]["cause"].as_str();
    let line = limits["line"].as_str().context("no line")?.to_owned();
    // A run that nobody could judge is no run that is well.
    let nothing = if line.starts_with("nothing: ") {
        "nothing"
    } else {
        "not said"
    };
    let path = out.join("report.html");
    let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(Said {
        cause: cause.unwrap_or(nothing).to_owned(),
        page: first_card(&page).unwrap_or("nothing").to_owned(),
        line,
        limits,
    })
}

/// What the first card of a page's advice is called.
fn first_card(page: &str) -> Option<&str> {
    let (_, card) = page.split_once("<li class=\"card first\"><h3>")?;
    card.split_once("</h3>").map(|(name, _)| name)
}

/// The two configurations.
struct Nodes {
    accelerator: String,
    frontend: String,
}

impl Nodes {
    fn of(plant: &Plant, rails: Option<&Rails>, last: usize) -> Result<Self> {
        // The control plane's own line is the one behind them.
        let (control, data, own, auth) = match rails {
            None => {
                let nics = if plant.during == During::Starved {
                    2
                } else {
                    1
                };
                (
                    format!("127.0.0.1:{}", port()?),
                    vec!["127.0.0.1:0".to_owned(); nics],
                    vec!["127.0.0.1".to_owned(); nics],
                    "",
                )
            }
            Some(rails) => {
                let all = 0..rails.count();
                let far = |k| format!("{}:7410", rails.address(Side::Accelerator, k));
                (
                    format!("{}:7400", rails.address(Side::Accelerator, rails.count())),
                    all.clone().map(far).collect(),
                    all.map(|k| rails.address(Side::Frontend, k)).collect(),
                    "auth: none\n",
                )
            }
        };
        let mut both = plant.both.to_owned();
        if plant.during == During::Crowded {
            both = format!("cpus: [{last}]");
        }
        // What starves for a while on a busy machine is not to be lost: that is another cause.
        let alive = "heartbeat_timeout_ms: 20000, echo_timeout_ms: 20000";
        let deadlines = format!("deadlines: {{{alive}}}\n");
        let patient = format!("deadlines: {{{alive}, lost_ms: 30000}}\n");
        let comma = if both.is_empty() { "" } else { ", " };
        let (bytes, engine, nic) = (plant.bytes, plant.engine, plant.nic);
        let entry = |what: String| format!("  - {{{what}}}\n");
        let far = data
            .iter()
            .map(|a| entry(format!("listen: \"{a}\"{comma}{both}")));
        let far: String = far.collect();
        let near = own.iter().enumerate().map(|(k, address)| {
            // Where one is to starve, each has a core to itself.
            let cpus = match plant.during {
                During::Starved => format!(", cpus: [{}]", if k == 0 { 0 } else { last }),
                _ => String::new(),
            };
            entry(format!("address: {address}, {nic}{comma}{both}{cpus}"))
        });
        let near: String = near.collect();
        let threads = match plant.during {
            During::Starved => "nic_threads: 2\n",
            _ => "",
        };
        Ok(Nodes {
            accelerator: format!(
                "node: planted\n{auth}control: {{listen: \"{control}\"}}\n\
                 model: {{name: digest, max_input_bytes: {bytes}}}\nengine: {engine}\n\
                 nics:\n{far}{deadlines}"
            ),
            frontend: format!(
                "node: front\n{auth}accelerators: [{{control: \"{control}\"}}]\n\
                 model: {{name: digest, inputs: [{{name: input, dtype: u8, shape: [{bytes}], ragged: true}}], \
                 output: {{name: output, dtype: u8, shape: [8]}}}}\n\
                 dataset: {{kind: random, distribution: fixed, count: 256}}\n\
                 nics:\n{near}{threads}{patient}"
            ),
        })
    }
}

/// A port that nobody uses at this moment.
fn port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// What is to happen during the run; those who crowd LoadGen's thread, until they are dropped.
fn meanwhile(
    during: During,
    frontend: &mut Running,
    accelerator: &Accelerator,
    out: &Path,
) -> Result<Vec<Running>> {
    match during {
        During::Nothing => Ok(Vec::new()),
        During::Stopped(after, seconds) => {
            begun(frontend, out)?;
            std::thread::sleep(Duration::from_secs_f64(after));
            signal(accelerator.id(), libc::SIGSTOP)?;
            std::thread::sleep(Duration::from_secs_f64(seconds));
            signal(accelerator.id(), libc::SIGCONT)?;
            Ok(Vec::new())
        }
        During::Crowded => {
            begun(frontend, out)?;
            crowd(thread_called(frontend.id(), "loadgen")?)
        }
        During::Starved => {
            begun(frontend, out)?;
            crowd(thread_called(frontend.id(), FIRST_NIC)?)
        }
    }
}

/// Lets others that never sleep have the first core beside this thread.
fn crowd(thread: u32) -> Result<Vec<Running>> {
    keep_on(thread, 0)?;
    // SAFETY: it takes numbers alone.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, NICE) } != 0 {
        return Err(io::Error::last_os_error()).context("setpriority");
    }
    let one = |_| {
        let mut busy = Command::new("sh");
        busy.args(["-c", "while :; do :; done"])
            .stderr(Stdio::null());
        let busy = Running::start("busy loop", &mut busy)?;
        keep_on(busy.id(), 0)?;
        Ok(busy)
    };
    (0..CROWD).map(one).collect()
}

/// Waits until LoadGen has begun to write its logs.
fn begun(frontend: &mut Running, out: &Path) -> Result<()> {
    let log: PathBuf = out.join("mlperf_log_detail.txt");
    let end = Instant::now() + BEGIN;
    while !fs::metadata(&log).is_ok_and(|m| m.len() > 0) {
        if frontend.ended()?.is_some() || Instant::now() > end {
            bail!("LoadGen has not begun: {} is missing", log.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The first thread of this name.
fn thread_called(process: u32, name: &str) -> Result<u32> {
    let tasks = format!("/proc/{process}/task");
    let mut found: Vec<u32> = Vec::new();
    for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        let task = task?;
        let called = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if called.trim_end() == name {
            found.extend(
                task.file_name()
                    .to_str()
                    .and_then(|n| n.parse::<u32>().ok()),
            );
        }
    }
    // LoadGen's own threads have the name of the one that began them.
    found.sort_unstable();
    found
        .first()
        .copied()
        .with_context(|| format!("{tasks}: no thread is called {name}"))
}

fn signal(process: u32, signal: libc::c_int) -> Result<()> {
    let id = libc::pid_t::try_from(process)?;
    // SAFETY: it takes numbers; the child has not been waited for, so its id is its own.
    match unsafe { libc::kill(id, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("kill"),
    }
}

/// The last core that this process may run on; with one core alone nothing can be planted on it.
fn last_core() -> Result<usize> {
    let cores = std::thread::available_parallelism()?.get();
    Ok(cores.saturating_sub(1))
}

/// Keeps a thread, or a process's first, on one core; those that it starts stay there.
fn keep_on(thread: u32, core: usize) -> Result<()> {
    // SAFETY: a zeroed cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    anyhow::ensure!(core < libc::CPU_SETSIZE as usize, "core {core}");
    // SAFETY: `core` is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: `set` lives through the call and has the size that is given.
    match unsafe {
        libc::sched_setaffinity(libc::pid_t::try_from(thread)?, size_of_val(&set), &set)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("sched_setaffinity"),
    }
}
