//! Errors of a data set.

use std::{io, path::PathBuf};

/// Error: the data set is unusable.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file cannot be read.
    #[error("data set {}: {verb}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The failed action.
        verb: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The data set has no sample.
    #[error("data set {what}: it has no samples; LoadGen needs at least one")]
    Empty {
        /// Path of the file, or the kind of data set.
        what: String,
    },
    /// The file is not a whole number of samples.
    #[error(
        "data set {}: {bytes} bytes are {whole} samples of {sample} bytes (the model's input) and {rest} bytes more; \
         is it another model's?",
        path.display()
    )]
    Uneven {
        /// Path of the file.
        path: PathBuf,
        /// Bytes of the file.
        bytes: u64,
        /// Bytes of a sample.
        sample: usize,
        /// Number of whole samples.
        whole: u64,
        /// Remaining bytes.
        rest: u64,
    },
    /// The format differs from the configuration, or the arrays from the model's inputs.
    #[error("data set {}: {why}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// The difference, with advice.
        why: String,
    },
    /// The file of lengths does not match the samples.
    #[error("data set {}: {why}", path.display())]
    Lengths {
        /// Path of the file of lengths.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The token ids do not match the file's header.
    #[error("data set {}: {why}", path.display())]
    Tokens {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A sample is too long for a request.
    #[error(
        "data set: a sample of {bytes} bytes is longer than a request may be (4 GiB less one byte)"
    )]
    TooLong {
        /// Length of the sample in bytes.
        bytes: usize,
    },
}
