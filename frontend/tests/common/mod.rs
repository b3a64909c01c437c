//! Configurations in a temporary folder, and the two programs that run them.

// Each test binary uses only some of these items.
#![allow(dead_code, unused_imports)]

pub mod faults;
pub mod netns;
pub mod sockets;
pub mod submission;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

use assert_cmd::assert::OutputAssertExt;
use record::timeline::Timeline;
use serde_json::Value;

pub use qdl::testkit::assert_has;

/// A language model for the engine `tokens`, as YAML.
pub const LLM: &str = "model: {name: llm, \
    inputs: [{name: prompt, dtype: i32, shape: [64], ragged: true}], \
    output: {name: tokens, dtype: i32, shape: [32], ragged: true}}\n";
/// Prompts for [`LLM`], as YAML.
pub const PROMPTS: &str = "dataset: {kind: random, count: 200, min_bytes: 64, max_bytes: 64, \
    distribution: fixed}\n";

/// Maximum wait for any step of a test, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("a crate of the workspace").to_owned()
}

/// Path of a file that `cargo xtask setup` fetches; panics if the file is missing.
pub fn fetched(file: &str) -> PathBuf {
    let path = repository().join(".deps").join(file);
    assert!(
        path.is_file(),
        "{} is missing: run `cargo xtask setup`",
        path.display()
    );
    path
}

/// Path of a program beside the frontend program; builds the program if it is missing.
pub fn program_beside(name: &str) -> &'static Path {
    static BUILDS: Mutex<()> = Mutex::new(());
    let frontend = Path::new(env!("CARGO_BIN_EXE_frontend"));
    let program = frontend.with_file_name(name);
    let _one = BUILDS.lock();
    if !program.is_file() {
        let profile = frontend.parent().and_then(Path::file_name);
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--bin", name]);
        if profile.is_some_and(|p| p == "release") {
            build.arg("--release");
        }
        let status = build.current_dir(repository()).status();
        assert!(status.expect("cargo runs").success(), "no {name}");
    }
    Box::leak(program.into_boxed_path())
}

pub fn accelerator_program() -> &'static Path {
    program_beside("accelerator")
}

pub fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Arguments of an Offline run of so many samples, however long it takes.
pub fn offline(samples: &str) -> [&str; 6] {
    [
        "--scenario",
        "offline",
        "--set",
        "min_duration=0",
        "--samples",
        samples,
    ]
}

pub fn frontend() -> Command {
    Command::new(env!("CARGO_BIN_EXE_frontend"))
}

pub fn qdl_command() -> Command {
    Command::new(program_beside("qdl"))
}

/// Returns the number in an environment variable, or the default.
pub fn number_of_environment(key: &str, default: u64) -> u64 {
    let value = std::env::var(key).ok().and_then(|v| v.parse().ok());
    value.unwrap_or(default)
}

pub fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| fabric::testkit::free_port())
}

pub struct TestFolder {
    folder: tempfile::TempDir,
    /// libfabric provider for all runs instead of sockets.
    provider: Option<String>,
}

/// Replaces the loopback NICs of a configuration by NICs of a libfabric provider.
fn over_libfabric(yaml: &str, provider: &str) -> String {
    let nic = format!("{{ofi: \"{provider}\", address: 127.0.0.1");
    yaml.replace("{address: 127.0.0.1", &nic)
        .replace("{listen: \"127.0.0.1:0\"", &nic)
}

impl TestFolder {
    /// New folder. The variable `QDL_TEST_OFI` may name a libfabric provider for its runs.
    pub fn new() -> Self {
        TestFolder {
            folder: tempfile::tempdir().expect("a folder"),
            provider: std::env::var("QDL_TEST_OFI").ok(),
        }
    }

