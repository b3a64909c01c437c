//! The data set: source of the samples.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use fabric::{keys::within, with_defaults};
use garde::Validate;
use qdl::{
    config::{Findings, resolve},
    model::{DType, ModelSpec, TensorSpec},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, value::MapAccessDeserializer},
};

pub(crate) const MAX_SAMPLES: usize = 1 << 32;

/// Kind of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatasetKind {
    /// Samples back to back in a file, or NumPy arrays (`docs/datasets.md`).
    Raw,
    /// Synthetic bytes, determined by the seed.
    Random,
    /// Token ids. With `samples`: from a file (`docs/datasets.md`), for a model with one ragged row
    /// of `i32` as input. Without: synthetic texts determined by the seed, for a model whose inputs
    /// are ragged rows of `i32` or `i64`. An input with `mask` in its name holds ones, one with
    /// `segment` or `type` zeros and then ones, any other random words.
    Tokens,
}

impl DatasetKind {
    /// Returns the kind's name in YAML.
    fn as_str(self) -> &'static str {
        match self {
            DatasetKind::Raw => "raw",
            DatasetKind::Random => "random",
            DatasetKind::Tokens => "tokens",
        }
    }

    fn has(self, key: &str) -> bool {
        match key {
            "kind" => true,
            "samples" => self != DatasetKind::Random,
            "lengths" | "labels" => self == DatasetKind::Raw,
            "count" | "seed" => self != DatasetKind::Raw,
            "min_bytes" | "max_bytes" | "distribution" | "shape" => self == DatasetKind::Random,
            _ => self == DatasetKind::Tokens,
        }
    }
}

with_defaults! {
/// Configuration of the data set. The kind determines which keys exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct DatasetConfig {
    /// Kind of the data set.
    pub kind: DatasetKind = DatasetKind::Random,
    /// `raw`: file of the samples in the order of their indices, each of the model's input size
    /// unless `lengths` is set. `tokens`: a file of token ids.
    pub samples: Option<PathBuf>,
    /// `raw`: file with the bytes of each sample as little-endian `u32`. Required for a model with
    /// ragged inputs, and refused for any other model.
    pub lengths: Option<PathBuf>,
    /// `raw`: one label per sample. Only accuracy requires it.
    pub labels: Option<LabelsConfig>,
    /// Number of synthetic samples; default 1024.
    #[garde(custom(within(1..=MAX_SAMPLES)))]
    pub count: usize = 1024,
    /// Seed of synthetic samples; default 1.
    pub seed: u64 = 1,
    /// `random`: minimum sample length in bytes; see [`Self::bytes`].
    pub min_bytes: Option<usize>,
    /// `random`: maximum sample length in bytes; see [`Self::bytes`].
    pub max_bytes: Option<usize>,
    /// `random`: distribution of the lengths; see [`Self::distribution`].
    pub distribution: Option<SizeDistribution>,
    /// `random`: values of each dimension, instead of lengths in bytes. Elements have the type of
    /// the model's only input.
    pub shape: Option<Vec<Dimension>>,
    /// `tokens`: minimum length of a text in tokens; default 1.
    pub min_len: usize = 1,
    /// `tokens`: maximum length of a text in tokens; see [`Self::max_len`].
    pub max_len: Option<usize>,
    /// `tokens`: words are random from 0 to `vocab` - 1; default 30,522, the vocabulary of BERT.
    pub vocab: u32 = 30_522,
}
}

/// Values of one dimension of random samples, all equally likely: `7`, `[LEAST, MOST]` or `[LEAST,
/// MOST, STEP]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Numbers", into = "[usize; 3]")]
pub struct Dimension {
    /// The minimum, at least 1.
    pub least: usize,
    /// The maximum.
    pub most: usize,
    /// Difference between neighbouring values; default 1.
    pub step: usize,
}

/// A dimension as written in YAML.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "it must be a number, or [least, most] or [least, most, step]"
)]
enum Numbers {
    One(usize),
    Two([usize; 2]),
    Three([usize; 3]),
}

