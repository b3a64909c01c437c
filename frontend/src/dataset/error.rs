//! What is wrong with a data set.

use std::{io, path::PathBuf};

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
    /// Another format than the configuration says, or arrays that are not the model's inputs.
    #[error("data set {}: {why}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        why: String,
    },
    /// Lengths that are not those of the samples.
    #[error("data set {}: {why}", path.display())]
    Lengths {
        /// The file of lengths.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Token ids that are not as the file's header says.
    #[error("data set {}: {why}", path.display())]
    Tokens {
        /// The file.
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
