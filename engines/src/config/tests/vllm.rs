//! Tests of the keys of the engine `vllm` and its cores.

use super::*;

/// Loads an accelerator of token ids whose engine has these keys.
fn with(engine: &str) -> Result<EngineConfig, ConfigError> {
    with_engine(IDS, &format!("kind: vllm, {engine}"))
}

/// An accelerator whose core has these keys beside its model.
fn core(keys: &str) -> Result<EngineConfig, ConfigError> {
    with(&format!("vllm: {{model: llama, {keys}}}"))
}

#[test]
fn a_core_needs_its_model_alone() {
    let vllm = core("").expect("a model is enough").vllm;
    let default = VllmConfig {
        model: "/base/llama".into(),
        log: "/base/vllm.log".into(),
        ..VllmConfig::default()
    };
    assert_eq!(vllm, Some(default));
    let all = core("env_file: e, log: /l, listen: \"[::1]:1\", gpus: [3, 1], data_parallel: 2");
    let all = all.expect("sound").vllm.expect("a core");
    assert_eq!(all.env_file.as_deref(), Some(Path::new("/base/e")));
    assert_eq!(
        (all.log.as_path(), &all.gpus[..]),
        (Path::new("/l"), &[3, 1][..])
    );
}

#[test]
fn wrong_keys_of_a_core_are_refused_by_name() {
    let any = |keys: &str| with(&format!("vllm: {keys}"));
    assert_refused(
        with,
        " => engine `vllm` drives an engine core, and none is described",
    );
    assert_refused(any, "{} => the key `model` is missing");
    assert_refused(
        core,
        "args: [--headless] => sets `--headless` itself
         args: [--max-num-seqs, '8', --enable-prefix-caching] => sets `--enable-prefix-caching`
         args: [--data-parallel-size=2] => sets `--data-parallel-size=2` itself
         command: [] => no program is named
         listen: 192.0.2.7:29550 => 192.0.2.7:29550 is no loopback address
         listen: 29550 => listen
         gpus: [1, 1] => names a GPU twice
         gpus: [100000] => names a GPU twice, or one beyond
         gpus: [0, 1, 2], data_parallel: 2 => 3 GPUs cannot be shared equally by 2 cores
         data_parallel: 0 => data_parallel is 0
         numa: 5000 => numa is 5000
         cpus: [1, 1] => is no list of cores
         temperature: 2.5 => temperature is 2.5
         max_tokens: 0 => max_tokens is 0
         min_tokens: 9, max_tokens: 8 => min_tokens is 9, more than max_tokens, 8
         vocab: 8, eos: [8] => id 8 of `stop` or `eos` is not below vocab, 8
         vocab: 8, stop: [9] => id 9 of `stop` or `eos` is not below vocab, 8
         in_flight: 0 => in_flight is 0
         step_s: 0 => step_s is 0
         url: x => unknown key `url`",
    );
}

#[test]
fn only_this_engine_drives_a_core_of_token_ids() {
    let other = with_engine("max_input_bytes: 4", "kind: digest, vllm: {model: m}");
    assert_has(&text(other), &["engine `digest` has no `vllm`"]);
    assert_refused(
        |keys| with(&format!("vllm: {{model: m}}, {keys}")),
        "http: {url: \"http://a:1\", dialect: vllm} => engine `vllm` has no `http`
         threads: 2 => engine `vllm` makes its own batches",
    );
    let opaque = with_engine("max_input_bytes: 4", "kind: vllm, vllm: {model: m}");
    assert_has(
        &text(opaque),
        &["engine `vllm` takes the token ids of a prompt"],
    );
}
