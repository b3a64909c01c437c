//! A pretended language model, whose every token is known: in one process, and over the wire.

mod common;

use accelerator::engine::tokens::{Answers, answer};
use common::{Place, accelerator, free_ports, run, words};
use qdl::config::TokensConfig;

/// Prompts in the data set.
const PROMPTS: usize = 3_000;
/// Tokens of the longest prompt and of the longest answer.
const PROMPT: usize = 96;
const ANSWER: usize = 40;

const MODEL: &str = "model: {name: llm, \
    inputs: [{name: prompt, dtype: i32, shape: [96], ragged: true}], \
    output: {name: tokens, dtype: i32, shape: [40], ragged: true}}\n";

/// Every sequence has its turn, and a step a time of its own.
const ENGINE: &str = "engine: {kind: tokens, tokens: {sequences: 24, step_us: 40, \
    beside_us: 1, min_tokens: 2, vocab: 1000}}\n";

/// Prompts of every length, from a seed.
fn prompts() -> Vec<Vec<i32>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut prompt = || {
        let len = rng.usize(1..=PROMPT);
        (0..len).map(|_| rng.i32(0..32_000)).collect()
    };
    (0..PROMPTS).map(|_| prompt()).collect()
}

/// The answers as LoadGen's log spells them.
fn right(prompts: &[Vec<i32>]) -> Vec<(u64, String)> {
    let settings = TokensConfig {
        vocab: 1000,
        ..TokensConfig::default()
    };
    let answers = Answers::new(&settings, ANSWER).expect("sound");
    let hex = |id: i32| id.to_le_bytes().map(|b| format!("{b:02X}")).concat();
    let answer = |p: &Vec<i32>| answer(p, &answers).into_iter().map(hex).collect();
    (0..).zip(prompts.iter().map(answer)).collect()
}

/// A frontend with those prompts as its data set; `more` is YAML of its own.
fn frontend(place: &Place, prompts: &[Vec<i32>], more: &str) -> std::path::PathBuf {
    let ids = prompts.iter().flatten().flat_map(|id| id.to_le_bytes());
    place.write("prompts.bin", ids.collect::<Vec<u8>>());
    let lengths = prompts
        .iter()
        .flat_map(|p| (4 * p.len() as u32).to_le_bytes());
    place.write("lengths.bin", lengths.collect::<Vec<u8>>());
    let yaml = format!(
        "node: front\n{MODEL}{ENGINE}\
         dataset: {{kind: raw, samples: prompts.bin, lengths: lengths.bin}}\n\
         nics: [{{address: 127.0.0.1, connections: 3}}]\n{more}"
    );
    place.write("frontend.yaml", yaml)
}

fn assert_right(place: &Place, out: &str, right: &[(u64, String)]) {
    let answers = place.answers(out);
    assert_eq!(answers.len(), right.len(), "{out}");
    for (own, right) in answers.iter().zip(right) {
        assert_eq!(own, right, "{out}");
    }
}

#[test]
fn every_token_is_right_in_one_process() {
    let place = Place::new();
    let prompts = prompts();
    let right = right(&prompts);
    let config = frontend(&place, &prompts, "accelerators: [{control: 127.0.0.1:1}]\n");
    let offline = ["--local", "--scenario", "offline", "--mode", "accuracy"];
    let server = words("--local --scenario server --mode accuracy --target-qps 4000");
    for (out, arguments) in [("offline", &offline[..]), ("server", &server)] {
        let ended = run(&place, place.frontend(&config, out, arguments));
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        assert_right(&place, out, &right);
        let s = place.summary(out);
        assert_eq!(s["accelerators"][0]["samples"], PROMPTS);
        assert_eq!(s["accelerators"][0]["engine"], "tokens");
    }
}

#[test]
fn an_engine_that_is_told_what_cannot_be_does_not_start() {
    let place = Place::new();
    let config = frontend(
        &place,
        &prompts()[..9],
        "accelerators: [{control: 127.0.0.1:1}]\n",
    );
    let yaml = std::fs::read_to_string(&config).expect("there");
    let arguments = ["--local", "--scenario", "offline", "--mode", "accuracy"];
    for (from, to, words) in [
        (
            "vocab: 1000",
            "max_tokens: 41",
            "the model's output holds 40",
        ),
        (
            "dtype: i32, shape: [96]",
            "dtype: f32, shape: [96]",
            "model.inputs: prompt: f32[96] ragged",
        ),
    ] {
        let config = place.write("other.yaml", yaml.replace(from, to));
        let ended = run(&place, place.frontend(&config, "out", &arguments));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

/// Two accelerators, three connections to each: first tokens alone, and every step as a part.
#[test]
fn every_token_is_right_over_six_connections() {
    let prompts = prompts();
    let right = right(&prompts);
    for (stream, least, most) in [("none", 1, 1), ("first", 2, 2), ("all", 3, ANSWER as u64)] {
        let place = Place::new();
        let [a, b] = free_ports();
        let accelerators = [("acc-a", a), ("acc-b", b)].map(|(node, port)| {
            let yaml = format!(
                "node: {node}\ncontrol: {{listen: \"127.0.0.1:{port}\"}}\n{MODEL}{ENGINE}\
                 nics: [{{listen: \"127.0.0.1:0\"}}]\n"
            );
            accelerator(&place, &place.write(&format!("{node}.yaml"), yaml))
        });
        let more = format!(
            "accelerators: [{{control: 127.0.0.1:{a}}}, {{control: 127.0.0.1:{b}}}]\n\
             stream: {stream}\n"
        );
        let config = frontend(&place, &prompts, &more);
        let arguments = ["--scenario", "offline", "--mode", "accuracy"];
        let ended = run(&place, place.frontend(&config, stream, &arguments));
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        assert_right(&place, stream, &right);
        let s = place.summary(stream);
        assert_eq!(s["connections"].as_array().map(Vec::len), Some(6));
        assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
        let parts = s["tokens"]["parts"]["max"].as_u64().expect("parts");
        assert!((least..=most).contains(&parts), "{stream}: {parts}");
        drop(accelerators);
    }
}
