//! Tests of keys that are valid alone and must agree.

use super::*;
use crate::wire::Score;
use fabric::wire::Stream;

const BYTES: &str = "max_input_bytes: 4";

#[test]
fn an_engine_on_a_gpu() {
    let aoti = |keys: &str| with_engine("file: m.pt2", &format!("kind: aoti{keys}"));
    let engine = good(aoti(
        ", gpu: 1, max_batch: 8, batch_sizes: [1, 4, 8], latency_us: 15000",
    ))
    .engine;
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
        "gpu: 1 => engine `digest` uses no GPU
         batch_sizes: [64] => engine `digest` runs batches of any size
         precision: int8 => engine `digest` builds no plans
         profiles: [64] => engine `digest` builds no plans
         optimization_level: 3 => engine `digest` builds no plans
         provider: cuda => engine `digest` has no execution providers
         library: x => engine `digest` uses no library
         intra_threads: 2 => engine `digest` has no threads of its own
         tokens: {} => engine `digest` pretends no language model
         llm: {sequences: 8} => engine `digest` runs no language model",
    );
}

#[test]
fn engines_that_batch_by_themselves() {
    let ids = "{name: ids, dtype: i32, shape: [64], ragged: true}";
    let model = format!("inputs: [{ids}], output: {ids}");
    let tokens = |keys: &str| with_engine(&model, &format!("kind: tokens{keys}"));
    assert_eq!(good(tokens("")).engine.tokens, None);
    let keys = ", spin_us: 0, tokens: {sequences: 7, step_us: 9, eos: 5, vocab: 6}";
    let settings = good(tokens(keys)).engine.tokens.expect("they are given");
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
         , delay_us: 1 => engine `tokens` pretends steps, not batches
         , intra_threads: 2 => engine `tokens` has no threads of its own
         , library: x => engine `tokens` uses no library
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
    let engine = good(tensorrt(keys)).engine;
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
    let several = good(two(", gpus: [2, 5], threads: 3", nics)).engine;
    assert_eq!((several.all_gpus(), several.workers()), (vec![2, 5], 6));
    let plain = two("", nics).expect("without `gpus` a digest engine minds no GPU");
    assert_eq!(
        (plain.engine.all_gpus(), plain.engine.workers()),
        (vec![0], 1)
    );
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
    assert_eq!(on_cuda.engine.provider, Provider::Cuda);
    let yaml = yaml("", nics).replace(BYTES, "file: m.pt2");
    let all = text(accelerator(&yaml.replace("kind: digest", "kind: aoti")));
    assert!(all.contains("no engine runs on GPU 2"), "{all}");
}

#[test]
fn policies_by_health() {
    let arbiter = |text: &str| frontend(&format!("{FRONTEND}{REST}{text}\n"));
    assert_eq!(good(arbiter("arbiter: best")).arbiter, Policy::Best);
    let c = arbiter(
        "arbiter: {health_spray: {delta: 0.25}}\nhealth: {probe_one_in: 200, out_below: 0.2}",
    );
    let c = c.unwrap();
    let delta = Score::try_from(0.25).unwrap();
    let spray = Policy::HealthSpray {
        delta,
        above_only: false,
    };
    assert_eq!(c.arbiter, spray);
    let expected = HealthConfig {
        probe_one_in: 200,
        out_below: Score::try_from(0.2).unwrap(),
        ..HealthConfig::default()
    };
    assert_eq!(c.health, expected);
    assert_eq!(
        good(arbiter("arbiter: best")).health,
        HealthConfig::default()
    );
    assert_refused(
        |keys| arbiter(&format!("arbiter: {keys}").replace("; ", "\n")),
        "{health_spray: {delta: 1.5}} => 1.5
         {health_spray: {}} => delta
         best; health: {out_below: 0.7} => out_below is 0.700
         best; health: {failed_hold_ms: 70000} => failed_hold_max_ms is 60000",
    );
}

