//! Reads the inputs and outputs of a decoder graph from its metadata.

use std::{
    ffi::{CStr, CString},
    path::Path,
};

use ort::{
    session::Session,
    value::{TensorElementType, ValueType},
};

use crate::EngineError;

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
    /// Error: names the tensor, or the metadata entry.
    pub fn read(session: &Session, path: &Path) -> Result<Self, EngineError> {
        let refuse = |tensor: &str, reason: &str| {
            let reason = format!("{reason}: engine llm runs what models/export_llm.py writes");
            EngineError::tensor(path, tensor, reason)
        };
        let metadata = session.metadata().ok();
        let number = |key: &str| {
            let text = metadata.as_ref().and_then(|m| m.custom(key));
            text.and_then(|text| text.parse::<i32>().ok())
                .filter(|n| *n >= 0)
                .ok_or_else(|| refuse(key, "the file's metadata does not have this number"))
        };
        // Only files of `models/export_llm.py` have this number. The runtime checks the shapes of
        // all tensors that a step binds.
        let vocabulary = number("vocabulary")? as usize;
        let (mut caches, mut size) = (Vec::new(), None);
        for input in session.inputs() {
            let past = input.name();
            let Some(rest) = past.strip_prefix("past_key_values.") else {
                continue;
            };
            let own = match input.dtype() {
                ValueType::Tensor { ty, shape, .. } if *ty == TensorElementType::Float32 => {
                    match shape[..] {
                        [_, heads, _, width] => heads.try_into().ok().zip(width.try_into().ok()),
                        _ => None,
                    }
                }
                _ => None,
            };
            if own.is_none() || *size.get_or_insert(own) != own {
                return Err(refuse(past, "its heads are not those of the first layer"));
            }
            let owned = |name: &str| CString::new(name).map_err(|_| refuse(name, "a zero in it"));
            caches.push((owned(past)?, owned(&format!("present.{rest}"))?));
        }
        let (heads, width) = size
            .flatten()
            .ok_or_else(|| refuse("past_key_values.0.key", "is missing"))?;
        Ok(DecoderGraph {
            caches,
            heads,
            width,
            vocabulary,
            context: number("context")? as usize,
            eos: number("eos")?,
        })
    }
}
