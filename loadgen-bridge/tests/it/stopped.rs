//! Runs that a panic or `abort_test` stops. Issued samples complete late or never.

use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::common::{Inline, Samples, answer_all, logs, settings};
use loadgen_bridge::{
    LoadgenError, QuerySample, QuerySampleLibrary, Scenario, SystemUnderTest, TestMode,
    TestSettings, abort_test, run_test,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Panics {
    InName,
    InIssue,
    InFlush,
    Never,
}

/// A SUT that sends issued samples to another thread, until it panics.
struct Faulty {
    panics: Panics,
    issued: AtomicU64,
    issued_to: Mutex<Sender<Vec<QuerySample>>>,
}

impl SystemUnderTest for Faulty {
    fn name(&self) -> String {
        assert!(self.panics != Panics::InName, "no name today");
        "faulty".to_owned()
    }
    fn issue_query(&self, samples: &[QuerySample]) {
        let before = self
            .issued
            .fetch_add(samples.len() as u64, Ordering::Relaxed);
        self.issued_to
            .lock()
            .unwrap()
            .send(samples.to_vec())
            .unwrap();
        assert!(
            self.panics != Panics::InIssue || before < 50,
            "query {before} is too many"
        );
    }
    fn flush_queries(&self) {
        assert!(self.panics != Panics::InFlush, "nothing to flush");
    }
}

fn run(
    folder: &Path,
    panics: Panics,
    settings: &TestSettings,
    serve: impl Fn(Vec<QuerySample>) + Send + 'static,
) -> LoadgenError {
    let (sender, receiver) = channel();
    let serving = thread::spawn(move || receiver.into_iter().for_each(serve));
    let sut = Arc::new(Faulty {
        panics,
        issued: AtomicU64::new(0),
        issued_to: Mutex::new(sender),
    });
    let qsl = Arc::new(Samples::new(64, 64));
    let error = run_test(sut, qsl, settings, &logs(folder), None).unwrap_err();
    assert!(
        !serving.is_finished(),
        "LoadGen's thread still holds the SUT"
    );
    // LoadGen has closed its logs.
    let summary = fs::read_to_string(logs(folder).files().summary).unwrap();
    assert!(summary.contains("encountered during test"), "{summary}");
    let accuracy = fs::read_to_string(logs(folder).files().accuracy).unwrap();
    assert!(accuracy.trim_end().ends_with(']'), "{accuracy}");
    error
}

/// Settings with far more queries than the test issues; LoadGen prepares all of them beforehand.
fn long(scenario: Scenario) -> TestSettings {
    TestSettings {
        min_duration_ms: 20_000,
        server_target_qps: 500.0,
        ..settings(scenario, TestMode::PerformanceOnly)
    }
}

isolated!(a_panic_in_issue_query, |folder| {
    // The other thread goes on completing, the panicked query too.
    let error = run(folder, Panics::InIssue, &long(Scenario::Server), |s| {
        answer_all(&s)
    });
    let text = error.to_string();
    assert!(matches!(error, LoadgenError::Panicked { .. }), "{text}");
    assert!(
        text.contains("issue_query") && text.contains("query 50 is too many"),
        "{text}"
    );
});

/// A run with two issue threads, which both end with the run.
fn with_issue_threads(run: impl FnOnce(&TestSettings)) {
    let settings = TestSettings {
        server_num_issue_query_threads: 2,
        ..long(Scenario::Server)
    };
    run(&settings);
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let names = || {
        fs::read_dir("/proc/self/task")
            .unwrap()
            .flatten()
            .filter_map(name)
    };
    while names().any(|name| name == "issue\n") {
        thread::sleep(Duration::from_millis(5));
    }
}

isolated!(a_panic_on_an_issue_thread, |folder| {
    with_issue_threads(|settings| {
        let error = run(folder, Panics::InIssue, settings, |s| answer_all(&s));
        assert!(matches!(error, LoadgenError::Panicked { .. }), "{error}");
    });
});

isolated!(a_panic_in_name, |folder| {
    let error = run(folder, Panics::InName, &long(Scenario::Offline), |s| {
        answer_all(&s)
    });
    assert!(
        error.to_string().contains("name panicked") && error.to_string().contains("no name today"),
        "{error}"
    );
});

isolated!(a_panic_in_flush_queries, |folder| {
    let settings = settings(Scenario::Offline, TestMode::AccuracyOnly);
    let error = run(folder, Panics::InFlush, &settings, |s| answer_all(&s));
    assert!(error.to_string().contains("nothing to flush"), "{error}");
});

struct Unloadable;

impl QuerySampleLibrary for Unloadable {
    fn name(&self) -> String {
        "unloadable".to_owned()
    }
    fn total_sample_count(&self) -> usize {
        8
    }
    fn performance_sample_count(&self) -> usize {
        8
    }
    fn load_samples(&self, _: &[usize]) {
        panic!("the disk is gone");
    }
    fn unload_samples(&self, _: &[usize]) {}
}

isolated!(a_panic_in_load_samples, |folder| {
    let sut = Arc::new(Inline::default());
    let settings = settings(Scenario::Server, TestMode::PerformanceOnly);
    let error = run_test(sut, Arc::new(Unloadable), &settings, &logs(folder), None).unwrap_err();
    assert!(
        error.to_string().contains("load_samples panicked") && error.to_string().contains("disk"),
        "{error}"
    );
});

/// Aborts the test after its 20th query, from a thread that is not LoadGen's.
fn abort_after_some(
    scenario: Scenario,
    answered: bool,
) -> impl Fn(Vec<QuerySample>) + Send + 'static {
    let seen = AtomicU64::new(0);
    let at = if scenario == Scenario::Offline { 0 } else { 20 };
    move |samples| {
        if answered {
            answer_all(&samples);
        }
        if seen.fetch_add(1, Ordering::Relaxed) == at {
            abort_test("the peer is gone");
            abort_test("a second reason");
        }
    }
}