    /// New folder whose runs use this libfabric provider.
    pub fn over(provider: &str) -> Self {
        TestFolder {
            provider: Some(provider.to_owned()),
            ..TestFolder::new()
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        match &self.provider {
            Some(provider) if name.ends_with(".yaml") => {
                let text = String::from_utf8_lossy(text.as_ref());
                fs::write(&path, over_libfabric(&text, provider)).expect("written");
            }
            _ => fs::write(&path, text).expect("written"),
        }
        path
    }

    /// Writes the configuration `frontend.yaml`; `body` has at least model and data set.
    pub fn frontend_of(&self, controls: &[u16], body: &str) -> PathBuf {
        let placeholder = controls.is_empty().then_some(&1);
        let controls = controls.iter().chain(placeholder);
        let controls: String = controls
            .map(|port| format!("  - control: 127.0.0.1:{port}\n"))
            .collect();
        let yaml = format!("node: front\naccelerators:\n{controls}{body}");
        self.write("frontend.yaml", yaml)
    }

    /// Writes the configuration of an accelerator; `body` has at least model and engine.
    pub fn accelerator_of(&self, node: &str, control: u16, body: &str) -> PathBuf {
        let yaml = format!(
            "node: {node}\ncontrol: {{listen: \"127.0.0.1:{control}\"}}\n\
             nics: [{{listen: \"127.0.0.1:0\"}}]\n{body}\n"
        );
        self.write(&format!("{node}.yaml"), yaml)
    }

    /// Writes a frontend with ragged random samples and the engine `digest`; `more` is additional
    /// YAML.
    pub fn digest_frontend(&self, controls: &[u16], more: &str) -> PathBuf {
        let mut yaml = "model: {name: digest, \
             inputs: [{name: input, dtype: u8, shape: [20000], ragged: true}], \
             output: {name: output, dtype: u8, shape: [8]}}\n\
             dataset: {kind: random, count: 500, seed: 3}\n"
            .to_owned();
        for (key, default) in [
            ("nics:", "nics: [{address: 127.0.0.1, connections: 3}]"),
            ("verify:", "verify: digest"),
            ("engine:", "engine: {kind: digest, max_batch: 8}"),
        ] {
            if !more.contains(key) {
                yaml += default;
                yaml += "\n";
            }
        }
        self.frontend_of(controls, &(yaml + more))
    }

    /// Writes an accelerator named `node` with the engine `digest`; `more` is additional YAML.
    pub fn digest_accelerator(&self, node: &str, control: u16, more: &str) -> PathBuf {
        let engine = match more.contains("engine:") {
            true => "",
            false => "engine: {kind: digest}\n",
        };
        let model = "model: {name: digest, max_input_bytes: 20000}\n";
        self.accelerator_of(node, control, &format!("{model}{engine}{more}"))
    }

    pub fn frontend(&self, config: &Path, out: &str, arguments: &[&str]) -> Command {
        let mut command = frontend();
        command.arg("--config").arg(config).args(arguments);
        command.arg("--force").arg("--output").arg(self.path(out));
        self.sparing(&mut command);
        command
    }

    pub fn run(&self, config: &Path, out: &str, arguments: &[&str]) -> ProgramEnd {
        run(self, self.frontend(config, out, arguments))
    }

    pub fn qdl(&self, arguments: &[&str]) -> Running {
        let mut command = qdl_command();
        command.args(arguments).current_dir(self.path("."));
        Running::start(self, "program", command)
    }

    /// With libfabric, shrinks the buffers so that `ofi_rxm` opens an endpoint in milliseconds, not
    /// in 0.3 s. Both programs need the same value.
    pub fn sparing(&self, command: &mut Command) {
        if self.provider.is_some() {
            command.env("FI_OFI_RXM_BUFFER_SIZE", "256");
        }
    }

    pub fn summary(&self, out: &str) -> Value {
        let path = self.path(out).join("summary.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).expect("JSON")
    }

    pub fn timeline(&self, out: &str) -> Timeline {
        let path = self.path(out).join("timeline.json");
        let text = fs::read_to_string(path).expect("a timeline");
        serde_json::from_str(&text).expect("a timeline's JSON")
    }

    pub fn log(&self, out: &str, name: &str) -> String {
        let path = self.path(out).join(format!("mlperf_log_{name}.txt"));
        fs::read_to_string(path).expect("a log")
    }

    pub fn logged_number(&self, out: &str, key: &str) -> f64 {
        let text = self.log(out, "summary");
        let line = text.lines().find(|l| l.starts_with(key));
        let number = line.and_then(|l| l.rsplit(':').next()?.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no number for {key} in {text}"))
    }

    /// Reads LoadGen's accuracy log: sample index and response, sorted.
    pub fn answers(&self, out: &str) -> Vec<(u64, String)> {
        let path = self.path(out).join("mlperf_log_accuracy.json");
        let text = fs::read_to_string(path).expect("an accuracy log");
        let records: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        let mut answers: Vec<_> = records
            .iter()
            .map(|r| {
                let index = r["qsl_idx"].as_u64().expect("an index");
                (index, r["data"].as_str().expect("bytes").to_owned())
            })
            .collect();
        answers.sort();
        answers
    }
}

/// Starts the accelerator `acc-a` of digests and writes a frontend for it; `there` and `here` are
/// additional YAML.
pub fn one_of_digests(place: &TestFolder, there: &str, here: &str) -> (PathBuf, Running) {
    let [port] = free_ports();
    let running = accelerator(place, &place.digest_accelerator("acc-a", port, there));
    (place.digest_frontend(&[port], here), running)
}

/// Starts the accelerators `acc-a` and `acc-b` of digests and writes a frontend for them; `there`
/// and `here` are additional YAML.
pub fn two_of_digests(place: &TestFolder, there: &str, here: &str) -> (PathBuf, [Running; 2]) {
    let [a, b] = free_ports();
    let start = |(node, port)| accelerator(place, &place.digest_accelerator(node, port, there));
    let running = [("acc-a", a), ("acc-b", b)].map(start);
    (place.digest_frontend(&[a, b], here), running)
}

pub struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    lines: Option<mpsc::Receiver<String>>,
}

#[derive(Debug)]
pub struct ProgramEnd {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl ProgramEnd {
    /// Checks the exit code; panics with the output if the code differs.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self
    }

    /// Checks that LoadGen judged the run, VALID or INVALID.
    #[track_caller]
    pub fn judged(self) -> Self {
        let is_judged = matches!(self.code, Some(0 | 1));
        assert!(is_judged, "{:?}: {}{}", self.code, self.stdout, self.stderr);
        self
    }

    /// Returns the only error line of standard error; panics unless there is exactly one.
    #[track_caller]
    pub fn error(&self) -> &str {
        let lines = self.stderr.lines().filter(|l| l.starts_with("error"));
        let [error] = lines.collect::<Vec<_>>()[..] else {
            panic!("not one error: {}{}", self.stdout, self.stderr);
        };
        error
    }
}

impl Running {
    pub fn start(place: &TestFolder, name: &str, mut command: Command) -> Self {
        let (stdout, stderr) = (
            place.path(&format!("{name}.stdout")),
            place.path(&format!("{name}.stderr")),
        );
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).expect("a file"))
            .stderr(File::create(&stderr).expect("a file"))
            .spawn()
            .expect("starts");
        Running {
            child,
            stdout,
            stderr,
            lines: None,
        }
    }

