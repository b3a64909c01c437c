//! Other programs: started without standard input,
//! waited for with a deadline, and never left behind.

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// How often a child that runs is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a child may take to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long the output of a child that has ended may still be held open by one of its own children.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// A child that ends with its guard: SIGTERM first, SIGKILL when that does not help.
pub struct Running {
    name: String,
    child: Child,
    grace: Duration,
}

impl Running {
    /// Starts `command`. The kernel kills the child when
    /// this program dies without running its destructors.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null());
        let parent = std::process::id();
        // SAFETY: between fork and exec the closure calls prctl, getppid and _exit only, all of
        // them async-signal-safe, and touches no memory but its own copy of `parent`.
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

    /// The child's standard output, once, when it is piped.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// The child's standard error, once, when it is piped.
    pub fn stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// The exit status, if the child has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("{}: waitpid", self.name))
    }

    /// Waits until the child ends; at the deadline it is ended, and that is an error.
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
            if let Some(status) = self.ended()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends the child and takes its status. Does nothing to a child that has ended.
    pub fn end(&mut self) {
        if matches!(self.ended(), Ok(Some(_))) {
            return;
        }
        if let Ok(pid) = libc::pid_t::try_from(self.child.id()) {
            // SAFETY: kill takes no pointers; the child has not
            // been waited for, so its id is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        if matches!(self.wait_until(Instant::now() + self.grace), Ok(Some(_))) {
            return;
        }
        // What fails here has no remedy: the child is gone,
        // or the kernel will kill it with this program.
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

/// Runs `command` silently. Where it fails, the end of what it wrote is the error.
pub fn run_quietly(name: &str, command: &mut Command, deadline: Duration) -> Result<String> {
    let (status, output) = run_copying(name, command, deadline, false)?;
    if status.success() {
        return Ok(output);
    }
    let lines: Vec<&str> = output.lines().collect();
    let tail = lines[lines.len().saturating_sub(40)..].join("\n");
    bail!("{name}: {status}\n  {}\n{tail}", shown(command))
}

/// Runs `command`, gives back what it writes, standard output before
/// standard error, and with `show` also shows it as it comes.
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
        .map(|pipe| copied(pipe, show.then(std::io::stdout)));
    let errors = running
        .stderr()
        .map(|pipe| copied(pipe, show.then(std::io::stderr)));
    let status = running.wait(deadline)?;
    // One after the other: a line of one must not be cut by a piece of the other.
    let text: String = [output, errors]
        .into_iter()
        .flatten()
        .map(|from| collect(&from) + "\n")
        .collect();
    Ok((status, text))
}

/// Copies a pipe to a terminal and to a channel until it closes, on a thread of its own.
fn copied(
    mut from: impl Read + Send + 'static,
    mut to: Option<impl Write + Send + 'static>,
) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if let Some(to) = &mut to {
                // A closed terminal is no reason to stop reading: the child would block.
                let _ = to.write_all(&buffer[..length]).and_then(|()| to.flush());
            }
            if sender.send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// All that came through one pipe. Ends when the pipe is closed, or a while after the child ended:
/// a process that it left behind may hold the pipe open.
fn collect(receiver: &Receiver<Vec<u8>>) -> String {
    let mut bytes = Vec::new();
    while let Ok(part) = receiver.recv_timeout(LAST_OUTPUT) {
        bytes.extend(part);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command as a shell would take it, for messages.
pub fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Whether a program of this name lies on the search path.
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// Cargo, as this program was started by it, with none of what it set for this program alone.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
            || name.starts_with("CARGO_BIN_")
        {
            command.env_remove(&key);
        }
    }
    command
}

/// The folder that cargo builds into.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

/// Where to build instead, when the checkout's path has a blank in it and no `CARGO_TARGET_DIR`
/// says where: jemalloc's configure script refuses such a path.
pub fn target_elsewhere(root: &Path) -> Option<PathBuf> {
    if std::env::var_os("CARGO_TARGET_DIR").is_some() {
        return None;
    }
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    elsewhere(root, [cache, home].into_iter().flatten())
}

fn elsewhere(root: &Path, caches: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let blank = |path: &Path| path.to_string_lossy().contains(char::is_whitespace);
    if !blank(root) {
        return None;
    }
    let whole: String = Sha256::digest(root.as_os_str().as_bytes())
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut caches = caches.filter(|cache| cache.is_absolute() && !blank(cache));
    let cache = caches.next().unwrap_or_else(std::env::temp_dir);
    Some(cache.join(format!("qdl-target-{whole}")))
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

    #[test]
    fn output_is_collected_from_both_pipes() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2"]);
        let output = run_quietly("talker", &mut command, Duration::from_secs(60)).unwrap();
        assert!(output.contains("one") && output.contains("two"), "{output}");
    }

    #[test]
    fn a_checkout_whose_path_has_a_blank_is_built_elsewhere() {
        let caches = || ["relative", "/home/a b/.cache", "/home/a/.cache"].map(PathBuf::from);
        let of = |root: &str| elsewhere(Path::new(root), caches().into_iter());
        assert_eq!(of("/home/a/checkout"), None);
        let (one, other) = (of("/home/a/my checkout"), of("/home/a/my other"));
        let name = one.as_deref().and_then(Path::to_str).expect("elsewhere");
        assert!(name.starts_with("/home/a/.cache/qdl-target-"), "{name}");
        assert_ne!(one, other);
        let none = elsewhere(Path::new("/a b"), std::iter::empty()).expect("elsewhere");
        assert!(none.starts_with(std::env::temp_dir()));
    }
}
