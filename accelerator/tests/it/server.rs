//! The server process of `engine.http.command`, started by the real program: its inherited state,
//! and its end with any end of the node.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use qdl::testkit::{assert_has, eventually};

use crate::processes::{free_port, is_running, pids, stat};

/// Answers like vLLM's server; see `command.rs` of the engine.
const SERVER: &str = include_str!("../../../engines/src/llm_server/http/tests/server.py");
/// An engine core of vLLM: a process that starts a second one, which starts a third.
const CORE: &str = include_str!("../../../engines/src/llm_server/vllm/tests/core.py");
/// Soft limit of open files at the node's start. 512 requests at once need more, so the engine
/// raises the limit before it starts the server.
const OPEN_FILES: libc::rlim_t = 600;

/// A running node, and the folder with the server's files. Dropping it kills node and server.
struct Node {
    program: Child,
    folder: tempfile::TempDir,
}

impl Node {
    /// Starts a node whose server command is `words`. In it, `SERVER` stands for the command of a
    /// server with this habit, and `PIDS` for the file of its process ids.
    fn start(words: &[&str], habit: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("server.py"), SERVER).expect("written");
        let port = free_port();
        let server = format!(
            "python3 {} {habit} {} {port}",
            path("server.py"),
            path("pids")
        );
        let words = words.iter().flat_map(|word| match *word {
            "SERVER" => server.split(' ').map(str::to_owned).collect(),
            word => vec![
                word.replace("SERVER", &server)
                    .replace("PIDS", &path("pids")),
            ],
        });
        let command: Vec<_> = words.map(|word| format!("{word:?}")).collect();
        let engine = format!(
            "{{kind: http, http: {{url: \"http://127.0.0.1:{port}\", dialect: vllm, vocab: 100, \
             in_flight: 512, command: [{}], stop_s: 1}}}}",
            command.join(", ")
        );
        Self::of(folder, &engine)
    }

    fn with_core() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("core.py"), CORE).expect("written");
        let config = r#"{"vocab_size": 100, "eos_token_id": 2}"#;
        fs::write(path("config.json"), config).expect("written");
        let (model, script, pids) = (path(""), path("core.py"), path("pids"));
        let engine = format!(
            "{{kind: vllm, vllm: {{model: {model:?}, command: [python3, {script:?}], \
             args: [--pids, {pids:?}], stop_s: 1}}}}"
        );
        Self::of(folder, &engine)
    }

    fn of(folder: tempfile::TempDir, engine: &str) -> Self {
        let config = format!(
            "node: a\ncontrol: {{listen: 127.0.0.1:0}}\nauth: none\n\
             model: {{name: m, inputs: [{{name: p, dtype: i32, shape: [8], ragged: true}}], \
             output: {{name: t, dtype: i32, shape: [8], ragged: true}}}}\n\
             engine: {engine}\nnics: [{{listen: 127.0.0.1:0}}]\n"
        );
        let file = folder.path().join("a.yaml");
        fs::write(&file, config).expect("written");
        let mut node = Command::new(env!("CARGO_BIN_EXE_accelerator"));
        node.arg("--config").arg(file);
        node.stdout(Stdio::piped()).stderr(Stdio::piped());
        let limit = libc::rlimit {
            rlim_cur: OPEN_FILES,
            rlim_max: 4096,
        };
        // SAFETY: between fork and exec, the closure only makes system calls.
        unsafe {
            node.pre_exec(move || {
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                libc::signal(libc::SIGUSR1, libc::SIG_IGN);
                // A descriptor without close-on-exec, as some libraries open.
                libc::dup2(1, 77);
                Ok(())
            });
        }
        let program = node.spawn().expect("the accelerator runs");
        Node { program, folder }
    }

    fn ready(mut self) -> Self {
        let out = self.program.stdout.take().expect("piped");
        let ready = BufReader::new(out).lines().map_while(Result::ok);
        let ready = ready.into_iter().any(|line| line.starts_with("ready"));
        if !ready {
            let (code, said) = self.ended();
            panic!("{code:?}: {said}");
        }
        self
    }

    fn signal(&self, signal: i32) {
        // SAFETY: `kill` touches no memory; the child is not reaped, so it still has this id.
        unsafe { libc::kill(self.program.id() as libc::pid_t, signal) };
    }

    /// Waits for the node's end; returns its exit code and standard error.
    fn ended(&mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let err = self.program.stderr.take().expect("piped");
        BufReader::new(err).read_to_string(&mut said).expect("text");
        (self.program.wait().expect("it ends").code(), said)
    }

    fn server(&self) -> Vec<i32> {
        pids(self.folder.path())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn wait_for_end(pids: &[i32]) {
    eventually("they are gone", || !pids.iter().any(|pid| is_running(*pid)));
}

const DIRECT: &[&str] = &["SERVER"];
/// A shell that starts the server, waits for it, and forwards no signal.
const SCRIPT: &[&str] = &["sh", "-c", "SERVER; true"];

#[test]
fn a_killed_node_takes_its_server_and_all_that_it_started_along() {
    for (words, habit) in [(DIRECT, "good"), (DIRECT, "deaf"), (SCRIPT, "good")] {
        let node = Node::start(words, habit).ready();
        let server = node.server();
        assert!(server.iter().all(|pid| is_running(*pid)), "{server:?}");
        node.signal(libc::SIGKILL);
        wait_for_end(&server);
    }
    // A core does not notice that its front end is gone.
    let node = Node::with_core().ready();
    let core = node.server();
    assert_eq!(core.len(), 3);
    assert!(core.iter().all(|pid| is_running(*pid)), "{core:?}");
    node.signal(libc::SIGKILL);
    wait_for_end(&core);
}

#[test]
fn a_node_that_gets_a_signal_ends_its_server_with_sigterm_and_then_sigkill() {
    for (signal, habit) in [
        (libc::SIGTERM, "good"),
        (libc::SIGINT, "good"),
        (libc::SIGTERM, "deaf"),
    ] {
        let mut node = Node::start(DIRECT, habit).ready();
        let server = node.server();
        node.signal(signal);
        let (code, said) = node.ended();
        assert_eq!(code, Some(0), "{said}");
        let killed = said.contains("did not end within");
        assert_eq!(killed, habit == "deaf", "{said}");
        wait_for_end(&server);
    }
}

#[test]
fn a_node_that_waits_for_its_server_can_be_stopped() {
    let mut node = Node::start(&["sh", "-c", "echo $$ > PIDS; sleep 600"], "good");
    let pids = node.folder.path().join("pids");
    eventually("it is started", || {
        fs::read_to_string(&pids).is_ok_and(|t| t.ends_with('\n'))
    });
    let server = node.server();
    node.signal(libc::SIGTERM);
    let (code, said) = node.ended();
    assert_eq!(code, Some(0), "{said}");
    assert_has(&said, &["was told to stop (signal 15) before it was ready"]);
    wait_for_end(&server);
}

#[test]
fn a_server_inherits_no_mask_no_handler_no_descriptor_and_no_limit() {
    let node = Node::start(SCRIPT, "good").ready();
    // Look at the shell, because Python changes its inherited state.
    let shell: i32 = stat(node.server()[0])[1].parse().expect("a parent");
    let read = |name: &str| fs::read_to_string(format!("/proc/{shell}/{name}")).expect("readable");
    let status = read("status");
    for field in ["SigBlk", "SigIgn"] {
        let line = status
            .lines()
            .find(|l| l.starts_with(field))
            .expect("a mask");
        let mask = line.split_whitespace().last().expect("a mask");
        let mask = u64::from_str_radix(mask, 16).expect("a mask");
        // Signals 32 and 33 belong to the C library.
        assert_eq!(mask & !(0b11 << 31), 0, "{line}");
    }
    let folder = fs::read_dir(Path::new("/proc").join(shell.to_string()).join("fd"));
    let files = folder.expect("readable").flatten();
    let open: Vec<_> = files.map(|e| e.file_name()).collect();
    assert!(
        open.iter()
            .all(|fd| ["0", "1", "2"].map(Into::into).contains(fd)),
        "{open:?}"
    );
    let limits = read("limits");
    let files = limits
        .lines()
        .find(|l| l.starts_with("Max open files"))
        .expect("a limit");
    let soft = files.split_whitespace().nth(3);
    assert_eq!(soft, Some(OPEN_FILES.to_string().as_str()), "{files}");
}
