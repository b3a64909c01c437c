//! The text of both files, commented where somebody would change something.

use std::path::{Path, PathBuf};

use anyhow::bail;
use qdl::{
    config::{CONNECTIONS, NicConfig},
    model::ModelSpec,
    run::{request_stride, response_stride},
    topology::FIRST_RUN,
};
use serde_json::Value;

use super::{
    Result, TOKEN,
    files::named_from,
    places::{Place, Places},
};

/// Slots that a file need not speak of: an accelerator's budget without `memory_mib`.
const BUDGET: usize = 4096 << 20;
/// Where comments begin.
const COMMENT: usize = 32;
/// Longest name of a model.
const NAME: usize = 64;

/// What the files are made from.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub model: Model,
    pub model_file: PathBuf,
    pub library: Option<PathBuf>,
    pub samples: PathBuf,
    pub labels: Option<PathBuf>,
    pub labels_dtype: Option<String>,
    /// Samples to load at a time, where not all of them fit.
    pub loaded: Option<u64>,
    /// Slots of the only connection, where as many as usual would not fit.
    pub slots: Option<usize>,
    pub intra_threads: usize,
}

/// A model's tensors, each as YAML has it.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub name: String,
    inputs: Vec<Value>,
    /// The one that names the class comes first.
    outputs: Vec<Value>,
}

impl Model {
    /// Of what the engine read. `class` is the output that is to come first.
    ///
    /// # Errors
    /// There is no such output.
    pub fn of(model: &ModelSpec, class: Option<&str>) -> Result<Self> {
        // As the control plane spells it, which is how YAML does.
        let fields = serde_json::to_value(model)?;
        let list = |key: &str| fields[key].as_array().cloned().unwrap_or_default();
        let mut outputs = vec![fields["output"].clone()];
        outputs.extend(list("other_outputs"));
        if let Some(class) = class {
            let Some(at) = outputs.iter().position(|o| o["name"] == class) else {
                let names: Vec<_> = outputs.iter().filter_map(|o| o["name"].as_str()).collect();
                bail!(
                    "--class {class}: the model's outputs are {}",
                    names.join(", ")
                );
            };
            let first = outputs.remove(at);
            outputs.insert(0, first);
        }
        Ok(Model {
            name: model.name.clone(),
            inputs: list("inputs"),
            outputs,
        })
    }

    /// The outputs in their order, for people.
    pub fn outputs(&self) -> Vec<String> {
        let text = |o: &Value| {
            let plain = |key: &str| o[key].as_str().unwrap_or_default().to_owned();
            format!("{}: {}{}", plain("name"), plain("dtype"), o["shape"])
        };
        self.outputs.iter().map(text).collect()
    }

    /// The keys `inputs`, `output` and, where there are more, `other_outputs`.
    fn yaml(&self) -> String {
        let item = |t: &Value| format!("    - {}\n", tensor(t));
        let mut y = "  inputs:\n".to_owned();
        y.extend(self.inputs.iter().map(item));
        let (first, others) = self.outputs.split_at(1);
        y.extend(first.iter().map(|t| format!("  output: {}\n", tensor(t))));
        if !others.is_empty() {
            y += &said("  other_outputs:", "packed behind it");
            y.extend(others.iter().map(item));
        }
        y
    }
}

fn tensor(t: &Value) -> String {
    let text = |key: &str| t[key].as_str().unwrap_or_default();
    let shape: Vec<_> = t["shape"]
        .as_array()
        .into_iter()
        .flatten()
        .map(Value::to_string)
        .collect();
    let (name, dtype, shape) = (scalar(text("name")), text("dtype"), shape.join(", "));
    format!("{{name: {name}, dtype: {dtype}, shape: [{shape}]}}")
}

/// A text as YAML, in quotes where it might be taken for something else.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let first = text.trim_start_matches(['.', '/']).chars().next();
    let letter = first.is_some_and(|c| c.is_ascii_alphabetic());
    let words = [
        "true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan",
    ];
    let bare = text.trim_start_matches('.').to_ascii_lowercase();
    if letter && text.chars().all(plain) && !words.contains(&bare.as_str()) {
        return text.to_owned();
    }
    // JSON's strings are YAML's.
    Value::from(text).to_string()
}

/// A model's name that a configuration takes.
pub(super) fn name(text: &str) -> String {
    let ok = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = text
        .chars()
        .take(NAME)
        .map(|c| if ok(c) { c } else { '-' })
        .collect();
    if name.is_empty() {
        "model".to_owned()
    } else {
        name
    }
}

