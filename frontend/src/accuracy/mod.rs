//! Accuracy: compares LoadGen's accuracy log with the labels.
//!
//! * `labels` - the right class of each sample, from a file
//! * `origins` - the accelerator that answered each sample
//!
//! An output with one element holds the answer's class (the accelerator computes the argmax).
//! Otherwise the class is the index of the largest score, the lowest such index.

mod labels;
mod origins;

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, bail};
use frontend_config::{DatasetKind, LabelsConfig};
use loadgen_bridge::AccuracyLog;
use qdl::model::{ModelSpec, TensorSpec};
use record::Accuracy;

pub use self::origins::{AnswerOrigins, by_accelerator};
use crate::dataset::numpy::Element;

/// Returns the line of a submission's `accuracy.txt`, in percent, in the format of MLCommons'
/// classification scripts and checker. The log's hash follows this line once the log is
/// truncated.
pub fn line(accuracy: &Accuracy) -> String {
    let Accuracy {
        share,
        right,
        answers,
        ..
    } = accuracy;
    format!(
        "accuracy={:.3}%, good={right}, total={answers}\n",
        share * 100.0
    )
}

/// Describes how this output names an answer's class.
pub fn names_the_class(output: &TensorSpec) -> String {
    match output.shape.iter().product::<usize>() {
        1 => format!("the value of {}", output.name),
        n => format!("largest of {} ({n} values)", output.name),
    }
}

/// Returns the accuracy over the answers of `a` and `b`.
pub fn sum(a: Accuracy, b: Accuracy) -> Accuracy {
    Accuracy::new(
        a.right + b.right,
        a.answers + b.answers,
        a.unreadable + b.unreadable,
    )
}

/// The accuracy of all answers, and by connection of the answers with a known connection.
pub type Scores = (Accuracy, BTreeMap<usize, Accuracy>);

/// Explains why a data set of this kind has no accuracy, and names the file of the answers.
pub fn no_figure(kind: DatasetKind) -> String {
    let why = match kind {
        DatasetKind::Raw => "the data set has no `labels`".to_owned(),
        DatasetKind::Random => "random samples have no labels".to_owned(),
        DatasetKind::Tokens => "token ids are scored by their benchmark's own script".to_owned(),
    };
    format!("no figure: {why}; the answers are in mlperf_log_accuracy.json")
}

/// The labels of a data set, and how to read a class from a response.
#[derive(Debug)]
pub struct Labels {
    classes: Vec<i64>,
    element: Element,
    /// Bytes of the output that names the class, at the start of a response of `response` bytes.
    own: usize,
    response: usize,
}

impl Labels {
    pub fn read(labels: &LabelsConfig, samples: usize, model: &ModelSpec) -> Result<Self> {
        let output = &model.output;
        Ok(Labels {
            classes: labels::read(labels, samples, output)?,
            element: output.dtype.into(),
            own: output.bytes().unwrap_or_default(),
            response: model.max_output_bytes().unwrap_or_default(),
        })
    }

    /// Compares the answers in a log with the labels.
    pub fn score(&self, log: &Path, origins: &AnswerOrigins) -> Result<Scores> {
        let (mut all, mut by_connection) = Scores::default();
        for record in AccuracyLog::open(log)? {
            let record = record?;
            let index = usize::try_from(record.qsl_idx).ok();
            let label = index.and_then(|i| Some((i, *self.classes.get(i)?)));
            let Some((index, label)) = label else {
                bail!(
                    "{}: it answers sample {}, and the data set has {}",
                    log.display(),
                    record.qsl_idx,
                    self.classes.len()
                );
            };
            let class = self.class(&record.data);
            let right = u64::from(class == Some(label));
            let one = Accuracy::new(right, 1, u64::from(class.is_none()));
            all = sum(all, one);
            if let Some(connection) = origins.of(index) {
                let own = by_connection.entry(connection).or_default();
                *own = sum(*own, one);
            }
        }
        if all.answers == 0 {
            bail!("{}: no sample was answered", log.display());
        }
        Ok((all, by_connection))
    }

    /// The class in a response: the value of a single element, or the index of the largest of
    /// several. `None` if the length is wrong, the value is not whole, or no score is a number.
    fn class(&self, response: &[u8]) -> Option<i64> {
        let output = response.get(..self.own).filter(|o| !o.is_empty())?;
        if response.len() != self.response {
            return None;
        }
        let values = output.chunks_exact(self.element.bytes).enumerate();
        if values.len() == 1 {
            return self.element.whole(output).ok();
        }
        let mut best: Option<(i64, f64)> = None;
        for (i, b) in values {
            let v = self.element.value(b);
            if !v.is_nan() && best.is_none_or(|(_, most)| v > most) {
                best = Some((i as i64, v));
            }
        }
        best.map(|(class, _)| class)
    }
}

#[cfg(test)]
mod tests {
    use qdl::model::{DType, TensorSpec};

    use super::*;
    use crate::dataset::file;

    pub(super) fn output(dtype: DType, shape: &[usize]) -> TensorSpec {
        TensorSpec {
            name: "class".to_owned(),
            dtype,
            shape: shape.to_vec(),
            ragged: false,
        }
    }

