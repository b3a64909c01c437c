//! Where the samples come from.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    load::resolve,
    rules::{Findings, within},
};
use crate::model::{DType, ModelSpec};

/// Default of `count` of a random data set, in samples.
pub const DEFAULT_RANDOM_COUNT: usize = 1024;
/// Default of `min_bytes` of a random data set of log-uniform sizes.
pub const DEFAULT_RANDOM_MIN_BYTES: usize = 1;
/// Default of `seed` of a random data set.
pub const DEFAULT_RANDOM_SEED: u64 = 1;
/// Most samples of a data set.
pub(super) const MAX_SAMPLES: usize = 1 << 32;

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetConfig {
    /// `kind: raw`: a file of samples, back to back.
    Raw {
        /// Samples in the order of their indices, each of the model's input size unless `lengths` tells.
        samples: PathBuf,
        /// Bytes of each sample, little-endian `u32`, for a model with ragged inputs, which needs them; no other has any.
        lengths: Option<PathBuf>,
        /// One label for each sample, little-endian, either of the model's output type or `i64`: the length of
        /// the file decides. Needed for accuracy alone.
        labels: Option<PathBuf>,
    },
    /// `kind: random`: synthetic bytes, the same for the same seed.
    Random {
        /// Samples; default 1024.
        count: usize,
        /// Bytes of the shortest sample; default 1 for `log_uniform`, and `max_bytes` for `fixed`.
        min_bytes: usize,
        /// Bytes of the longest sample; default the model's input size.
        max_bytes: usize,
        /// Seed of sizes and bytes; default 1.
        seed: u64,
        /// How sizes are distributed; default `log_uniform` for a model with a ragged input, else `fixed`.
        distribution: SizeDistribution,
    },
    /// `kind: tokens`: synthetic texts for a model whose inputs are ragged rows of `i64`: a mask of ones (its name has
    /// `mask` in it), segments of zeros and then ones (`segment` or `type`), random words (any other). The same for
    /// the same seed.
    Tokens {
        /// Samples; default 1024.
        count: usize,
        /// Tokens of the shortest sample; default 1.
        min_len: usize,
        /// Tokens of the longest sample; default the model's. Every length from the shortest to it is equally likely.
        max_len: usize,
        /// Words are drawn from 0 to one less than this; default 30,522, as many as BERT knows.
        vocab: u32,
        /// Seed of lengths and words; default 1.
        seed: u64,
    },
}

/// Default of `vocab` of a data set of tokens: the words that BERT knows.
pub const DEFAULT_VOCAB: u32 = 30_522;

/// How the sizes of random samples are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeDistribution {
    /// Every magnitude is equally likely.
    LogUniform,
    /// All samples have `max_bytes`.
    Fixed,
}

impl DatasetConfig {
    /// Checks it against the model.
    pub(super) fn check(&self, model: &ModelSpec, loaded: Option<usize>, out: &mut Findings) {
        let Some(largest) = model.max_input_bytes() else {
            return; // The model has been complained of.
        };
        match self {
            DatasetConfig::Raw { lengths, .. } => match (model.fixed_size(), lengths) {
                (false, None) => out.add(
                    "dataset",
                    "the model has a ragged input, and the data set does not say how long each sample is",
                    "add `lengths: PATH`, a file of little-endian u32, or use `kind: random` or `kind: tokens`",
                ),
                (true, Some(_)) => out.add(
                    "dataset.lengths",
                    "all samples of a model without ragged inputs have the same length",
                    "remove `lengths`, or mark inputs `ragged: true`",
                ),
                _ => {}
            },
            DatasetConfig::Random {
                count,
                min_bytes,
                max_bytes,
                distribution,
                ..
            } => {
                if let Err(error) = within(1..=MAX_SAMPLES)(count, &()) {
                    out.garde("dataset.count", &error);
                }
                if *max_bytes > largest || *max_bytes == 0 {
                    out.add(
                        "dataset.max_bytes",
                        format!("max_bytes is {max_bytes}"),
                        format!("it must be 1 to {largest}, the size of the model's input"),
                    );
                } else if *min_bytes > *max_bytes || *min_bytes == 0 {
                    out.add(
                        "dataset.min_bytes",
                        format!("min_bytes is {min_bytes}"),
                        format!("it must be 1 to {max_bytes}, which is max_bytes"),
                    );
                } else if *distribution == SizeDistribution::Fixed && min_bytes != max_bytes {
                    out.add(
                        "dataset.min_bytes",
                        format!("samples of fixed size have max_bytes, {max_bytes}, all of them"),
                        "remove `min_bytes`, or use `distribution: log_uniform`",
                    );
                } else if model.fixed_size() && *min_bytes != largest {
                    out.add(
                        "dataset",
                        format!(
                            "samples of {min_bytes} to {max_bytes} bytes do not fit the model, which takes \
                             {largest} bytes and no fewer"
                        ),
                        "use `distribution: fixed` without `min_bytes` and `max_bytes`, or mark the input \
                         `ragged: true`",
                    );
                }
                check_loaded(loaded, *count, out);
            }
            DatasetConfig::Tokens {
                count,
                min_len,
                max_len,
                vocab,
                ..
            } => {
                if let Err(error) = within(1..=MAX_SAMPLES)(count, &()) {
                    out.garde("dataset.count", &error);
                }
                let Some(longest) = token_rows(model) else {
                    out.add(
                        "dataset.kind",
                        "a data set of tokens needs a model whose inputs are all ragged rows of i64 of one length",
                        "give each input `dtype: i64, shape: [LENGTH], ragged: true`, or use `kind: random`",
                    );
                    return;
                };
                if *max_len > longest || *max_len == 0 {
                    out.add(
                        "dataset.max_len",
                        format!("max_len is {max_len}"),
                        format!("it must be 1 to {longest}, the length of the model's inputs"),
                    );
                } else if *min_len > *max_len || *min_len == 0 {
                    out.add(
                        "dataset.min_len",
                        format!("min_len is {min_len}"),
                        format!("it must be 1 to {max_len}, which is max_len"),
                    );
                }
                if *vocab == 0 {
                    out.add(
                        "dataset.vocab",
                        "vocab is 0",
                        "it must be at least 1: the number of words",
                    );
                }
                check_loaded(loaded, *count, out);
            }
        }
    }
}

