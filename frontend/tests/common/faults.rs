//! Faults during a run: accelerators killed, stopped or cut off, and connections broken.

use std::{
    io::Write,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use super::{
    ProgramEnd, Running, TestFolder, accelerator, accelerator_in, free_ports, netns::Star, offline,
    sockets, words,
};

/// Short deadlines: the frontend detects each loss within 2 s, so 200 losses take minutes.
pub const QUICK: &str = "deadlines: {connect_ms: 4000, lost_ms: 2000, echo_interval_ms: 50, \
    echo_timeout_ms: 600, heartbeat_interval_ms: 200, heartbeat_timeout_ms: 1200}\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL ends the accelerator's process.
    Kill,
    /// SIGSTOP holds the accelerator's process: its sockets stay open and silent.
    Stop,
    /// The network path to the accelerator goes silent.
    Cut,
    /// One connection of the accelerator is shut down.
    End,
    /// One connection of the accelerator carries bytes that are no frame.
    Garble,
    /// SIGKILL ends the engine core that the accelerator has started.
    Core,
}

impl Fault {
    /// True if the fault hits one connection and the accelerator stays.
    pub fn of_connection(self) -> bool {
        matches!(self, Fault::End | Fault::Garble)
    }
}

/// Configurations and arguments of both programs.
pub struct Workload {
    /// YAML of an accelerator: model and engine.
    pub there: String,
    /// YAML of the frontend: model, engine, data set, verification.
    pub here: String,
    /// Arguments of a Server run.
    pub server: &'static str,
    /// Number of samples of an Offline run, large enough that the run still goes on at the fault.
    pub offline: &'static str,
    /// Arguments of Server and Offline runs.
    pub always: &'static str,
}

impl Workload {
    /// Writes an accelerator's configuration; `more` is additional YAML.
    pub fn accelerator(
        &self,
        place: &TestFolder,
        node: &str,
        [control, data]: [&str; 2],
        more: &str,
    ) -> PathBuf {
        let yaml = format!(
            "node: {node}\ncontrol: {{listen: \"{control}\"}}\n{more}{}\
             nics: [{{listen: \"{data}\"}}]\n",
            self.there
        );
        place.write(&format!("{node}.yaml"), yaml)
    }

    /// Writes the frontend's configuration; `more` is additional YAML.
    pub fn frontend(&self, place: &TestFolder, controls: &[&str], more: &str) -> PathBuf {
        let accelerators = controls.iter().map(|c| format!("  - control: \"{c}\"\n"));
        let accelerators = accelerators.collect::<String>();
        let yaml = format!(
            "node: front\n{}accelerators:\n{accelerators}{more}",
            self.here
        );
        place.write("frontend.yaml", yaml)
    }
}

#[derive(Debug)]
pub struct Trial {
    pub fault: Fault,
    /// True if the run has a second accelerator, which survives.
    pub second: bool,
    pub offline: bool,
    /// Time from the first sample to the fault, in milliseconds.
    pub at: u64,
    pub connections: u64,
    /// Additional YAML of the frontend.
    pub more: String,
}

