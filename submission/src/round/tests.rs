use std::path::Path;

use super::*;

fn round() -> Round {
    Round::find(newest()).expect("built in")
}

#[test]
fn the_built_in_round_is_sound_and_names_its_sources() {
    let round = round();
    assert_eq!(round.round, newest());
    for source in ["rules", "submission", "checker", "mlperf_conf"] {
        assert!(round.sources[source].len() > 20, "{source}");
    }
    assert!(!round.models.is_empty());
    let unknown = Round::find("v9.9").expect_err("unknown").to_string();
    assert!(unknown.contains(newest()), "{unknown}");
}

#[test]
fn a_name_of_user_conf_leads_to_its_models() {
    let round = round();
    let models = |conf: &str| {
        let names = round.models_of(conf).into_iter().map(|name| &**name);
        names.collect::<Vec<_>>()
    };
    for conf in ["llama3_1-8b", "llama3_1-8b-interactive"] {
        assert_eq!(models(conf), ["llama3.1-8b"]);
    }
    assert_eq!(models("3d-unet"), ["3d-unet-99", "3d-unet-99.9"]);
    assert!(round.models_of("resnet50").is_empty());
}

#[test]
fn figures_of_accuracy_are_found_as_the_reference_scripts_print_them() {
    let round = round();
    let rouge = "{'rouge1': '38.7792', 'rouge2': 15.9, 'rougeL': '24.4', 'rougeLsum': '35.7', 'gen_len': 8167644}";
    for (model, metric, line, value) in [
        ("llama3.1-8b", "ROUGE1", rouge, Some(38.7792)),
        ("llama3.1-8b", "ROUGELSUM", rouge, Some(35.7)),
        ("llama3.1-8b", "GEN_LEN", rouge, Some(8167644.0)),
        (
            "whisper",
            "ACCURACY",
            "Word Error Rate: 2.0%, accuracy=97.93%",
            Some(97.93),
        ),
        (
            "3d-unet-99",
            "DICE",
            "Accuracy: mean = 0.86170, kidney",
            Some(0.8617),
        ),
        ("3d-unet-99", "DICE", "hash=12", None),
        ("rgat", "acc", "accuracy: 0.7290 (574,000)", Some(0.729)),
    ] {
        let mut all = round.models[model].accuracy.iter();
        let one = all.find(|a| a.metric == metric).expect("a metric");
        assert_eq!(one.find(line), value, "{model}: {line}");
    }
}

