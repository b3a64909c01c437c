//! Tests of the ends of runs: exit codes, texts, and files in the folder.

use std::path::Path;

use loadgen_bridge::{Detail, Figure, LogSettings, Scenario, TestSettings};
use qdl::counters::{SampleTimes, TokenLimits, TokenSizes};
use record::{
    AcceleratorRecord, CarriedPayload, EngineUse, HISTOGRAMS, LOOPBACK_NOTE, Ledger, NodeUse,
    Verified,
};

use qdl::testkit::assert_has;

use super::*;
use crate::{
    loadgen::phases::{CallTime, Phases, Share},
    run::folder::RunFolder,
};

pub(crate) fn settings(folder: &Path) -> Settings {
    let test = TestSettings {
        scenario: Scenario::Server,
        server_target_qps: 50.0,
        ..TestSettings::default()
    };
    Settings {
        runs: test.clone(),
        test,
        own_length: false,
        own_folder: true,
        log: LogSettings {
            outdir: folder.to_owned(),
            enable_trace: false,
        },
        user_conf: None,
        audit: None,
        provenance: Default::default(),
    }
}

fn outcome(settings: &Settings, verdict: Word) -> TestOutcome {
    TestOutcome {
        verdict,
        figure: Some(Figure::CompletedSamplesPerSecond(49.5)),
        files: settings.log.files(),
        ..TestOutcome::default()
    }
}

/// A successful run of five samples.
fn ended(settings: &Settings) -> FinishedRun<'_> {
    let mut histograms = Histograms::new();
    (0..5).for_each(|_| histograms.record(&SampleTimes::default()));
    let mut throughput = Throughput::new(0);
    throughput.sample(2_000_000_000, 5);
    FinishedRun {
        node: "front-01",
        settings,
        outcome: Some(outcome(settings, Word::Valid)),
        failure: None,
        counted: RunRecord {
            fabric: "tcp".to_owned(),
            fabric_notes: vec![LOOPBACK_NOTE.to_owned()],
            carried: CarriedPayload::new(500, 40, 2.0),
            duration_s: 2.0,
            system: SystemRecord {
                ledger: Ledger {
                    issued: 5,
                    answered: 5,
                    posted: 5,
                    responses: 5,
                    ..Ledger::default()
                },
                ..SystemRecord::default()
            },
            ..RunRecord::default()
        },
        histograms,
        phases: vec![],
        throughput,
        name: Some(NameAnswer {
            name: "Network SUT: a".to_owned(),
            round_trip: Some(Duration::from_micros(120)),
        }),
        clock_fault: None,
        verified: None,
        tokens: None,
        started: SystemTime::UNIX_EPOCH,
        timeline: Timeline::default(),
    }
}

fn failure(code: ExitCode) -> Option<Failure> {
    Some(Failure {
        code,
        cause: "dgx-01 is gone".to_owned(),
    })
}

#[test]
fn each_ending_has_its_code() {
    let s = settings(Path::new("x"));
    let check = |expected: ExitCode, spoil: fn(&mut FinishedRun<'_>, &Settings)| {
        let mut e = ended(&s);
        spoil(&mut e, &s);
        let (summary, code) = e.summary();
        assert_eq!(summary.run.valid, Some(false));
        assert_eq!((code, summary.run.exit.code), (expected, code.code()));
    };
    check(ExitCode::Invalid, |e, s| {
        e.outcome = Some(outcome(s, Word::Invalid))
    });
    check(ExitCode::Invalid, |e, _| {
        e.outcome.as_mut().expect("there").errors = 1
    });
    check(ExitCode::Lost, |e, _| e.failure = failure(ExitCode::Lost));
    check(ExitCode::Interrupted, |e, _| {
        e.failure = failure(ExitCode::Interrupted)
    });
    check(ExitCode::Mismatch, |e, _| {
        e.counted.system.ledger.issued = 6
    });
    check(ExitCode::Lost, |e, _| e.outcome = None);
    // After an abort, unanswered samples are expected; a wrong answer is still wrong.
    for (failure, mismatches, code) in [
        (None, 0, ExitCode::Mismatch),
        (failure(ExitCode::Lost), 0, ExitCode::Lost),
        (failure(ExitCode::Lost), 1, ExitCode::Mismatch),
    ] {
        let mut e = ended(&s);
        e.failure = failure;
        let counts = Verified {
            lost: 1,
            mismatches,
            ..Verified::default()
        };
        e.verified = Some(Findings {
            counts,
            first: None,
        });
        let (summary, ended) = e.summary();
        assert_eq!((ended, summary.run.valid), (code, Some(false)));
    }
}

