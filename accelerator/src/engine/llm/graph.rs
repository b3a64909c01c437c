//! Reads the inputs and outputs of a decoder graph from its metadata.

use std::{
    ffi::{CStr, CString},
    path::Path,
};

use ort::{
    session::Session,
    value::{Outlet, TensorElementType, ValueType},
};

use crate::engine::EngineError;

pub(super) const IDS: &CStr = c"input_ids";
pub(super) const USED: &CStr = c"seqlens_k";
pub(super) const LONGEST: &CStr = c"total_sequence_length";
pub(super) const NEXT: &CStr = c"next";

/// Names and sizes of a decoder model that `models/export_llm.py` wrote.
#[derive(Debug)]
pub(super) struct DecoderGraph {
    /// Input and output name of each cache: keys and values of each layer.
    pub caches: Vec<(CString, CString)>,
    /// Heads of a cache; `width` is the number of elements per head and position.
    pub heads: usize,
    pub width: usize,
    pub vocabulary: usize,
    pub context: usize,
    pub eos: i32,
}

impl DecoderGraph {
    /// # Errors
    /// [`EngineError::Model`] names the tensor, or the metadata entry.
    pub fn read<'s>(session: &'s Session, path: &Path) -> Result<Self, EngineError> {
        let refuse = |tensor: &str, reason: &str| {
            let reason = format!("{reason}: engine llm runs what models/export_llm.py writes");
            EngineError::tensor(path, tensor, reason)
        };
        let check = |outlets: &'s [Outlet], name: &str, element, rank| {
            let shape = tensor(outlets, name, element)
                .ok_or_else(|| refuse(name, &format!("there is no such tensor of {element}")))?;
            if shape.len() == rank {
                return Ok(shape);
            }
            Err(refuse(name, &format!("its shape is {shape:?}")))
        };
        let (inputs, outputs) = (session.inputs(), session.outputs());
        let name = |name: &'static CStr| name.to_str().unwrap_or_default();
        check(inputs, name(IDS), TensorElementType::Int64, 2)?;
        check(inputs, name(USED), TensorElementType::Int32, 1)?;
        check(inputs, name(LONGEST), TensorElementType::Int32, 0)?;
        let next = check(outputs, name(NEXT), TensorElementType::Int64, 2)?;
        if next[1] != 2 {
            let reason = format!("its shape is {next:?}, not [n, 2]");
            return Err(refuse(name(NEXT), &reason));
        }
        let (mut caches, mut size) = (Vec::new(), None);
        for past in inputs.iter().map(Outlet::name) {
            let Some(rest) = past.strip_prefix("past_key_values.") else {
                continue;
            };
            let present = format!("present.{rest}");
            let shape = check(inputs, past, TensorElementType::Float32, 4)?;
            check(outputs, &present, TensorElementType::Float32, 4)?;
            let own = (usize::try_from(shape[1]), usize::try_from(shape[3]));
            let (Ok(heads), Ok(width)) = own else {
                return Err(refuse(past, &format!("its shape is {shape:?}")));
            };
            if *size.get_or_insert((heads, width)) != (heads, width) {
                return Err(refuse(past, "its heads are not those of the first layer"));
            }
            let owned = |name: &str| CString::new(name).map_err(|_| refuse(name, "a zero in it"));
            caches.push((owned(past)?, owned(&present)?));
        }
        let (heads, width) = size.ok_or_else(|| refuse("past_key_values.0.key", "is missing"))?;
        if inputs.len() != caches.len() + 3 || outputs.len() != caches.len() + 1 {
            return Err(refuse(
                name(IDS),
                "there are more inputs or outputs than known",
            ));
        }
        let metadata = session.metadata().ok();
        let number = |key: &str| {
            let text = metadata.as_ref().and_then(|m| m.custom(key));
            text.and_then(|text| text.parse::<i32>().ok())
                .filter(|n| *n >= 0)
                .ok_or_else(|| refuse(key, "the file's metadata does not have this number"))
        };
        Ok(DecoderGraph {
            caches,
            heads,
            width,
            vocabulary: number("vocabulary")? as usize,
            context: number("context")? as usize,
            eos: number("eos")?,
        })
    }
}

fn tensor<'o>(outlets: &'o [Outlet], name: &str, element: TensorElementType) -> Option<&'o [i64]> {
    let outlet = outlets.iter().find(|o| o.name() == name)?;
    match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } if *ty == element => Some(shape),
        _ => None,
    }
}
