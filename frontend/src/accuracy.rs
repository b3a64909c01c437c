//! Accuracy: LoadGen's own accuracy log against the labels.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use loadgen_bridge::{AccuracyLog, LoadgenError};
use qdl::model::{DType, TensorSpec};

/// Accuracy that cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum AccuracyError {
    /// The labels cannot be read.
    #[error("labels {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file has another length.
    #[error(
        "labels {}: {bytes} bytes are no labels for {samples} samples: {i64_bytes} bytes for i64, or {own_bytes} for \
         {dtype}, the model's output, were expected",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: usize,
        /// Samples of the data set.
        samples: usize,
        /// Bytes for labels of 64 bits.
        i64_bytes: usize,
        /// Bytes for labels of the output's type.
        own_bytes: usize,
        /// The output's type.
        dtype: DType,
    },
    /// LoadGen's log.
    #[error(transparent)]
    Log(#[from] LoadgenError),
    /// The log names a sample that the data set does not have.
    #[error("{}: it answers sample {index}, and the data set has {samples}", path.display())]
    Index {
        /// The log.
        path: PathBuf,
        /// The sample.
        index: u64,
        /// Samples of the data set.
        samples: usize,
    },
    /// The log has no answer.
    #[error("{}: no sample was answered", path.display())]
    Nothing {
        /// The log.
        path: PathBuf,
    },
}

/// How many answers were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Answers that are their sample's label.
    pub right: u64,
    /// Answers.
    pub answers: u64,
    /// Of those, the ones that are no value of the model's output type.
    pub unreadable: u64,
}

impl Score {
    /// The share of right answers.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.answers.max(1) as f64
    }
}

/// The right class of each sample.
#[derive(Debug)]
pub struct Labels {
    classes: Vec<i64>,
    output: TensorSpec,
}

impl Labels {
    /// Reads the labels of so many samples. Whether they are
    /// 64-bit or of the output's type, the file's length says.
    ///
    /// # Errors
    /// [`AccuracyError`].
    pub fn read(path: &Path, samples: usize, output: &TensorSpec) -> Result<Self, AccuracyError> {
        let bytes = fs::read(path).map_err(|source| AccuracyError::Read {
            path: path.to_owned(),
            source,
        })?;
        let size = output.dtype.bytes();
        let dtype = if bytes.len() == samples * 8 {
            DType::I64
        } else if bytes.len() == samples * size {
            output.dtype
        } else {
            return Err(AccuracyError::Length {
                path: path.to_owned(),
                bytes: bytes.len(),
                samples,
                i64_bytes: samples * 8,
                own_bytes: samples * size,
                dtype: output.dtype,
            });
        };
        Ok(Labels {
            classes: bytes
                .chunks_exact(dtype.bytes())
                .map(|b| value(b, dtype) as i64)
                .collect(),
            output: output.clone(),
        })
    }

    /// Compares the answers in a log with the labels.
    ///
    /// # Errors
    /// [`AccuracyError`].
    pub fn score(&self, log: &Path) -> Result<Score, AccuracyError> {
        let mut score = Score::default();
        for record in AccuracyLog::open(log)? {
            let record = record?;
            let index = usize::try_from(record.qsl_idx).ok();
            let Some(label) = index.and_then(|i| self.classes.get(i)) else {
                return Err(AccuracyError::Index {
                    path: log.to_owned(),
                    index: record.qsl_idx,
                    samples: self.classes.len(),
                });
            };
            score.answers += 1;
            match self.class(&record.data) {
                Some(class) => score.right += u64::from(class == *label),
                None => score.unreadable += 1,
            }
        }
        if score.answers == 0 {
            return Err(AccuracyError::Nothing {
                path: log.to_owned(),
            });
        }
        Ok(score)
    }

    /// The class that a response names: the value of a single
    /// element, or the index of the largest of several.
    fn class(&self, response: &[u8]) -> Option<i64> {
        let dtype = self.output.dtype;
        if response.is_empty() || Some(response.len()) != self.output.bytes() {
            return None;
        }
        let mut values = response.chunks_exact(dtype.bytes());
        if values.len() == 1 {
            return values.next().map(|b| value(b, dtype) as i64);
        }
        let mut best = (0, f64::NEG_INFINITY);
        for (i, b) in values.enumerate() {
            let v = value(b, dtype);
            if v > best.1 {
                best = (i as i64, v);
            }
        }
        Some(best.0)
    }
}

