//! Inputs and outputs of a model, per sample. Both nodes must have the same description.

mod foreign;
mod lengths;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use foreign::ForeignFormat;
pub use lengths::{Lengths, NoLengths};

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::U8 | DType::I8 => 1,
            DType::F16 | DType::Bf16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
        })
    }
}

/// One tensor of one sample; `shape` excludes the batch dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Name of the tensor in the model's graph.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Elements per sample along each dimension; the maximum for a ragged tensor.
    pub shape: Vec<usize>,
    /// Whether a sample may be shorter than `shape` along the first dimension. The frontend sends
    /// the true length, and the accelerator pads the sample.
    #[serde(default)]
    pub ragged: bool,
}

impl TensorSpec {
    /// Bytes of the largest sample's tensor; `None` where the product overflows.
    pub fn bytes(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(self.dtype.bytes(), |n, d| n.checked_mul(*d))
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{:?}", self.name, self.dtype, self.shape)?;
        if self.ragged {
            f.write_str(" ragged")?;
        }
        Ok(())
    }
}

/// Description of a model, equal on both nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Name that both nodes use for the model.
    pub name: String,
    /// Inputs, in their order within a slot.
    pub inputs: Vec<TensorSpec>,
    /// The only output, or the output that names the class. A response begins with this tensor.
    pub output: TensorSpec,
    /// Further outputs, in their order behind `output`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_outputs: Vec<TensorSpec>,
}

/// First difference between two descriptions of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMismatch {
    /// The differing field.
    pub field: String,
    /// The value in the first description.
    pub ours: String,
    /// The value in the other description.
    pub theirs: String,
}

impl ModelMismatch {
    /// Text of the difference; `we` and `they` name the owners of the two descriptions.
    pub fn between(&self, we: &str, they: &str) -> String {
        let ModelMismatch {
            field,
            ours,
            theirs,
        } = self;
        format!("model {field}: {we} has {ours}, {they} has {theirs}")
    }
}

impl ModelSpec {
    /// Makes the model of the engines `null` and `digest`: up to `max_input` arbitrary bytes in,
    /// `output` bytes out.
    pub fn opaque(name: &str, max_input: usize, output: usize) -> Self {
        let tensor = |name: &str, bytes, ragged| TensorSpec {
            name: name.to_owned(),
            dtype: DType::U8,
            shape: vec![bytes],
            ragged,
        };
        ModelSpec {
            name: name.to_owned(),
            inputs: vec![tensor("input", max_input, true)],
            output: tensor("output", output, false),
            other_outputs: Vec::new(),
        }
    }

    /// Makes a language model: up to `prompt` token ids in, up to `answer` token ids out.
    pub fn of_tokens(name: &str, prompt: usize, answer: usize) -> Self {
        let ids = |name: &str, most| TensorSpec {
            name: name.to_owned(),
            dtype: DType::I32,
            shape: vec![most],
            ragged: true,
        };
        ModelSpec {
            name: name.to_owned(),
            inputs: vec![ids("prompt", prompt)],
            output: ids("tokens", answer),
            other_outputs: Vec::new(),
        }
    }

    /// Bytes of the largest sample; `None` where the sum overflows.
    pub fn max_input_bytes(&self) -> Option<usize> {
        self.inputs
            .iter()
            .try_fold(0usize, |n, t| n.checked_add(t.bytes()?))
    }

    /// All outputs, in their order within a response.
    pub fn outputs(&self) -> impl Iterator<Item = &TensorSpec> {
        std::iter::once(&self.output).chain(&self.other_outputs)
    }

    /// Bytes of the largest response payload; `None` where the sum overflows.
    pub fn max_output_bytes(&self) -> Option<usize> {
        self.outputs()
            .try_fold(0usize, |n, t| n.checked_add(t.bytes()?))
    }

    /// Whether an answer is token ids: a single ragged output, `i32` in one dimension.
    pub fn answers_tokens(&self) -> bool {
        let o = &self.output;
        self.other_outputs.is_empty() && o.ragged && o.dtype == DType::I32 && o.shape.len() == 1
    }

    /// Whether every sample has the same number of bytes.
    pub fn fixed_size(&self) -> bool {
        self.inputs.iter().all(|t| !t.ragged)
    }

    /// Compares with another description of the model; the error names the first difference.
    pub fn check_against(&self, theirs: &ModelSpec) -> Result<(), ModelMismatch> {
        let differ = |field: String, a: &dyn fmt::Display, b: &dyn fmt::Display| {
            let (ours, theirs) = (a.to_string(), b.to_string());
            if ours == theirs {
                Ok(())
            } else {
                Err(ModelMismatch {
                    field,
                    ours,
                    theirs,
                })
            }
        };
        differ("name".into(), &self.name, &theirs.name)?;
        differ(
            "input count".into(),
            &self.inputs.len(),
            &theirs.inputs.len(),
        )?;
        for (i, (a, b)) in self.inputs.iter().zip(&theirs.inputs).enumerate() {
            differ(format!("input {i}"), a, b)?;
        }
        differ("output".into(), &self.output, &theirs.output)?;
        differ(
            "output count".into(),
            &(1 + self.other_outputs.len()),
            &(1 + theirs.other_outputs.len()),
        )?;
        let others = self.other_outputs.iter().zip(&theirs.other_outputs);
        for (i, (a, b)) in others.enumerate() {
            differ(format!("other output {i}"), a, b)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::assert_has;

    #[test]
    fn a_mismatch_names_both_sides() {
        let a = ModelSpec::opaque("m", 64, 8);
        let mut b = a.clone();
        b.inputs[0].shape = vec![65];
        let e = a.check_against(&b).expect_err("they differ");
        assert_eq!(e.field, "input 0");
        let text = e.between("this node", "the peer");
        assert_has(
            &text,
            &["this node has input: u8[64]", "the peer has input: u8[65]"],
        );
        assert_eq!(a.check_against(&a), Ok(()));
    }

    #[test]
    fn several_outputs_are_packed_one_behind_the_other() {
        let mut a = ModelSpec::opaque("m", 64, 8);
        let boxes = TensorSpec {
            name: "boxes".to_owned(),
            dtype: DType::F32,
            shape: vec![2, 4],
            ragged: false,
        };
        let scalar = TensorSpec {
            name: "count".to_owned(),
            dtype: DType::I64,
            shape: vec![],
            ragged: false,
        };
        a.other_outputs = vec![boxes, scalar];
        assert_eq!(a.max_output_bytes(), Some(8 + 32 + 8));
        let mut b = a.clone();
        b.other_outputs[1].dtype = DType::I32;
        let text = a
            .check_against(&b)
            .expect_err("they differ")
            .between("a", "b");
        assert_has(&text, &["other output 1", "count: i64[]"]);
        b.other_outputs.truncate(1);
        let text = a
            .check_against(&b)
            .expect_err("they differ")
            .between("a", "b");
        assert!(text.contains("output count: a has 3"), "{text}");
        a.other_outputs[0].shape = vec![usize::MAX];
        assert_eq!(a.max_output_bytes(), None);
        // The JSON of a model with one output has no field for further outputs.
        let one = serde_json::to_string(&ModelSpec::opaque("m", 64, 8)).expect("JSON");
        assert!(!one.contains("other_outputs"), "{one}");
    }

    #[test]
    fn sizes_do_not_overflow_silently() {
        let mut m = ModelSpec::opaque("m", 4, 8);
        assert_eq!(m.max_input_bytes(), Some(4));
        m.inputs[0].shape = vec![usize::MAX, 2];
        assert_eq!(m.max_input_bytes(), None);
    }
}
