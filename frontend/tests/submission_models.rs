//! Submission trees of the round's other models, from short and small runs: `submit` finds nothing
//! once patches make the runs long.

mod common;

use common::submission::{Case, Rig, TEST06, checkout, rules};

const RATES: &str = "*.Offline.target_qps = 20\n*.Server.target_qps = 2000\n";

const LLAMA2: Case = Case {
    folder: "llama2-70b-99.9",
    scenarios: &[
        ("Offline", "offline", "llama2-70b"),
        ("Server", "server", "llama2-70b"),
    ],
    samples: 24576,
    tokens: Some((3, 8)),
    long: None,
    tests: &[("TEST06", "TEST06", TEST06)],
    scores: "{'rouge1': 44.5, 'rouge2': 22.1, 'rougeL': 28.7, 'gen_len': 7236000, 'tokens_per_sample': 294.5}\n",
    user_conf: RATES,
};

const DEEPSEEK: Case = Case {
    folder: "deepseek-r1",
    scenarios: &[
        ("Offline", "offline", "deepseek-r1"),
        ("Interactive", "server", "deepseek-r1-interactive"),
    ],
    samples: 4388,
    scores: "{'exact_match': 82.1, 'tokens_per_sample': 3886.2, 'num_samples': 4388}\n",
    ..LLAMA2
};

const TEST07: &str = "*.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
    *.*.accuracy_log_sampling_target = 990\n*.*.min_query_count = 990\n*.*.min_duration = 0\n\
    *.*.performance_issue_unique = 1\n*.*.sample_concatenate_permutation = 0\n\
    *.*.test07_accuracy_threshold = 60.698\n";

const TEST09: &str = "*.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
    *.*.accuracy_log_sampling_target = 10000\n*.*.min_query_count = 6396\n*.*.min_duration = 0\n\
    *.*.performance_issue_unique = 1\n*.*.sample_concatenate_permutation = 0\n\
    *.*.test09_min_output_tokens = 1150.38\n*.*.test09_max_output_tokens = 1406.02\n";

/// TEST09 requires answers with the reference's mean length.
const GPT_OSS: Case = Case {
    folder: "gpt-oss-120b",
    scenarios: &[
        ("Offline", "offline", "gpt-oss-120b"),
        ("Interactive", "server", "gpt-oss-120b-interactive"),
    ],
    samples: 6396,
    long: Some(("TEST09", (1200, 1350))),
    tests: &[
        ("TEST07", "TEST07/gpt-oss-120b", TEST07),
        ("TEST09", "TEST09/gpt-oss-120b", TEST09),
    ],
    scores: "{'exact_match': 83.2, 'num_samples': 4395}\n",
    user_conf: "*.Offline.target_qps = 20\n*.Offline.min_query_count = 6396\n*.Server.target_qps = 2000\n",
    ..LLAMA2
};

const QWEN: Case = Case {
    folder: "qwen3-vl-235b-a22b",
    scenarios: &[
        ("Offline", "offline", "qwen3-vl-235b-a22b"),
        ("Server", "server", "qwen3-vl-235b-a22b"),
    ],
    samples: 48289,
    tokens: None,
    tests: &[],
    scores: "{\"category\": {\"f1\": 0.7921}}\n",
    ..LLAMA2
};

const TEST01: &str = "*.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
    *.*.accuracy_log_sampling_target = 64\n";

const UNET: Case = Case {
    folder: "3d-unet-99.9",
    scenarios: &[("Offline", "offline", "3d-unet")],
    samples: 43,
    tokens: None,
    tests: &[("TEST01", "TEST01/3d-unet", TEST01)],
    scores: "Accuracy: mean = 0.86200, kidney = 0.93400, tumor = 0.79000\n",
    user_conf: "*.Offline.target_qps = 20\n",
    ..LLAMA2
};

const WHISPER: Case = Case {
    folder: "whisper",
    scenarios: &[("Offline", "offline", "whisper")],
    samples: 1633,
    tests: &[("TEST01", "TEST01/whisper", TEST01)],
    scores: "Word Error Rate: 2.05%, accuracy=97.95%\n",
    user_conf: UNET.user_conf,
    ..LLAMA2
};

/// Checks that a tree of runs patched to full length has no findings.
fn passes(case: &'static Case) {
    let rig = Rig::new(case);
    rig.runs();
    rig.nodes();
    rig.form();
    rig.patch();
    let whole = rig.submit("tree", &[]);
    if checkout().is_some() {
        assert_eq!(whole.code, Some(0), "{}{}", whole.stdout, whole.stderr);
        return;
    }
    // Without a checkout, only the results of its scripts are missing.
    let mut wanted = vec!["accuracy.hash".to_owned(), "accuracy.log".to_owned()];
    wanted.extend((!case.tests.is_empty()).then(|| "test.files".to_owned()));
    let found: Vec<_> = rules(&whole.stdout).into_iter().collect();
    // A log that is short enough needs no truncation.
    wanted.retain(|rule| rule != "accuracy.log" || found.contains(rule));
    assert_eq!(found, wanted, "{}", whole.stdout);
}

macro_rules! each {
    ($($name:ident $case:ident)*) => {$(
        #[test]
        fn $name() {
            passes(&$case);
        }
    )*};
}

each! {
    llama2_70b_with_test06_passes_whole LLAMA2
    deepseek_r1_with_test06_passes_whole DEEPSEEK
    gpt_oss_120b_with_test07_and_test09_passes_whole GPT_OSS
    qwen3_vl_passes_whole QWEN
    unet_3d_with_test01_passes_whole UNET
    whisper_with_test01_passes_whole WHISPER
}