#[test]
fn a_round_that_contradicts_itself_is_refused() {
    let base = round();
    let limited = base
        .models
        .iter()
        .find(|(_, model)| model.limits.contains_key("Server"));
    let (model, _) = limited.expect("a model with limits");
    for (keys, says) in [
        (
            format!("models: {{{model}: {{tests: [TEST66]}}}}"),
            "TEST66",
        ),
        (
            format!("models: {{{model}: {{limits: {{Later: {{ttft_ms: 500}}}}}}}}"),
            "Later",
        ),
        (
            format!("models: {{{model}: {{required: [Server], limits: {{Server: null}}}}}}"),
            "Server has no limit",
        ),
        ("min_duration: 600000".to_owned(), "min_duration"),
    ] {
        let text = format!("extends: {}\nround: next\n{keys}\n", newest());
        let refused = Round::parse(&text).expect_err(says);
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn a_round_that_extends_another_has_its_own_keys_and_the_others() {
    let base = round();
    let text = format!(
        "extends: {}\nround: next\nseeds: {{qsl_rng_seed: 7}}\nloadgen: {{version: next}}\n\
         scenarios: {{Server: {{percentile: 0.999}}}}\n\
         models: {{rgat: null, whisper: {{samples: {{accuracy: 9}}}}}}\n",
        newest()
    );
    let next = Round::parse(&text).expect("sound");
    assert_eq!((&*next.round, &*next.loadgen.version), ("next", "next"));
    let schedule = "schedule_rng_seed";
    assert_eq!(next.seeds["qsl_rng_seed"], 7);
    assert_eq!(next.seeds[schedule], base.seeds[schedule]);
    assert_eq!(next.loadgen.files, base.loadgen.files);
    assert_eq!(next.scenarios["Server"].percentile, Some(0.999));
    assert_eq!(next.scenarios["Offline"], base.scenarios["Offline"]);
    assert_eq!(next.models.len(), base.models.len() - 1);
    assert_eq!(next.models["whisper"].samples.accuracy, 9);
    assert_eq!(next.models["llama3.1-8b"], base.models["llama3.1-8b"]);
    let refused = |text: &str| Round::parse(text).expect_err("refused");
    assert!(refused("extends: none").contains("not built in"));
    assert!(refused(&format!("extends: {}\nrund: x", newest())).contains("rund"));
    let place = tempfile::tempdir().expect("a folder");
    let own = place.path().join("own.yaml").display().to_string();
    std::fs::write(&own, format!("extends: {own}\n")).expect("written");
    let circle = Round::find(&own).expect_err("a circle").to_string();
    assert!(circle.contains("in a circle"), "{circle}");
}

/// A scenario that no code names: its row says all that the code asks.
#[test]
fn a_new_scenario_is_rows_of_a_file() {
    let text = format!(
        "extends: {}\nround: next\nscenarios: {{Burst: {{loadgen: Server, flag: server, \
         targets: [], percentile: 0.999, limits: true}}, Bulk: {{loadgen: Offline, \
         flag: offline, targets: [], one_query: true}}}}\nmodels: {{whisper: \
         {{required: [Bulk], one_of: [Server, Burst], \
         conf_in: {{Burst: whisper-burst}}, samples: {{accuracy_in: {{Burst: 9}}}}, \
         limits: {{Server: {{latency_ms: 9}}, Burst: {{latency_ms: 3}}}}}}}}\n",
        newest()
    );
    let round = Round::parse(&text).expect("sound");
    let model = &round.models["whisper"];
    for (conf, ran, scenario) in [
        ("whisper", "Offline", "Bulk"),
        ("whisper", "Server", "Server"),
        ("whisper-burst", "Server", "Burst"),
        ("whisper-burst", "Offline", "Bulk"),
        ("whisper", "SingleStream", "SingleStream"),
    ] {
        assert_eq!(&**round.models_of(conf)[0], "whisper");
        let found = round.scenario_of(model, conf, ran, None);
        assert_eq!(found, scenario, "{conf} {ran}");
    }
    assert!(round.is_one_query("Bulk") && !round.is_one_query("Burst"));
    let confs = ["Server", "Burst"].map(|scenario| model.conf_of(scenario));
    assert_eq!(confs, ["whisper", "whisper-burst"]);
    assert_eq!(model.accuracy_samples("Burst"), 9);
    let refused = Round::parse(&text.replace(", Burst: {latency_ms: 3}", ""));
    assert!(
        refused
            .expect_err("no limit")
            .contains("Burst has no limit")
    );
}

/// The round's values equal those that LoadGen embeds.
#[test]
fn limits_seeds_and_counts_are_those_that_loadgen_embeds() {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR"));
    let conf = conf.join("../.deps/loadgen-6.0.17/mlperf.conf");
    let text = std::fs::read_to_string(&conf).expect("run `cargo xtask setup`");
    let value = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key));
        line.and_then(|l| l.trim_start_matches([' ', '=']).trim().parse::<u64>().ok())
    };
    let round = round();
    for key in ["qsl", "sample_index", "schedule"].map(|of| format!("{of}_rng_seed")) {
        let seed = value(&format!("*.*.{key}"));
        assert!(
            seed.is_some() && seed.as_ref() == round.seeds.get(&key),
            "{key}"
        );
    }
    assert_eq!(value("*.Server.min_duration"), Some(round.min_duration_ms));
    for (name, model) in &round.models {
        for (scenario, limits) in &model.limits {
            let conf = model.conf_of(scenario);
            // The file's notes explain what mlperf.conf lacks.
            if round.loadgen_scenario(scenario) != scenario && conf == model.conf {
                assert!(model.notes.is_some(), "{name}");
                continue;
            }
            let of = |key: &str| value(&format!("{conf}.Server.{key}"));
            if let Some(ms) = limits.ttft_ms {
                assert_eq!(
                    (of("ttft_latency"), of("tpot_latency")),
                    (Some(ms), limits.tpot_ms),
                    "{name}"
                );
            }
            if let Some(ms) = limits.latency_ms {
                assert_eq!(of("target_latency"), Some(ms), "{name}");
            }
        }
        if let Some(n) = value(&format!("{}.Offline.min_query_count", model.conf)) {
            assert!(
                n == model.samples.offline || model.notes.is_some(),
                "{name}"
            );
        }
        let equal = value(&format!("{}.*.sample_concatenate_permutation", model.conf));
        assert_eq!(equal == Some(1), model.equal_issue, "{name}");
        let tokens = value(&format!("{}.*.use_token_latencies", model.conf));
        assert_eq!(tokens == Some(1), model.tokens, "{name}");
    }
}

/// The pinned LoadGen is the round's release.
#[test]
fn loadgens_version_and_files_are_those_of_the_pinned_archive() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = source.join("../.deps/loadgen-6.0.17/generated/version_generated.cc");
    let text = std::fs::read_to_string(&source).expect("run `cargo xtask setup`");
    let of = |function: &str| {
        let (_, rest) = text.split_once(function).expect("a function");
        let (_, rest) = rest.split_once("str = ").expect("a text");
        let end = rest.find(";\n").expect("an end");
        let bare = rest[..end]
            .trim_start_matches("R\"LGVG_RSLD(")
            .trim_end_matches("\"");
        bare.trim_start_matches('"')
            .trim_end_matches(")LGVG_RSLD")
            .to_owned()
    };
    let round = round();
    let version = format!(
        "{} @ {}",
        of("LoadgenVersion()"),
        of("LoadgenGitRevision()")
    );
    assert_eq!(round.loadgen.version, version);
    let files = of("LoadgenSha1OfFiles()");
    let mut files: Vec<_> = files.lines().collect();
    files.sort_by_key(|line| line.split_once(' ').map(|(_, name)| name));
    let hash = fabric::os::sha256_of(files.join("\n").as_bytes());
    assert_eq!(round.loadgen.files, hash);
}