impl From<Numbers> for Dimension {
    fn from(numbers: Numbers) -> Self {
        let [least, most, step] = match numbers {
            Numbers::One(n) => [n, n, 1],
            Numbers::Two([least, most]) => [least, most, 1],
            Numbers::Three(all) => all,
        };
        Dimension { least, most, step }
    }
}

impl From<Dimension> for [usize; 3] {
    fn from(Dimension { least, most, step }: Dimension) -> Self {
        [least, most, step]
    }
}

/// Distribution of the lengths of random samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeDistribution {
    /// Lengths whose magnitudes are equally likely.
    LogUniform,
    /// All samples have `max_bytes` bytes.
    Fixed,
}

impl DatasetConfig {
    /// Creates a data set of this kind with all defaults.
    pub fn new(kind: DatasetKind) -> Self {
        DatasetConfig {
            kind,
            ..DatasetConfig::default()
        }
    }

    /// Creates `count` random samples of `bytes.0` to `bytes.1` bytes, log-uniform if they differ.
    pub fn random(count: usize, bytes: (usize, usize)) -> Self {
        DatasetConfig {
            count,
            min_bytes: Some(bytes.0),
            max_bytes: Some(bytes.1),
            distribution: Some(if bytes.0 == bytes.1 {
                SizeDistribution::Fixed
            } else {
                SizeDistribution::LogUniform
            }),
            ..DatasetConfig::new(DatasetKind::Random)
        }
    }

    /// The distribution of random lengths; default `log_uniform` with a ragged input, else `fixed`.
    pub fn distribution(&self, model: &ModelSpec) -> SizeDistribution {
        self.distribution.unwrap_or(if model.fixed_size() {
            SizeDistribution::Fixed
        } else {
            SizeDistribution::LogUniform
        })
    }

    /// Returns the minimum and maximum length of random samples in bytes. Default maximum: the
    /// model's input size. Default minimum: 1 for `log_uniform`, the maximum for `fixed`.
    pub fn bytes(&self, model: &ModelSpec) -> (usize, usize) {
        // `rules::check_model` reports a model whose size overflows.
        let max = self.max_bytes.or(model.max_input_bytes()).unwrap_or(1);
        let min = self.min_bytes.unwrap_or(match self.distribution(model) {
            SizeDistribution::LogUniform => 1,
            SizeDistribution::Fixed => max,
        });
        (min, max)
    }

    /// Returns the maximum length of a text in tokens; default: the model's maximum. All lengths
    /// from minimum to maximum are equally likely.
    pub fn max_len(&self, model: &ModelSpec) -> usize {
        self.max_len.or(token_rows(model)).unwrap_or(1)
    }

    pub(crate) fn resolve(&mut self, base: &Path) {
        let labels = self.labels.as_mut().map(|l| &mut l.file);
        let files = [self.samples.as_mut(), self.lengths.as_mut(), labels];
        for file in files.into_iter().flatten() {
            resolve(base, file);
        }
    }

    /// Checks the data set against the model and the number of samples loaded at a time.
    pub(crate) fn check(&self, model: &ModelSpec, loaded: Option<usize>, out: &mut Findings<'_>) {
        let kind = self.kind.as_str();
        if !out.has("dataset.kind") {
            return out.add(
                "dataset",
                "the key `kind` is missing",
                "add `kind: raw`, `kind: random` or `kind: tokens`",
            );
        }
        for key in out.keys("dataset") {
            if !self.kind.has(key) {
                out.add_key(
                    format!("dataset.{key}"),
                    format!("a data set of kind `{kind}` has no `{key}`"),
                    format!("remove `{key}`, or use another kind"),
                );
            }
        }
        let Some(largest) = model.max_input_bytes() else {
            return; // The model has been complained of.
        };
        match self.kind {
            DatasetKind::Raw => return self.check_raw(model, out),
            DatasetKind::Random if self.shape.is_some() => self.check_shape(model, out),
            DatasetKind::Random => self.check_random(model, largest, out),
            DatasetKind::Tokens if self.samples.is_some() => {
                return check_token_file(model, out);
            }
            DatasetKind::Tokens => self.check_tokens(model, out),
        }
        let count = self.count;
        if let Some(loaded) = loaded.filter(|loaded| *loaded > count) {
            out.add(
                "performance_sample_count",
                format!("performance_sample_count is {loaded}, the data set has {count} samples"),
                format!("set it to at most {count}"),
            );
        }
    }

