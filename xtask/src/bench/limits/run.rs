//! The plants, and one run of the two programs with one of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::bench::failover::net::{Rails, Side};
use crate::demo::programs::Accelerator;
use crate::process::{Running, run_quietly};

/// For a run: some seconds when all is well.
const RUN: Duration = Duration::from_secs(300);
/// For LoadGen to begin.
const BEGIN: Duration = Duration::from_secs(60);
/// The card of a healthy run.
pub const NOTHING: &str = "nothing";
/// Loops that never sleep, beside the thread that is crowded.
const CROWD: usize = 2;

/// The table of plants, in `plants.json`.
#[derive(Deserialize)]
pub struct Table {
    /// By name: `model` of the accelerator, `model` and `dataset` of the frontend.
    models: BTreeMap<String, [String; 3]>,
    pub plants: Vec<Plant>,
}

/// A planted cause, or a healthy run. In its texts, and in its model's, `BYTES` stands for `bytes`,
/// `LAST` for the last core's number, `ROOT` for the repository, `URL` for a pretended
/// language-model server.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plant {
    pub name: String,
    /// The name of the page's first card; none for a healthy run.
    pub card: Option<String>,
    /// Its key in `models`.
    model: String,
    engine: String,
    /// Bytes of a sample.
    bytes: u32,
    /// The accelerator's entry of `nics`, beside the address.
    #[serde(default)]
    far: String,
    /// The frontend's entry of `nics`, beside the address.
    near: String,
    /// The scenario, and the frontend's other arguments.
    load: String,
    /// `stopped`: the accelerator, for 1.5 s. `crowded NAME`: the frontend's first thread of this
    /// name shares the first core with loops that never sleep.
    #[serde(default)]
    during: String,
    /// Of the link between the nodes in place of loopback.
    mbit: Option<u32>,
    /// The pretended server's time to the first token and to each other.
    server_ms: Option<[String; 2]>,
}

/// What a run said of its limit.
pub struct Said {
    /// The name of the page's first card, or [`NOTHING`].
    pub card: String,
    /// The summary's last line.
    pub line: String,
    /// `limits` of `summary.json`.
    pub limits: Value,
}

impl Said {
    /// The page names this plant's card first, and the line its cause.
    pub fn is_right(&self, plant: &Plant) -> bool {
        let card = plant.card.as_deref().unwrap_or(NOTHING);
        self.card == card && self.line.starts_with(&format!("{card}: "))
    }
}

