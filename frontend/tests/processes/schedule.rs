//! One schedule: starts the programs, makes the plan's faults, and runs the next frontend.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use world::plan::{Event, Kind, Plan};

use crate::{
    common::{
        ProgramEnd, Running, TestFolder, accelerator_by, accelerator_program,
        faults::Workload,
        netns::{Namespace, SAFE, Star},
        offline, words,
    },
    plans,
    strike::{CONTROL, DATA, Left, Nodes},
    verdict,
};

/// Limit for a frontend: the run, its longest faults and its deadlines, on a busy machine.
const END: Duration = Duration::from_secs(60);
/// Limit for an accelerator after SIGTERM: twice its drain.
const STOP: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Each end notices a loss within 1.2 s. The run waits 2.85 s or more for a lost accelerator.
const DEADLINES: &str = "deadlines: {connect_ms: 6000, lost_ms: 4000, echo_interval_ms: 50, \
    echo_timeout_ms: 600, heartbeat_interval_ms: 200, heartbeat_timeout_ms: 1200, watchdog_s: 20}\n";
const THEIR_DEADLINES: &str = "deadlines: {connect_ms: 3000, echo_timeout_ms: 600, \
    heartbeat_interval_ms: 200, heartbeat_timeout_ms: 1200}\n";

/// Time after which an accelerator has let go of a frontend whose session ended at that end alone:
/// its `heartbeat_timeout_ms`, and a heartbeat.
const LETS_GO: Duration = Duration::from_millis(1_500);

/// Lines of each log that a failure shows.
const LAST_LINES: usize = 40;

const NAMES: [&str; 3] = ["acc-a", "acc-b", "acc-c"];

/// Where a run was at a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Handshake,
    /// LoadGen has begun: `Name()`, then the warm-up.
    WarmUp,
    Run,
    /// LoadGen has ended.
    Drain,
}

/// A schedule that kept all rules.
pub struct Run {
    pub code: Option<i32>,
    /// Faults that hit something, and when.
    pub hits: Vec<(Kind, Phase)>,
    pub lost_connections: u64,
    pub sent_again: u64,
}

/// Runs a plan. The error has the broken rule and the last lines of each log.
pub fn run(plan: &Plan) -> Result<Run, String> {
    let place = TestFolder::new();
    let result = catch_unwind(AssertUnwindSafe(|| attempt(plan, &place)));
    let why = match result {
        Ok(Ok(run)) => return Ok(run),
        Ok(Err(e)) => format!("{e:#}"),
        Err(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(_) => "a panic".to_owned(),
        },
    };
    Err(format!("{why}\n{}", last_lines(&place.path(""))))
}

fn last_lines(folder: &Path) -> String {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = files.map(|f| f.path()).collect();
    files.sort();
    let mut text = String::new();
    for file in files {
        let kind = file.extension().unwrap_or_default();
        if kind != "stderr" && kind != "stdout" {
            continue;
        }
        let log = fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        text += &format!("--- {}\n", file.file_name().unwrap_or_default().display());
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            text += &format!("{line}\n");
        }
    }
    text
}

/// The programs of a plan.
struct Cluster<'p> {
    plan: &'p Plan,
    place: &'p TestFolder,
    star: &'p Star,
    workload: Workload,
    token: String,
}

impl<'p> Cluster<'p> {
    fn new(plan: &'p Plan, place: &'p TestFolder, star: &'p Star) -> Self {
        let token = place.write("token", "0123456789abcdef".repeat(4));
        let private = Permissions::from_mode(0o600);
        fs::set_permissions(&token, private).expect("its mode");
        let shape = &plan.shape;
        let (longest, delay_us) = (shape.longest, shape.service_ns / 1_000);
        let engine = format!("engine: {{kind: digest, max_batch: 16, delay_us: {delay_us}}}\n");
        let workload = Workload {
            there: format!(
                "model: {{name: digest, max_input_bytes: {longest}}}\n{engine}{THEIR_DEADLINES}"
            ),
            here: format!(
                "model: {{name: digest, inputs: [{{name: input, dtype: u8, shape: [{longest}], \
                 ragged: true}}], output: {{name: output, dtype: u8, shape: [8]}}}}\n{engine}\
                 verify: digest\ndataset: {{kind: random, count: 300, seed: 3}}\n"
            ),
            server: "--scenario server --target-qps 300 --duration-s 2 --set target_latency=90000",
        };
        Cluster {
            plan,
            place,
            star,
            workload,
            token: format!("token_file: {}\n", token.display()),
        }
    }