/// The same run with answers of three tokens.
fn of_tokens(settings: &Settings) -> FinishedRun<'_> {
    let mut histograms = Histograms::of_tokens(TokenSizes {
        input: 4,
        output: 4,
    });
    let times = SampleTimes {
        seen_ns: 5_000,
        first_ns: 1_000,
        completed_ns: 5_000,
        bytes_in: 12,
        first_bytes: 4,
        parts: 2,
        ..SampleTimes::default()
    };
    (0..5).for_each(|_| histograms.record(&times));
    FinishedRun {
        histograms,
        tokens: Some(TokenCounts {
            stream: Stream::First,
            first_tokens: Some(5),
            parts_taken: 5,
            found: TokenFindings::default(),
        }),
        ..ended(settings)
    }
}

/// LoadGen's log with these values.
fn log(values: &[(String, f64)]) -> Detail {
    let line = |(key, value): &(String, f64)| {
        format!(":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 1.0}}\n")
    };
    let text: String = values.iter().map(line).collect();
    let head =
        ":::MLLOG {\"key\": \"effective_scenario\", \"value\": \"Server\", \"time_ms\": 1}\n";
    Detail::read((head.to_owned() + &text).as_bytes()).expect("a log")
}

/// A row of LoadGen's times of tokens: the minimum, all others, and the limit.
fn row(of: &str, [least, others, limit]: [f64; 3]) -> Vec<(String, f64)> {
    let (ends, percentiles) = match of {
        "ttft" => (
            "first_token_{}_latency_ns",
            "first_token_{}_percentile_latency_ns",
        ),
        _ => (
            "time_to_output_token_{}",
            "time_per_output_token_{}_percentile_ns",
        ),
    };
    let name = |form: &str, of: &str| format!("result_{}", form.replace("{}", of));
    let percent = ["50.00", "90.00", "99.00", "99.90"].map(|p| name(percentiles, p));
    let others_of = ["max", "mean"]
        .map(|end| name(ends, end))
        .into_iter()
        .chain(percent);
    let mut all: Vec<_> = others_of.map(|name| (name, others)).collect();
    all.push((name(ends, "min"), least));
    all.push((format!("requested_server_{of}_latency"), limit));
    all
}

#[test]
fn goodput_is_loadgens_count_or_within_its_percentiles() {
    let s = settings(Path::new("x"));
    let goodput = |limits: Option<TokenLimits>, values: &[(String, f64)]| {
        let (input, output) = (4, 4);
        let mut histograms = Histograms::of_tokens(TokenSizes { input, output }).limited(limits);
        let at = |seen_ns| SampleTimes {
            seen_ns,
            first_ns: 1_000,
            completed_ns: seen_ns,
            bytes_in: 12,
            ..SampleTimes::default()
        };
        // At the limits, three times; then a nanosecond per token beyond.
        for seen_ns in [5_000, 5_000, 5_000, 5_002] {
            histograms.record(&at(seen_ns));
        }
        let phases = Phases::new(1, histograms.clone()).end([Share {
            series_ns: 0,
            histograms,
            first_ns: 0,
            last_ns: 2_000_000_000,
            call_time: CallTime::default(),
        }]);
        let mut e = of_tokens(&s);
        e.phases = phases;
        e.outcome.as_mut().expect("there").detail = log(values);
        e.summary().0.run.goodput
    };
    let (ttft_ns, tpot_ns) = (1_000, 2_000);
    let limits = Some(TokenLimits { ttft_ns, tpot_ns });
    let good = goodput(limits, &[]).expect("limits");
    assert_eq!((good.samples, good.tokens, good.share), (3, Some(9), 0.75));
    // Of 49.5 samples/s, and of 15 tokens in 2 s.
    assert_eq!((good.per_s, good.tokens_per_s), (37.125, Some(5.625)));
    // LoadGen's times begin earlier: half of them may be above a limit.
    let tpot = row("tpot", [500.0, 2_000.0, 2_000.0]);
    let within = [row("ttft", [900.0, 1_000.0, 1_000.0]), tpot.clone()].concat();
    assert_eq!(goodput(limits, &within), Some(good));
    let half = [row("ttft", [900.0, 1_001.0, 1_000.0]), tpot].concat();
    let half = goodput(limits, &half).expect("limits");
    assert_eq!((half.samples, half.tokens, half.share), (2, Some(6), 0.5));
    assert!(half.at_most && !good.at_most);
    // A limit on the latency: LoadGen counts.
    let count = [("query_count", 4.0), ("overlatency_query_count", 3.0)];
    let count = count.map(|(key, n)| (format!("result_{key}"), n));
    let one = goodput(None, &count).expect("LoadGen's");
    assert_eq!((one.samples, one.share, one.tokens), (1, 0.25, None));
    assert_eq!(goodput(None, &[]), None);
    // The page about the summary names each key.
    let keys = serde_json::to_value(good).expect("JSON");
    let page = include_str!("../../../../docs/summary.md");
    let row = page.lines().find(|line| line.starts_with("| `goodput`"));
    for key in keys.as_object().expect("keys").keys() {
        assert!(row.expect("a row").contains(&format!("`{key}`")), "{key}");
    }
}