    fn check_raw(&self, model: &ModelSpec, out: &mut Findings<'_>) {
        if self.samples.is_none() {
            out.add(
                "dataset",
                "a data set of kind `raw` needs `samples`",
                "add `samples: PATH`, a file of samples, back to back",
            );
        }
        if self.labels.is_some() {
            check_labels(model, out);
        }
        match (model.fixed_size(), &self.lengths) {
            (false, None) => out.add(
                "dataset",
                "the model has a ragged input, and the data set does not say how long each sample \
                 is",
                "add `lengths: PATH`, a file of little-endian u32, or use `kind: random` or \
                 `kind: tokens`",
            ),
            (true, Some(_)) => out.add_key(
                "dataset.lengths",
                "all samples of a model without ragged inputs have the same length",
                "remove `lengths`, or mark inputs `ragged: true`",
            ),
            _ => {}
        }
    }

    /// Checks a `shape`, which determines the lengths of the samples.
    fn check_shape(&self, model: &ModelSpec, out: &mut Findings<'_>) {
        let Some(shape) = &self.shape else { return };
        for key in ["min_bytes", "max_bytes", "distribution"] {
            if out.has(&format!("dataset.{key}")) {
                out.add_key(
                    format!("dataset.{key}"),
                    format!("`{key}` and `shape` both say how large samples are"),
                    format!("remove one of them; `shape` needs no `{key}`"),
                );
            }
        }
        let [input] = &model.inputs[..] else {
            return out.add(
                "dataset.shape",
                format!(
                    "samples of a shape are for a model of one input, this has {}",
                    model.inputs.len()
                ),
                "remove `shape`, and say `min_bytes` and `max_bytes`",
            );
        };
        let element = input.dtype.bytes();
        let bytes = |of: fn(&Dimension) -> usize| {
            let each = shape.iter().map(of);
            each.fold(element, usize::saturating_mul)
        };
        let (least, most) = (bytes(|d| d.least), bytes(|d| d.most));
        let room = input.bytes().unwrap_or(0);
        let sound = |d: &Dimension| d.least >= 1 && d.least <= d.most && d.step >= 1;
        if shape.is_empty() || !shape.iter().all(sound) {
            out.add(
                "dataset.shape",
                "a dimension is 0, or its largest is below its smallest, or its step is 0",
                "list numbers, or [least, most] or [least, most, step], as in \
                 `shape: [[128, 384, 64], 256]`",
            );
        } else if most > room {
            out.add(
                "dataset.shape",
                format!("the largest sample has {most} bytes"),
                format!(
                    "it fits no slot: the model's input has {room} bytes; set its `shape` on every \
                     node to what the largest sample needs"
                ),
            );
        } else if model.fixed_size() && least != room {
            out.add(
                "dataset.shape",
                format!(
                    "samples of {least} to {most} bytes do not fit the model, which takes {room} \
                     bytes and no fewer"
                ),
                "give the input's own shape, or mark the input `ragged: true`",
            );
        }
    }

    fn check_random(&self, model: &ModelSpec, largest: usize, out: &mut Findings<'_>) {
        let (min, max) = self.bytes(model);
        if max > largest || max == 0 {
            out.add(
                "dataset.max_bytes",
                format!("max_bytes is {max}"),
                format!("it must be 1 to {largest}, the size of the model's input"),
            );
        } else if min > max || min == 0 {
            out.add(
                "dataset.min_bytes",
                format!("min_bytes is {min}"),
                format!("it must be 1 to {max}, which is max_bytes"),
            );
        } else if self.distribution(model) == SizeDistribution::Fixed && min != max {
            out.add_key(
                "dataset.min_bytes",
                format!("samples of fixed size have max_bytes, {max}, all of them"),
                "remove `min_bytes`, or use `distribution: log_uniform`",
            );
        } else if model.fixed_size() && min != largest {
            out.add(
                "dataset",
                format!(
                    "samples of {min} to {max} bytes do not fit the model, which takes {largest} \
                     bytes and no fewer"
                ),
                "use `distribution: fixed` without `min_bytes` and `max_bytes`, or mark the input \
                 `ragged: true`",
            );
        }
    }