/// Slots of one connection, where as many as two usually have exceed an accelerator's budget.
pub(super) fn slots(model: &ModelSpec) -> Option<usize> {
    let request = request_stride(model)?;
    let response = response_stride(model)?;
    let slot = request.checked_add(response)?;
    let usual = NicConfig::default().resolve_slots(request.max(response));
    let too_much = usual.saturating_mul(CONNECTIONS).saturating_mul(slot) > BUDGET;
    too_much.then(|| (BUDGET / slot.max(1)).clamp(1, usual))
}

/// The frontend's file, for `folder`.
pub(super) fn frontend(plan: &Plan, places: &Places, folder: &Path) -> String {
    let path = |file: &Path| scalar(&named_from(folder, file));
    let mut y = "\
# The frontend: LoadGen runs here. `frontend --config` this file; with --check it looks, and ends.
# Paths are relative to this file's folder; docs/configuration.md explains every key.

node: frontend
"
    .to_owned();
    y += &auth(places);
    y += "\n# One sample, without the batch. The accelerator's model must be the same.\n";
    y += &format!(
        "model:\n  name: {}\n{}",
        scalar(&plan.model.name),
        plan.model.yaml()
    );
    y += &format!(
        "\ndataset:\n  kind: raw\n  samples: {}\n",
        path(&plan.samples)
    );
    if let Some(labels) = &plan.labels {
        let labels = path(labels);
        y += &match &plan.labels_dtype {
            Some(dtype) => format!("  labels: {{file: {labels}, dtype: {}}}\n", scalar(dtype)),
            None => format!("  labels: {labels}\n"),
        };
    }
    if let Some(loaded) = plan.loaded {
        let key = format!("performance_sample_count: {loaded}");
        y += &said(
            &key,
            "loaded at a time: all of them would take too much memory",
        );
    }
    y += "\naccelerators:\n";
    for at in &places.accelerators {
        y += &format!("  - control: {}\n", scalar_address(&at.control));
    }
    y += &format!(
        "\nnics:\n  - address: {}\n",
        scalar_address(&places.address.to_string())
    );
    y += &match plan.slots {
        Some(slots) => {
            let slots = format!("    connections: 1\n    slots: {slots}");
            said(
                &slots,
                "large samples: as many as 4096 MiB hold on the accelerator",
            )
        }
        None => said(
            "    connections: auto",
            "to each accelerator, by the cores that there are",
        ),
    };
    y.push('\n');
    y += FIRST_RUN;
    y += "\n# The same run in one process, to compare with: --local.\n";
    y += &local_engine(plan, folder);
    y += &format!("model_file: {}\n", path(&plan.model_file));
    y
}

/// An accelerator's file, for `folder`, or one like it on its own machine.
pub(super) fn accelerator(plan: &Plan, at: &Place, places: &Places, folder: &Path) -> String {
    let file = match at.is_here {
        true => named_from(folder, &plan.model_file),
        // It is copied there beside this file.
        false => plan
            .model_file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    };
    let mut y = "\
# An accelerator: the model runs here. `accelerator --config` this file; with --check it looks.
# Paths are relative to this file's folder; docs/configuration.md explains every key.

"
    .to_owned();
    y += &said(&format!("node: {}", at.node()), "unique among all nodes");
    let control = format!("control: {{listen: \"{}\"}}", at.listen);
    y += &format!("\n{}", said(&control, "where frontends come to"));
    y += &auth(places);
    y += &format!(
        "\nmodel:\n  name: {}\n  file: {}\n{}",
        scalar(&plan.model.name),
        scalar(&file),
        plan.model.yaml()
    );
    let intra = if at.is_here { plan.intra_threads } else { 1 };
    y += "\nengine:\n  kind: onnx\n";
    for (key, comment) in [
        ("max_batch: 64".to_owned(), "most samples in a batch"),
        (
            "max_delay_us: 500".to_owned(),
            "a sample waits so long for company while the engine is busy",
        ),
        ("threads: 1".to_owned(), "batches at the same time"),
        (
            format!("intra_threads: {intra}"),
            "cores that each of them takes",
        ),
    ] {
        y += &said(&format!("  {key}"), comment);
    }
    if let Some(library) = plan.library.as_ref().filter(|_| at.is_here) {
        y += &format!("  library: {}\n", scalar(&named_from(folder, library)));
    }
    let listen = format!("  - listen: \"{}\"", at.data);
    let comment = match at.data.port() {
        0 => "where data connections arrive; port 0: the system chooses",
        _ => "where data connections arrive",
    };
    y += &format!("\nnics:\n{}", said(&listen, comment));
    y
}

