//! Starts programs without standard input, waits for them with a deadline, and ends them on drop.
//! `cargo xtask` and `qdl demo` start everything through this crate.

mod accelerator;

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

pub use accelerator::Accelerator;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time that a child has to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum time to wait for output from a grandchild that keeps an ended child's pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// A child process that ends on drop: SIGTERM first, then SIGKILL.
pub struct Running {
    name: String,
    child: Child,
    grace: Duration,
}

impl Running {
    /// Starts `command`. The kernel kills the child if this program dies without destructors.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null());
        let parent = std::process::id();
        // SAFETY: between fork and exec the closure calls only prctl, getppid and _exit, which are
        // async-signal-safe, and touches only its own copy of `parent`.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // The parent may have died before the line above.
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| {
            format!(
                "{name}: cannot start {}",
                command.get_program().to_string_lossy()
            )
        })?;
        Ok(Self {
            name: name.to_owned(),
            child,
            grace: GRACE,
        })
    }

    /// Takes the child's standard output, if it is piped and not yet taken.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Takes the child's standard error, if it is piped and not yet taken.
    pub fn stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// The child's exit status, if it has ended.
    pub fn try_status(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("{}: waitpid", self.name))
    }

    /// Waits until the child ends. At the deadline it ends the child and returns an error.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        match self.wait_until(Instant::now() + deadline)? {
            Some(status) => Ok(status),
            None => {
                self.end();
                let seconds = deadline.as_secs();
                bail!("{}: not done after {seconds} s; it was ended", self.name)
            }
        }
    }

    fn wait_until(&mut self, until: Instant) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.try_status()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends the child and reaps it. Does nothing if the child has ended.
    pub fn end(&mut self) {
        if matches!(self.try_status(), Ok(Some(_))) {
            return;
        }
        if let Ok(pid) = libc::pid_t::try_from(self.child.id()) {
            // SAFETY: kill takes no pointers; the child is not reaped yet, so the pid is still the
            // child's.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        if matches!(self.wait_until(Instant::now() + self.grace), Ok(Some(_))) {
            return;
        }
        // An error here has no remedy: the child is gone, or the kernel kills it with this program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs `command` with this program's own output.
pub fn run(name: &str, command: &mut Command, deadline: Duration) -> Result<ExitStatus> {
    Running::start(name, command)?.wait(deadline)
}

/// Runs `command` silently and returns its output. On failure the error has the last 40 lines.
pub fn run_quietly(name: &str, command: &mut Command, deadline: Duration) -> Result<String> {
    let (status, output) = run_copying(name, command, deadline, false)?;
    if status.success() {
        return Ok(output);
    }
    let lines: Vec<&str> = output.lines().collect();
    let tail = lines[lines.len().saturating_sub(40)..].join("\n");
    bail!("{name}: {status}\n  {}\n{tail}", command_line(command))
}

/// Runs `command` and returns its standard output followed by its standard error. With `show`,
/// prints both as they arrive.
pub fn run_copying(
    name: &str,
    command: &mut Command,
    deadline: Duration,
    show: bool,
) -> Result<(ExitStatus, String)> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(name, command)?;
    let output = running
        .stdout()
        .map(|pipe| copy_pipe(pipe, show.then(std::io::stdout)));
    let errors = running
        .stderr()
        .map(|pipe| copy_pipe(pipe, show.then(std::io::stderr)));
    let status = running.wait(deadline)?;
    // Standard output first, then standard error, so that lines do not mix.
    let text: String = [output, errors]
        .into_iter()
        .flatten()
        .map(|from| collect(&from) + "\n")
        .collect();
    Ok((status, text))
}

/// Copies a pipe to a terminal and to a channel until the pipe closes, on a new thread.
fn copy_pipe(
    mut from: impl Read + Send + 'static,
    mut to: Option<impl Write + Send + 'static>,
) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if let Some(to) = &mut to {
                // Go on reading after the terminal closes: otherwise the child would block.
                let _ = to.write_all(&buffer[..length]).and_then(|()| to.flush());
            }
            if sender.send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Collects everything from one pipe until it closes, or until [`LAST_OUTPUT`] passes without data:
/// a grandchild may keep the pipe open.
fn collect(receiver: &Receiver<Vec<u8>>) -> String {
    let mut bytes = Vec::new();
    while let Ok(part) = receiver.recv_timeout(LAST_OUTPUT) {
        bytes.extend(part);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads a JSON file; the error names the file.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Writes `value` as indented JSON with a last newline.
pub fn write_json(path: &Path, value: &(impl Serialize + ?Sized)) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    disk::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The program and its arguments, separated by blanks.
pub fn command_line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Whether a folder of `PATH` has this program.
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_ended() {
        let error = run(
            "sleep",
            Command::new("sleep").arg("600"),
            Duration::from_millis(50),
        )
        .unwrap_err();
        let error = error.to_string();
        assert!(error.contains("sleep: not done"), "{error}");
    }

    #[test]
    fn a_child_that_ignores_sigterm_is_killed_with_its_guard() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"])
            .stdout(Stdio::piped());
        let mut running = Running::start("stubborn", &mut command).unwrap();
        let mut up = [0; 3];
        running.stdout().unwrap().read_exact(&mut up).unwrap();
        let pid = running.child.id();
        running.grace = Duration::from_millis(100);
        drop(running);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_failure_shows_what_the_child_wrote() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let error = run_quietly("talker", &mut command, Duration::from_secs(60))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("out") && error.contains("err") && error.contains("exit status: 3"),
            "{error}"
        );
    }
}
