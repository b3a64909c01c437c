//! Where the samples come from.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    load::resolve,
    rules::{Findings, within},
};
use crate::model::ModelSpec;

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
    /// `kind: raw`: a file of samples of equal size, back to back.
    Raw {
        /// Samples, each of the model's input size, in the order of their indices.
        samples: PathBuf,
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
}

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
            DatasetConfig::Raw { .. } => {
                if !model.fixed_size() {
                    out.add(
                        "dataset.kind",
                        "a raw data set has samples of equal size, and the model has a ragged input",
                        "remove `ragged` from the model's inputs, or use `kind: random`",
                    );
                }
            }
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
                if let Some(loaded) = loaded
                    && loaded > *count
                {
                    out.add(
                        "performance_sample_count",
                        format!(
                            "performance_sample_count is {loaded}, the data set has {count} samples"
                        ),
                        format!("set it to at most {count}"),
                    );
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DatasetKind {
    Raw,
    Random,
}

/// The keys of every kind of data set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DatasetFile {
    kind: DatasetKind,
    samples: Option<PathBuf>,
    labels: Option<PathBuf>,
    count: Option<usize>,
    min_bytes: Option<usize>,
    max_bytes: Option<usize>,
    seed: Option<u64>,
    distribution: Option<SizeDistribution>,
}

impl DatasetFile {
    /// Sorts the keys out and resolves paths against `base`. `None` only with a finding.
    pub(super) fn into_config(
        self,
        model: &ModelSpec,
        base: &Path,
        out: &mut Findings,
    ) -> Option<DatasetConfig> {
        let (kind, foreign) = match self.kind {
            DatasetKind::Raw => (
                "raw",
                [
                    ("count", self.count.is_some()),
                    ("min_bytes", self.min_bytes.is_some()),
                    ("max_bytes", self.max_bytes.is_some()),
                    ("seed", self.seed.is_some()),
                    ("distribution", self.distribution.is_some()),
                ]
                .to_vec(),
            ),
            DatasetKind::Random => (
                "random",
                [
                    ("samples", self.samples.is_some()),
                    ("labels", self.labels.is_some()),
                ]
                .to_vec(),
            ),
        };
        for (key, _) in foreign.into_iter().filter(|(_, present)| *present) {
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
                        "add `samples: PATH`, a file of samples of equal size, back to back",
                    );
                    return None;
                };
                Some(DatasetConfig::Raw {
                    samples: resolve(base, samples),
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
        }
    }
}