#[test]
fn whole_answers_are_not_called_valid_without_that_line() {
    let s = settings(Path::new("x"));
    let mut e = of_tokens(&s);
    e.outcome.as_mut().expect("there").detail = log(&row("tpot", [0.0, 13_500.0, 50_000.0]));
    assert_eq!(e.summary().0.run.exit.reason, "valid");
    let engine = EngineUse {
        events: BatchSizes::from_counts(&[0, 0, 0, 5]),
        ..EngineUse::default()
    };
    e.counted.system.accelerators = vec![AcceleratorRecord {
        used: NodeUse {
            engine,
            ..NodeUse::default()
        },
        ..AcceleratorRecord::default()
    }];
    let times = SampleTimes {
        bytes_in: 12,
        first_bytes: 12,
        parts: 2,
        ..SampleTimes::default()
    };
    let (input, output) = (4, 4);
    e.histograms = Histograms::of_tokens(TokenSizes { input, output });
    (0..5).for_each(|_| e.histograms.record(&times));
    let (summary, code) = e.summary();
    let with = "with 3.00 tokens an event (p99 3); 5 whole answers, of which LoadGen's TPOT means \
                nothing";
    assert_eq!(
        (code, summary.run.exit.reason),
        (ExitCode::Good, format!("valid, {with}"))
    );
    let text = screen(
        &record::RunFolder::of("", &e.summary().0, None),
        false,
        false,
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_has(&words.join(" "), &["VALID Server", with]);
}

#[test]
fn faults_of_tokens_have_their_codes_and_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let s = settings(folder.path());
    let end = |spoil: &dyn Fn(&mut TokenCounts)| {
        let mut e = of_tokens(&s);
        spoil(e.tokens.as_mut().expect("tokens"));
        let (summary, code) = e.summary();
        e.write(&summary, code, &Manifest::default())
            .expect("written");
        assert_eq!(summary.run.valid, Some(false));
        let invalid = fs::read_to_string(folder.path().join(INVALID_FILE)).expect("there");
        assert_eq!(invalid.trim_end(), summary.run.exit.reason);
        (code, summary)
    };
    let (code, summary) = end(&|t| {
        t.found.too_short = 2;
        t.found.faults = vec!["engine: sample 7 was answered with 1 token by acc-a".to_owned()];
    });
    assert_eq!(code, ExitCode::Invalid);
    let words = "2 answers were not two tokens or more; the first: engine: sample 7 was";
    assert!(summary.run.exit.reason.starts_with(words));
    assert_eq!(summary.run.reasons[0], summary.run.exit.reason);
    let json = serde_json::to_value(&summary).expect("JSON");
    assert_eq!(json["tokens"]["too_short"], 2);

    let (code, summary) = end(&|t| {
        t.found.contradicted = 1;
        t.found.faults = vec!["sample 5 was sent again, and began with token 3".to_owned()];
    });
    assert_eq!(code, ExitCode::Mismatch);
    assert!(summary.run.exit.reason.contains("sample 5 was sent again"));

    let (code, summary) = end(&|t| t.first_tokens = Some(4));
    assert_eq!(code, ExitCode::Mismatch);
    assert_has(&summary.run.exit.reason, &["first tokens reported is 4"]);
}

#[test]
fn a_valid_run_whose_clock_was_set_is_invalid_and_marked() {
    let folder = tempfile::tempdir().expect("a folder");
    let s = settings(folder.path());
    let mut e = ended(&s);
    e.clock_fault = Some("the wall clock was set by -2.0 s".to_owned());
    let (summary, code) = e.summary();
    e.write(&summary, code, &Manifest::default())
        .expect("written");
    assert_eq!((code, summary.run.valid), (ExitCode::Invalid, Some(false)));
    assert_eq!(summary.run.reasons, ["the wall clock was set by -2.0 s"]);
    assert!(folder.path().join(INVALID_FILE).is_file());
}