    fn accelerator(&self, k: usize) -> Running {
        let at = [CONTROL, DATA].map(|port| format!("10.97.{k}.2:{port}"));
        let at = at.each_ref().map(String::as_str);
        let place = self.place;
        let config = self.workload.accelerator(place, NAMES[k], at, &self.token);
        let command = self.command(NAMES[k], &self.star.leaves[k], accelerator_program());
        accelerator_by(place, &config, command)
    }

    /// Starts a frontend of these accelerators.
    fn frontend(&self, name: &str, known: &[usize], arguments: &[&str]) -> Running {
        let shape = &self.plan.shape;
        let nic = |address: &str| {
            let (each, slots) = (shape.each, shape.slots);
            format!("  - {{address: {address}, connections: {each}, slots: {slots}}}\n")
        };
        let nics = [SAFE, "10.97.0.1"].map(nic);
        let arbiter = [
            "least_outstanding",
            "round_robin",
            "best",
            "health_best_fit",
            "{health_spray: {delta: 0.25}}",
        ];
        let more = format!(
            "nics:\n{}{DEADLINES}{}arbiter: {}\none_by_one: {}\nqsl: {}\n",
            nics[..shape.nics as usize].concat(),
            self.token,
            arbiter[shape.policy as usize % arbiter.len()],
            shape.one_by_one == 1,
            ["registered", "staged"][shape.staged as usize % 2],
        );
        let controls: Vec<_> = known
            .iter()
            .map(|k| format!("10.97.{k}.2:{CONTROL}"))
            .collect();
        let controls: Vec<_> = controls.iter().map(String::as_str).collect();
        let config = self.workload.frontend(self.place, &controls, &more);
        let program = Path::new(env!("CARGO_BIN_EXE_frontend"));
        let mut command = self.command(name, &self.star.hub, program);
        command.arg("--config").arg(config).args(arguments);
        command.arg("--output").arg(self.place.path(name));
        Running::start(self.place, name, command)
    }

    /// A command in a namespace, with a folder of its own for temporary files.
    fn command(&self, name: &str, namespace: &Namespace, program: &Path) -> Command {
        let folder = self.temporary(name);
        fs::create_dir_all(&folder).expect("a folder");
        let mut command = namespace.command(program);
        command.env("TMPDIR", folder);
        if env::var_os("QDL_PLAN").is_some() {
            command.arg("-v");
        }
        command
    }

    fn temporary(&self, name: &str) -> std::path::PathBuf {
        self.place.path(&format!("{name}.tmp"))
    }

    fn phase(&self) -> Phase {
        let has = |file: &str| {
            let file = self.place.path("out").join(file);
            fs::metadata(file).is_ok_and(|m| m.len() > 0)
        };
        let said = fs::read_to_string(self.place.path("out.stderr")).unwrap_or_default();
        match () {
            () if has("mlperf_log_summary.txt") => Phase::Drain,
            () if said.contains(" warmed ") => Phase::Run,
            () if has("mlperf_log_detail.txt") => Phase::WarmUp,
            () => Phase::Handshake,
        }
    }
}

fn attempt(plan: &Plan, place: &TestFolder) -> Result<Run> {
    let star = Star::with_leaves(plan.shape.servers as usize);
    star.add_safe_address();
    if !plan.has_none(&[Kind::Hole, Kind::Silent, Kind::Busy]) {
        star.prepare_rules();
    }
    if !plan.has_none(&[Kind::Delay]) {
        star.prepare_queues();
    }
    let namespaces = star.leaves.iter().chain([&star.hub]);
    let names: Vec<_> = namespaces.map(|n| n.name().to_owned()).collect();
    let run = in_star(plan, place, &star)?;
    for name in &names {
        let pids = Command::new("ip").args(["netns", "pids", name]).output()?;
        ensure!(
            pids.stdout.is_empty(),
            "{name} has processes left: {pids:?}"
        );
    }
    drop(star);
    for name in names {
        let is_left = Path::new("/run/netns").join(&name).exists();
        ensure!(!is_left, "the namespace {name} is left");
    }
    Ok(run)
}

