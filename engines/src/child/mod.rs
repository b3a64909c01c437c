//! Starts, watches and stops a child process that runs the model: an engine's own server.

mod isolation;

use std::{
    fs::File,
    io::{self, Read},
    os::unix::{
        fs::{OpenOptionsExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::error::shorten;
use fabric::os::lock;

pub use isolation::keep_open_files;
use isolation::place;
pub(super) use isolation::{isolate, last_error, last_line, room_for};

const KILLED: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// Shell script that waits for the end of its input: this process holds the input open while it
/// lives. Then the script ends the process group `$0`: SIGTERM, and SIGKILL `$1` seconds later.
const WATCH: &str = r#"read -r _
kill -s TERM -- "-$0"
left=$1
while [ "$left" -gt 0 ] && kill -s 0 -- "-$0"; do sleep 1; left=$((left - 1)); done
kill -s KILL -- "-$0""#;

#[derive(Clone, Debug, Default)]
pub(super) struct Launch {
    /// The configuration's key of `command`, for messages.
    pub key: String,
    pub command: Vec<String>,
    pub log: PathBuf,
    /// Time from SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Variables beside those of this process.
    pub env: Vec<(String, String)>,
    /// Processors of the program; empty: those of this process.
    pub cpus: Vec<usize>,
    /// NUMA node of the program's memory.
    pub node: Option<u32>,
}

/// Reads variables for a program from the file of the key `key`, if there is one: lines of the form
/// `NAME=value` or `export NAME=value`, with or without quotes around the value; empty lines and
/// lines that begin with `#` are skipped.
/// Error text: the file cannot be read, other users may read it, or a line has another form.
pub(super) fn read_env(key: &str, path: Option<&Path>) -> Result<Vec<(String, String)>, String> {
    let Some(path) = path else {
        return Ok(Vec::new());
    };
    let wrong = |why: String| format!("{key} {}: {why}", path.display());
    let failed = |e: io::Error| wrong(e.to_string());
    let mut file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if ![0o600, 0o400].contains(&mode) {
        return Err(wrong(format!(
            "its mode is {mode:04o}, not 0600 or 0400: chmod 600 it"
        )));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    let lines = text.trim_start_matches('\u{feff}').lines();
    let each = lines.enumerate().filter_map(|(i, line)| {
        // The line may hold a secret: the error names its place alone.
        let wrong = |why| wrong(format!("line {} {why}", i + 1));
        variable(line).map(|v| v.map_err(wrong))
    });
    each.collect()
}

/// The variable of a line of `env_file`; `None` for an empty line and a comment.
/// Error text: what the line is.
fn variable(line: &str) -> Option<Result<(String, String), &'static str>> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let exported = line.strip_prefix("export").map(str::trim_start);
    let line = exported
        .filter(|rest| rest.len() + 6 < line.len())
        .unwrap_or(line);
    let Some((name, value)) = line.split_once('=') else {
        return Some(Err("is not `NAME=value`"));
    };
    let (name, value) = (name.trim_end(), value.trim_start());
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_name =
        name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit());
    if !is_name {
        return Some(Err(
            "has a name that is no identifier: letters, digits and `_` may",
        ));
    }
    let value = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => match value[1..].strip_suffix(quote) {
            Some(inner) if !inner.contains(quote) => inner,
            _ => return Some(Err("has a value whose quote does not end with the line")),
        },
        _ => value,
    };
    match value.contains('\0') {
        true => Some(Err("holds a zero byte")),
        false => Some(Ok((name.to_owned(), value.to_owned()))),
    }
}

/// A handle to the exit status of a program that may still run.
#[derive(Clone)]
pub(super) struct ExitStatus(watch::Receiver<Option<String>>);

impl ExitStatus {
    /// The exit status in words; `None` while the program runs.
    pub fn now(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// Waits for the end of the program; returns the exit status in words.
    pub async fn seen(&self) -> Option<String> {
        let mut exit = self.0.clone();
        let seen = exit.wait_for(Option::is_some).await.ok()?;
        seen.clone()
    }
}

/// A running program. Only [`Program::stop`] ends the program; the drop of this handle does not.
pub(super) struct Program {
    pid: libc::pid_t,
    pub exit: ExitStatus,
    /// True while the end of the program is an error.
    is_needed: Arc<AtomicBool>,
    reaped: Arc<Mutex<bool>>,
}

impl Program {
    /// Starts the program in a new process group, with its output in `log`. If the program ends
    /// between [`Program::need`] and [`Program::stop`], calls `on_end` with the exit status in
    /// words. However this process ends, the group gets SIGTERM, and SIGKILL `grace` later.
    pub fn start(
        launch: Launch,
        on_end: impl FnOnce(String) + Send + 'static,
    ) -> Result<Self, String> {
        let (log, grace) = (launch.log.clone(), launch.grace);
        // It may hold what the program knows of its variables.
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&log);
        let file = file.map_err(|e| format!("its log {}: {e}", log.display()))?;
        let (tell, exit) = watch::channel(None);
        let is_needed: Arc<AtomicBool> = Arc::default();
        let reaped: Arc<Mutex<bool>> = Arc::default();
        let (started, wait) = mpsc::channel();
        let program = launch.command.first().map_or("", String::as_str);
        let (what, path) = (format!("`{program}` of {}", launch.key), log.clone());
        let (needed, is_reaped) = (is_needed.clone(), reaped.clone());
        // Start the program in a thread that outlives it: that thread's end sends it a signal.
        let thread = thread::Builder::new().name("llm-server".to_owned());
        let spawned = thread.spawn(move || match spawn(&launch, &file) {
            Ok(child) => {
                let words = run(child, &path, grace, &is_reaped, &started);
                let _ = tell.send(Some(words.clone()));
                if needed.load(SeqCst) {
                    on_end(words);
                }
            }
            Err(e) => drop(started.send(Err(e))),
        });
        spawned.map_err(|e| format!("no thread to watch it: {e}"))?;
        let pid = wait.recv().unwrap_or_else(|e| Err(io::Error::other(e)));
        let pid = pid.map_err(|e| format!("{what}: {e}"))?;
        Ok(Program {
            pid,
            exit: ExitStatus(exit),
            is_needed,
            reaped,
        })
    }

    /// From now on, the end of the program is an error: `on_end` of [`Program::start`] is called.
    /// Error: the exit status in words: the program has ended already.
    pub fn need(&self) -> Result<(), String> {
        self.is_needed.store(true, SeqCst);
        self.exit.now().map_or(Ok(()), Err)
    }

    /// Ends the program's process group: SIGTERM, and SIGKILL `within` later.
    pub fn stop(&self, within: Duration) -> Result<(), String> {
        self.is_needed.store(false, SeqCst);
        if self.is_gone(Duration::ZERO) {
            return Ok(());
        }
        self.signal(libc::SIGTERM);
        if self.is_gone(within) {
            return Ok(());
        }
        tracing::warn!(
            "the server did not end within {} s: killed",
            within.as_secs()
        );
        self.signal(libc::SIGKILL);
        if self.is_gone(KILLED) {
            return Ok(());
        }
        Err(format!("process {} does not end", self.pid))
    }

    /// Signals the process group, unless the program is reaped: its id may then be reused.
    fn signal(&self, number: libc::c_int) {
        let reaped = lock(&self.reaped);
        if !*reaped {
            signal(self.pid, number);
        }
    }

    fn is_gone(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        while self.exit.now().is_none() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }
}

/// Waits for the end of the program and returns its exit status in words. Sends the process id
/// to `started`; sets `reaped` once the id may be reused.
fn run(
    mut child: Child,
    log: &Path,
    grace: Duration,
    reaped: &Mutex<bool>,
    started: &mpsc::Sender<io::Result<libc::pid_t>>,
) -> String {
    let pid = child.id() as libc::pid_t;
    let watchman = watchman(pid, grace);
    let _ = started.send(Ok(pid));
    wait_for_end(pid);
    // The program is not reaped, so its id is not reused: the signal reaches only its group.
    let mut reaped = lock(reaped);
    signal(pid, libc::SIGKILL);
    let status = match child.wait() {
        Ok(status) => status.to_string(),
        Err(e) => format!("status unknown: {e}"),
    };
    *reaped = true;
    drop(reaped);
    if let Some(mut watchman) = watchman {
        let _ = watchman.kill();
        let _ = watchman.wait();
    }
    let line = last_line(log);
    let line = line.map_or_else(|| "(nothing)".to_owned(), |line| shorten(&line));
    format!(
        "it ended ({status}); the last line of its log {}: {line}",
        log.display()
    )
}

fn spawn(launch: &Launch, log: &File) -> io::Result<Child> {
    let [program, arguments @ ..] = &launch.command[..] else {
        return Err(io::Error::other("it is empty"));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log.try_clone()?);
    command.process_group(0);
    command.envs(launch.env.iter().map(|(name, value)| (name, value)));
    place(&mut command, &launch.cpus, launch.node);
    isolate(&mut command, Some(libc::SIGTERM));
    command.spawn()
}

/// Starts a process that ends the group of `pid` after this process has ended. The kernel's signal
/// at that time reaches only the leader of the group: a script, or a program that ignores it.
fn watchman(pid: libc::pid_t, grace: Duration) -> Option<Child> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", WATCH, &pid.to_string(), &grace.as_secs().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command.stderr(Stdio::null()).process_group(0);
    isolate(&mut command, None);
    let started = command.spawn();
    if let Err(e) = &started {
        tracing::warn!(
            "/bin/sh: {e}: if this node is killed, processes that the server started may go on"
        );
    }
    started.ok()
}

