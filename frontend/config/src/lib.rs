//! A frontend's file: [`FrontendConfig`], which the network needs, and the keys of the run.
//!
//! | type | purpose |
//! | --- | --- |
//! | [`FrontendFile`] | the whole file |
//! | [`RunKeys`] | the keys beyond the network's |
//! | [`DatasetConfig`] | the data set |
//! | [`LoadgenConfig`] | LoadGen's settings |
//!
//! A new key needs its field with the default, a line in `docs/configuration.md`, and the place
//! where it acts.

mod dataset;
mod loadgen;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use engines::EngineConfig;
use fabric::keys::within_some;
use garde::Validate;
use qdl::{
    config::{self, ConfigError, Findings, FrontendConfig, SectionKeys, resolve},
    model::DType,
};
use serde::{Deserialize, Serialize};

use dataset::MAX_SAMPLES;

pub use dataset::{DatasetConfig, DatasetKind, Dimension, LabelsConfig, SizeDistribution};
pub use loadgen::LoadgenConfig;

/// A frontend's file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrontendFile {
    /// The accelerators, and the NICs on the way to them.
    #[serde(flatten)]
    pub cluster: FrontendConfig,
    /// The keys of the run.
    #[serde(flatten)]
    pub run: RunKeys,
}

/// The keys of a frontend's file beyond those of its network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Validate)]
#[garde(allow_unvalidated)]
pub struct RunKeys {
    /// The data set.
    #[garde(dive)]
    pub dataset: DatasetConfig,
    /// Memory that samples are sent from; default `registered`.
    #[serde(default)]
    pub qsl: QslMode,
    /// Maximum number of samples that LoadGen loads at a time; default: the whole data set, limited
    /// by memory.
    #[garde(custom(within_some(1..=MAX_SAMPLES)))]
    pub performance_sample_count: Option<usize>,
    /// Whether to compare each response with its own sample; default `none`.
    #[serde(default)]
    pub verify: Verify,
    /// Submission round, as `--submission`: the program refuses, before it measures, a run that
    /// would not count in this round. Default none.
    pub submission: Option<String>,
    /// LoadGen's settings. The command line takes precedence.
    #[serde(default)]
    pub loadgen: LoadgenConfig,
    /// Engine of `--local`, the run without a network; default none.
    #[garde(dive)]
    pub engine: Option<EngineConfig>,
    /// Model file of `engine`; required for `onnx`.
    pub model_file: Option<PathBuf>,
}

/// Memory that samples are sent from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QslMode {
    /// Registered memory, from which the fabric sends without a copy.
    #[default]
    Registered,
    /// Unregistered memory: each sample is copied before it is sent, and the copies are counted.
    Staged,
}

/// Verification of responses against their samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// No verification.
    #[default]
    None,
    /// Each response must equal the answer of the engine `digest` to the sample.
    Digest,
    /// Each answer, its first token and its number of tokens must equal those of the engine
    /// `tokens` for the sample.
    Tokens,
}

impl SectionKeys<FrontendConfig> for RunKeys {
    fn resolve(&mut self, base: &Path) {
        self.dataset.resolve(base);
        self.loadgen.resolve(base);
        let file = self.model_file.iter_mut();
        file.for_each(|file| resolve(base, file));
        let engine = self.engine.iter_mut();
        engine.for_each(|engine| engine.resolve(base));
    }

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        let (dataset, loadgen) = (&self.dataset, &self.loadgen);
        vec![
            ("dataset.samples", dataset.samples.as_deref()),
            ("dataset.lengths", dataset.lengths.as_deref()),
            ("dataset.labels", dataset.labels.as_ref().map(|l| &*l.file)),
            ("loadgen.user_conf", loadgen.user_conf.as_deref()),
            ("loadgen.audit_config", loadgen.audit_config.as_deref()),
        ]
    }

    fn check(&self, config: &FrontendConfig, out: &mut Findings<'_>) {
        let model = &config.model;
        self.dataset
            .check(model, self.performance_sample_count, out);
        let output = &model.output;
        if self.verify == Verify::Tokens && !(output.ragged && output.dtype == DType::I32) {
            out.add(
                "verify",
                format!("`verify: tokens` expects tokens, the model's output is {output}"),
                "give the output `dtype: i32` and `ragged: true`, or use `verify: none`",
            );
        }
        if self.verify == Verify::Digest && model.max_output_bytes() < Some(8) {
            let outputs: Vec<_> = model.outputs().map(ToString::to_string).collect();
            out.add(
                "verify",
                format!(
                    "`verify: digest` expects responses of 8 bytes or more, the model's output \
                     is {}",
                    outputs.join(", ")
                ),
                "use a u8[8] output and accelerators with `engine: {kind: digest}`, or \
                 `verify: none`",
            );
        }
        let Some(engine) = &self.engine else { return };
        engine.check(out);
        if engine.kind.reads_file() && self.model_file.is_none() {
            out.add(
                "engine.kind",
                format!("engine `{}` needs a model file", engine.kind.as_str()),
                "add `model_file: PATH`",
            );
        }
    }
}

impl FrontendFile {
    /// Returns the model's name in `user.conf`.
    pub fn loadgen_model(&self) -> &str {
        let model = self.run.loadgen.model.as_deref();
        model.unwrap_or(&self.cluster.model.name)
    }

    /// Reads and checks a file, and checks that the files it names exist. Paths are relative to the
    /// folder `base`; default: the file's folder.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and column.
    pub fn load(path: &Path, base: Option<&Path>) -> Result<Self, ConfigError> {
        config::load(path, base).map(|(cluster, run)| FrontendFile { cluster, run })
    }

    /// Checks YAML. `origin` names the text in errors; paths are relative to the folder `base`.
    /// Reads no file.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] lists all problems.
    pub fn parse(text: &str, origin: &str, base: &Path) -> Result<Self, ConfigError> {
        config::parse(text, origin, base).map(|(cluster, run)| FrontendFile { cluster, run })
    }
}
