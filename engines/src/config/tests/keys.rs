//! Tests of keys of engines that are valid alone and must agree.

use super::*;

const BYTES: &str = "max_input_bytes: 4";

#[test]
fn an_engine_on_a_gpu() {
    let aoti = |keys: &str| with_engine("file: m.pt2", &format!("kind: aoti{keys}"));
    let engine = good(aoti(
        ", gpu: 1, max_batch: 8, batch_sizes: [1, 4, 8], latency_us: 15000",
    ));
    assert_eq!((engine.gpu, engine.batch_sizes), (1, vec![1, 4, 8]));
    assert_eq!(engine.latency_us, Some(15_000));
    assert_refused(
        aoti,
        ", max_batch: 8, batch_sizes: [1, 4] => [1, 4] with max_batch 8
         , max_batch: 8, batch_sizes: [8, 8] => list sizes ascending
         , max_batch: 8, batch_sizes: [0, 8] => list sizes ascending",
    );
}

#[test]
fn an_engine_refuses_the_keys_of_others() {
    assert_refused(
        |keys| with_engine(BYTES, &format!("kind: digest, {keys}")),
        "gpu: 1 => engine `digest` has no `gpu`
         batch_sizes: [64] => or set `kind: aoti`
         precision: int8 => or set `kind: tensorrt`
         profiles: [64] => or set `kind: tensorrt`
         optimization_level: 3 => or set `kind: tensorrt`
         provider: cuda => engine `digest` has no `provider`
         library: x => or set `kind: onnx`
         intra_threads: 2 => engine `digest` has no `intra_threads`
         tokens: {} => engine `digest` has no `tokens`
         llm: {sequences: 8} => or set `kind: llm`",
    );
}

#[test]
fn engines_that_batch_by_themselves() {
    let ids = "{name: ids, dtype: i32, shape: [64], ragged: true}";
    let model = format!("inputs: [{ids}], output: {ids}");
    let tokens = |keys: &str| with_engine(&model, &format!("kind: tokens{keys}"));
    assert_eq!(good(tokens("")).tokens, None);
    let keys = ", spin_us: 0, tokens: {sequences: 7, step_us: 9, eos: 5, vocab: 6}";
    let settings = good(tokens(keys)).tokens.expect("they are given");
    assert_eq!(
        (settings.sequences, settings.step_us, settings.min_tokens),
        (7, 9, 2)
    );
    assert_refused(
        tokens,
        ", max_batch: 8 => engine `tokens` makes its own batches
         , max_delay_us: 1 => engine `tokens` makes its own batches
         , latency_us: 5 => engine `tokens` makes its own batches
         , begin_apart_us: 5 => engine `tokens` makes its own batches
         , threads: 2 => remove `threads`; the keys below `tokens` say how many
         , delay_us: 1 => engine `tokens` has no `delay_us`
         , intra_threads: 2 => engine `tokens` has no `intra_threads`
         , library: x => engine `tokens` has no `library`
         , tokens: {sequences: 0} => it must be 1 to 65536
         , tokens: {eos: 6, vocab: 6} => 6 is no token of a vocabulary of 6
         , tokens: {min_tokens: 9, max_tokens: 8} => less than `min_tokens`, 9
         , tokens: {min_tokens: 0} => min_tokens is 0
         , tokens: {step: 1} => step_us",
    );
    let bytes = text(with_engine(BYTES, "kind: tokens"));
    assert_has(&bytes, &["how long prompts and answers can be"]);
}

#[test]
fn plans_that_are_built() {
    let tensorrt = |keys: &str| with_engine("file: m.onnx", &format!("kind: tensorrt{keys}"));
    let keys = ", gpu: 1, max_batch: 8, batch_sizes: [8], precision: int8, profiles: [4, 16], \
                optimization_level: 5";
    let engine = good(tensorrt(keys));
    assert_eq!(engine.kind.as_str(), "tensorrt");
    let plan = (engine.precision, engine.profiles, engine.optimization_level);
    assert_eq!(plan, (Some(Precision::Int8), vec![4, 16], Some(5)));
    assert_refused(
        tensorrt,
        ", max_batch: 8, profiles: [4] => [4] with max_batch 8
         , max_batch: 8, profiles: [8, 8] => list sizes ascending
         , max_batch: 8, profiles: [0, 8] => list sizes ascending
         , max_batch: 8, profiles: [8, 65537] => with max_batch 8
         , precision: int4 => `int4` is not a value of this key
         , optimization_level: 6 => optimization_level",
    );
}

