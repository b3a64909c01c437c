//! Data sets: number, lengths and bytes of samples, from a file or a seed.
//!
//! * `files` - samples back to back in a file, of equal length or with a file of lengths
//! * `arrays` - NumPy arrays, one for each input of the model
//! * `random` - bytes from a seed
//! * `tokens` - texts from a seed: rows of words, mask and segments
//! * `token_file` - token ids from a file
//! * `numpy` - reads NumPy files

mod arrays;
mod files;
pub mod numpy;
mod random;
mod token_file;
mod tokens;

use std::{
    fmt::Display,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Error, Result, anyhow};
use frontend_config::{DatasetConfig, DatasetKind};
use qdl::model::{DType, ModelSpec};

use self::{
    arrays::InputArrays,
    tokens::{InputRole, SyntheticTexts},
};

/// Name of the array of labels in a `.npz`.
pub const LABELS: &str = "labels";

#[derive(Debug)]
enum Lengths {
    Equal { len: u32, count: usize },
    Each(Box<[u32]>),
}

#[derive(Debug)]
enum Source {
    /// Samples back to back; `starts` holds each sample's byte offset if the lengths differ.
    File {
        file: File,
        starts: Option<Box<[u64]>>,
    },
    Arrays(InputArrays),
    Random {
        seed: u64,
    },
    Texts(SyntheticTexts),
}

/// Samples by index. Samples of an uncompressed file stay on disk.
#[derive(Debug)]
pub struct Dataset {
    /// Name for LoadGen's logs.
    pub name: String,
    /// The file of the samples; empty if the samples come from a seed.
    path: PathBuf,
    lengths: Lengths,
    source: Source,
}

impl Dataset {
    /// Opens the configured data set for `model`.
    pub fn open(config: &DatasetConfig, model: &ModelSpec) -> Result<Self> {
        let seed = config.seed;
        match (config.kind, &config.samples) {
            (DatasetKind::Raw, Some(samples)) => {
                Self::of_file(samples, config.lengths.as_deref(), model)
            }
            // Unreachable: the configuration requires `samples`.
            (DatasetKind::Raw, None) => Err(empty("of kind raw without `samples`")),
            (DatasetKind::Tokens, Some(path)) => Self::token_file(path),
            (DatasetKind::Tokens, None) => {
                let texts = SyntheticTexts {
                    width: model.inputs.first().map_or(8, |t| t.dtype.bytes()),
                    inputs: model
                        .inputs
                        .iter()
                        .map(|t| InputRole::of(&t.name))
                        .collect(),
                    vocab: u64::from(config.vocab.max(1)),
                    seed,
                };
                Self::texts(config.count, config.min_len, config.max_len(model), texts)
            }
            (DatasetKind::Random, _) => {
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
    fn of_file(samples: &Path, lengths: Option<&Path>, model: &ModelSpec) -> Result<Self> {
        // Samples of ragged bytes may be files themselves, such as images.
        let raw = match &model.inputs[..] {
            [t] if t.ragged && t.dtype == DType::U8 => numpy::RawBytes::Files,
            _ => numpy::RawBytes::Unnamed,
        };
        let arrays = numpy::open(samples, raw, &|name, all| {
            arrays::is_input(name, all, model)
        });
        let arrays = arrays.map_err(|why| wrong(samples.display(), why))?;
        match (arrays, lengths) {
            (Some(arrays), lengths) => Self::arrays(samples, arrays, model, lengths),
            (None, Some(lengths)) => Self::ragged(samples, lengths),
            (None, None) => Self::raw(samples, model.max_input_bytes().unwrap_or(usize::MAX)),
        }
    }

    fn in_file(path: &Path, lengths: Lengths, source: Source) -> Self {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Dataset {
            path: path.to_owned(),
            ..Dataset::generated(name.into_owned(), lengths, source)
        }
    }

    fn generated(name: String, lengths: Lengths, source: Source) -> Self {
        Dataset {
            name,
            path: PathBuf::new(),
            lengths,
            source,
        }
    }

    /// Number of samples.
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
    pub fn read(&self, index: usize, to: &mut [u8]) -> Result<()> {
        let read = match &self.source {
            Source::File { file, starts } => {
                let at = match starts {
                    None => index as u64 * to.len() as u64,
                    // Unreachable: an index with a length has an offset.
                    Some(starts) => starts.get(index).copied().unwrap_or(u64::MAX >> 1),
                };
                file.read_exact_at(to, at)
            }
            Source::Arrays(arrays) => arrays.read(index, to),
            Source::Random { seed } => {
                random::fill(*seed, index, to);
                Ok(())
            }
            Source::Texts(texts) => {
                texts.read(index, to);
                Ok(())
            }
        };
        read.map_err(|e| failed(&self.path, "cannot read it", &e))
    }
}

fn length(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| {
        anyhow!(
            "data set: a sample of {bytes} bytes is longer than a request may be (4 GiB less one \
             byte)"
        )
    })
}

fn wrong(what: impl Display, why: impl Display) -> Error {
    anyhow!("data set {what}: {why}")
}

fn empty(what: impl Display) -> Error {
    wrong(what, "it has no samples; LoadGen needs at least one")
}

fn failed(path: &Path, verb: &str, error: &io::Error) -> Error {
    wrong(path.display(), format_args!("{verb}: {error}"))
}

/// Opens a file of samples; returns the file and the size in bytes.
fn opened(path: &Path) -> Result<(File, u64)> {
    let file = File::open(path).map_err(|e| failed(path, "cannot open it", &e))?;
    let size = file.metadata();
    let size = size.map_err(|e| failed(path, "cannot ask for its size", &e))?;
    Ok((file, size.len()))
}

#[cfg(test)]
pub(crate) fn file(content: &[u8], end: &str) -> tempfile::NamedTempFile {
    let f = tempfile::Builder::new().suffix(end).tempfile();
    let f = f.expect("a file");
    std::fs::write(f.path(), content).expect("written");
    f
}

#[cfg(test)]
fn bytes(d: &Dataset, index: usize) -> Vec<u8> {
    let mut b = vec![0; d.len(index).expect("there") as usize];
    d.read(index, &mut b).expect("read");
    b
}