/// Starts both programs, plants the cause, and reads what was said.
///
/// # Errors
/// A program cannot be started, or the run came to no result.
pub fn once(root: &Path, programs: &Path, table: &Table, plant: &Plant) -> Result<Said> {
    let folder = root.join("target/bench/limits").join(&plant.name);
    // An earlier run's files must not be taken for this one's.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let rails = plant.mbit.map(|mbit| Rails::new(1, mbit, "cubic"));
    let rails = rails.transpose()?;
    let mut url = String::new();
    let mut server = None;
    if let Some(ms) = &plant.server_ms {
        let mut command = Command::new("python3");
        let script = root.join("bench/python/llm_server.py");
        command.arg(script).args(ms).stdout(Stdio::piped());
        let running = server.insert(Running::start("llm_server.py", &mut command)?);
        let stdout = running.stdout().context("llm_server.py has no output")?;
        BufReader::new(stdout).read_line(&mut url)?;
    }
    let last = std::thread::available_parallelism()?.get() - 1;
    let model = table.models.get(&plant.model).context("models")?;
    let [far, near] = configurations(plant, model, rails.as_ref())?.map(|text| {
        text.replace("BYTES", &plant.bytes.to_string())
            .replace("LAST", &last.to_string())
            .replace("ROOT", &root.to_string_lossy())
            .replace("URL", url.trim())
    });
    let command = |program: &str, side: Side, text: String| -> Result<Command> {
        let config = folder.join(format!("{program}.yaml"));
        fs::write(&config, text)?;
        let mut command = match &rails {
            Some(rails) => rails.command(side, &programs.join(program)),
            None => Command::new(programs.join(program)),
        };
        command.arg("--config").arg(config);
        Ok(command)
    };
    let mut accelerator = command("accelerator", Side::Accelerator, far)?;
    let accelerator = Accelerator::start_in(&mut accelerator, &folder.join("accelerator.log"))?;
    let out = folder.join("run");
    let mut frontend = command("frontend", Side::Frontend, near)?;
    frontend
        .args("--warm-up-ms 100 --scenario".split(' '))
        .args(plant.load.split(' '))
        .args(["--force", "--output"])
        .arg(&out)
        .stdout(fs::File::create(folder.join("frontend.stdout"))?)
        .stderr(fs::File::create(folder.join("frontend.stderr"))?);
    let mut frontend = Running::start("frontend", &mut frontend)?;
    let crowd = meanwhile(&plant.during, &mut frontend, accelerator.id(), &out)?;
    let status = frontend.wait(RUN)?;
    drop((crowd, server));
    if !matches!(status.code(), Some(0 | 1)) {
        let said = fs::read_to_string(folder.join("frontend.stderr")).unwrap_or_default();
        bail!("frontend: {status}\n{}", said.trim_end());
    }
    let read = |name: &str| {
        let path = out.join(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let summary: Value = serde_json::from_str(&read("summary.json")?)?;
    let limits = summary["limits"].clone();
    let page = read("report.html")?;
    let first = page.split_once("<li class=\"card first\"><h3>");
    let first = first.and_then(|(_, card)| card.split_once("</h3>"));
    Ok(Said {
        card: first.map_or(NOTHING, |(name, _)| name).to_owned(),
        line: limits["line"].as_str().context("no line")?.to_owned(),
        limits,
    })
}

/// The two configurations: the accelerator's, the frontend's.
fn configurations(
    plant: &Plant,
    [served, asked, dataset]: &[String; 3],
    rails: Option<&Rails>,
) -> Result<[String; 2]> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    // The control plane has a link of its own behind the other.
    let (control, auth) = match rails {
        None => (format!("127.0.0.1:{port}"), ""),
        Some(r) => (
            format!("{}:7400", r.address(Side::Accelerator, r.count())),
            "auth: none\n",
        ),
    };
    let at = |side| rails.map_or("127.0.0.1".to_owned(), |r| r.address(side, 0));
    let (listen, address) = (at(Side::Accelerator), at(Side::Frontend));
    let far = format!("  - {{listen: \"{listen}:0\", {}}}\n", plant.far);
    let near = format!("  - {{address: {address}, {}}}\n", plant.near);
    // A thread that waits for its core is not to be lost: that is another cause.
    let deadlines = "deadlines: {heartbeat_timeout_ms: 20000, echo_timeout_ms: 20000";
    Ok([
        format!(
            "node: planted\n{auth}control: {{listen: \"{control}\"}}\nmodel: {served}\n\
             engine: {}\nnics:\n{far}{deadlines}}}\n",
            plant.engine
        ),
        format!(
            "node: front\n{auth}accelerators: [{{control: \"{control}\"}}]\nmodel: {asked}\n\
             dataset: {dataset}\nnics:\n{near}{deadlines}, lost_ms: 30000}}\n"
        ),
    ])
}

/// What happens during the run; the loops, until they are dropped.
fn meanwhile(
    during: &str,
    frontend: &mut Running,
    accelerator: u32,
    out: &Path,
) -> Result<Vec<Running>> {
    if during.is_empty() {
        return Ok(Vec::new());
    }
    let log = out.join("mlperf_log_detail.txt");
    let end = Instant::now() + BEGIN;
    while !fs::metadata(&log).is_ok_and(|m| m.len() > 0) {
        if frontend.ended()?.is_some() || Instant::now() > end {
            bail!("LoadGen has not begun: {} is missing", log.display());
        }
        sleep(Duration::from_millis(10));
    }
    let Some(name) = during.strip_prefix("crowded ") else {
        for signal in ["-STOP", "-CONT"] {
            sleep(Duration::from_millis(1500));
            call("kill", &[signal, &accelerator.to_string()])?;
        }
        return Ok(Vec::new());
    };
    let thread = thread_called(frontend.id(), name)?.to_string();
    call("taskset", &["--pid", "--cpu-list", "0", &thread])?;
    // It counts little beside the loops, to the scheduler.
    call("renice", &["-n", "15", "-p", &thread])?;
    let one = |_| {
        let mut busy = Command::new("taskset");
        busy.args(["--cpu-list", "0", "sh", "-c", "while :; do :; done"]);
        Running::start("busy loop", &mut busy)
    };
    (0..CROWD).map(one).collect()
}

fn call(program: &str, arguments: &[&str]) -> Result<String> {
    run_quietly(program, Command::new(program).args(arguments), BEGIN)
}

/// The first thread of this name: LoadGen's own have the name of the one that began them.
fn thread_called(process: u32, name: &str) -> Result<u32> {
    let tasks = format!("/proc/{process}/task");
    let mut found: Vec<u32> = Vec::new();
    for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        let task = task?;
        let called = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if called.trim_end() == name {
            let id = task.file_name();
            found.extend(id.to_str().and_then(|n| n.parse::<u32>().ok()));
        }
    }
    let first = found.into_iter().min();
    first.with_context(|| format!("{tasks}: no thread is called {name}"))
}