#[test]
fn several_gpus_and_the_nics_that_feed_them() {
    let yaml = |engine: &str, nics: &str| {
        let text = ACCELERATOR.replace("kind: digest", &format!("kind: digest{engine}"));
        let (head, _) = text.split_once("nics:").expect("it has NICs");
        format!("{head}nics: {nics}\n")
    };
    let two = |engine: &str, nics: &str| accelerator(&yaml(engine, nics));
    let nics = "[{listen: 127.0.0.1:1, gpu: 2}, {listen: 127.0.0.1:2, gpu: 5}]";
    let several = good(two(", gpus: [2, 5], threads: 3", nics));
    assert_eq!((several.all_gpus(), several.workers()), (vec![2, 5], 6));
    let plain = two("", nics).expect("without `gpus` a digest engine minds no GPU");
    assert_eq!((plain.all_gpus(), plain.workers()), (vec![0], 1));
    // The value at the error's place, and words of the error.
    for (engine, value, complaint) in [
        (", gpus: [2]", "5}]", "no engine runs on GPU 5"),
        (", gpus: [2, 5, 7]", "engine:", "GPU 7 gets no samples"),
        (", gpus: [2, 2]", "gpus: [2, 2]", "names a GPU twice"),
        (", gpus: [2, 5], gpu: 1", "gpus: [2, 5]", "both say"),
    ] {
        let yaml = yaml(engine, nics);
        let (before, _) = yaml.split_once(value).expect("it is there");
        let (line, column) = (
            1 + before.matches('\n').count(),
            1 + before.len() - before.rfind('\n').map_or(0, |at| at + 1),
        );
        let all = text(accelerator(&yaml));
        let at = format!("a.yaml:{line}:{column}: ");
        let named = |l: &str| l.starts_with(&at) && l.contains(complaint);
        assert!(all.lines().any(named), "{at}{complaint}: {all}");
    }
    let anywhere = "[{listen: 127.0.0.1:1}]";
    two(", gpus: [0, 1]", anywhere).expect("a NIC without a GPU feeds all of them");
    let onnx = |keys: &str| with_engine("file: m.onnx", &format!("kind: onnx, gpus: [0, 1]{keys}"));
    assert_refused(onnx, " => engine `onnx` uses no GPU");
    let on_cuda = good(onnx(", provider: cuda"));
    assert_eq!(on_cuda.provider, Provider::Cuda);
    let yaml = yaml("", nics).replace(BYTES, "file: m.pt2");
    let all = text(accelerator(&yaml.replace("kind: digest", "kind: aoti")));
    assert!(all.contains("no engine runs on GPU 2"), "{all}");
}

#[test]
fn an_engine_whose_answers_do_not_grow_has_outputs_of_one_size() {
    let model = "inputs: [{name: i, dtype: u8, shape: [8]}], \
                 output: {name: o, dtype: i32, shape: [2], ragged: true}";
    let text = ACCELERATOR.replace("max_input_bytes: 4", model);
    let null = text.replace("kind: digest", "kind: \"null\"");
    let found = problems(accelerator(&null));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("engine `null` answers with outputs of one size"));
    assert!(accelerator(&null.replace(", ragged: true", "")).is_ok());
}

#[test]
fn a_language_model_in_this_process() {
    let llm = |keys: &str| with_engine("file: m.onnx", &format!("kind: llm{keys}"));
    assert_eq!(good(llm("")).llm, None);
    let keys = ", provider: cuda, llm: {sequences: 16, min_tokens: 2, max_tokens: 20, eos: 2}";
    let set = good(llm(keys)).llm.expect("it is there");
    assert_eq!(
        (set.sequences, set.max_tokens, set.context),
        (16, Some(20), None)
    );
    assert_refused(
        llm,
        ", llm: {min_tokens: 21, max_tokens: 20} => min_tokens is 21
         , llm: {context: 20, max_tokens: 20} => 20 positions
         , llm: {sequences: 0} => sequences
         , llm: {slots: 8} => unknown key `slots`",
    );
}

#[test]
fn an_engine_of_one_output_says_so() {
    let model = "file: m, inputs: [{name: i, dtype: u8, shape: [8]}], \
                 output: {name: o, dtype: f32, shape: [2]}, \
                 other_outputs: [{name: p, dtype: f32, shape: [2]}]";
    let with = |kind: &str| with_engine(model, &format!("kind: {kind}"));
    let text = ACCELERATOR.replace("max_input_bytes: 4", model);
    let text = text.replace("kind: digest", "kind: onnx");
    let (config, _) = good(parse_accelerator(&text, "a.yaml", Path::new("/base")));
    let spec = config.model.spec();
    assert_eq!(spec.and_then(|m| m.max_output_bytes()), Some(16));
    for kind in ["aoti", "tensorrt"] {
        let found = problems(with(kind));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with(&format!("engine `{kind}` gives one output")));
    }
}

#[test]
fn unknown_key() {
    assert_eq!(
        text(accelerator(
            &ACCELERATOR.replace("engine: {", "engine: {max_bach: 8, ")
        )),
        "\
a.yaml:4:10: unknown key `max_bach`
  |
4 | engine: {max_bach: 8, kind: digest}
  |          ^^^^^^^^
  = did you mean `max_batch`? keys here are: kind, role, max_batch, max_delay_us, threads, \
intra_threads, library, delay_us, spin_us, provider, gpu, gpus, batch_sizes, latency_us, \
begin_apart_us, precision, profiles, optimization_level, tokens, http, vllm, llm"
    );
}

#[test]
fn an_engine_has_a_kind() {
    assert_eq!(
        text(accelerator(
            &ACCELERATOR.replace("kind: digest", "threads: 2")
        )),
        "\
a.yaml:4:1: the key `kind` is missing
  |
4 | engine: {threads: 2}
  | ^^^^^^
  = add `kind: ...` here"
    );
}

#[test]
fn an_engine_without_its_model_is_refused() {
    assert_problems(
        |change| accelerator(&changed(ACCELERATOR, change)),
        "bytes: 4 -> bytes: 4, output_bytes: 7 == 3:52 the output has 7 bytes
         digest -> onnx == 3:1 engine `onnx` needs a model file; \
         3:18 engine `onnx` takes its sizes from the model file",
    );
}

#[test]
fn every_file_in_configs_has_a_sound_engine() {
    let is_of_a_node = |name: &str| !name.starts_with("frontend") && !name.starts_with("gateway");
    each_in_configs(is_of_a_node, |name, text| {
        good(parse_accelerator(text, name, &configs()));
    });
}
