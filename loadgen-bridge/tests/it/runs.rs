//! Runs that LoadGen completes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{Inline, Samples, answer, answer_all, logs, settings};
use loadgen_bridge::{
    AccuracyLog, AccuracyRecord, Figure, LogSettings, QuerySample, QuerySampleResponse, Scenario,
    SystemUnderTest, TestMode, TestOutcome, TestSettings, Verdict, complete, first_token_complete,
    outgrow_log, run_test,
};

#[track_caller]
fn assert_valid(outcome: &TestOutcome) {
    let word = (outcome.verdict, outcome.errors);
    assert_eq!(word, (Verdict::Valid, 0), "{}", errors_of(outcome));
}

fn records(outcome: &TestOutcome) -> Vec<AccuracyRecord> {
    let log = AccuracyLog::open(&outcome.files.accuracy).unwrap();
    log.collect::<Result<_, _>>().unwrap()
}

fn errors_of(outcome: &TestOutcome) -> String {
    format!("{:?} {:?}", outcome.reasons, outcome.detail.error_messages)
}

/// Runs an inline SUT over 64 samples; LoadGen loads 48 of them at once.
fn run_inline(folder: &Path, settings: &TestSettings) -> (TestOutcome, Arc<Inline>, Arc<Samples>) {
    let sut = Arc::new(Inline::default());
    let qsl = Arc::new(Samples::new(64, 48));
    let outcome = run_test(sut.clone(), qsl.clone(), settings, &logs(folder), None).unwrap();
    assert!(
        qsl.loaded.lock().unwrap().is_empty(),
        "everything that was loaded was unloaded"
    );
    (outcome, sut, qsl)
}

isolated!(server_performance, |folder| {
    let (outcome, sut, qsl) = run_inline(
        folder,
        &settings(Scenario::Server, TestMode::PerformanceOnly),
    );
    assert_valid(&outcome);
    assert!(matches!(outcome.figure, Some(Figure::CompletedSamplesPerSecond(rate)) if rate > 0.0));
    // Both calls reached the SUT, and the summary has the second name.
    assert_eq!(sut.names.load(Ordering::Relaxed), 2);
    assert_eq!(outcome.sut_name, "SUT that was asked 2 times");
    let detail = fs::read_to_string(&outcome.files.detail).unwrap();
    assert!(detail.contains("SUT that was asked 1 times"));
    assert!(outcome.detail.whole("get_sut_name_duration_ns").is_some());
    assert!(sut.issued.load(Ordering::Relaxed) > 100);
    assert_eq!(
        (
            sut.flushes.load(Ordering::Relaxed),
            qsl.loads.load(Ordering::Relaxed)
        ),
        (1, 48)
    );
    assert_eq!(outcome.detail.get("effective_target_qps"), Some("2000"));
});

isolated!(a_run_that_is_too_short_is_invalid_and_says_why, |folder| {
    let mut settings = settings(Scenario::Offline, TestMode::PerformanceOnly);
    settings.min_duration_ms = 60_000;
    settings.offline_expected_qps = 10.0;
    let (outcome, _, _) = run_inline(folder, &settings);
    assert_eq!(outcome.verdict, Verdict::Invalid);
    assert!(matches!(outcome.figure, Some(Figure::SamplesPerSecond(rate)) if rate > 0.0));
    // Performance mode logs no responses.
    assert_eq!(records(&outcome), []);
    for part in ["Min duration", "Increase expected QPS"] {
        let mut reasons = outcome.reasons.iter();
        assert!(reasons.any(|r| r.contains(part)), "{}", errors_of(&outcome));
    }
});

