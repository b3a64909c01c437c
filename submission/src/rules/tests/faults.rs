//! One fault each: what it is, the rules that name it, and how it is planted.

use qdl::wire::{CacheState, PrefixCache};
use serde_json::json;

use super::sound::Sound;

type Fault = (&'static str, &'static [&'static str], fn(&mut Sound));

fn cache(s: &mut Sound, state: CacheState) {
    let how = "as the server says".to_owned();
    s.record("Offline/performance", |left| {
        left.prefix_caches
            .insert("acc-a".to_owned(), PrefixCache { state, how });
    });
}

const PERF: &str = "Offline/performance/run_1";
const INTER: &str = "Interactive/performance/run_1";
const TEST: &str = "Interactive/TEST06/performance/run_1";

pub const ALL: &[Fault] = &[
    // The tree.
    ("no results", &["tree.empty", "tree.system"], |s| {
        s.remove("results")
    }),
    ("a folder that has no place", &["tree.extra"], |s| {
        s.write("measurements/a.json", "{}")
    }),
    ("no source", &["tree.source"], |s| s.remove("src")),
    ("a source without a byte", &["tree.source"], |s| {
        s.write("src/qdl.rs", "")
    }),
    ("no diagram", &["tree.diagram"], |s| {
        s.remove("documentation/network.svg")
    }),
    ("no page on the network", &["tree.network"], |s| {
        s.remove("documentation/network.md")
    }),
    ("no statement of bandwidths", &["tree.bandwidth"], |s| {
        s.remove("documentation/bandwidth.md")
    }),
    (
        "a bandwidth for another scenario",
        &["tree.bandwidth"],
        |s| {
            s.replace(
                "documentation/bandwidth.md",
                "| Interactive |",
                "| Server |",
            );
        },
    ),
    ("NICs that carry too little", &["tree.bandwidth"], |s| {
        s.replace("documentation/bandwidth.md", "| yes |", "| NO |");
    }),
    ("no session API", &["tree.session-api"], |s| {
        s.write("documentation/session-api.md", "")
    }),
    ("no system's JSON", &["tree.system"], |s| {
        s.remove("systems/sys.json")
    }),
    ("a system without results", &["tree.system"], |s| {
        s.write("systems/other.json", "{}")
    }),
    // The system.
    ("a system's JSON that is none", &["system.json"], |s| {
        s.write("systems/sys.json", "{,}")
    }),
    ("a field missing", &["system.field"], |s| {
        s.json("systems/sys.json", "hw_notes", None)
    }),
    ("a network field missing", &["system.field"], |s| {
        s.json("systems/sys.json", "network_media", None)
    }),
    ("cooling empty", &["system.empty"], |s| {
        s.system("cooling", json!(""))
    }),
    ("a network field empty", &["system.empty"], |s| {
        s.system("nic_sut", json!(""))
    }),
    ("no connection at all", &["system.empty"], |s| {
        s.system("number_connections", json!(0))
    }),
    ("a network field of blanks", &["system.empty"], |s| {
        s.system("network_rate", json!("  "))
    }),
    ("accelerators in words", &["system.number"], |s| {
        s.system("accelerators_per_node", json!("eight"))
    }),
    ("connections in words", &["system.number"], |s| {
        s.system("number_connections", json!("8 RC"))
    }),
    ("is_network a boolean", &["system.is-network"], |s| {
        s.system("is_network", json!(true))
    }),
    ("is_network False", &["system.is-network"], |s| {
        s.system("is_network", json!("False"))
    }),
    ("the closed division", &["system.division"], |s| {
        s.system("division", json!("closed"))
    }),
    ("another submitter", &["system.submitter"], |s| {
        s.system("submitter", json!("other"))
    }),
    ("an edge system", &["system.type"], |s| {
        s.system("system_type", json!("edge"))
    }),
    ("a status of its own", &["system.status"], |s| {
        s.system("status", json!("soon"))
    }),
    ("NVLink for a fabric", &["system.fabric"], |s| {
        s.system("network_type", json!("NVLink"))
    }),
    ("a protocol of one word", &["system.layers"], |s| {
        s.system("network_protocol", json!("TCP"))
    }),
    ("memory without ECC", &["system.ecc"], |s| {
        s.replace(
            "documentation/nodes/sys/accelerator-acc-a.json",
            "\"ecc\": true",
            "\"ecc\": false",
        );
    }),
    (
        "a GPU that does not say whether it has ECC",
        &["system.ecc"],
        |s| {
            s.replace(
                "documentation/nodes/sys/accelerator-acc-a.json",
                "\"ecc\": true",
                "\"ecc\": null",
            );
        },
    ),
    // Models and scenarios.
    ("resnet", &["model.known", "tree.bandwidth"], |s| {
        s.write("results/sys/resnet/Offline/a", "")
    }),
    ("an unknown scenario", &["scenario.known"], |s| {
        s.rename("RESULTS/Interactive", "RESULTS/MultiStream");
        s.rename("RUNS/Interactive", "RUNS/MultiStream");
        s.replace(
            "documentation/bandwidth.md",
            "| Interactive |",
            "| MultiStream |",
        );
        for run in ["performance/run_1", "accuracy", "TEST06/performance/run_1"] {
            s.log(
                &format!("MultiStream/{run}"),
                "effective_scenario",
                &json!("MultiStream"),
            );
        }
        // Without one of Server and Interactive the model is not whole: that is a fault of its own.
        s.round
            .models
            .get_mut("llama3.1-8b")
            .expect("it")
            .one_of
            .clear();
    }),
    ("no Offline", &["scenario.required"], |s| {
        s.remove("RESULTS/Offline")
    }),
    (
        "neither Server nor Interactive",
        &["scenario.required"],
        |s| s.remove("RESULTS/Interactive"),
    ),
    // Runs.
    ("no detailed log", &["run.log"], |s| {
        s.remove(&format!("RESULTS/{PERF}/mlperf_log_detail.txt"))
    }),
    ("no summary of LoadGen", &["run.log"], |s| {
        s.remove("RESULTS/Offline/accuracy/mlperf_log_summary.txt")
    }),
    ("a log that is cut in a line", &["run.log"], |s| {
        s.add(PERF, ":::MLLOG {\"key\": \"resu")
    }),
    ("a log of somebody else", &["run.log", "record.log"], |s| {
        s.write(&format!("RESULTS/{PERF}/mlperf_log_detail.txt"), "hello\n");
    }),
    (
        "an accuracy log for a performance log",
        &["run.mode"],
        |s| {
            s.log(PERF, "effective_test_mode", &json!("AccuracyOnly"));
        },
    ),
    (
        "a performance log for an accuracy log",
        &["run.mode"],
        |s| {
            s.log(
                "Offline/accuracy",
                "effective_test_mode",
                &json!("PerformanceOnly"),
            );
        },
    ),
    ("find-peak", &["run.mode"], |s| {
        s.log(PERF, "effective_test_mode", &json!("FindPeakPerformance"))
    }),
    ("a Server run in Offline/", &["run.scenario"], |s| {
        s.log(PERF, "effective_scenario", &json!("Server"))
    }),
    ("INVALID", &["run.valid"], |s| {
        s.log(INTER, "result_validity", &json!("INVALID"))
    }),
    ("an error in the performance log", &["run.errors"], |s| {
        s.add(PERF, ":::MLLOG {\"key\": \"e\", \"value\": \"n_tokens of 0\", \"metadata\": {\"is_error\": true}}");
    }),
    ("an error in the accuracy log", &["run.errors"], |s| {
        s.add(
            "Offline/accuracy",
            ":::MLLOG {\"key\": \"e\", \"value\": \"x\", \"metadata\": {\"is_error\": true}}",
        );
    }),
    ("an error in a test's log", &["run.errors"], |s| {
        s.add(
            TEST,
            ":::MLLOG {\"key\": \"e\", \"value\": \"x\", \"metadata\": {\"is_error\": true}}",
        );
    }),
    ("the QSL's seed", &["run.seeds"], |s| {
        s.log(PERF, "effective_qsl_rng_seed", &json!(0))
    }),
    ("the order's seed", &["run.seeds"], |s| {
        s.log(PERF, "effective_sample_index_rng_seed", &json!(7))
    }),
    ("the schedule's seed in a test", &["run.seeds"], |s| {
        s.log(TEST, "effective_schedule_rng_seed", &json!(7))
    }),
    ("599 s", &["run.duration"], |s| {
        s.log(INTER, "effective_min_duration_ms", &json!(599_000))
    }),
    ("a smaller set of samples", &["run.loaded"], |s| {
        s.log(PERF, "effective_performance_sample_count", &json!(1000));
    }),
    ("Offline with one sample", &["run.query"], |s| {
        s.log(PERF, "effective_min_sample_count", &json!(1));
        s.log(PERF, "effective_samples_per_query", &json!(1));
    }),
    ("the same sample again and again", &["run.traversal"], |s| {
        s.log(INTER, "effective_performance_issue_same", &json!(true));
    }),
    ("each sample once", &["run.traversal"], |s| {
        s.log(INTER, "effective_performance_issue_unique", &json!(true));
    }),
    ("samples not equally often", &["run.traversal"], |s| {
        s.log(
            PERF,
            "effective_sample_concatenate_permutation",
            &json!(false),
        );
    }),
    ("the 90th percentile", &["run.percentile"], |s| {
        s.log(INTER, "effective_target_latency_percentile", &json!(0.9));
    }),
    ("a Server run in Interactive/", &["run.limits"], |s| {
        s.log(
            INTER,
            "requested_server_ttft_latency",
            &json!(2_000_000_000),
        );
        s.log(INTER, "requested_server_tpot_latency", &json!(100_000_000));
    }),
    ("a slow first token", &["run.latency"], |s| {
        s.log(
            INTER,
            "result_first_token_99.00_percentile_latency_ns",
            &json!(500_000_001),
        );
    }),
    ("slow other tokens", &["run.latency"], |s| {
        s.log(
            INTER,
            "result_time_per_output_token_99.00_percentile_ns",
            &json!(31_000_000),
        );
    }),
    ("early stopping", &["run.early-stopping"], |s| {
        s.log(INTER, "early_stopping_met", &json!(false))
    }),
    ("tokens not measured", &["run.tokens"], |s| {
        s.log(PERF, "requested_use_token_latencies", &json!(false))
    }),
    (
        "a compliance run for a performance run",
        &["run.sampled"],
        |s| {
            s.log(PERF, "effective_accuracy_log_sampling_target", &json!(100));
        },
    ),
    ("no Network SUT", &["run.name"], |s| {
        s.log(PERF, "sut_name", &json!("Local SUT: acc-a"))
    }),
    ("a node that does not answer", &["run.name-answer"], |s| {
        s.log(PERF, "sut_name", &json!("Network SUT: acc-a (no answer)"));
    }),
    (
        "a SUT without nodes",
        &["run.name-answer", "run.name-same"],
        |s| {
            s.log("Offline/accuracy", "sut_name", &json!("Network SUT"));
        },
    ),
    ("a name twice", &["run.name-unique"], |s| {
        s.log(
            PERF,
            "sut_name",
            &json!("Network SUT: acc-a (x) + acc-a (y)"),
        );
    }),
    (
        "accuracy of other nodes",
        &["run.name-same", "record.yaml", "record.described"],
        |s| {
            s.log(
                "Offline/accuracy",
                "sut_name",
                &json!("Network SUT: acc-b (http)"),
            );
        },
    ),
    ("another LoadGen", &["run.loadgen"], |s| {
        s.log("Offline/accuracy", "loadgen_version", &json!("5.1"))
    }),
    ("a changed LoadGen", &["run.loadgen"], |s| {
        s.log(PERF, "loadgen_git_status_message", &json!(" M a.cc"))
    }),
    // Records.
    ("no record", &["record.missing"], |s| {
        s.remove("RUNS/Offline/performance/run.json")
    }),
    ("a record that cannot be read", &["record.missing"], |s| {
        s.write("RUNS/Offline/performance/run.json", "{")
    }),
    ("a log that was edited", &["record.log"], |s| {
        s.replace(
            &format!("RESULTS/{PERF}/mlperf_log_detail.txt"),
            "120.5",
            "220.5",
        );
    }),
    (
        "another user.conf than the one that ran",
        &["record.user-conf"],
        |s| {
            s.replace("RESULTS/Offline/user.conf", "= 120", "= 240");
        },
    ),
    (
        "another user.conf in the accuracy run",
        &["record.user-conf"],
        |s| {
            s.record("Offline/accuracy", |left| {
                left.files.get_mut("user.conf").expect("it").sha256 = "00".repeat(32);
            });
        },
    ),
    ("no user.conf in a test", &["record.user-conf"], |s| {
        s.record("Offline/TEST06", |left| {
            drop(left.files.remove("user.conf"))
        });
    }),
    ("logs of two builds", &["record.build"], |s| {
        s.record("Offline/accuracy", |left| {
            left.frontend.program = Some("cd".repeat(32))
        });
    }),
    ("an accelerator of another commit", &["record.build"], |s| {
        s.record("Offline/performance", |left| {
            left.accelerators[0].commit = Some("5".repeat(40))
        });
    }),
    (
        "a build that does not say its commit",
        &["record.build"],
        |s| {
            s.record("Offline/performance", |left| left.frontend.commit = None);
        },
    ),
    ("a changed source", &["record.clean"], |s| {
        s.record("Offline/performance", |left| {
            left.accelerators[0].dirty = Some(true)
        });
    }),
    ("a run that the program called bad", &["record.exit"], |s| {
        s.record("Offline/performance", |left| left.exit = Some(4));
    }),
    ("a run that did not end", &["record.exit"], |s| {
        s.record("Offline/accuracy", |left| left.exit = None);
    }),
    ("--local", &["record.network"], |s| {
        s.record("Offline/performance", |left| left.local = true)
    }),
    ("loopback", &["record.network"], |s| {
        s.record("Offline/performance", |left| {
            left.fabric_notes = vec!["loopback".to_owned()]
        })
    }),
    ("one host", &["record.machines"], |s| {
        s.record("Offline/performance", |left| {
            left.accelerators[0].boot = Some("b1".to_owned())
        });
    }),
    (
        "a host that does not say which it is",
        &["record.machines"],
        |s| {
            s.record("Offline/performance", |left| {
                left.accelerators[0].boot = None
            });
        },
    ),
    (
        "a prefix cache that was on",
        &["record.prefix-cache"],
        |s| {
            cache(s, CacheState::On);
        },
    ),
    (
        "a prefix cache that nobody speaks of",
        &["record.prefix-cache"],
        |s| cache(s, CacheState::Unknown),
    ),
    ("a node that is not described", &["record.described"], |s| {
        s.remove("documentation/nodes/sys/accelerator-acc-a.json")
    }),
    (
        "a test of a performance run's length, too short",
        &["run.duration"],
        |s| {
            let test = s.round.tests.get_mut("TEST06").expect("a test");
            test.measured = true;
        },
    ),
    ("--set min_duration_ms", &["record.override"], |s| {
        s.record("Offline/performance", |left| {
            left.overrides = vec!["--set min_duration_ms=1".to_owned()]
        });
    }),
    ("a setting in the YAML", &["record.override"], |s| {
        let setting = "loadgen.settings.min_query_count = 1".to_owned();
        s.record("Offline/performance", |left| left.overrides = vec![setting]);
    }),
    ("an accelerator's YAML missing", &["record.yaml"], |s| {
        s.remove("RUNS/Offline/performance/accelerator-acc-a.yaml");
    }),
    ("the frontend's YAML missing", &["record.yaml"], |s| {
        s.remove("RUNS/Offline/accuracy/frontend.yaml")
    }),
    // Accuracy.
    ("no accuracy.txt", &["accuracy.text"], |s| {
        s.remove("RESULTS/Offline/accuracy/accuracy.txt")
    }),
    ("a figure missing", &["accuracy.text"], |s| {
        s.replace(
            "RESULTS/Offline/accuracy/accuracy.txt",
            "'rougeL':",
            "'other':",
        );
    }),
    ("too low", &["accuracy.low"], |s| {
        s.replace(
            "RESULTS/Offline/accuracy/accuracy.txt",
            "'rouge1': '38.9'",
            "'rouge1': '38.3'",
        );
    }),
    ("answers too short", &["accuracy.low"], |s| {
        s.replace(
            "RESULTS/Offline/accuracy/accuracy.txt",
            "8167644",
            "7000000",
        );
    }),
    ("answers too long", &["accuracy.high"], |s| {
        s.replace(
            "RESULTS/Offline/accuracy/accuracy.txt",
            "8167644",
            "9167644",
        );
    }),
    ("no hash", &["accuracy.hash"], |s| {
        s.replace("RESULTS/Offline/accuracy/accuracy.txt", "hash=", "sum=")
    }),
    ("two hashes", &["accuracy.hash"], |s| {
        s.replace(
            "RESULTS/Offline/accuracy/accuracy.txt",
            "hash=",
            "hash=00\nhash=",
        );
    }),
    ("a changed hash", &["accuracy.hash"], |s| {
        s.replace("RESULTS/Offline/accuracy/accuracy.txt", "hash=", "hash=0");
    }),
    ("no accuracy log", &["accuracy.log"], |s| {
        s.remove("RESULTS/Offline/accuracy/mlperf_log_accuracy.json")
    }),
    ("an accuracy log that is not cut", &["accuracy.log"], |s| {
        s.write(
            "RESULTS/Offline/accuracy/mlperf_log_accuracy.json",
            &"[]\n".repeat(5000),
        );
    }),
    ("half of the data set", &["accuracy.samples"], |s| {
        s.log(
            "Offline/accuracy",
            "effective_accuracy_sample_count",
            &json!(6684),
        );
    }),
    (
        "answers that the round asks for",
        &["accuracy.files"],
        |s| {
            let model = s.round.models.get_mut("llama3.1-8b").expect("it");
            model.accuracy_files = vec!["videos/130.mp4".to_owned()];
        },
    ),
    // measurements.json, README.md, user.conf.
    ("no measurements.json", &["measured.field"], |s| {
        s.remove("RESULTS/Offline/measurements.json")
    }),
    ("a measurement empty", &["measured.field"], |s| {
        s.json(
            "RESULTS/Offline/measurements.json",
            "retraining",
            Some(json!("")),
        );
    }),
    ("a measurement missing", &["measured.field"], |s| {
        s.json(
            "RESULTS/Offline/measurements.json",
            "weight_data_types",
            None,
        );
    }),
    ("no README", &["measured.readme"], |s| {
        s.remove("RESULTS/Offline/README.md")
    }),
    ("a README without a command", &["measured.readme"], |s| {
        s.write("RESULTS/Offline/README.md", "see elsewhere\n")
    }),
    ("user.conf sets a limit", &["measured.user-conf"], |s| {
        user_conf(s, "llama3_1-8b.Server.ttft_latency = 9000\n");
    }),
    ("user.conf sets the mode", &["measured.user-conf"], |s| {
        user_conf(s, "*.*.mode = 2\n")
    }),
    ("user.conf is empty", &["measured.user-conf"], |s| {
        user_conf(s, "# nothing\n")
    }),
    // Compliance.
    ("a test did not run", &["test.missing"], |s| {
        s.remove("RESULTS/Offline/TEST06")
    }),
    ("a test without its verifier's word", &["test.files"], |s| {
        s.remove("RESULTS/Offline/TEST06/verify_accuracy.txt");
    }),
    ("a test without its answers", &["test.files"], |s| {
        s.write(
            "RESULTS/Offline/TEST06/accuracy/mlperf_log_accuracy.json",
            "",
        );
    }),
    ("a first token that is another", &["test.pass"], |s| {
        s.replace(
            "RESULTS/Interactive/TEST06/verify_accuracy.txt",
            "token check pass: True",
            "token check pass: False",
        );
    }),
    ("a length that is not the answer's", &["test.pass"], |s| {
        s.replace(
            "RESULTS/Offline/TEST06/verify_accuracy.txt",
            "length check pass: True",
            "length check pass: False",
        );
    }),
    ("an audit.config of one's own", &["test.audit"], |s| {
        s.write("RUNS/Offline/TEST06/audit.config", "*.*.mode = 2\n");
    }),
    ("no audit.config", &["test.audit"], |s| {
        s.remove("RUNS/Offline/TEST06/audit.config")
    }),
];

/// Another user.conf that did run: the records follow.
fn user_conf(s: &mut Sound, text: &str) {
    s.write("RESULTS/Offline/user.conf", text);
    let hash = crate::left::sha256_of(&s.at("RESULTS/Offline/user.conf")).expect("a hash");
    for run in ["performance", "accuracy", "TEST06"] {
        s.record(&format!("Offline/{run}"), |left| {
            left.files.get_mut("user.conf").expect("it").sha256 = hash.clone();
        });
    }
}