/// Waits until process `pid` has ended, without reaping it: its id stays reserved.
fn wait_for_end(pid: libc::pid_t) {
    loop {
        // SAFETY: `info` is writable during the call; nothing reads it.
        let rc = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let what = libc::WEXITED | libc::WNOWAIT;
            libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, what)
        };
        if rc == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

fn signal(pid: libc::pid_t, signal: libc::c_int) {
    // SAFETY: a plain system call. The group id cannot be reused before the leader is reaped; both
    // callers hold the lock of `reaped` and the leader is not reaped yet.
    unsafe { libc::kill(-pid, signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_what_its_line_means_in_a_shell() {
        for (line, value) in [
            ("A=abc", "abc"),
            ("A=\"abc\"", "abc"),
            ("A='abc'", "abc"),
            ("export A=abc", "abc"),
            ("export\tA = 'abc' ", "abc"),
            ("A = abc\r", "abc"),
            ("  A=abc  ", "abc"),
            ("A=a=b=", "a=b="),
            ("A=abc # no comment", "abc # no comment"),
            ("A=it's", "it's"),
            ("A=\"it's\"", "it's"),
            ("A=", ""),
            ("A=''", ""),
        ] {
            let of_it = Some(Ok(("A".to_owned(), value.to_owned())));
            assert_eq!(variable(line), of_it, "{line}");
        }
        let exported = ("exported".to_owned(), "1".to_owned());
        assert_eq!(variable("exported=1"), Some(Ok(exported)));
        for line in ["", "  ", "# A=b", "\r"] {
            assert_eq!(variable(line), None, "{line:?}");
        }
        for (line, words) in [
            ("A", "is not `NAME=value`"),
            ("A: b", "is not `NAME=value`"),
            ("export A", "is not `NAME=value`"),
            ("=b", "no identifier"),
            ("9A=b", "no identifier"),
            ("A-B=c", "no identifier"),
            ("A B=c", "no identifier"),
            ("\u{feff}A=b", "no identifier"),
            ("A=\"b", "quote does not end"),
            ("A='b' # c", "quote does not end"),
            ("A=\"b\"c\"", "quote does not end"),
            ("A=b\0c", "zero byte"),
        ] {
            let error = variable(line).and_then(Result::err).unwrap_or("taken");
            assert!(error.contains(words), "{line:?}: {error}");
        }
    }
}