#[test]
fn addresses_need_a_token_off_loopback() {
    let open = ACCELERATOR.replace("127.0.0.1:7410", "0.0.0.0:7410");
    assert_eq!(
        text(accelerator(&open)),
        "\
a.yaml:5:17: 0.0.0.0:7410 is not a loopback address, and there is no token
  |
5 | nics: [{listen: 0.0.0.0:7410}]
  |                 ^^^^^^^^^^^^
  = add `token_file: PATH` with the same token on both nodes, or `auth: none` if the network is \
trusted"
    );
    let none = good(accelerator(&format!("{open}auth: none\n")));
    assert_eq!(none.auth(), Auth::None);
    let token = good(accelerator(&format!("{open}token_file: t\n")));
    assert_eq!(token.auth(), Auth::Token(Path::new("/base/t")));
    let both = accelerator(&format!("{open}token_file: t\nauth: none\n"));
    assert_eq!(
        problems(both),
        ["7:7 `auth: none` and `token_file` contradict each other"]
    );
    for (control, fine) in [
        ("localhost:1", true),
        ("'[::1]:1'", true),
        ("127.8.8.8:1", true),
        ("10.0.0.1:1", false),
        ("dgx-01:1", false),
    ] {
        let text = format!("{FRONTEND}{REST}").replace("127.0.0.1:7400", control);
        assert_eq!(frontend(&text).is_ok(), fine, "{control}");
        assert!(
            frontend(&format!("{text}auth: none\n")).is_ok(),
            "{control}"
        );
    }
}

#[test]
fn relations_between_keys() {
    assert_problems(
        |more| frontend(&format!("{FRONTEND}{REST}{more}\n")),
        "deadlines: {echo_interval_ms: 2000} == 9:31 echo_interval_ms is 2000, no shorter than \
         echo_timeout_ms, 2000
         deadlines: {lost_ms: 2250} == 9:22 lost_ms is 2250, but losing a connection alone takes \
         echo_interval_ms + echo_timeout_ms = 2250
         deadlines: {watchdog_s: 5} == 9:25 watchdog_s is 5 s, no longer than lost_ms, 5000 ms
         engine: {kind: onnx, delay_us: 4} == 9:16 engine `onnx` needs a model file; \
         9:22 engine `onnx` pretends no compute
         performance_sample_count: 1025 == 9:27 performance_sample_count is 1025, the data set \
         has 1024 samples",
    );
    let twice = "[{control: localhost:1}, {control: localhost:1}, {control: localhost}]";
    assert_problems(
        |lists| {
            let lists = lists.replace("TWICE", twice).replace(" | ", "\nnics: ");
            frontend(&format!("{FRONTEND}accelerators: {lists}\n"))
        },
        "[] | [] == 7:1 the list of accelerators is empty; 8:1 the list of NICs is empty
         TWICE | [{address: '127.0.0.1:3'}] == 8:18 `127.0.0.1:3` is not an IP address
         TWICE | [{address: '127.0.0.1'}] == 7:50 localhost:1 is listed twice; \
         7:74 `localhost` is not HOST:PORT",
    );
    assert_problems(
        |change| accelerator(&changed(ACCELERATOR, change)),
        "7410 -> 7400 == 5:17 127.0.0.1:7400 is taken by `control.listen`
         bytes: 4 -> bytes: 4, output_bytes: 7 == 3:52 the output has 7 bytes
         digest -> onnx == 3:1 engine `onnx` needs a model file; \
         3:18 engine `onnx` takes its sizes from the model file",
    );
}

#[test]
fn a_shape_says_how_large_samples_are() {
    let shaped = |shape: &str| {
        let data = format!("{{kind: random, shape: {shape}}}");
        frontend(&format!("{FRONTEND}{REST}").replace("{kind: random}", &data))
    };
    // The model's input has at most 4 bytes.
    let shape = good(shaped("[[1, 2], 2]"))
        .dataset
        .shape
        .expect("it is there");
    let each: Vec<_> = shape.iter().map(|d| (d.least, d.most, d.step)).collect();
    assert_eq!(each, [(1, 2, 1), (2, 2, 1)]);
    assert_refused(
        shaped,
        "[[1, 3], 2] => the largest sample has 6 bytes
         [[1, 3], 2] => fits no slot
         [0] => [least, most, step]
         [[3, 2]] => [least, most, step]
         [[1, 3, 0]] => [least, most, step]
         [] => [least, most, step]
         [[1, 2, 3, 4]] => [least, most, step]
         [x] => [least, most, step]
         [2], max_bytes: 3 => both say how large samples are",
    );
}

