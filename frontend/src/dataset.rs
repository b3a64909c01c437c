//! Samples: how many, how long, and their bytes, from a file or from a seed.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use qdl::{
    config::{DatasetConfig, DatasetKind, SizeDistribution},
    model::ModelSpec,
};

/// A data set that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file cannot be read.
    #[error("data set {}: {verb}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        verb: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// No sample.
    #[error("data set {what}: it has no samples; LoadGen needs at least one")]
    Empty {
        /// The file, or how it is made.
        what: String,
    },
    /// Not a whole number of samples.
    #[error(
        "data set {}: {bytes} bytes are {whole} samples of {sample} bytes (the model's input) and {rest} bytes more; \
         is it another model's?",
        path.display()
    )]
    Uneven {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// Bytes of a sample.
        sample: usize,
        /// Whole samples in it.
        whole: u64,
        /// Bytes left.
        rest: u64,
    },
    /// Lengths that are not those of the samples.
    #[error("data set {}: {why}", path.display())]
    Lengths {
        /// The file of lengths.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A sample that a response slot could never be asked for.
    #[error(
        "data set: a sample of {bytes} bytes is longer than a request may be (4 GiB less one byte)"
    )]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
}

/// Lengths of the samples.
#[derive(Debug)]
enum Lengths {
    Equal { len: u32, count: usize },
    Each(Box<[u32]>),
}

/// Where the bytes come from.
#[derive(Debug)]
enum Source {
    File {
        file: File,
        path: PathBuf,
    },
    /// Samples of different lengths, and where each begins.
    Ragged {
        file: File,
        path: PathBuf,
        starts: Box<[u64]>,
    },
    Random {
        seed: u64,
    },
    Tokens(Tokens),
}

/// What one input of a text is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// Random words.
    Words,
    /// Ones: every token that is there.
    Mask,
    /// Zeros for the first half of the text, ones for the second.
    Segments,
}

impl Column {
    fn of(name: &str) -> Self {
        if name.contains("mask") {
            Column::Mask
        } else if name.contains("segment") || name.contains("type") {
            Column::Segments
        } else {
            Column::Words
        }
    }
}

/// Synthetic texts: the model's inputs back to back, each a row of `i64`.
#[derive(Debug)]
struct Tokens {
    columns: Box<[Column]>,
    vocab: u64,
    seed: u64,
}

/// Bytes of an `i64`.
const TOKEN: usize = 8;

