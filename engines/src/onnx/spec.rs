//! Reads a model's tensors, in the form that the wire carries, from the metadata of the model file.

use std::path::Path;

use ort::{
    session::Session,
    value::{Outlet, TensorElementType, ValueType},
};
use qdl::model::{DType, ModelSpec, TensorSpec};

use crate::{EngineError, EngineParams, MAX_BATCH};

#[derive(Debug)]
pub(super) struct ReadModel {
    pub model: ModelSpec,
    pub fixed_batch: Option<usize>,
    /// Names of the model's outputs that are not in `model`.
    pub left_out: Vec<String>,
}

/// Reads inputs and outputs. Each first dimension is the batch: dynamic, or of one size for all
/// tensors. All other dimensions must be fixed. The tensors are in the order of the configuration
/// (`named`), the order in samples and responses. Outputs that the configuration does not name are
/// left out. Without a configuration, outputs that are not tensors are left out.
pub(super) fn read(
    session: &Session,
    params: &EngineParams,
    path: &Path,
) -> Result<ReadModel, EngineError> {
    let named = params.spec.as_ref();
    let refuse = |tensor: &str, reason: String| EngineError::tensor(path, tensor, reason);
    let all = |outlets: &mut dyn Iterator<Item = &Outlet>, way_out: &str| {
        let one = |o: &Outlet| tensor(o, way_out).map_err(|reason| refuse(o.name(), reason));
        outlets.map(one).collect::<Result<Vec<_>, _>>()
    };
    let inputs = all(&mut session.inputs().iter(), "begin the graph with a Cast")?;
    let own = session.outputs();
    for missing in named.iter().flat_map(|n| n.outputs()) {
        if own.iter().all(|o| o.name() != missing.name) {
            let names: Vec<_> = own.iter().map(Outlet::name).collect();
            let reason = format!("is no output of the model, which has {}", names.join(", "));
            return Err(refuse(&missing.name, reason));
        }
    }
    let (asked, left_out): (Vec<_>, Vec<_>) = own.iter().partition(|o| match named {
        Some(named) => named.outputs().any(|t| t.name == o.name()),
        None => matches!(o.dtype(), ValueType::Tensor { .. }),
    });
    let way_out = "end the graph with a Cast, or name the outputs that are wanted in `model.output` and \
                   `other_outputs` and leave this one out";
    let outputs = all(&mut asked.into_iter(), way_out)?;
    let fixed_batch =
        batch(&inputs, &outputs).map_err(|(tensor, reason)| refuse(&tensor, reason))?;
    let mut inputs: Vec<TensorSpec> = inputs.into_iter().map(|(t, _)| t).collect();
    for t in &mut inputs {
        t.ragged = params.is_ragged(&t.name);
    }
    let mut outputs: Vec<TensorSpec> = outputs.into_iter().map(|(t, _)| t).collect();
    if let Some(named) = named {
        inputs.sort_by_key(|t| place(t, named.inputs.iter()));
        outputs.sort_by_key(|t| place(t, named.outputs()));
    }
    let mut outputs = outputs.into_iter();
    let output = outputs.next().ok_or_else(|| {
        refuse(
            &params.model,
            "the model has no output that is a tensor".into(),
        )
    })?;
    let model = ModelSpec {
        name: params.model.clone(),
        inputs,
        output,
        other_outputs: outputs.collect(),
    };
    Ok(ReadModel {
        model,
        fixed_batch,
        left_out: left_out.iter().map(|o| o.name().to_owned()).collect(),
    })
}

/// Index of the tensor's name in `among`; the maximum if it is not there.
fn place<'t>(t: &TensorSpec, mut among: impl Iterator<Item = &'t TensorSpec>) -> usize {
    among.position(|n| n.name == t.name).unwrap_or(usize::MAX)
}

/// The model's batch size; `None` if it is dynamic. An output may have a dynamic batch with fixed
/// inputs, because each run checks the outputs.
/// Error: the name of a tensor with a different batch, and the reason.
fn batch(
    inputs: &[(TensorSpec, i64)],
    outputs: &[(TensorSpec, i64)],
) -> Result<Option<usize>, (String, String)> {
    let first = inputs.first().map(|(t, batch)| (&t.name, *batch));
    let Some((first, batch)) = first else {
        return Ok(None);
    };
    let said = |batch: i64| match batch {
        ..0 => "open".to_owned(),
        fixed => format!("fixed at {fixed}"),
    };
    let other = |(_, own): &&(TensorSpec, i64)| (*own).max(-1) != batch.max(-1);
    let odd = inputs.iter().find(other);
    let odd = odd.or_else(|| outputs.iter().filter(|(_, own)| *own >= 0).find(other));
    if let Some((t, own)) = odd {
        let reason = format!(
            "the first dimension is {}, that of `{first}` is {}: the batch must be one dimension \
             of all inputs and outputs: export the model with a dynamic batch, or a fixed one",
            said(*own),
            said(batch)
        );
        return Err((t.name.clone(), reason));
    }
    match usize::try_from(batch) {
        Ok(0) => Err((first.clone(), "the first dimension, the batch, is 0".into())),
        Ok(fixed) if fixed <= MAX_BATCH => Ok(Some(fixed)),
        Ok(fixed) => Err((
            first.clone(),
            format!("a batch is fixed at {fixed}, more than {MAX_BATCH}"),
        )),
        Err(_) => Ok(None),
    }
}

/// One tensor of a sample, and its first dimension, negative if dynamic. `way_out`: advice for a
/// type that is not supported.
fn tensor(outlet: &Outlet, way_out: &str) -> Result<(TensorSpec, i64), String> {
    let ValueType::Tensor { ty, shape, .. } = outlet.dtype() else {
        return Err("is no tensor".to_owned());
    };
    let dtype = dtype(*ty).ok_or_else(|| {
        format!("elements of type {ty} are not supported: u8, i8, i32, i64 and f32 are; {way_out}")
    })?;
    let Some((batch, rest)) = shape.split_first() else {
        return Err("is a scalar: the first dimension must be the batch".to_owned());
    };
    let shape = rest
        .iter()
        .map(|d| usize::try_from(*d).ok())
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| format!("only the batch may be dynamic, the shape is {shape:?}"))?;
    let t = TensorSpec {
        name: outlet.name().to_owned(),
        dtype,
        shape,
        ragged: false,
    };
    Ok((t, *batch))
}

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
