//! Shared parts of the tests. Each run has its own process, because LoadGen allows one run per
//! process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loadgen_bridge::{
    LogSettings, QuerySample, QuerySampleLibrary, QuerySampleResponse, Scenario, SystemUnderTest,
    TestMode, TestSettings, complete,
};

/// Limit for a run, far above the duration of any; a run that hangs fails its test.
const DEADLINE: Duration = Duration::from_secs(60);
/// Variable that a test sets for its child process, to the test's name.
const CHILD: &str = "LOADGEN_BRIDGE_TEST_CHILD";
/// Variable with the folder in which the child process may write.
const FOLDER: &str = "LOADGEN_BRIDGE_TEST_FOLDER";

/// Makes a test of this name whose body runs in a child process and gets the test's folder.
macro_rules! isolated {
    ($test:ident, $body:expr) => {
        #[test]
        fn $test() {
            let test = concat!(module_path!(), "::", stringify!($test));
            crate::common::in_a_process_of_its_own(test, $body);
        }
    };
}

/// Runs `body` in a child process, which runs this test again. `test` is its path with the crate's
/// name. Panics if the child fails or exceeds the limit.
pub fn in_a_process_of_its_own(test: &str, body: impl FnOnce(&Path)) {
    let (_, test) = test.split_once("::").unwrap();
    if std::env::var(CHILD).as_deref() == Ok(test) {
        body(&PathBuf::from(std::env::var_os(FOLDER).unwrap()));
        // As a program does after its run, whether stopped or not.
        loadgen_bridge::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    let output = std::fs::File::create(folder.path().join("output")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, test)
        .env(FOLDER, folder.path())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let until = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = std::fs::read_to_string(folder.path().join("output")).unwrap_or_default();
    match status {
        Some(status) => assert!(status.success(), "{test} ended with {status}:\n{said}"),
        None => panic!("{test} did not end within {DEADLINE:?}:\n{said}"),
    }
}

pub struct Samples {
    pub total: usize,
    pub at_once: usize,
    pub loaded: Mutex<HashMap<usize, usize>>,
    pub loads: AtomicUsize,
}

impl Samples {
    pub fn new(total: usize, at_once: usize) -> Self {
        Self {
            total,
            at_once,
            loaded: Mutex::default(),
            loads: AtomicUsize::new(0),
        }
    }
}

impl QuerySampleLibrary for Samples {
    fn name(&self) -> String {
        "test QSL".to_owned()
    }
    fn total_sample_count(&self) -> usize {
        self.total
    }
    fn performance_sample_count(&self) -> usize {
        self.at_once
    }
    fn load_samples(&self, indices: &[usize]) {
        self.loads.fetch_add(indices.len(), Ordering::Relaxed);
        let mut loaded = self.loaded.lock().unwrap();
        for index in indices {
            assert!(*index < self.total);
            *loaded.entry(*index).or_default() += 1;
        }
    }
    fn unload_samples(&self, indices: &[usize]) {
        let mut loaded = self.loaded.lock().unwrap();
        for index in indices {
            let count = loaded.get_mut(index).expect("it was loaded");
            *count -= 1;
            if *count == 0 {
                loaded.remove(index);
            }
        }
    }
}

pub fn answer(index: usize) -> Vec<u8> {
    (index as u64)
        .to_le_bytes()
        .into_iter()
        .chain([0xA5])
        .take(1 + index % 9)
        .collect()
}

/// A SUT that completes inline and counts its calls.
#[derive(Default)]
pub struct Inline {
    pub names: AtomicU64,
    pub issued: AtomicU64,
    pub flushes: AtomicU64,
}

impl SystemUnderTest for Inline {
    fn name(&self) -> String {
        // A new name at each call: LoadGen keeps a reference to the old one.
        format!(
            "SUT that was asked {} times",
            self.names.fetch_add(1, Ordering::Relaxed) + 1
        )
    }
    fn issue_query(&self, samples: &[QuerySample]) {
        self.issued
            .fetch_add(samples.len() as u64, Ordering::Relaxed);
        answer_all(samples);
    }
    fn flush_queries(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn answer_all(samples: &[QuerySample]) {
    let answers: Vec<_> = samples
        .iter()
        .map(|sample| (sample.id, answer(sample.index)))
        .collect();
    let responses: Vec<_> = answers
        .iter()
        .map(|(id, data)| QuerySampleResponse::new(*id, data))
        .collect();
    // SAFETY: the callers pass each issued sample once, while the test runs.
    unsafe { complete(&responses) };
}

pub fn settings(scenario: Scenario, mode: TestMode) -> TestSettings {
    TestSettings {
        scenario,
        mode,
        server_target_qps: 2000.0,
        // A wide bound, since the machine's speed does not matter here.
        server_target_latency_ns: 5_000_000_000,
        offline_expected_qps: 20_000.0,
        min_duration_ms: 300,
        ..TestSettings::default()
    }
}

pub fn logs(folder: &Path) -> LogSettings {
    LogSettings {
        outdir: folder.join("logs"),
        enable_trace: false,
    }
}