#[test]
fn a_run_counts_only_with_all_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let s = settings(folder.path());
    let e = ended(&s);
    let (summary, code) = e.summary();
    fs::write(folder.path().join(INVALID_FILE), "begun").expect("written");
    let write = || e.write(&summary, code, &Manifest::default());
    let is_there = |name| folder.path().join(name).is_file();
    fs::create_dir(folder.path().join(TIMELINE)).expect("made");
    let error = write().expect_err("no file").to_string();
    assert_has(&error, &["cannot write", TIMELINE, "is a directory"]);
    assert!(is_there(INVALID_FILE) && !is_there(SUMMARY) && is_there(HISTOGRAMS));
    fs::remove_dir(folder.path().join(TIMELINE)).expect("removed");
    write().expect("written");
    assert!(!is_there(INVALID_FILE) && is_there(SUMMARY));
}

#[test]
fn an_aborted_run_marks_its_folder_and_the_next_one_clears_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut s = settings(&folder.path().join("deep/er"));
    let mut e = ended(&s);
    e.failure = failure(ExitCode::Lost);
    let (summary, code) = e.summary();
    e.write(&summary, code, &Manifest::default())
        .expect("written");
    let read = |name: &str| fs::read_to_string(s.folder().join(name)).expect("there");
    assert_eq!(read(INVALID_FILE), "dgx-01 is gone\n");
    let json: serde_json::Value = serde_json::from_str(&read(SUMMARY)).expect("JSON");
    assert_eq!(json["valid"], false);
    assert_eq!(json["exit"]["code"], 3);
    assert_eq!(json["reasons"][0], "dgx-01 is gone");
    assert!(s.folder().join("latency.hlog").is_file());
    let logs = s.log.files();
    for log in [logs.summary, logs.detail, logs.accuracy, logs.trace] {
        fs::write(log, "LoadGen's").expect("written");
    }
    fs::write(s.folder().join("notes.txt"), "somebody's own").expect("written");
    let place = RunFolder::take(&mut s, true).expect("forced");
    place.begin().expect("room");
    fs::remove_file(s.folder().join(INVALID_FILE)).expect("marked");
    place.settle(ExitCode::Good).expect("settled");
    let left = fs::read_dir(folder.path().join("deep/er")).expect("a folder");
    let left: Vec<_> = left.map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
}

#[test]
fn a_test_that_sets_its_own_length_is_complete_with_its_own_data_and_never_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut s = settings(folder.path());
    let end = |s: &Settings, log: &str, errors| {
        let mut e = ended(s);
        let mut outcome = outcome(s, Word::Invalid);
        let key = |key: &str, value: u8| {
            format!(":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 1.0}}\n")
        };
        let text = key("effective_min_sample_count", 2)
            + &key("effective_accuracy_log_sampling_target", 100);
        outcome.detail = Detail::read(text.as_bytes()).expect("a log");
        outcome.errors = errors;
        fs::write(&outcome.files.accuracy, log).expect("written");
        e.outcome = Some(outcome);
        let (summary, code) = e.summary();
        (code, summary.run.valid, summary.run.exit.reason)
    };
    let answer = "{ \"seq_id\" : 0, \"qsl_idx\" : 7, \"data\" : \"00\" }";
    let whole = format!("[\n{answer},\n{answer}\n]\n");
    let (code, ..) = end(&s, &whole, 0);
    assert_eq!(
        code,
        ExitCode::Invalid,
        "an ordinary run is asked to be valid"
    );
    s.own_length = true;
    let (code, valid, reason) = end(&s, &whole, 0);
    assert_eq!((code, valid), (ExitCode::Good, None));
    assert_has(&reason, &["2 answers are logged; LoadGen says INVALID"]);
    for log in [
        "[\n]\n".to_owned(),
        format!("[\n{answer}\n]\n"),
        "[".to_owned(),
    ] {
        let (code, valid, reason) = end(&s, &log, 0);
        assert_eq!((code, valid), (ExitCode::Invalid, Some(false)), "{reason}");
        assert!(reason.contains("not complete"), "{reason}");
    }
    assert_eq!(
        end(&s, &whole, 1).0,
        ExitCode::Invalid,
        "LoadGen logged an error"
    );
}