#[test]
fn verify_digest_needs_eight_bytes_or_more() {
    let text = format!("{FRONTEND}{REST}verify: digest\n");
    let with = |change: &str| frontend(&changed(&text, change));
    assert_eq!(good(frontend(&text)).verify, Verify::Digest);
    let wide = good(with("shape: [8] -> shape: [90000]"));
    assert_eq!(wide.verify, Verify::Digest);
    assert_problems(
        with,
        "shape: [8] -> shape: [7] == 9:9 `verify: digest` expects responses of 8 bytes or more, \
         the model's output is o: u8[7]",
    );
}

#[test]
fn answers_in_tokens_need_a_ragged_output() {
    let with = |keys: &str, output: &str| {
        let ragged = format!("{output}, shape: [8], ragged: true");
        let text = format!("{FRONTEND}{REST}{keys}\n");
        frontend(&text.replace("u8, shape: [8]", &ragged))
    };
    let config = good(with("stream: first", "i32"));
    assert_eq!(config.stream, Some(Stream::First));
    let config = good(with("stream: none", "i32"));
    assert_eq!(config.stream, Some(Stream::None));
    let config = good(with("verify: tokens", "i32"));
    assert_eq!(config.verify, Verify::Tokens);
    assert_problems(
        |keys| with(keys, "i64"),
        "verify: tokens == 9:9 `verify: tokens` expects tokens, the model's output is o: i64[8] \
         ragged",
    );
    assert_problems(
        |keys| frontend(&format!("{FRONTEND}{REST}{keys}\n")),
        "stream: first == 9:9 `stream: first` is for answers in tokens, the model's output is \
         o: u8[8]
         verify: tokens == 9:9 `verify: tokens` expects tokens, the model's output is o: u8[8]",
    );
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
fn shapes_that_cannot_be() {
    assert_refused(
        |shape| {
            frontend(&changed(
                &format!("{FRONTEND}{REST}"),
                &format!("[4] -> {shape}"),
            ))
        },
        "[0] => f.yaml:4:33: u8[0] is no shape of a sample
         [4, 18446744073709551615] => f.yaml:4:33: u8[4, 18446744073709551615] is no shape of
         [1073741825] => f.yaml:4:33: u8[1073741825] is no shape of a sample",
    );
}

#[test]
fn a_language_model_in_this_process() {
    let llm = |keys: &str| with_engine("file: m.onnx", &format!("kind: llm{keys}"));
    assert_eq!(good(llm("")).engine.llm, None);
    let keys = ", provider: cuda, llm: {sequences: 16, min_tokens: 2, max_tokens: 20, eos: 2}";
    let set = good(llm(keys)).engine.llm.expect("it is there");
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
fn a_file_of_tokens_is_prompts_of_32_bits() {
    let with = |input: &str, data: &str| {
        let text = format!("{FRONTEND}{REST}");
        let text = text.replace("dtype: u8, shape: [4], ragged: true", input);
        frontend(&text.replace("{kind: random}", &format!("{{kind: tokens{data}}}")))
    };
    let prompt = "dtype: i32, shape: [64], ragged: true";
    let samples = good(with(prompt, ", samples: a.tokens")).dataset.samples;
    assert_eq!(samples.as_deref(), Some(Path::new("/base/a.tokens")));
    good(with(prompt, ", vocab: 7"));
    let both = text(with(prompt, ", samples: a.tokens, vocab: 7"));
    assert_has(&both, &["a file of tokens has samples of its own"]);
    let wide = text(with(&prompt.replace("i32", "i64"), ", samples: a.tokens"));
    assert!(wide.contains("one input, a ragged row of i32"), "{wide}");
}
