//! Boots the guest, prints its output as it grows, and returns its exit status.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use launch::Running;

use super::{Machine, NO_GUEST};

const TIMED_OUT: i32 = 124;

/// Files by which this program and the guest communicate.
const OURS: &[&str] = &["init", "command", "log", "status", "console", "emulator"];

/// Folders that the guest replaces: their content on this machine is invisible in the guest.
const HIDDEN: &[&str] = &["/dev", "/proc", "/run", "/sys"];

/// Runs the commands one after the other in one guest. The first that fails gives the status.
///
/// `QDL_GUEST_SECONDS` (default 240) limits the run, `QDL_GUEST_MIB` (default 2048) is the guest's
/// memory, and `QDL_GUEST_MTU` (default 1500) the cable's MTU. If `QDL_GUEST_KVM` is set, KVM
/// replaces emulation.
pub fn run(root: &Path, boots: &Path, machine: Machine, commands: &[Vec<String>]) -> Result<i32> {
    if let Some(folder) = hidden(root) {
        let why = format!("the checkout lies under {folder}, which the guest has of its own");
        return Err(anyhow!(why).context(NO_GUEST));
    }
    let out = root.join(format!(".deps/soft-roce/run-{}", std::process::id()));
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    fs::copy(root.join("xtask/soft-roce/guest.sh"), out.join("init"))?;
    fs::write(out.join("command"), script(root, machine, commands)?)?;
    let result = boot(boots, machine, &out);
    for name in OURS {
        fs::remove_file(out.join(name)).ok();
    }
    if fs::remove_dir(&out).is_err() {
        println!(
            "soft-roce: what the command left in /mnt/out is in {}",
            out.display()
        );
    }
    result
}

fn boot(boots: &Path, machine: Machine, out: &Path) -> Result<i32> {
    let seconds = setting("QDL_GUEST_SECONDS", 240)?;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut emulator = start(boots, machine, out).context(NO_GUEST)?;
    let mut log = Log {
        path: out.join("log"),
        shown: 0,
    };
    loop {
        let ended = emulator.try_status()?;
        log.show()?;
        if ended.is_some() {
            break;
        }
        if Instant::now() > deadline {
            if !log.path.exists() {
                let late = format!("it was not up after {seconds} s (QDL_GUEST_SECONDS)");
                return Err(anyhow!(late).context(NO_GUEST));
            }
            eprintln!("soft-roce: still running after {seconds} s (QDL_GUEST_SECONDS): ended");
            return Ok(TIMED_OUT);
        }
        sleep(Duration::from_millis(50));
    }
    judge(out)
}

/// The exit status in the guest's folder, or an error with the reason of its death. The guest
/// creates its log when it starts the first command.
fn judge(out: &Path) -> Result<i32> {
    let status = fs::read_to_string(out.join("status")).ok();
    if let Some(status) = status.and_then(|text| text.trim().parse().ok()) {
        return Ok(status);
    }
    let (emulator, console) = (tail(&out.join("emulator")), tail(&out.join("console")));
    if out.join("log").exists() {
        bail!("the guest died:\n{emulator}{console}");
    }
    let last = emulator.lines().chain(console.lines()).last();
    let last = last.unwrap_or("and the emulator says nothing").to_owned();
    let died = format!("it died before its first command: {last}\n{emulator}{console}");
    Err(anyhow!(died).context(NO_GUEST))
}

fn start(boots: &Path, machine: Machine, out: &Path) -> Result<Running> {
    let console = out.join("console");
    let messages = File::create(out.join("emulator"))?;
    let mib = setting("QDL_GUEST_MIB", 2048)?;
    let kernel_line =
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr nowatchdog rcupdate.rcu_expedited=1";
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none", "-M", "q35", "-cpu", "max"]);
    // Opt-in: inside a virtual machine KVM may exist and accept the guest, but never run it.
    if std::env::var_os("QDL_GUEST_KVM").is_some() {
        command.args(["-accel", "kvm"]);
    }
    command.args(["-accel", "tcg,thread=multi", "-m", &mib.to_string()]);
    command.args(machine.parts(mib));
    command.arg("-kernel").arg(boots.join("kernel"));
    command.arg("-initrd").arg(boots.join("initramfs"));
    command.args(["-append", kernel_line]);
    command.args(["-serial", &format!("file:{}", option(&console))]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
    for (id, path, more) in [
        ("host", "/".to_owned(), ",readonly=on,multidevs=remap"),
        ("out", option(out), ""),
    ] {
        let folder = format!("local,id={id},path={path},security_model=none{more}");
        let device = format!("virtio-9p-pci,fsdev={id},mount_tag={id},bus=pcie.0");
        command.args(["-fsdev", &folder, "-device", &device]);
    }
    command.stdout(messages.try_clone()?).stderr(messages);
    Running::start("the emulator", &mut command)
}

/// The folder that hides the checkout from the guest, if any.
fn hidden(root: &Path) -> Option<&'static str> {
    HIDDEN
        .iter()
        .copied()
        .find(|folder| root.starts_with(folder))
}

