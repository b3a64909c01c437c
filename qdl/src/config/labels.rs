//! The labels of a data set: their file, and what its bytes are.

use std::{fmt, path::PathBuf};

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::rules::Findings;
use crate::model::{DType, ModelSpec, TensorSpec};

/// One label for each sample. In YAML `{file: PATH, dtype: i32}`, or the path alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelsConfig {
    /// Labels in the order of the samples' indices: back to back, or an array of NumPy's.
    pub file: PathBuf,
    /// Type of an element. An array says it of itself; without it, any other file is one of `i64`.
    pub dtype: Option<DType>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
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
                let Keys { file, dtype } = Keys::deserialize(MapAccessDeserializer::new(map))?;
                Ok(LabelsConfig { file, dtype })
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// Scores of classes: one dimension that counts, whatever stands around it.
fn is_row(output: &TensorSpec) -> bool {
    output.shape.iter().filter(|d| **d > 1).count() <= 1
}

/// Labels name a class, and so must the model's output.
pub(super) fn check(model: &ModelSpec, out: &mut Findings<'_>) {
    let output = &model.output;
    if output.ragged || !is_row(output) {
        out.add(
            "dataset.labels",
            format!("the model's output, {output}, is neither a class nor one score for each"),
            "let `output` be the one that is, and list the others in `other_outputs`; or remove \
             `labels`",
        );
    }
}
