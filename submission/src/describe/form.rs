//! The submitter's form in YAML: facts that no machine can report. `describe --ask` writes a blank
//! form that explains each field; `submit` reads it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use qdl::config::nearest;
use serde::Deserialize;

use crate::{
    error::{self, Error},
    layout::Name,
    round::Round,
};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    pub submitter: Name,
    /// Name of the default system, of its folder, and of its JSON file.
    pub system: Name,
    /// Further systems, each with its own set of accelerators.
    #[serde(default)]
    pub systems: BTreeMap<Name, FurtherSystem>,
    /// `available`, `preview` or `rdi`.
    #[serde(default)]
    pub status: String,
    /// Fields of the system's JSON, which the machines' reports may not contradict.
    #[serde(default)]
    pub fields: BTreeMap<String, String>,
    /// Whether host memory has ECC, `yes` or `no`; used if the kernel does not report it.
    #[serde(default)]
    pub host_memory_ecc: String,
    /// Whether the accelerators' memory has ECC, `yes` or `no`; used if no driver reports it.
    #[serde(default)]
    pub accelerator_memory_ecc: String,
    /// Switches between the nodes; if empty, cables connect the nodes directly.
    #[serde(default)]
    pub switches: Vec<Switch>,
    /// Fields of measurements.json, by the model's folder.
    #[serde(default)]
    pub models: BTreeMap<String, BTreeMap<String, String>>,
    /// TEST07's accuracy command, by the model's folder.
    #[serde(default)]
    pub accuracy_scripts: BTreeMap<String, String>,
    /// Text on how weights and activations were quantized.
    #[serde(default)]
    pub quantization: String,
    /// Text on the data path from the NICs to the accelerators, beyond what the machines report.
    #[serde(default)]
    pub data_path: String,
}

/// A system in addition to the form's default one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FurtherSystem {
    pub accelerators: BTreeSet<String>,
    pub fields: BTreeMap<String, String>,
}

/// A switch, a router or a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switch {
    pub name: String,
    pub model: String,
    pub software: String,
    /// NICs with a cable to the switch, as `NODE:NIC`; if empty, every NIC that carries samples.
    pub connects: Vec<String>,
}

/// Fields of the system's JSON that no machine reports, with their meaning.
const ASKED: [(&str, &str); 6] = [
    (
        "system_name",
        "what the system is called in the table of results",
    ),
    (
        "framework",
        "what runs the model, with its version: TensorRT 10.3, vLLM 0.9.1",
    ),
    ("cooling", "air, liquid"),
    (
        "host_networking_topology",
        "how the hosts are connected: N/A, a leaf-spine of 400G Ethernet",
    ),
    (
        "accelerator_interconnect",
        "between accelerators of a node: NVLink 4, PCIe, N/A",
    ),
    ("accelerator_memory_configuration", "HBM3, GDDR6"),
];

/// Fields of the system's JSON that have their own key in the form, or follow from the tree.
const ELSEWHERE: [&str; 4] = ["division", "submitter", "status", "system_type"];

impl Form {
    /// Reads and checks a filled-in form.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let form: Form = error::read_yaml(path)?;
        form.check().map_err(Error::content(path))?;
        Ok(form)
    }

    /// A form that sets nothing but the names.
    pub fn named(submitter: &Name, system: &Name) -> Option<Self> {
        let names = serde_json::json!({"submitter": submitter, "system": system});
        serde_json::from_value(names).ok()
    }

    fn check(&self) -> Result<(), String> {
        for (key, answer) in [
            ("host_memory_ecc", &self.host_memory_ecc),
            ("accelerator_memory_ecc", &self.accelerator_memory_ecc),
        ] {
            if !["", "yes", "no"].contains(&answer.as_str()) {
                return Err(format!("{key} is {answer:?}: yes, no, or empty"));
            }
        }
        Ok(())
    }

    /// Checks the form's fields, its models and their fields against a round.
    pub fn of_round(&self, round: &Round) -> Result<(), String> {
        let others = self.systems.iter().flat_map(|(name, other)| {
            let key = format!("systems.{name}.fields");
            other.fields.keys().map(move |k| (key.clone(), k))
        });
        let own = self.fields.keys().map(|k| ("fields".to_owned(), k));
        for (key, odd) in own.chain(others) {
            let all = round.system.fields.iter().chain(&round.system.network);
            let all = all
                .map(String::as_str)
                .filter(|field| !ELSEWHERE.contains(field));
            known(&key, odd, all)?;
        }
        for (model, fields) in &self.models {
            known("models", model, round.models.keys().map(|m| &**m))?;
            for field in fields.keys() {
                let all = round.measurements.iter().map(String::as_str);
                known(&format!("models.{model}"), field, all)?;
            }
        }
        for model in self.accuracy_scripts.keys() {
            known("accuracy_scripts", model, round.models.keys().map(|m| &**m))?;
        }
        Ok(())
    }

    /// The name of the system with exactly these accelerators, else the form's default system.
    pub fn system_of(&self, accelerators: &BTreeSet<&Name>) -> &Name {
        let all = self.systems.iter();
        let mut all = all.filter(|(_, other)| {
            let names = other.accelerators.iter().map(String::as_str);
            names.eq(accelerators.iter().map(|n| &***n))
        });
        all.next().map_or(&self.system, |(name, _)| name)
    }

    /// A copy of the form for one system, with that system's name and its overriding fields.
    pub fn of_system(&self, system: &Name) -> Form {
        let mut form = self.clone();
        form.system = system.clone();
        let other = self.systems.get(system);
        form.fields
            .extend(other.iter().flat_map(|o| o.fields.clone()));
        form
    }

    /// The trimmed value of a field; empty if the form does not set it.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |v| v.trim())
    }

    /// Name and meaning of each field that only the form can set and that it leaves empty.
    pub fn empty(&self) -> Vec<(&'static str, &'static str)> {
        let asked = ASKED.into_iter();
        asked
            .filter(|(name, _)| self.field(name).is_empty())
            .collect()
    }
}

/// Checks that `all` contains `name`; the error suggests a similar name.
fn known<'a>(key: &str, name: &str, all: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let all: Vec<_> = all.collect();
    if all.contains(&name) {
        return Ok(());
    }
    // Else suggest a name that begins with `name`.
    let begun = || all.iter().copied().find(|other| other.starts_with(name));
    let like = nearest(name, &all).or_else(begun);
    let like = like.map_or(String::new(), |like| format!("like it: {like}; "));
    Err(format!(
        "{key}.{name}: there is no such name; {like}all: {}",
        all.join(", ")
    ))
}

/// An empty form with these models, each with its fields of measurements.json.
pub fn blank(models: &[(&str, &[String])]) -> String {
    let mut asked = String::new();
    for (model, fields) in models {
        asked += &format!("  {model}:\n");
        for field in *fields {
            asked += &format!("    {field}: \"\"    # {}\n", measurement(field));
        }
    }
    include_str!("form.yaml").replace("  # MODELS\n", &asked)
}

fn measurement(field: &str) -> &'static str {
    match field {
        "input_data_types" => "int32, fp32",
        "retraining" => "no, or where it is described",
        "starting_weights_filename" => "the file, or its address",
        "weight_data_types" => "fp8, bf16",
        "weight_transformations" => "quantization, with what; \"none\" where there is none",
        _ => "see the rules of the round",
    }
}