// The log has every sample of the QSL once, with its own answer.
isolated!(offline_accuracy, |folder| {
    let settings = settings(Scenario::Offline, TestMode::AccuracyOnly);
    let (outcome, sut, qsl) = run_inline(folder, &settings);
    let word = (outcome.verdict, outcome.errors);
    assert_eq!(word, (Verdict::NotJudged, 0), "{}", errors_of(&outcome));
    let responses: BTreeMap<_, _> = records(&outcome)
        .into_iter()
        .map(|r| (r.qsl_idx as usize, r.data))
        .collect();
    assert_eq!(
        responses,
        (0..64).map(|index| (index, answer(index))).collect()
    );
    assert_eq!(qsl.loads.load(Ordering::Relaxed), 64);
    let calls = [&sut.names, &sut.issued].map(|n| n.load(Ordering::Relaxed));
    assert_eq!(calls, [1, 64]);
});

isolated!(streams, |folder| {
    let mut settings = settings(Scenario::MultiStream, TestMode::PerformanceOnly);
    settings.min_query_count = 700;
    settings.multi_stream_expected_latency_ns = 50_000.0;
    let (outcome, sut, _) = run_inline(folder, &settings);
    assert!(
        matches!(
            outcome.figure,
            Some(Figure::Latency {
                percentile: 99.0,
                ..
            })
        ),
        "{:?}",
        outcome.figure
    );
    let issued = sut.issued.load(Ordering::Relaxed);
    assert!(issued >= 700 * 8 && issued.is_multiple_of(8), "{issued}");
});

/// A SUT that sends issued samples to another thread.
struct Elsewhere(Mutex<Sender<Vec<QuerySample>>>);

impl SystemUnderTest for Elsewhere {
    fn name(&self) -> String {
        "elsewhere".to_owned()
    }
    fn issue_query(&self, samples: &[QuerySample]) {
        self.0.lock().unwrap().send(samples.to_vec()).unwrap();
    }
    fn flush_queries(&self) {}
}

isolated!(completion_on_another_thread, |folder| {
    let (sender, receiver) = channel::<Vec<QuerySample>>();
    let (ready, outgrown) = channel::<()>();
    let thread = thread::spawn(move || {
        outgrow_log();
        ready.send(()).unwrap();
        let mut answered = 0;
        while let Ok(mut samples) = receiver.recv() {
            samples.extend(receiver.try_iter().flatten());
            answered += samples.len();
            answer_all(&samples);
        }
        answered
    });
    let mut settings = settings(Scenario::Server, TestMode::PerformanceOnly);
    settings.server_coalesce_queries = true;
    settings.server_target_qps = 20_000.0;
    outgrown.recv().unwrap();
    let sut = Arc::new(Elsewhere(Mutex::new(sender)));
    let outcome = run_test(
        sut,
        Arc::new(Samples::new(64, 64)),
        &settings,
        &logs(folder),
        None,
    )
    .unwrap();
    assert_valid(&outcome);
    // LoadGen has seen this thread's writes to its log, and has allocated more memory.
    let detail = fs::read_to_string(folder.join("logs/mlperf_log_detail.txt")).unwrap();
    assert!(detail.contains("Logging allocation detected"), "{detail}");
    // The run is over and has dropped the SUT, which closes the channel.
    assert!(thread.join().unwrap() > 3000);
});

/// A SUT that reports first tokens, and three tokens per sample.
struct Tokens;

impl SystemUnderTest for Tokens {
    fn name(&self) -> String {
        "tokens".to_owned()
    }
    fn issue_query(&self, samples: &[QuerySample]) {
        for sample in samples {
            let (first, all) = ([0; 4], [0; 12]);
            // SAFETY: the sample is issued, and only this call completes it, after its first token.
            unsafe {
                first_token_complete(&[QuerySampleResponse::new(sample.id, &first)]);
                complete(&[QuerySampleResponse::new(sample.id, &all).with_tokens(3)]);
            }
        }
    }
    fn flush_queries(&self) {}
}

isolated!(token_latencies, |folder| {
    let mut settings = settings(Scenario::Server, TestMode::PerformanceOnly);
    settings.use_token_latencies = true;
    settings.server_ttft_latency = 5_000_000_000;
    settings.server_tpot_latency = 5_000_000_000;
    let qsl = Arc::new(Samples::new(64, 64));
    let outcome = run_test(Arc::new(Tokens), qsl, &settings, &logs(folder), None).unwrap();
    assert_valid(&outcome);
    assert!(outcome.statistics["Completed tokens per second"] > 0.0);
});

