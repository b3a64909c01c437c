//! Builds a plan from ONNX in a child process: TensorRT's builder takes minutes and gigabytes, and
//! some versions crash at exit. Only the written plan counts.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{libraries::parser_beside, order::Order, shim::Library};
use crate::{EngineError, child, cuda::Device};

/// First argument of the child's command line.
const WORD: &str = "tensorrt-build";
/// Time limit of a build: a large model on a slow machine takes long.
const DEADLINE: Duration = Duration::from_secs(3600);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time after which `carry_out` calls `slow`; an invalid model fails earlier.
const SAY_AFTER: Duration = Duration::from_secs(15);

impl Order {
    fn partial(&self) -> PathBuf {
        let mut name = self.plan.clone().into_os_string();
        name.push(format!(".{}.partial", std::process::id()));
        name.into()
    }

    /// Path of the child's log. After a failed build, the log is kept.
    pub fn log(&self) -> PathBuf {
        self.plan.with_extension("log")
    }

    /// Runs the child and waits for the plan. Calls `slow` if the build takes longer than 15 s.
    /// Error: the last line of the child's log.
    pub fn carry_out(&self, slow: impl FnOnce()) -> Result<(), EngineError> {
        let refuse = |reason: String| EngineError::model(&self.onnx, reason);
        let log = self.log();
        let no_child = |e: io::Error| refuse(format!("no plan can be built: {e}"));
        let lines = File::create(&log)
            .map_err(|e| refuse(format!("no plan can be built: {}: {e}", log.display())))?;
        let order = serde_json::to_string(self).map_err(|e| no_child(e.into()))?;
        let mut command = Command::new(std::env::current_exe().map_err(no_child)?);
        command
            .args([WORD, &order])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(lines);
        child::isolate(&mut command, Some(libc::SIGKILL));
        let mut child = command.spawn().map_err(no_child)?;
        let (began, mut slow) = (Instant::now(), Some(slow));
        let until = began + DEADLINE;
        let status = loop {
            match child.try_wait().map_err(no_child)? {
                Some(status) => break status,
                None if Instant::now() < until => {
                    if began.elapsed() > SAY_AFTER
                        && let Some(slow) = slow.take()
                    {
                        slow();
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
                None => {
                    // Kill and reap the child; its exit status says nothing.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(refuse(format!(
                        "no plan after {} s; its log is {}",
                        DEADLINE.as_secs(),
                        log.display()
                    )));
                }
            }
        };
        if self.plan.is_file() {
            let _ = fs::remove_file(&log);
            return Ok(());
        }
        let last = child::last_line(&log).unwrap_or_else(|| "it said nothing".to_owned());
        let said = last.strip_prefix("error: ").unwrap_or(&last);
        let how = if status.code() == Some(2) {
            String::new()
        } else {
            format!("{status}: ")
        };
        Err(refuse(format!(
            "no plan came of it: {how}{said} (log: {})",
            log.display()
        )))
    }

    fn build(&self) -> Result<(), EngineError> {
        let device = Device::open(self.gpu)?;
        device.bind()?;
        let library = Library::open(&self.shim, |_| Ok(self.library.clone()))?;
        let parser = parser_beside(&library.path, &library.version());
        let partial = self.partial();
        let built = library.build(self, &parser, &partial);
        let written = built.and_then(|()| {
            fs::rename(&partial, &self.plan)
                .map_err(|e| EngineError::model(&self.plan, format!("cannot be written: {e}")))
        });
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written
    }
}

/// Builds the plan and ends the process, if this is the child. Programs call this first in `main`.
pub fn build_if_asked() {
    let mut words = std::env::args_os().skip(1);
    if words.next().as_deref() != Some(WORD.as_ref()) {
        return;
    }
    let order = words.next().map(OsString::into_string);
    let order = match order {
        Some(Ok(text)) => serde_json::from_str::<Order>(&text).map_err(|e| e.to_string()),
        _ => Err("an order is missing".to_owned()),
    };
    let done = order.and_then(|order| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(io::stderr)
            .with_ansi(false)
            .without_time()
            .with_level(false)
            .with_target(false)
            .init();
        order.build().map_err(|e| e.to_string())
    });
    let code = match done {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("error: {e}");
            2
        }
    };
    // Ends without destructors: some versions of TensorRT crash in them.
    // SAFETY: `_exit` only ends the process; the plan is written and closed.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::{super::Precision, *};

    #[test]
    fn an_order_survives_the_command_line() {
        let order = Order {
            shim: "/a b/shim.so".into(),
            library: "/c".into(),
            onnx: "m\"x.onnx".into(),
            plan: "p".into(),
            precision: Precision::Int8,
            profiles: vec![1, 512],
            optimization_level: Some(2),
            gpu: 3,
        };
        let text = serde_json::to_string(&order).expect("JSON");
        assert_eq!(serde_json::from_str::<Order>(&text).expect("JSON"), order);
    }
}
