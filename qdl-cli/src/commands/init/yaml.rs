//! The text of both configurations, with comments on the keys that users change.

use std::path::Path;

use anyhow::bail;
use engines::newest_vllm;
use qdl::{
    config::{CONNECTIONS, NicConfig},
    model::{ModelSpec, TensorSpec},
    run::{request_stride, response_stride},
    topology::{FIRST_RUN, fill_template},
};
use record::NodeRole;
use serde_json::Value;

use super::{
    InitArgs, Result, TOKEN,
    addresses::{InitAddresses, PlannedAccelerator},
    files::named_from,
    llm::LanguageModel,
};

/// Bytes for slots on an accelerator without the key `memory_mib`.
const BUDGET: usize = 4096 << 20;
/// Maximum batch of a model with dynamic batch.
const BATCH: usize = 64;
/// Column at which the comments in the files begin.
const COMMENT: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct InitValues<'a> {
    pub args: &'a InitArgs,
    pub model_file: &'a Path,
    pub samples: &'a Path,
    /// The model, with the output that names the class first.
    pub model: ModelSpec,
    /// Number of samples to load at a time, if not all fit.
    pub loaded: Option<u64>,
    /// Number of slots of a single connection, if the usual number does not fit ([`slots`]).
    pub slots: Option<usize>,
    pub intra_threads: usize,
    pub fixed_batch: Option<usize>,
}

/// Moves the output named `class` to the front. Errors if the model has no such output.
pub(super) fn with_class_first(model: &ModelSpec, class: Option<&str>) -> Result<ModelSpec> {
    let mut outputs: Vec<_> = model.outputs().cloned().collect();
    if let Some(class) = class {
        let Some(at) = outputs.iter().position(|o| o.name == class) else {
            let names: Vec<_> = outputs.iter().map(|o| o.name.as_str()).collect();
            bail!(
                "--class {class}: the model's outputs are {}",
                names.join(", ")
            );
        };
        outputs[..=at].rotate_right(1);
    }
    Ok(ModelSpec {
        output: outputs.remove(0),
        other_outputs: outputs,
        ..model.clone()
    })
}

/// Those values of the two templates that depend on the model alone.
fn of_model(model: &ModelSpec) -> Vec<(&'static str, String)> {
    let list = |tensors: &[TensorSpec]| {
        let items = tensors.iter().map(|t| format!("    - {}", tensor(t)));
        items.collect::<Vec<_>>().join("\n")
    };
    let others = &model.other_outputs;
    let more = if others.is_empty() { "" } else { " " };
    vec![
        ("name", quoted(&model.name)),
        ("inputs", list(&model.inputs)),
        ("output", tensor(&model.output)),
        ("more", more.to_owned()),
        ("other_outputs", list(others)),
    ]
}

fn tensor(t: &TensorSpec) -> String {
    let name = quoted(&t.name);
    let ragged = if t.ragged { ", ragged: true" } else { "" };
    format!(
        "{{name: {name}, dtype: {}, shape: {:?}{ragged}}}",
        t.dtype, t.shape
    )
}

/// Number of slots for a single connection, if the usual number exceeds [`BUDGET`].
pub(super) fn slots(model: &ModelSpec) -> Option<usize> {
    let request = request_stride(model)?;
    let response = response_stride(model)?;
    let slot = request.checked_add(response)?;
    let usual = NicConfig::default().resolve_slots(request.max(response));
    let too_much = usual.saturating_mul(CONNECTIONS).saturating_mul(slot) > BUDGET;
    too_much.then(|| (BUDGET / slot.max(1)).clamp(1, usual))
}

pub(super) fn frontend(plan: &InitValues<'_>, addresses: &InitAddresses, folder: &Path) -> String {
    let path = |file: &Path| quoted(&named_from(folder, file));
    let args = plan.args;
    let labels = args.labels.as_deref().map(path);
    let labels = labels.map(|labels| match &args.labels_dtype {
        Some(dtype) => format!("{{file: {labels}, dtype: \"{dtype}\"}}"),
        None => labels,
    });
    let connections = if plan.slots.is_some() { "1" } else { "auto" };
    let mut values = of_model(&plan.model);
    values.extend([
        ("token", token(addresses)),
        ("samples", path(plan.samples)),
        ("labels", labels.unwrap_or_default()),
        ("loaded", optional(plan.loaded)),
        ("accelerators", controls(addresses)),
        ("address", quoted(&addresses.address.to_string())),
        ("connections", connections.to_owned()),
        ("slots", optional(plan.slots)),
        ("first_run", FIRST_RUN.to_owned()),
        ("intra_threads", plan.intra_threads.to_string()),
        (
            "library",
            args.library.as_deref().map(path).unwrap_or_default(),
        ),
        ("model_file", path(plan.model_file)),
    ]);
    fill_template(include_str!("templates/frontend.yaml"), COMMENT, &values)
}