fn in_star(plan: &Plan, place: &TestFolder, star: &Star) -> Result<Run> {
    let cluster = Cluster::new(plan, place, star);
    let all: Vec<_> = (0..star.leaves.len()).collect();
    let accelerators = all.iter().map(|k| (cluster.accelerator(*k), None));
    let accelerators: Vec<(Running, Left)> = accelerators.collect();
    let burst = plan.events.iter().find(|e| e.kind == Kind::Burst);
    let samples = burst.map_or_else(String::new, |e| e.n.to_string());
    let arguments = match burst {
        Some(_) => offline(&samples).to_vec(),
        None => words(cluster.workload.server),
    };
    let began = Instant::now();
    let mut nodes = Nodes {
        plan,
        star,
        frontend: cluster.frontend("out", &all, &arguments),
        accelerators,
        lasting: Default::default(),
        dropped: Default::default(),
        is_aborted: false,
    };
    let is_fault = |e: &&Event| e.kind != Kind::Burst;
    let mut waiting: Vec<Event> = plan.events.iter().filter(is_fault).copied().collect();
    let mut begins = [Some(began), None, None];
    let (mut mends, mut hits) = (Vec::new(), Vec::new());
    while !nodes.frontend.has_ended() {
        ensure!(began.elapsed() < END, "the frontend does not end");
        let phase = cluster.phase();
        for (begin, first) in begins
            .iter_mut()
            .zip([Phase::Handshake, Phase::WarmUp, Phase::Run])
        {
            if phase >= first && begin.is_none() {
                *begin = Some(Instant::now());
            }
        }
        let is_due = |e: &Event| plans::time_of(e, &begins).is_some_and(|t| t <= Instant::now());
        if let Some(next) = waiting.iter().position(is_due) {
            let e = waiting.remove(next);
            let (lasting, is_hit) = nodes.strike(&e);
            if let Some(lasting) = lasting {
                mends.push((Instant::now() + Duration::from_micros(e.n), lasting));
            }
            if is_hit {
                hits.push((e, phase));
            }
            continue;
        }
        if let Some(next) = mends.iter().position(|(at, _)| *at <= Instant::now()) {
            nodes.mend(mends.remove(next).1);
            continue;
        }
        sleep(LOOK_EVERY);
    }
    nodes.mend_all();
    let Nodes {
        frontend,
        accelerators,
        is_aborted,
        ..
    } = nodes;
    let ended = frontend.end();
    verdict::of_run(plan, place, &ended, &hits, is_aborted)?;
    afterwards(&cluster, accelerators)?;
    verdict::of_folders(place)?;
    let counts = place.path("out").join("summary.json");
    let counts: Value = match fs::read_to_string(&counts) {
        Ok(text) => serde_json::from_str(&text)?,
        // The run ended before it began.
        Err(_) => Value::Null,
    };
    let count = |name: &str| counts["ledger"][name].as_u64().unwrap_or(0);
    Ok(Run {
        code: ended.code,
        hits: hits.iter().map(|(e, phase)| (e.kind, *phase)).collect(),
        lost_connections: count("lost_connections"),
        sent_again: count("redispatched"),
    })
}

/// The accelerators that are left serve the next frontend, and all end as they should.
fn afterwards(cluster: &Cluster<'_>, accelerators: Vec<(Running, Left)>) -> Result<()> {
    let is_left = |(k, (_, left)): (usize, &(Running, Left))| left.is_none().then_some(k);
    let left: Vec<_> = accelerators
        .iter()
        .enumerate()
        .filter_map(is_left)
        .collect();
    if !left.is_empty() {
        sleep(LETS_GO);
        let next = cluster.frontend("next", &left, &offline("100"));
        verdict::of_next(cluster.place, &next.end_within(END))?;
    }
    for (k, (running, left)) in accelerators.into_iter().enumerate() {
        if left.is_none() {
            running.signal(libc::SIGTERM);
        }
        let ProgramEnd { code, .. } = running.end_within(STOP);
        let expected = if left == Some(libc::SIGKILL) {
            None
        } else {
            Some(0)
        };
        let node = NAMES[k];
        ensure!(
            code == expected,
            "{node} ended with {code:?}, not {expected:?}"
        );
        let said = fs::read_to_string(cluster.place.path(&format!("{node}.stderr")))?;
        ensure!(!said.contains("panicked"), "{node} panicked");
        let mut files = fs::read_dir(cluster.temporary(node))?;
        if let (Some(_), Some(file)) = (expected, files.next()) {
            bail!("{node} leaves a temporary file: {file:?}");
        }
    }
    Ok(())
}