impl Trial {
    /// Trial `i` of a seed: the kinds of fault take turns, and all else is random.
    pub fn nth(i: u64, seed: u64, kinds: &[Fault]) -> Self {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003) + i);
        let turns = kinds.len() as u64;
        Trial {
            fault: kinds[(i % turns) as usize],
            second: i / turns % 3 != 1,
            offline: random.u64(..3) == 0,
            at: random.u64(..1200),
            connections: 1 + random.u64(..4),
            more: QUICK.to_owned(),
        }
    }

    /// True if no accelerator survives the fault.
    pub fn takes_all(&self) -> bool {
        !self.second && !self.fault.of_connection()
    }

    /// Runs the trial to its end: over a cable for `Fault::Cut`, otherwise over loopback.
    pub fn run(&self, of: &Workload) -> (TestFolder, ProgramEnd) {
        match self.fault {
            Fault::Cut => self.over_a_cable(of),
            _ => self.on_loopback(of),
        }
    }

    /// Starts the frontend and waits until the time of the fault.
    pub fn start(
        &self,
        of: &Workload,
        place: &TestFolder,
        mut command: std::process::Command,
    ) -> Running {
        command.args(match self.offline {
            true => offline(of.offline).to_vec(),
            false => words(of.server),
        });
        command.args(words(of.always));
        let mut running = Running::start(place, "frontend", command);
        // From here on all samples are LoadGen's.
        running.wait_until_it_says(" up in ");
        sleep(Duration::from_millis(self.at));
        running
    }

    fn nics(&self, address: &str) -> String {
        let (n, more) = (self.connections, &self.more);
        format!("nics: [{{address: {address}, connections: {n}}}]\n{more}")
    }

    fn on_loopback(&self, of: &Workload) -> (TestFolder, ProgramEnd) {
        let place = TestFolder::new();
        let [a, b, port, other] = free_ports();
        let controls = [a, b].map(|p| format!("127.0.0.1:{p}"));
        let data = [port, other].map(|p| format!("127.0.0.1:{p}"));
        let start = |node: &str, k: usize| {
            let at = [&controls[k], &data[k]].map(String::as_str);
            accelerator(&place, &of.accelerator(&place, node, at, ""))
        };
        let victim = start("acc-a", 0);
        let _second = self.second.then(|| start("acc-b", 1));
        let known: Vec<_> = controls.iter().map(String::as_str).collect();
        let known = &known[..1 + usize::from(self.second)];
        let config = of.frontend(&place, known, &self.nics("127.0.0.1"));
        let frontend = self.start(of, &place, place.frontend(&config, "out", &[]));
        match self.fault {
            Fault::Kill => victim.signal(libc::SIGKILL),
            Fault::Stop => victim.signal(libc::SIGSTOP),
            Fault::Core => {
                // SAFETY: a plain system call, for a process of this test.
                unsafe { libc::kill(engine_core(victim.id()), libc::SIGKILL) };
            }
            _ => {
                let own = sockets::accepted(victim.id(), port).expect("its sockets");
                if let Some(stream) = own.get(self.at as usize % own.len().max(1)) {
                    match self.fault {
                        Fault::End => sockets::end(stream),
                        // 64 bytes that are no frame, after the frames of the process.
                        _ => drop((&*stream).write_all(&[0xa5; 64])),
                    }
                }
            }
        }
        let ended = frontend.end();
        (place, ended)
    }

    fn over_a_cable(&self, of: &Workload) -> (TestFolder, ProgramEnd) {
        let place = TestFolder::new();
        let star = Star::new();
        let token = place.write("token", "0123456789abcdef".repeat(4));
        let token = format!("token_file: {}\n", token.display());
        let start = |node: &str, k: usize| {
            let at = [7400, 7410].map(|port| format!("10.97.{k}.2:{port}"));
            let at = at.each_ref().map(String::as_str);
            let config = of.accelerator(&place, node, at, &token);
            accelerator_in(&star.leaves[k], &place, &config)
        };
        let _victim = start("acc-a", 0);
        let _second = self.second.then(|| start("acc-b", 1));
        let known = &["10.97.0.2:7400", "10.97.1.2:7400"][..1 + usize::from(self.second)];
        let more = self.nics("10.97.0.1") + &token;
        let config = of.frontend(&place, known, &more);
        let mut command = star.hub.command(Path::new(env!("CARGO_BIN_EXE_frontend")));
        command.arg("--config").arg(config);
        command.arg("--output").arg(place.path("out"));
        let frontend = self.start(of, &place, command);
        star.cut(0);
        let ended = frontend.end();
        (place, ended)
    }
}

fn engine_core(accelerator: u32) -> i32 {
    let threads = std::fs::read_dir(format!("/proc/{accelerator}/task")).expect("it runs");
    let children = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children = children.collect::<String>();
    let mut pids = children.split(' ').filter_map(|pid| pid.parse().ok());
    let is_core = |pid: &i32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        command.is_ok_and(|command| command.contains("core.py"))
    };
    pids.find(is_core).expect("a core")
}

/// Checks that a run without its last accelerator names it and marks the run folder INVALID.
pub fn must_say_who(place: &TestFolder, ended: ProgramEnd) -> ProgramEnd {
    let ended = ended.with_code(3);
    assert!(ended.error().contains("acc-a"), "{}", ended.stderr);
    let invalid = place.path("out/INVALID").is_file();
    assert!(invalid, "{}", ended.stderr);
    ended
}