/// Returns the configuration of accelerator `at`, for `folder` or the like on another machine.
pub(super) fn accelerator(
    plan: &InitValues<'_>,
    at: &PlannedAccelerator,
    addresses: &InitAddresses,
    folder: &Path,
) -> String {
    let model_file = model_for(at, plan.model_file, folder);
    let library = plan.args.library.as_deref().filter(|_| at.is_here);
    let library = library.map(|library| quoted(&named_from(folder, library)));
    let intra_threads = if at.is_here { plan.intra_threads } else { 1 };
    let mut values = of_model(&plan.model);
    values.extend(of_accelerator(at, addresses));
    values.extend([
        ("file", quoted(&model_file)),
        ("max_batch", plan.fixed_batch.unwrap_or(BATCH).to_string()),
        ("intra_threads", intra_threads.to_string()),
        ("library", library.unwrap_or_default()),
    ]);
    fill_template(include_str!("templates/accelerator.yaml"), COMMENT, &values)
}

/// Options of a vLLM with a role: NIXL moves the KV cache.
const TRANSFER: &str = ", --kv-transfer-config, \n      \
    '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}'";

pub(super) fn llm_frontend(
    args: &InitArgs,
    model: &LanguageModel,
    addresses: &InitAddresses,
    folder: &Path,
) -> String {
    let samples = args.samples.as_deref();
    let longest = model.spec.inputs[0].shape[0];
    // The keys of random prompts have no value beside a file.
    let random =
        |value: &dyn ToString| samples.map_or_else(|| value.to_string(), |_| String::new());
    let mut values = of_model(&model.spec);
    values.extend([
        ("token", token(addresses)),
        (
            "samples",
            optional(samples.map(|file| quoted(&named_from(folder, file)))),
        ),
        ("count", random(&1000)),
        ("min_len", random(&longest.min(16))),
        ("max_len", random(&longest)),
        ("vocab", random(&model.vocab)),
        ("seed", random(&1)),
        ("accelerators", controls(addresses)),
        ("address", quoted(&addresses.address.to_string())),
    ]);
    fill_template(
        include_str!("templates/llm_frontend.yaml"),
        COMMENT,
        &values,
    )
}

/// Returns the configuration of accelerator `at` of the language model in `llm`, for `folder` or
/// the like on another machine.
pub(super) fn llm_accelerator(
    llm: &Path,
    model: &LanguageModel,
    at: &PlannedAccelerator,
    addresses: &InitAddresses,
    folder: &Path,
) -> String {
    let engine = match model.vllm_at(at) {
        Ok(_) => format!(
            "  kind: vllm                     # vLLM's engine core, which this node starts\n  \
             vllm:\n    model: {}\n    args: [--max-model-len, \"{}\"{}]{}",
            quoted(&model_for(at, llm, folder)),
            model.context(),
            if at.role.is_both() { "" } else { TRANSFER },
            // The engine `vllm` refuses a model without an end of sequence.
            if model.eos.is_empty() {
                "\n    ignore_eos: true"
            } else {
                ""
            }
        ),
        Err(why) => {
            let install = newest_vllm();
            let (name, vocab) = (quoted(&model.spec.name), model.vocab);
            let eos = format!("\n    eos: {:?}", model.eos);
            let eos = Some(eos).filter(|_| !model.eos.is_empty());
            format!(
                "  # Not engine `vllm`, which needs no HTTP server: {why}.\n  # To use it, install it (`pip \
                 install vllm=={install}.*`) and repeat `qdl init` on this machine.\n  kind: http\n  http:\n    \
                 url: http://127.0.0.1:8000\n    dialect: vllm\n    model: {name}\n    \
                 vocab: {vocab}{}",
                eos.unwrap_or_default()
            )
        }
    };
    let role = match at.role {
        NodeRole::Both => String::new(),
        role => format!("  role: {role}\n"),
    };
    let mut values = of_model(&model.spec);
    values.extend(of_accelerator(at, addresses));
    values.push(("engine", role + &engine));
    fill_template(
        include_str!("templates/llm_accelerator.yaml"),
        COMMENT,
        &values,
    )
}