isolated!(a_user_conf_applies_once, |folder| {
    let path = folder.join("user.conf");
    let text = "*.*.min_duration = 200\ndigits.Server.target_qps = 4000\ndigits.Server.target_latency = 900\n\
                *.Server.min_query_count = 150\n";
    fs::write(&path, text).unwrap();
    let mut settings = TestSettings {
        scenario: Scenario::Server,
        ..TestSettings::default()
    };
    settings.apply_user_conf(&path, "digits", &[]).unwrap();
    assert_eq!(
        (
            settings.server_target_qps,
            settings.server_target_latency_ns
        ),
        (4000.0, 900_000_000)
    );
    assert_eq!(
        (settings.min_duration_ms, settings.min_query_count),
        (200, 150)
    );
    // LoadGen applied the embedded mlperf.conf first.
    assert_eq!(settings.qsl_rng_seed, 2_085_463_073_848_966_840);
    let second = settings.apply_user_conf(&path, "digits", &[]).unwrap_err();
    assert!(second.to_string().contains("has taken a user.conf already"));
    let (outcome, _, _) = run_inline(folder, &settings);
    assert_valid(&outcome);
    assert_eq!(outcome.detail.whole("effective_target_qps"), Some(4000));
    let latency = outcome.detail.whole("effective_target_latency_ns");
    assert_eq!(latency, Some(900_000_000));
});

isolated!(an_audit_config_is_read_only_when_named, |folder| {
    // The working directory, where LoadGen looks by default.
    fs::write(folder.join("audit.config"), "*.*.mode = 1\n").unwrap();
    let (outcome, _, _) = run_inline(
        folder,
        &settings(Scenario::Offline, TestMode::PerformanceOnly),
    );
    assert_ne!(outcome.verdict, Verdict::NotJudged);
});

isolated!(a_named_audit_config_applies, |folder| {
    let audit = folder.join("test04.config");
    fs::write(
        &audit,
        "*.*.performance_issue_same = 1\n*.*.accuracy_log_sampling_target = 1000000\n",
    )
    .unwrap();
    let settings = settings(Scenario::Offline, TestMode::PerformanceOnly);
    let (sut, qsl) = (Arc::new(Inline::default()), Arc::new(Samples::new(64, 64)));
    let outcome = run_test(sut, qsl, &settings, &logs(folder), Some(&audit)).unwrap();
    let records = records(&outcome);
    assert!(records.len() > 100);
    assert!(
        records
            .iter()
            .all(|record| record.qsl_idx == records[0].qsl_idx),
        "one sample, again and again"
    );
});

isolated!(what_is_wrong_beforehand_runs_nothing, |folder| {
    let run = |settings: &TestSettings, log: &LogSettings, audit: Option<&Path>| {
        let sut = Arc::new(Inline::default());
        let result = run_test(
            sut.clone(),
            Arc::new(Samples::new(64, 64)),
            settings,
            log,
            audit,
        );
        assert_eq!(sut.names.load(Ordering::Relaxed), 0);
        result.unwrap_err().to_string()
    };
    let good = settings(Scenario::Server, TestMode::PerformanceOnly);
    let bad = TestSettings {
        server_target_qps: 0.0,
        ..good.clone()
    };
    assert!(run(&bad, &logs(folder), None).contains("server_target_qps"));
    let absent = folder.join("absent.config");
    assert!(run(&good, &logs(folder), Some(&absent)).contains("absent.config"));
    let wrong = folder.join("wrong.config");
    fs::write(&wrong, "*.*.seed = 1\n").unwrap();
    assert!(run(&good, &logs(folder), Some(&wrong)).contains("wrong.config:1: unknown key"));
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    // The process's only run. LoadGen alone would run nothing and report no error.
    let log = LogSettings {
        outdir: file.join("logs"),
        enable_trace: false,
    };
    assert!(run(&good, &log, None).contains("file/logs"));
    assert!(run(&good, &logs(folder), None).contains("has run a test already"));
});