/// A run that is stopped after some of its queries, which were answered or are outstanding.
fn aborted(folder: &Path, settings: &TestSettings, answered: bool) {
    let serve = abort_after_some(settings.scenario, answered);
    let error = run(folder, Panics::Never, settings, serve);
    assert!(
        matches!(&error, LoadgenError::Aborted { reason } if reason == "the peer is gone"),
        "{error}"
    );
}

isolated!(abort_in_server_with_everything_outstanding, |folder| {
    aborted(folder, &long(Scenario::Server), false);
});

isolated!(abort_in_server_while_completing, |folder| {
    let settings = TestSettings {
        server_target_qps: 20_000.0,
        min_duration_ms: 10_000,
        ..long(Scenario::Server)
    };
    aborted(folder, &settings, true);
    // The other thread completes what had been issued, for a while, into a test that is over.
    thread::sleep(Duration::from_millis(50));
});

isolated!(abort_in_offline_with_the_query_outstanding, |folder| {
    let settings = settings(Scenario::Offline, TestMode::PerformanceOnly);
    aborted(folder, &settings, false);
});

isolated!(abort_with_issue_threads, |folder| {
    with_issue_threads(|settings| aborted(folder, settings, false));
});

isolated!(abort_before_the_run, |folder| {
    abort_test("interrupted");
    let (sut, qsl) = (Arc::new(Inline::default()), Arc::new(Samples::new(8, 8)));
    let error = run_test(sut, qsl, &long(Scenario::Server), &logs(folder), None).unwrap_err();
    assert!(
        matches!(&error, LoadgenError::Aborted { reason } if reason == "interrupted"),
        "{error}"
    );
});

isolated!(an_ordinary_end_of_the_process_after_an_abort, |folder| {
    let serve = abort_after_some(Scenario::Server, false);
    run(folder, Panics::Never, &long(Scenario::Server), serve);
    // Runs LoadGen's destructors.
    std::process::exit(0);
});