fn local_engine(plan: &Plan, folder: &Path) -> String {
    let mut y = "engine:\n  kind: onnx\n".to_owned();
    y += &format!("  intra_threads: {}\n", plan.intra_threads);
    if let Some(library) = &plan.library {
        y += &format!("  library: {}\n", scalar(&named_from(folder, library)));
    }
    y
}

fn auth(places: &Places) -> String {
    match places.need_token() {
        true => said(
            &format!("token_file: {TOKEN}"),
            "the same bytes on every node",
        ),
        false => String::new(),
    }
}

/// A line with its comment, which stand below one another.
fn said(yaml: &str, comment: &str) -> String {
    let width = COMMENT + yaml.rfind('\n').map_or(0, |at| at + 1);
    format!("{yaml:<width$} # {comment}\n")
}

/// An address always stands in quotes: its colons are no mapping's.
fn scalar_address(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use qdl::{
        config::{parse_accelerator, parse_frontend},
        model::{DType, TensorSpec},
    };

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

    fn plan(spec: &ModelSpec) -> Plan {
        Plan {
            model: Model::of(spec, None).expect("a model"),
            model_file: "/data/a model.onnx".into(),
            library: Some("/lib/libonnxruntime.so".into()),
            samples: "/data/#1: samples".into(),
            labels: Some("/data/labels".into()),
            labels_dtype: None,
            loaded: Some(7),
            slots: slots(spec),
            intra_threads: 3,
        }
    }

    #[test]
    fn what_is_written_is_read_back_whatever_names_are_in_it() {
        let model = spec(&[3, 8]);
        let plan = plan(&model);
        let controls = ["127.0.0.1:7400".to_owned(), "[::1]:7401".to_owned()];
        let places = Places::of(&controls).expect("loopback");
        let folder = Path::new("/nowhere");
        let text = frontend(&plan, &places, folder);
        let f = parse_frontend(&text, "frontend.yaml", folder)
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(f.model, model);
        assert_eq!(
            f.dataset.samples.as_deref(),
            Some(Path::new("/data/#1: samples"))
        );
        assert_eq!(
            (f.accelerators.len(), f.performance_sample_count),
            (2, Some(7))
        );
        for at in &places.accelerators {
            let text = accelerator(&plan, at, &places, folder);
            let a = parse_accelerator(&text, &at.file, folder)
                .unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(a.model.spec(), Some(model.clone()));
            assert_eq!(
                a.model.file.as_deref(),
                Some(Path::new("/data/a model.onnx"))
            );
            assert_eq!((a.control.listen, a.engine.intra_threads), (at.listen, 3));
        }
        assert!(text.lines().all(|l| l.len() <= 100), "{text}");
    }

    #[test]
    fn large_samples_get_as_many_slots_as_an_accelerator_has_memory_for() {
        assert_eq!(slots(&spec(&[224, 224, 3])), None);
        // Of samples of a gigabyte `auto` has so few that two connections fit.
        assert_eq!(slots(&spec(&[250 << 20])), None);
        let large = spec(&[(256 << 20) - 2]);
        assert_eq!(slots(&large), Some(2));
        let text = frontend(
            &plan(&large),
            &Places::of(&[]).expect("loopback"),
            Path::new("/"),
        );
        let f = parse_frontend(&text, "frontend.yaml", Path::new("/")).expect("sound");
        let needs = qdl::run::SlotNeeds::of(&f).expect("slots");
        assert!(needs.accelerator_bytes() <= BUDGET, "{needs:?}");
    }

    #[test]
    fn names_are_quoted_where_yaml_would_take_them_for_something_else() {
        assert_eq!(scalar("pixels"), "pixels");
        assert_eq!(scalar("../a/b.npy"), "../a/b.npy");
        for odd in ["on", "1e5", "a: b", "#x", "", "-a", ".nan", "é", "a\"b"] {
            assert!(scalar(odd).starts_with('"'), "{odd}");
        }
        assert_eq!(name("Mein Modell (2)"), "Mein-Modell--2-");
        assert_eq!(name(""), "model");
    }

    #[test]
    fn an_output_that_is_not_there_is_named() {
        let error = Model::of(&spec(&[1]), Some("boxes")).expect_err("not there");
        assert!(
            error
                .to_string()
                .contains("--class boxes: the model's outputs are class")
        );
    }
}