    fn check_tokens(&self, model: &ModelSpec, out: &mut Findings<'_>) {
        let Some(longest) = token_rows(model) else {
            return out.add(
                "dataset.kind",
                "a data set of tokens needs a model whose inputs are all ragged rows of i64, or of \
                 i32, of one length",
                "give each input `dtype: i64, shape: [LENGTH], ragged: true`, or use \
                 `kind: random`",
            );
        };
        let (min, max) = (self.min_len, self.max_len(model));
        if max > longest || max == 0 {
            out.add(
                "dataset.max_len",
                format!("max_len is {max}"),
                format!("it must be 1 to {longest}, the length of the model's inputs"),
            );
        } else if min > max || min == 0 {
            out.add(
                "dataset.min_len",
                format!("min_len is {min}"),
                format!("it must be 1 to {max}, which is max_len"),
            );
        }
        if self.vocab == 0 {
            out.add(
                "dataset.vocab",
                "vocab is 0",
                "it must be at least 1: the number of words",
            );
        }
    }
}

/// Checks a file of tokens: no other key may describe the samples, and the ids have 32 bits.
fn check_token_file(model: &ModelSpec, out: &mut Findings<'_>) {
    for key in out.keys("dataset") {
        if key != "kind" && key != "samples" {
            out.add_key(
                format!("dataset.{key}"),
                "a file of tokens has samples of its own, which are not made here",
                format!("remove `{key}`, or `samples`"),
            );
        }
    }
    let prompt = |t: &TensorSpec| t.dtype == DType::I32 && t.ragged && t.shape.len() == 1;
    if model.inputs.len() != 1 || !model.inputs.iter().all(prompt) {
        out.add(
            "dataset.samples",
            "a file of tokens needs a model with one input, a ragged row of i32",
            "give it `dtype: i32, shape: [LONGEST], ragged: true`",
        );
    }
}

/// The maximum tokens of a sample for a model of ragged rows of `i64` or `i32`; `None` for others.
fn token_rows(model: &ModelSpec) -> Option<usize> {
    let first = model.inputs.first()?;
    let [rows] = first.shape[..] else {
        return None;
    };
    let ids = matches!(first.dtype, DType::I64 | DType::I32);
    let alike = |t: &TensorSpec| ids && t.dtype == first.dtype && t.ragged && t.shape == [rows];
    model.inputs.iter().all(alike).then_some(rows)
}

/// One label for each sample. In YAML `{file: PATH, dtype: i32}`, or the path alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelsConfig {
    /// Labels in the order of the samples' indices: back to back, or a NumPy array.
    pub file: PathBuf,
    /// Element type. A NumPy array states its type; the default for any other file is `i64`.
    pub dtype: Option<DType>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelKeys {
    file: PathBuf,
    dtype: Option<DType>,
}

impl<'de> Deserialize<'de> for LabelsConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = LabelsConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or `{file: PATH, dtype: i32}`")
            }

            fn visit_str<E: de::Error>(self, path: &str) -> Result<LabelsConfig, E> {
                Ok(LabelsConfig {
                    file: path.into(),
                    dtype: None,
                })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LabelsConfig, A::Error> {
                let LabelKeys { file, dtype } =
                    LabelKeys::deserialize(MapAccessDeserializer::new(map))?;
                Ok(LabelsConfig { file, dtype })
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// Checks that the model's output can be compared with labels: it names a class.
fn check_labels(model: &ModelSpec, out: &mut Findings<'_>) {
    let output = &model.output;
    // A row of class scores has at most one dimension above 1.
    if output.ragged || output.shape.iter().filter(|d| **d > 1).count() > 1 {
        out.add(
            "dataset.labels",
            format!("the model's output, {output}, is neither a class nor one score for each"),
            "let `output` be the one that is, and list the others in `other_outputs`; or remove \
             `labels`",
        );
    }
}