fn check_loaded(loaded: Option<usize>, count: usize, out: &mut Findings) {
    if let Some(loaded) = loaded
        && loaded > count
    {
        out.add(
            "performance_sample_count",
            format!("performance_sample_count is {loaded}, the data set has {count} samples"),
            format!("set it to at most {count}"),
        );
    }
}

/// Tokens of the longest sample of a model of ragged rows of `i64`; `None` where it is another kind of model.
fn token_rows(model: &ModelSpec) -> Option<usize> {
    let rows = match model.inputs.first()?.shape[..] {
        [rows] => rows,
        _ => return None,
    };
    let alike =
        |t: &crate::model::TensorSpec| t.dtype == DType::I64 && t.ragged && t.shape == [rows];
    model.inputs.iter().all(alike).then_some(rows)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DatasetKind {
    Raw,
    Random,
    Tokens,
}

/// The keys of every kind of data set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DatasetFile {
    kind: DatasetKind,
    samples: Option<PathBuf>,
    lengths: Option<PathBuf>,
    labels: Option<PathBuf>,
    count: Option<usize>,
    min_bytes: Option<usize>,
    max_bytes: Option<usize>,
    seed: Option<u64>,
    distribution: Option<SizeDistribution>,
    min_len: Option<usize>,
    max_len: Option<usize>,
    vocab: Option<u32>,
}

impl DatasetFile {
    /// Sorts the keys out and resolves paths against `base`. `None` only with a finding.
    pub(super) fn into_config(
        self,
        model: &ModelSpec,
        base: &Path,
        out: &mut Findings,
    ) -> Option<DatasetConfig> {
        let (kind, own): (_, &[&str]) = match self.kind {
            DatasetKind::Raw => ("raw", &["samples", "lengths", "labels"]),
            DatasetKind::Random => (
                "random",
                &["count", "seed", "min_bytes", "max_bytes", "distribution"],
            ),
            DatasetKind::Tokens => ("tokens", &["count", "seed", "min_len", "max_len", "vocab"]),
        };
        let given = [
            ("samples", self.samples.is_some()),
            ("lengths", self.lengths.is_some()),
            ("labels", self.labels.is_some()),
            ("count", self.count.is_some()),
            ("min_bytes", self.min_bytes.is_some()),
            ("max_bytes", self.max_bytes.is_some()),
            ("seed", self.seed.is_some()),
            ("distribution", self.distribution.is_some()),
            ("min_len", self.min_len.is_some()),
            ("max_len", self.max_len.is_some()),
            ("vocab", self.vocab.is_some()),
        ];
        for (key, _) in given
            .into_iter()
            .filter(|(key, present)| *present && !own.contains(key))
        {
            out.add(
                format!("dataset.{key}"),
                format!("a data set of kind `{kind}` has no `{key}`"),
                format!("remove `{key}`, or use another kind"),
            );
        }
        match self.kind {
            DatasetKind::Raw => {
                let Some(samples) = self.samples else {
                    out.add(
                        "dataset",
                        "a data set of kind `raw` needs `samples`",
                        "add `samples: PATH`, a file of samples, back to back",
                    );
                    return None;
                };
                Some(DatasetConfig::Raw {
                    samples: resolve(base, samples),
                    lengths: self.lengths.map(|lengths| resolve(base, lengths)),
                    labels: self.labels.map(|labels| resolve(base, labels)),
                })
            }
            DatasetKind::Random => {
                let distribution = self.distribution.unwrap_or(if model.fixed_size() {
                    SizeDistribution::Fixed
                } else {
                    SizeDistribution::LogUniform
                });
                // A model whose size overflows is complained of elsewhere.
                let max_bytes = self.max_bytes.or(model.max_input_bytes()).unwrap_or(1);
                let min_bytes = self.min_bytes.unwrap_or(match distribution {
                    SizeDistribution::LogUniform => DEFAULT_RANDOM_MIN_BYTES,
                    SizeDistribution::Fixed => max_bytes,
                });
                Some(DatasetConfig::Random {
                    count: self.count.unwrap_or(DEFAULT_RANDOM_COUNT),
                    min_bytes,
                    max_bytes,
                    seed: self.seed.unwrap_or(DEFAULT_RANDOM_SEED),
                    distribution,
                })
            }
            DatasetKind::Tokens => Some(DatasetConfig::Tokens {
                count: self.count.unwrap_or(DEFAULT_RANDOM_COUNT),
                min_len: self.min_len.unwrap_or(1),
                max_len: self.max_len.or(token_rows(model)).unwrap_or(1),
                vocab: self.vocab.unwrap_or(DEFAULT_VOCAB),
                seed: self.seed.unwrap_or(DEFAULT_RANDOM_SEED),
            }),
        }
    }
}