    /// Returns all lines that an accelerator prints after its first line, until it ends.
    pub fn remaining_lines(&self) -> Vec<String> {
        let lines = self.lines.iter();
        let next = |lines: &mpsc::Receiver<String>| lines.recv_timeout(PATIENCE).ok();
        lines
            .flat_map(|l| std::iter::from_fn(move || next(l)))
            .collect()
    }

    pub fn signal(&self, signal: i32) {
        let id = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: the child has not been waited for, so its process id is still its own.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0, "signal {signal}");
    }

    /// True once the process has ended; it is reaped then, and gets no more signals.
    pub fn has_ended(&mut self) -> bool {
        self.ended().is_some()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn end(self) -> ProgramEnd {
        self.end_within(PATIENCE)
    }

    /// Waits until the process ends, for at most `patience`.
    pub fn end_within(mut self, patience: Duration) -> ProgramEnd {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(
                began.elapsed() < patience,
                "it does not end; it said: {}",
                fs::read_to_string(&self.stderr).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        ProgramEnd {
            code: status.code(),
            stdout: fs::read_to_string(&self.stdout).expect("its output"),
            stderr: fs::read_to_string(&self.stderr).expect("its errors"),
        }
    }

    pub fn wait_until_it_says(&mut self, words: &str) {
        let stderr = self.stderr.clone();
        self.wait_until(words, || {
            fs::read_to_string(&stderr).is_ok_and(|said| said.contains(words))
        });
    }

    /// Waits until LoadGen, whose log is in the run folder `out`, has its queries and issues them.
    pub fn wait_until_loadgen_runs(&mut self, place: &TestFolder, out: &str) {
        let log = place.path(out).join("mlperf_log_detail.txt");
        self.wait_until("test", || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("generated_query_count"))
        });
    }

    /// Waits until `ready` is true; panics if the process ends first. `what` names the condition.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut() -> bool) {
        let began = Instant::now();
        while !ready() {
            let said = || fs::read_to_string(&self.stderr).unwrap_or_default();
            assert!(
                self.child.try_wait().expect("a child").is_none(),
                "it ended before {what}: {}",
                said()
            );
            assert!(began.elapsed() < PATIENCE, "no {what}: {}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(place: &TestFolder, command: Command) -> ProgramEnd {
    Running::start(place, "frontend", command).end()
}

/// Checks for exit code 2 and an empty standard output; returns standard error.
pub fn refused(mut command: Command) -> String {
    let output = command.assert().code(2).get_output().clone();
    assert!(output.stdout.is_empty(), "output of a refused command");
    String::from_utf8(output.stderr).expect("text")
}

/// Makes an accuracy run over the network into `wire` and one with `--local` into `local`. Checks
/// that both succeed with equal answers, and returns the answers.
pub fn wire_and_local(place: &TestFolder, config: &Path) -> Vec<(u64, String)> {
    let accuracy = ["--scenario", "offline", "--mode", "accuracy"];
    let local = [&accuracy[..], &["--local"]].concat();
    for (out, arguments) in [("wire", &accuracy[..]), ("local", &local)] {
        place.run(config, out, arguments).with_code(0);
    }
    let answers = place.answers("wire");
    assert_eq!(answers, place.answers("local"));
    answers
}

pub fn accelerator(place: &TestFolder, config: &Path) -> Running {
    accelerator_by(place, config, Command::new(accelerator_program()))
}

pub fn accelerator_in(namespace: &netns::Namespace, place: &TestFolder, config: &Path) -> Running {
    accelerator_by(place, config, namespace.command(accelerator_program()))
}

/// Starts an accelerator with this command, whose arguments precede the configuration.
pub fn accelerator_by(place: &TestFolder, config: &Path, mut program: Command) -> Running {
    place.sparing(&mut program);
    let name = config.file_stem().expect("a name").to_string_lossy();
    let stderr = place.path(&format!("{name}.stderr"));
    let mut child = program
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&stderr).expect("a file"))
        .spawn()
        .expect("starts");
    let out = child.stdout.take().expect("piped");
    let (line, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for l in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = line.send(l);
        }
    });
    let mut running = Running {
        child,
        stdout: place.write(&format!("{name}.stdout"), ""),
        stderr,
        lines: None,
    };
    match lines.recv_timeout(PATIENCE) {
        Ok(l) if l.starts_with("ready:") => {
            running.lines = Some(lines);
            running
        }
        other => panic!(
            "accelerator {name} is not ready ({other:?}): {}",
            fs::read_to_string(&running.stderr).unwrap_or_default()
        ),
    }
}

/// Returns what a program prints when standard output is a terminal.
pub fn on_a_terminal(mut command: Command) -> String {
    use std::{
        io::Read,
        os::fd::{FromRawFd, OwnedFd},
    };
    let (mut ours, mut its) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the first two pointers refer to local variables; the others may be null.
    let made = unsafe { libc::openpty(&mut ours, &mut its, none, none.cast(), none.cast()) };
    assert_eq!(made, 0, "a terminal");
    // SAFETY: `openpty` has just opened both descriptors, and nothing else owns them.
    let (ours, its) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(its)) };
    let mut child = command.stdout(its).spawn().expect("starts");
    // Close this process's copy of the terminal's child end, or the read below never ends.
    drop(command);
    let mut text = Vec::new();
    // The read ends with an error once the child end is closed.
    let _ = File::from(ours).read_to_end(&mut text);
    child.wait().expect("it ends");
    String::from_utf8_lossy(&text).into_owned()
}