/// One little-endian element. Integers beyond 2^53
/// lose their last bits: no model has so many classes.
fn value(b: &[u8], dtype: DType) -> f64 {
    let mut wide = [0u8; 8];
    wide[..b.len().min(8)].copy_from_slice(&b[..b.len().min(8)]);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        DType::U8 => bits as f64,
        DType::I8 => f64::from(bits as i8),
        DType::I32 => f64::from(bits as i32),
        DType::I64 => bits as i64 as f64,
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
        DType::F16 => half(bits as u16),
    }
}

/// An IEEE half.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1.0 + fraction / 1024.0) * 2f64.powi(e - 15),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().expect("a file");
        f.write_all(bytes).expect("written");
        f
    }

    fn output(dtype: DType, n: usize) -> TensorSpec {
        TensorSpec {
            name: "class".to_owned(),
            dtype,
            shape: vec![n],
            ragged: false,
        }
    }

    fn i64s(values: &[i64]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn right_answers_are_counted_from_loadgens_log() {
        let labels = file(&i64s(&[4, 5, 9]));
        let labels = Labels::read(labels.path(), 3, &output(DType::I64, 1)).expect("labels");
        let log = file(
            b"[\n\
              { \"seq_id\" : 0, \"qsl_idx\" : 2, \"data\" : \"0900000000000000\" },\n\
              { \"seq_id\" : 1, \"qsl_idx\" : 0, \"data\" : \"0500000000000000\" },\n\
              { \"seq_id\" : 2, \"qsl_idx\" : 1, \"data\" : \"05\" }\n]\n",
        );
        let score = labels.score(log.path()).expect("a log");
        assert_eq!(
            score,
            Score {
                right: 1,
                answers: 3,
                unreadable: 1
            }
        );
        assert!((score.accuracy() - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn an_answer_to_no_sample_and_an_empty_log_are_errors() {
        let labels = file(&[7]);
        let labels = Labels::read(labels.path(), 1, &output(DType::U8, 1)).expect("labels");
        let log = file(b"[\n{ \"seq_id\" : 0, \"qsl_idx\" : 1, \"data\" : \"07\" }\n]\n");
        assert!(matches!(
            labels.score(log.path()),
            Err(AccuracyError::Index { index: 1, .. })
        ));
        assert!(matches!(
            labels.score(file(b"[\n]\n").path()),
            Err(AccuracyError::Nothing { .. })
        ));
    }

    #[test]
    fn labels_of_another_data_set_are_noticed() {
        let labels = file(&[0; 30]);
        let error = Labels::read(labels.path(), 4, &output(DType::F32, 1)).expect_err("30 bytes");
        let text = error.to_string();
        assert!(
            text.contains("30 bytes") && text.contains("32 bytes"),
            "{text}"
        );
        assert!(text.contains("16 for f32"), "{text}");
        assert!(Labels::read(Path::new("/no/labels"), 1, &output(DType::U8, 1)).is_err());
    }

    #[test]
    fn the_largest_of_several_is_the_class() {
        let labels = |dtype, n| Labels {
            classes: vec![],
            output: output(dtype, n),
        };
        let floats: Vec<u8> = [-3.5f32, 0.25, -1.0]
            .iter()
            .flat_map(|f| f.to_le_bytes())
            .collect();
        assert_eq!(labels(DType::F32, 3).class(&floats), Some(1));
        let halves: Vec<u8> = [0x3c00u16, 0xc000, 0x4200]
            .iter()
            .flat_map(|h| h.to_le_bytes())
            .collect();
        assert_eq!(labels(DType::F16, 3).class(&halves), Some(2));
        assert_eq!(labels(DType::I8, 2).class(&[0xff, 0x01]), Some(1));
        assert_eq!(labels(DType::U8, 2).class(&[9]), None);
        assert_eq!(
            labels(DType::I32, 1).class(&(-7i32).to_le_bytes()),
            Some(-7)
        );
    }

    #[test]
    fn halves_are_read_right() {
        assert_eq!(half(0x3c00), 1.0);
        assert_eq!(half(0xc500), -5.0);
        assert_eq!(half(0x0001), 2f64.powi(-24));
        assert_eq!(half(0x7c00), f64::INFINITY);
        assert!(half(0x7e00).is_nan());
    }
}
