//! A model's tensors, as the wire sees them, from the metadata in the model file.

use std::path::Path;

use ort::{
    session::Session,
    value::{Outlet, TensorElementType, ValueType},
};
use qdl::model::{DType, ModelSpec, TensorSpec};

use crate::engine::EngineError;

/// Reads inputs and output. The first dimension of each must be left open (the batch), all others
/// must be known.
pub(super) fn read(
    session: &Session,
    name: &str,
    ragged: &[String],
    path: &Path,
) -> Result<ModelSpec, EngineError> {
    let refuse = |tensor: &str, reason: String| EngineError::ModelUnsupported {
        path: path.to_owned(),
        tensor: tensor.to_owned(),
        reason,
    };
    let mut inputs = Vec::with_capacity(session.inputs().len());
    for outlet in session.inputs() {
        let mut t = tensor(outlet).map_err(|reason| refuse(outlet.name(), reason))?;
        t.ragged = ragged.contains(&t.name);
        inputs.push(t);
    }
    if let Some(unknown) = ragged
        .iter()
        .find(|r| !inputs.iter().any(|t| t.name == **r))
    {
        return Err(refuse(
            unknown,
            "is called ragged, but the model has no such input".into(),
        ));
    }
    let output = match session.outputs() {
        [only] => tensor(only).map_err(|reason| refuse(only.name(), reason))?,
        others => {
            let names: Vec<_> = others.iter().map(Outlet::name).collect();
            return Err(refuse(
                &names.join(", "),
                format!(
                    "a response is one tensor; the model has {} outputs",
                    others.len()
                ),
            ));
        }
    };
    Ok(ModelSpec {
        name: name.to_owned(),
        inputs,
        output,
    })
}

fn tensor(outlet: &Outlet) -> Result<TensorSpec, String> {
    let ValueType::Tensor { ty, shape, .. } = outlet.dtype() else {
        return Err("is no tensor".to_owned());
    };
    let dtype = dtype(*ty).ok_or_else(|| format!("elements of type {ty} are not supported"))?;
    let Some((batch, rest)) = shape.split_first() else {
        return Err("is a scalar: the first dimension must be the batch".to_owned());
    };
    if *batch >= 0 {
        return Err(format!(
            "the first dimension is fixed at {batch}: export the model with a dynamic batch"
        ));
    }
    let shape = rest
        .iter()
        .map(|d| usize::try_from(*d).ok())
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| format!("only the batch may be dynamic, the shape is {shape:?}"))?;
    Ok(TensorSpec {
        name: outlet.name().to_owned(),
        dtype,
        shape,
        ragged: false,
    })
}

/// The types that `session` can hand over.
pub(super) fn dtype(ty: TensorElementType) -> Option<DType> {
    Some(match ty {
        TensorElementType::Uint8 => DType::U8,
        TensorElementType::Int8 => DType::I8,
        TensorElementType::Int32 => DType::I32,
        TensorElementType::Int64 => DType::I64,
        TensorElementType::Float32 => DType::F32,
        _ => return None,
    })
}