impl Tokens {
    fn read(&self, index: usize, to: &mut [u8]) {
        let mut stream = Stream::new(self.seed, index as u64);
        let rows = to.len() / (TOKEN * self.columns.len());
        for (column, row) in self.columns.iter().zip(to.chunks_exact_mut(rows * TOKEN)) {
            for (i, token) in row.chunks_exact_mut(TOKEN).enumerate() {
                let value = match column {
                    Column::Words => stream.next() % self.vocab,
                    Column::Mask => 1,
                    Column::Segments => u64::from(i >= rows.div_ceil(2)),
                };
                token.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

/// Samples by index. Nothing is held in memory but lengths that differ.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    lengths: Lengths,
    source: Source,
}

impl Dataset {
    /// Opens what the configuration says for `model`; `seed` replaces the configured one of random data.
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
            DatasetKind::Raw => match (&config.samples, &config.lengths) {
                (Some(samples), Some(lengths)) => Self::ragged(samples, lengths),
                (Some(samples), None) => {
                    Self::raw(samples, model.max_input_bytes().unwrap_or(usize::MAX))
                }
                // A configuration without is refused.
                (None, _) => Err(DatasetError::Empty {
                    what: "of kind raw without `samples`".to_owned(),
                }),
            },
            DatasetKind::Tokens => {
                let tokens = Tokens {
                    columns: model.inputs.iter().map(|t| Column::of(&t.name)).collect(),
                    vocab: u64::from(config.vocab.max(1)),
                    seed,
                };
                Self::tokens(config.count, config.min_len, config.max_len(model), tokens)
            }
            DatasetKind::Random => {
                let (min, max) = config.bytes(model);
                Self::random(config.count, min, max, seed, config.distribution(model))
            }
        }
    }

    fn raw(path: &Path, sample: usize) -> Result<Self, DatasetError> {
        let len = length(sample)?;
        let failed = |verb| {
            move |source| DatasetError::Io {
                path: path.to_owned(),
                verb,
                source,
            }
        };
        let file = File::open(path).map_err(failed("cannot open it"))?;
        let bytes = file
            .metadata()
            .map_err(failed("cannot ask for its size"))?
            .len();
        let empty = || DatasetError::Empty {
            what: path.display().to_string(),
        };
        if bytes == 0 {
            return Err(empty());
        }
        let whole = bytes.checked_div(u64::from(len)).ok_or_else(empty)?;
        let rest = bytes % u64::from(len);
        if rest != 0 {
            return Err(DatasetError::Uneven {
                path: path.to_owned(),
                bytes,
                sample,
                whole,
                rest,
            });
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(Dataset {
            name: name.into_owned(),
            lengths: Lengths::Equal {
                len,
                count: whole as usize,
            },
            source: Source::File {
                file,
                path: path.to_owned(),
            },
        })
    }

    /// Samples back to back in one file, their lengths as little-endian `u32` in another.
    fn ragged(path: &Path, lengths: &Path) -> Result<Self, DatasetError> {
        let failed = |path: &Path, verb| {
            let path = path.to_owned();
            move |source| DatasetError::Io { path, verb, source }
        };
        let wrong = |why: String| DatasetError::Lengths {
            path: lengths.to_owned(),
            why,
        };
        let bytes = std::fs::read(lengths).map_err(failed(lengths, "cannot read it"))?;
        let (each, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(wrong(format!(
                "{} bytes are no whole number of u32",
                bytes.len()
            )));
        }
        let each: Box<[u32]> = each.iter().map(|b| u32::from_le_bytes(*b)).collect();
        if each.is_empty() {
            return Err(DatasetError::Empty {
                what: lengths.display().to_string(),
            });
        }
        if let Some(index) = each.iter().position(|len| *len == 0) {
            return Err(wrong(format!("sample {index} has no bytes")));
        }
        let file = File::open(path).map_err(failed(path, "cannot open it"))?;
        let size = file
            .metadata()
            .map_err(failed(path, "cannot ask for its size"))?
            .len();
        // Each is below 2^32 and there are fewer than 2^62 of them in memory: no sum overflows.
        let sum: u64 = each.iter().map(|len| u64::from(*len)).sum();
        if sum != size {
            return Err(wrong(format!(
                "its lengths add up to {sum} bytes, and {} has {size}",
                path.display()
            )));
        }
        let starts = each.iter().scan(0, |at, len| {
            let start = *at;
            *at += u64::from(*len);
            Some(start)
        });
        Ok(Dataset {
            name: path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            source: Source::Ragged {
                file,
                path: path.to_owned(),
                starts: starts.collect(),
            },
            lengths: Lengths::Each(each),
        })
    }

    fn random(
        count: usize,
        min: usize,
        max: usize,
        seed: u64,
        distribution: SizeDistribution,
    ) -> Result<Self, DatasetError> {
        let name = format!("random, seed {seed}");
        let (shortest, longest) = (length(min)?, length(max)?);
        if count == 0 || longest == 0 {
            return Err(DatasetError::Empty { what: name });
        }
        let lengths = match distribution {
            SizeDistribution::Fixed => Lengths::Equal {
                len: longest,
                count,
            },
            SizeDistribution::LogUniform => {
                let mut stream = Stream::new(seed, u64::MAX);
                let mut draw = || log_uniform(stream.next(), shortest.max(1), longest);
                Lengths::Each((0..count).map(|_| draw()).collect())
            }
        };
        Ok(Dataset {
            name,
            lengths,
            source: Source::Random { seed },
        })
    }

    fn tokens(count: usize, min: usize, max: usize, tokens: Tokens) -> Result<Self, DatasetError> {
        let name = format!("tokens, seed {}", tokens.seed);
        let row = tokens.columns.len() * TOKEN;
        length(max.saturating_mul(row))?;
        if count == 0 || row == 0 || max == 0 {
            return Err(DatasetError::Empty { what: name });
        }
        let mut stream = Stream::new(tokens.seed, u64::MAX);
        let (min, span) = (min.clamp(1, max), (max - min.clamp(1, max)) as u64 + 1);
        // `max` rows fit 32 bits, and none is longer.
        let mut draw = || ((min + (stream.next() % span) as usize) * row) as u32;
        Ok(Dataset {
            name,
            lengths: Lengths::Each((0..count).map(|_| draw()).collect()),
            source: Source::Tokens(tokens),
        })
    }

    /// For LoadGen's logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of samples; at least one.
    pub fn count(&self) -> usize {
        match &self.lengths {
            Lengths::Equal { count, .. } => *count,
            Lengths::Each(lengths) => lengths.len(),
        }
    }

    /// Bytes of a sample; `None` where there is no such sample.
    pub fn len(&self, index: usize) -> Option<u32> {
        match &self.lengths {
            Lengths::Equal { len, count } => (index < *count).then_some(*len),
            Lengths::Each(lengths) => lengths.get(index).copied(),
        }
    }

    /// Bytes of every sample, where all have as many.
    pub fn equal_len(&self) -> Option<u32> {
        match &self.lengths {
            Lengths::Equal { len, .. } => Some(*len),
            Lengths::Each(_) => None,
        }
    }

    /// Writes the sample's bytes to `to`, which has [`Dataset::len`] of them.
    ///
    /// # Errors
    /// The file cannot be read any more.
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
                // Whoever has a length for it has an index that is there.
                let at = starts.get(index).copied().unwrap_or(u64::MAX >> 1);
                read(file, path, to, at)
            }
            Source::Random { seed } => {
                let mut stream = Stream::new(*seed, index as u64);
                for chunk in to.chunks_mut(8) {
                    chunk.copy_from_slice(&stream.next().to_le_bytes()[..chunk.len()]);
                }
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

/// A length between `min` and `max` of which every magnitude is equally likely, from 64 random bits.
fn log_uniform(bits: u64, min: u32, max: u32) -> u32 {
    // The upper 53 bits as a fraction in [0, 1).
    let fraction = (bits >> 11) as f64 / (1u64 << 53) as f64;
    let (low, high) = (f64::from(min).ln(), (f64::from(max) + 1.0).ln());
    let len = (low + fraction * (high - low)).exp() as u32;
    len.clamp(min, max)
}

/// SplitMix64: random enough that no two samples share a digest, and as fast as memory.
struct Stream(u64);

impl Stream {
    /// The stream of one sample of one seed.
    fn new(seed: u64, index: u64) -> Self {
        let mut mixed = Stream(seed);
        let first = mixed.next();
        mixed.0 = first ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03);
        mixed.next();
        mixed
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, io::Write};

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().expect("a file");
        f.write_all(bytes).expect("written");
        f
    }

    fn random(count: usize, min: usize, max: usize, seed: u64) -> Dataset {
        Dataset::random(count, min, max, seed, SizeDistribution::LogUniform).expect("sound")
    }

    fn bytes(d: &Dataset, index: usize) -> Vec<u8> {
        let mut b = vec![0; d.len(index).expect("there") as usize];
        d.read(index, &mut b).expect("read");
        b
    }

    #[test]
    fn a_raw_file_is_samples_back_to_back() {
        let f = file(b"aaaabbbbcccc");
        let d = Dataset::raw(f.path(), 4).expect("three samples");
        assert_eq!((d.count(), d.len(2), d.len(3)), (3, Some(4), None));
        assert_eq!(bytes(&d, 1), b"bbbb");
    }

    #[test]
    fn an_empty_file_and_one_of_another_size_are_named() {
        let error = Dataset::raw(file(b"").path(), 4).expect_err("empty");
        assert!(error.to_string().contains("no samples"), "{error}");
        let f = file(b"aaaabb");
        let text = Dataset::raw(f.path(), 4).expect_err("uneven").to_string();
        assert!(text.contains("6 bytes are 1 samples of 4 bytes"), "{text}");
        assert!(text.contains(&f.path().display().to_string()), "{text}");
        let error = Dataset::raw(Path::new("/no/such/file"), 4).expect_err("absent");
        assert!(error.to_string().contains("/no/such/file: cannot open it"));
        assert!(matches!(
            Dataset::random(0, 1, 8, 1, SizeDistribution::Fixed),
            Err(DatasetError::Empty { .. })
        ));
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_and_no_panic() {
        let f = file(b"aaaabbbb");
        let d = Dataset::raw(f.path(), 4).expect("two samples");
        f.as_file().set_len(6).expect("cut");
        assert!(matches!(
            d.read(1, &mut [0; 4]),
            Err(DatasetError::Io { .. })
        ));
    }

    #[test]
    fn random_samples_are_those_of_their_seed_and_all_different() {
        let (a, b, c) = (
            random(300, 8, 5000, 1),
            random(300, 8, 5000, 1),
            random(300, 8, 5000, 2),
        );
        let mut seen = HashSet::new();
        for i in 0..300 {
            assert_eq!(bytes(&a, i), bytes(&b, i));
            assert!(seen.insert(bytes(&a, i)), "sample {i} is there twice");
            assert!(
                seen.insert(bytes(&c, i)),
                "sample {i} is another seed's too"
            );
        }
    }

    #[test]
    fn a_ragged_file_is_samples_of_the_lengths_of_another() {
        let le = |lengths: &[u32]| -> Vec<u8> {
            lengths.iter().flat_map(|len| len.to_le_bytes()).collect()
        };
        let f = file(b"aabbbbc");
        let d = Dataset::ragged(f.path(), file(&le(&[2, 4, 1])).path()).expect("three");
        assert_eq!((d.count(), d.len(1), d.equal_len()), (3, Some(4), None));
        assert_eq!([0, 1, 2].map(|i| bytes(&d, i)), [&b"aa"[..], b"bbbb", b"c"]);
        let complaint = |lengths: &[u8]| {
            Dataset::ragged(f.path(), file(lengths).path())
                .expect_err("wrong")
                .to_string()
        };
        assert!(complaint(&le(&[2, 4])).contains("add up to 6 bytes"));
        assert!(complaint(&le(&[7, 0])).contains("sample 1 has no bytes"));
        assert!(complaint(&[1, 0, 0]).contains("3 bytes are no whole"));
        assert!(complaint(&[]).contains("no samples"));
    }

    #[test]
    fn texts_are_rows_of_words_mask_and_segments() {
        let columns = ["input_ids", "input_mask", "segment_ids"].map(Column::of);
        let tokens = || Tokens {
            columns: columns.into(),
            vocab: 50,
            seed: 4,
        };
        let d = Dataset::tokens(400, 2, 48, tokens()).expect("sound");
        let again = Dataset::tokens(400, 2, 48, tokens()).expect("sound");
        let mut lengths = HashSet::new();
        for i in 0..d.count() {
            let sample = bytes(&d, i);
            assert_eq!(sample, bytes(&again, i));
            let values: Vec<u64> = sample
                .chunks_exact(8)
                .map(|b| u64::from_le_bytes(b.try_into().expect("eight")))
                .collect();
            let rows = values.len() / 3;
            assert!((2..=48).contains(&rows) && values.len().is_multiple_of(3));
            lengths.insert(rows);
            assert!(values[..rows].iter().all(|v| *v < 50));
            assert!(values[rows..2 * rows].iter().all(|v| *v == 1));
            assert_eq!((values[2 * rows], values[3 * rows - 1]), (0, 1));
        }
        assert_eq!(lengths.len(), 47, "every length from 2 to 48");
    }

    #[test]
    fn log_uniform_sizes_have_every_magnitude() {
        let d = random(20_000, 1, 150_528, 3);
        let mut octaves = [0; 18];
        for i in 0..d.count() {
            let len = d.len(i).expect("there");
            assert!((1..=150_528).contains(&len));
            octaves[len.ilog2() as usize] += 1;
        }
        // 17.2 octaves share 20,000 samples; the last one is a fraction of an octave.
        assert!(
            octaves[..17].iter().all(|n| (900..1500).contains(n)),
            "{octaves:?}"
        );
        assert_eq!(log_uniform(0, 5, 9), 5);
        assert_eq!(log_uniform(u64::MAX, 5, 9), 9);
        assert_eq!(log_uniform(u64::MAX, 1, u32::MAX), u32::MAX);
    }
}