fn of_accelerator(
    at: &PlannedAccelerator,
    addresses: &InitAddresses,
) -> [(&'static str, String); 4] {
    [
        ("node", at.node()),
        ("control", at.listen.to_string()),
        ("token", token(addresses)),
        ("data", at.data.to_string()),
    ]
}

/// Returns the path of the model for accelerator `at`. On another machine the user copies the model
/// into the folder of the configuration.
fn model_for(at: &PlannedAccelerator, model: &Path, folder: &Path) -> String {
    match at.is_here {
        true => named_from(folder, model),
        false => {
            let name = model.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        }
    }
}

fn controls(addresses: &InitAddresses) -> String {
    let control = |at: &PlannedAccelerator| {
        let role = match at.role {
            NodeRole::Both => String::new(),
            role => format!("    role: {role}\n"),
        };
        format!("  - control: {}\n{role}", quoted(&at.control))
    };
    addresses.accelerators.iter().map(control).collect()
}

fn token(addresses: &InitAddresses) -> String {
    if addresses.need_token() {
        TOKEN.to_owned()
    } else {
        String::new()
    }
}

fn optional(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Quotes text for YAML: JSON strings are YAML strings.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use engines::config::parse_accelerator;
    use frontend_config::FrontendFile;
    use qdl::{config::parse_frontend, model::DType};

    use super::*;

    fn spec(shape: &[usize]) -> ModelSpec {
        let tensor = |name: &str, dtype, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            ragged: false,
        };
        ModelSpec {
            inputs: vec![
                tensor("serving: input:0", DType::F32, shape),
                tensor("on", DType::I64, &[1]),
            ],
            output: tensor("class", DType::I64, &[1]),
            ..ModelSpec::opaque("my.model-1", 1, 1)
        }
    }

    fn args() -> InitArgs {
        let words = "init --library /lib/libonnxruntime.so --labels /data/labels";
        let odd = [
            "--model",
            "/data/a model.onnx",
            "--samples",
            "/data/#1: samples",
        ];
        let words = words.split_whitespace().chain(odd);
        InitArgs::try_parse_from(words).expect("sound")
    }

    fn plan<'a>(args: &'a InitArgs, spec: &ModelSpec) -> InitValues<'a> {
        InitValues {
            args,
            model_file: args.model.as_deref().expect("a file"),
            samples: args.samples.as_deref().expect("a file"),
            model: with_class_first(spec, None).expect("a model"),
            loaded: Some(7),
            slots: slots(spec),
            intra_threads: 3,
            fixed_batch: Some(8),
        }
    }

    #[test]
    fn what_is_written_is_read_back_whatever_names_are_in_it() {
        let model = spec(&[3, 8]);
        let args = args();
        let plan = plan(&args, &model);
        let controls = vec!["127.0.0.1:7400".to_owned(), "[::1]:7401".to_owned()];
        let addresses = InitAddresses::of(&[(NodeRole::Both, &controls)]).expect("loopback");
        let folder = Path::new("/nowhere");
        let text = frontend(&plan, &addresses, folder);
        let f = FrontendFile::parse(&text, "frontend.yaml", folder)
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(f.cluster.model, model);
        assert_eq!(
            f.run.dataset.samples.as_deref(),
            Some(Path::new("/data/#1: samples"))
        );
        assert_eq!(f.cluster.accelerators.len(), 2);
        assert_eq!(f.run.performance_sample_count, Some(7));
        for at in &addresses.accelerators {
            let text = accelerator(&plan, at, &addresses, folder);
            let (a, engine) = parse_accelerator(&text, &at.file, folder)
                .unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(a.model.spec(), Some(model.clone()));
            assert_eq!(
                a.model.file.as_deref(),
                Some(Path::new("/data/a model.onnx"))
            );
            assert_eq!((a.control.listen, engine.intra_threads), (at.listen, 3));
            assert_eq!(engine.max_batch, 8, "the model's own");
        }
        assert!(text.lines().all(|l| l.len() <= 100), "{text}");
        let name = qdl::topology::allowed_name;
        assert_eq!(name("Mein Modell (2)", "model"), "Mein-Modell--2-");
        assert_eq!(name("", "model"), "model");
    }

    #[test]
    fn large_samples_get_as_many_slots_as_an_accelerator_has_memory_for() {
        assert_eq!(slots(&spec(&[224, 224, 3])), None);
        // For samples of about 1 GiB, `auto` chooses few enough slots for two connections.
        assert_eq!(slots(&spec(&[250 << 20])), None);
        let large = spec(&[(256 << 20) - 2]);
        assert_eq!(slots(&large), Some(2));
        let text = frontend(
            &plan(&args(), &large),
            &InitAddresses::of(&[]).expect("loopback"),
            Path::new("/"),
        );
        let f = parse_frontend(&text, "frontend.yaml", Path::new("/")).expect("sound");
        let needs = qdl::run::SlotNeeds::of(&f).expect("slots");
        assert!(needs.accelerator_bytes() <= BUDGET, "{needs:?}");
    }
}
