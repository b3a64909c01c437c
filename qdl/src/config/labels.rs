//! The labels of a data set: their file and element type.

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
    /// Labels in the order of the samples' indices: back to back, or a NumPy array.
    pub file: PathBuf,
    /// Element type. An array has its own type; the default for any other file is `i64`.
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

/// Returns whether the output is one row of class scores: at most one dimension exceeds 1.
fn is_row(output: &TensorSpec) -> bool {
    output.shape.iter().filter(|d| **d > 1).count() <= 1
}

/// Checks that the model's output names a class, as labels do.
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