    fn labels(classes: &[i64], outputs: &[TensorSpec]) -> Labels {
        let bytes: Vec<u8> = classes.iter().flat_map(|v| v.to_le_bytes()).collect();
        let file = file(&bytes, "");
        let config = LabelsConfig {
            file: file.path().to_owned(),
            dtype: None,
        };
        let model = ModelSpec {
            output: outputs[0].clone(),
            other_outputs: outputs[1..].to_vec(),
            ..ModelSpec::opaque("m", 1, 1)
        };
        Labels::read(&config, classes.len(), &model).expect("labels")
    }

    #[test]
    fn right_answers_are_counted_from_loadgens_log() {
        let labels = labels(&[4, 5, 9], &[output(DType::I64, &[1])]);
        let log = file(
            b"[\n\
              { \"seq_id\" : 0, \"qsl_idx\" : 2, \"data\" : \"0900000000000000\" },\n\
              { \"seq_id\" : 1, \"qsl_idx\" : 0, \"data\" : \"0500000000000000\" },\n\
              { \"seq_id\" : 2, \"qsl_idx\" : 1, \"data\" : \"05\" }\n]\n",
            "",
        );
        let origins = AnswerOrigins::new(3);
        origins.answered(2, 1);
        origins.answered(0, 0);
        let (all, by_connection) = labels.score(log.path(), &origins).expect("a log");
        assert_eq!(all, Accuracy::new(1, 3, 1));
        assert!((all.share - 1.0 / 3.0).abs() < 1e-12);
        let by = [Accuracy::new(0, 1, 0), Accuracy::new(1, 1, 0)];
        assert_eq!(by_connection, (0..).zip(by).collect());
    }

    #[test]
    fn an_answer_to_no_sample_and_an_empty_log_are_errors() {
        let (labels, origins) = (
            labels(&[7], &[output(DType::U8, &[1])]),
            AnswerOrigins::new(1),
        );
        let log = file(
            b"[\n{ \"seq_id\" : 0, \"qsl_idx\" : 1, \"data\" : \"07\" }\n]\n",
            "",
        );
        let error = |log: tempfile::NamedTempFile| {
            let scored = labels.score(log.path(), &origins);
            scored.expect_err("refused").to_string()
        };
        assert!(error(log).contains("answers sample 1, and the data set has 1"));
        assert!(error(file(b"[\n]\n", "")).contains("no sample was answered"));
    }

    fn class(outputs: &[TensorSpec], response: &[u8]) -> Option<i64> {
        labels(&[0], outputs).class(response)
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|f| f.to_le_bytes()).collect()
    }

    #[test]
    fn the_largest_of_several_elements_or_a_single_whole_one_is_the_class() {
        let three = [output(DType::F32, &[3])];
        assert_eq!(class(&three, &floats(&[-3.5, 0.25, -1.0])), Some(1));
        let two = floats(&[0.5, 2.0, 2.0]);
        assert_eq!(class(&three, &two), Some(1), "the first");
        assert_eq!(class(&three, &floats(&[f32::NAN, -2.0, -9.0])), Some(1));
        let infinite = [f32::NEG_INFINITY; 3];
        assert_eq!(class(&three, &floats(&infinite)), Some(0));
        assert_eq!(class(&three, &floats(&[f32::NAN; 3])), None);
        let halves: Vec<u8> = [0x3c00u16, 0xc000, 0x4200]
            .iter()
            .flat_map(|h| h.to_le_bytes())
            .collect();
        assert_eq!(class(&[output(DType::F16, &[3])], &halves), Some(2));
        assert_eq!(class(&[output(DType::I8, &[2])], &[0xff, 0x01]), Some(1));
        assert_eq!(class(&[output(DType::U8, &[2])], &[9]), None);
        let one = [output(DType::I32, &[])];
        assert_eq!(class(&one, &(-7i32).to_le_bytes()), Some(-7));
        let one = [output(DType::F32, &[1])];
        assert_eq!(class(&one, &floats(&[3.0])), Some(3));
        // A probability is no class.
        assert_eq!(class(&one, &floats(&[0.73])), None);
        // Of several outputs, the first names the class.
        let outputs = [output(DType::I64, &[]), output(DType::F32, &[2])];
        let response = [&5i64.to_le_bytes()[..], &floats(&[9.0, 1.0])].concat();
        assert_eq!(class(&outputs, &response), Some(5));
        let alone = class(&outputs, &response[..8]);
        assert_eq!(alone, None, "the others are missing");
    }

    #[test]
    fn the_line_is_as_the_checker_looks_for_it() {
        // The format: `accuracy=` at the beginning of the line, and a number in percent.
        let line = line(&Accuracy::new(528, 540, 0));
        assert_eq!(line, "accuracy=97.778%, good=528, total=540\n");
    }

    #[test]
    fn without_labels_it_is_said_that_there_is_no_figure() {
        let text = no_figure(DatasetKind::Raw);
        assert!(text.starts_with("no figure: the data set has no `labels`"));
    }
}
