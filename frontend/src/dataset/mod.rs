//! Data sets: number, lengths and bytes of samples, from a file or a seed.
//!
//! * `files` - samples back to back in a file, of equal length or with a file of lengths
//! * `arrays` - NumPy arrays, one for each input of the model
//! * `random` - bytes from a seed
//! * `tokens` - texts from a seed: rows of words, mask and segments
//! * `token_file` - token ids from a file
//! * `error` - errors of a data set

mod arrays;
mod error;
mod files;
pub mod numpy;
mod random;
mod token_file;
mod tokens;

use std::{
    cell::RefCell,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use qdl::{
    config::{DatasetConfig, DatasetKind},
    model::{DType, ModelSpec},
};

pub use self::error::DatasetError;
use self::{
    arrays::Columns,
    tokens::{Column, Tokens},
};

/// Name of the array of labels in a `.npz`.
pub const LABELS: &str = "labels";

/// Lengths of the samples.
#[derive(Debug)]
enum Lengths {
    Equal { len: u32, count: usize },
    Each(Box<[u32]>),
}

/// Source of the samples' bytes.
#[derive(Debug)]
enum Source {
    File {
        file: File,
        path: PathBuf,
    },
    /// Samples of different lengths, with the offset of each.
    Ragged {
        file: File,
        path: PathBuf,
        starts: Box<[u64]>,
    },
    /// NumPy arrays.
    Arrays {
        path: PathBuf,
        columns: Columns,
    },
    Random {
        seed: u64,
    },
    Tokens(Tokens),
}

/// Samples by index. Keeps only unequal lengths in memory.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    lengths: Lengths,
    source: Source,
}

impl Dataset {
    /// Opens the configured data set for `model`; `seed` overrides the configured seed of random
    /// data.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn open(
        config: &DatasetConfig,
        model: &ModelSpec,
        seed: Option<u64>,
    ) -> Result<Self, DatasetError> {
        let seed = seed.unwrap_or(config.seed);
        match config.kind {
            DatasetKind::Raw => match &config.samples {
                Some(samples) => Self::of_file(samples, config.lengths.as_deref(), model),
                // Unreachable: the configuration requires `samples`.
                None => Err(DatasetError::Empty {
                    what: "of kind raw without `samples`".to_owned(),
                }),
            },
            DatasetKind::Tokens => {
                if let Some(path) = &config.samples {
                    return Self::token_file(path);
                }
                let tokens = Tokens {
                    width: model.inputs.first().map_or(8, |t| t.dtype.bytes()),
                    columns: model.inputs.iter().map(|t| Column::of(&t.name)).collect(),
                    vocab: u64::from(config.vocab.max(1)),
                    seed,
                };
                Self::tokens(config.count, config.min_len, config.max_len(model), tokens)
            }
            DatasetKind::Random => {
                if let Some(shape) = &config.shape {
                    let element = model.inputs.first().map_or(1, |t| t.dtype.bytes());
                    return Self::shaped(config.count, shape, element, seed);
                }
                let (min, max) = config.bytes(model);
                Self::random(config.count, min, max, seed, config.distribution(model))
            }
        }
    }

    /// Opens a file of samples: NumPy arrays or raw bytes.
    fn of_file(
        samples: &Path,
        lengths: Option<&Path>,
        model: &ModelSpec,
    ) -> Result<Self, DatasetError> {
        // Samples of ragged bytes may be files themselves, such as images.
        let any = matches!(&model.inputs[..], [t] if t.ragged && t.dtype == DType::U8);
        let there = RefCell::<Vec<String>>::default();
        let arrays = numpy::open(samples, any, &|name, all| {
            there.replace(all.iter().map(|name| (*name).to_owned()).collect());
            arrays::is_asked(name, all, model)
        })
        .map_err(|why| DatasetError::Format {
            path: samples.to_owned(),
            why,
        })?;
        match (arrays, lengths) {
            (Some(arrays), lengths) => Self::arrays(samples, arrays, &there.take(), model, lengths),
            (None, Some(lengths)) => Self::ragged(samples, lengths),
            (None, None) => Self::raw(samples, model.max_input_bytes().unwrap_or(usize::MAX)),
        }
    }

    /// Returns the name for LoadGen's logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of samples, at least one.
    pub fn count(&self) -> usize {
        match &self.lengths {
            Lengths::Equal { count, .. } => *count,
            Lengths::Each(lengths) => lengths.len(),
        }
    }

    /// Returns the bytes of a sample; `None` beyond the last sample.
    pub fn len(&self, index: usize) -> Option<u32> {
        match &self.lengths {
            Lengths::Equal { len, count } => (index < *count).then_some(*len),
            Lengths::Each(lengths) => lengths.get(index).copied(),
        }
    }

    /// Returns the bytes of every sample if all have equal length.
    pub fn equal_len(&self) -> Option<u32> {
        match &self.lengths {
            Lengths::Equal { len, .. } => Some(*len),
            Lengths::Each(_) => None,
        }
    }

    /// Reads a sample into `to`, which must be [`Dataset::len`] bytes long.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, index: usize, to: &mut [u8]) -> Result<(), DatasetError> {
        let read = |file: &File, path: &Path, to: &mut [u8], at| {
            file.read_exact_at(to, at)
                .map_err(|source| DatasetError::Io {
                    path: path.to_owned(),
                    verb: "cannot read it",
                    source,
                })
        };
        match &self.source {
            Source::File { file, path } => {
                let at = index as u64 * to.len() as u64;
                read(file, path, to, at)
            }
            Source::Ragged { file, path, starts } => {
                // An index with a length has an offset.
                let at = starts.get(index).copied().unwrap_or(u64::MAX >> 1);
                read(file, path, to, at)
            }
            Source::Arrays { path, columns } => {
                columns.read(index, to).map_err(|source| DatasetError::Io {
                    path: path.clone(),
                    verb: "cannot read it",
                    source,
                })
            }
            Source::Random { seed } => {
                random::fill(*seed, index, to);
                Ok(())
            }
            Source::Tokens(tokens) => {
                tokens.read(index, to);
                Ok(())
            }
        }
    }
}

fn length(bytes: usize) -> Result<u32, DatasetError> {
    u32::try_from(bytes).map_err(|_| DatasetError::TooLong { bytes })
}

/// Returns the bytes of a sample, for tests.
#[cfg(test)]
fn bytes(d: &Dataset, index: usize) -> Vec<u8> {
    let mut b = vec![0; d.len(index).expect("there") as usize];
    d.read(index, &mut b).expect("read");
    b
}