/// Escapes commas in a path for the emulator's options.
fn option(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// The guest's script: creates the devices, then runs each command in the repository's folder.
fn script(root: &Path, machine: Machine, commands: &[Vec<String>]) -> Result<String> {
    let mtu = setting("QDL_GUEST_MTU", 1500)?;
    let folder = quote(&root.display().to_string());
    let mut script = format!(
        "cd {folder} || exit 1\n. xtask/soft-roce/pair.sh\n{} {mtu} || exit 1\n\
         export QDL_RDMA_DEVICES=rxa,rxb\n\
         # Smaller buffers, and queues that the devices have: docs/ofi.md\n\
         export FI_OFI_RXM_BUFFER_SIZE=256 FI_UNIVERSE_SIZE=16\n",
        machine.devices()
    );
    for command in commands {
        let words: Vec<_> = command.iter().map(|word| quote(word)).collect();
        script.push_str(&words.join(" "));
        script.push_str(" || exit $?\n");
    }
    Ok(script)
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn setting(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name}={text} is no whole number")),
        Err(_) => Ok(default),
    }
}

/// The guest's output, printed as it grows.
struct Log {
    path: PathBuf,
    shown: u64,
}

impl Log {
    fn show(&mut self) -> Result<()> {
        // The guest's shell creates the file.
        let Ok(mut file) = File::open(&self.path) else {
            return Ok(());
        };
        file.seek(SeekFrom::Start(self.shown))?;
        let mut more = Vec::new();
        self.shown += file.read_to_end(&mut more)? as u64;
        let mut stdout = io::stdout().lock();
        stdout.write_all(&more)?;
        stdout.flush()?;
        Ok(())
    }
}

fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_never_ran_a_command_is_the_machines_fault_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        put("emulator", "qemu: cannot set up guest memory\n");
        let died = format!("{:#}", judge(folder.path()).unwrap_err());
        let first = died.lines().next().unwrap();
        assert!(
            first.starts_with(NO_GUEST) && first.ends_with("cannot set up guest memory"),
            "{died}"
        );
        put("log", "running 3 tests\n");
        let died = format!("{:#}", judge(folder.path()).unwrap_err());
        assert!(!died.contains(NO_GUEST), "{died}");
        put("status", "7\n");
        assert_eq!(judge(folder.path()).unwrap(), 7);
    }

    #[test]
    fn a_checkout_that_the_guest_cannot_see_is_said_beforehand() {
        for (root, folder) in [
            ("/dev/shm/a", Some("/dev")),
            ("/run/user/1/a", Some("/run")),
        ] {
            assert_eq!(hidden(Path::new(root)), folder);
        }
        for root in ["/tmp/a", "/home/a/run", "/developer/a"] {
            assert_eq!(hidden(Path::new(root)), None, "{root}");
        }
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_an_option() {
        assert_eq!(option(Path::new("/a b/c,d")), "/a b/c,,d");
    }

    #[test]
    fn words_reach_the_shell_unchanged() {
        let word = r#"a 'b' "$c" \d"#;
        let output = Command::new("sh")
            .arg("-c")
            .arg(format!("printf %s {}", quote(word)))
            .output()
            .expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), word);
    }

    #[test]
    fn the_script_stops_at_the_first_command_that_fails() {
        let script = script(
            Path::new("/repo"),
            Machine::Plain,
            &[
                vec!["one".to_owned()],
                vec!["two".to_owned(), "a b".to_owned()],
            ],
        );
        let script = script.expect("default settings");
        assert!(
            script.ends_with("'one' || exit $?\n'two' 'a b' || exit $?\n"),
            "{script}"
        );
    }
}
