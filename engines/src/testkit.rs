//! Models for tests.

use qdl::model::{DType, ModelSpec, TensorSpec};

pub fn tensor(name: &str, dtype: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        ragged: false,
    }
}

pub fn ragged(name: &str, dtype: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec {
        ragged: true,
        ..tensor(name, dtype, shape)
    }
}

pub fn model(inputs: Vec<TensorSpec>, output: TensorSpec) -> ModelSpec {
    ModelSpec {
        name: "m".to_owned(),
        inputs,
        output,
        other_outputs: Vec::new(),
    }
}
