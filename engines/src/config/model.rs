//! How an engine and its model go together.

use qdl::{
    config::{AcceleratorModel, Findings},
    model::{DType, TensorSpec},
};

use super::{AnswerSource, EngineConfig};

impl EngineConfig {
    /// Checks the keys of `model` that this engine has, needs or refuses.
    pub(super) fn check_model(&self, model: &AcceleratorModel, out: &mut Findings<'_>) {
        let engine = self.kind.entry();
        let kind = engine.name;
        if !model.other_outputs.is_empty() && !engine.has_other_outputs {
            out.add_key(
                "model.other_outputs",
                format!("engine `{kind}` gives one output"),
                "remove `other_outputs`, or use `kind: onnx`",
            );
        }
        let is_whole = model.inputs.is_some() && model.output.is_some();
        let is_ragged = model.output.as_ref().is_some_and(|output| output.ragged);
        if is_whole && is_ragged && !engine.has_ragged_output {
            out.add(
                "model.output",
                format!("engine `{kind}` answers with outputs of one size"),
                "remove `ragged` from the output",
            );
        }
        for (key, is_set) in [
            ("file", model.file.is_some()),
            ("max_input_bytes", model.max_input_bytes.is_some()),
            ("output_bytes", model.output_bytes.is_some()),
        ] {
            let (what, help) = match engine.source {
                AnswerSource::Server => (
                    format!("engine `{kind}` leaves the model to a second program"),
                    format!("remove `{key}`, and give `inputs` and `output`"),
                ),
                _ if key == "file" => continue,
                AnswerSource::AnyBytes if model.inputs.is_none() => continue,
                AnswerSource::AnyBytes => (
                    format!("`{key}` and `inputs` both say how large a sample is"),
                    format!("remove `{key}`, or `inputs` and `output`"),
                ),
                _ if engine.streams => (
                    format!("engine `{kind}` counts tokens, not bytes"),
                    format!("remove `{key}`"),
                ),
                _ => (
                    format!("engine `{kind}` takes its sizes from the model file"),
                    format!("remove `{key}`"),
                ),
            };
            if is_set {
                out.add_key(format!("model.{key}"), what, help);
            }
        }
        let in_pairs = model.inputs.is_some() == model.output.is_some();
        match engine.source {
            AnswerSource::AnyBytes if in_pairs && model.spec().is_none() => out.add(
                "model",
                format!("engine `{kind}` takes any bytes and must be told how many"),
                "add `max_input_bytes`, the size of the largest sample",
            ),
            AnswerSource::Settings if model.inputs.is_none() => out.add(
                "model",
                format!("engine `{kind}` must be told how long prompts and answers can be"),
                "add `inputs` and `output`, each `dtype: i32` and `ragged: true`, as in \
                 `output: {name: tokens, dtype: i32, shape: [1024], ragged: true}`",
            ),
            AnswerSource::File if model.file.is_none() => out.add(
                "model",
                format!("engine `{kind}` needs a model file"),
                "add `file: PATH`",
            ),
            AnswerSource::Server => check_prompts(kind, model, out),
            _ => {}
        }
        let answer = model.spec().and_then(|m| m.max_output_bytes());
        let least = engine.answer_bytes_min;
        if let Some(bytes) = answer.filter(|bytes| *bytes < least) {
            let key = model.output.as_ref().map_or("output_bytes", |_| "output");
            out.add(
                format!("model.{key}"),
                format!("the output has {bytes} bytes"),
                format!("engine `{kind}` answers with {least} bytes or more"),
            );
        }
    }
}

/// Checks that the tensors of a server's model are token ids.
fn check_prompts(kind: &str, model: &AcceleratorModel, out: &mut Findings<'_>) {
    let ids = |tensor: &TensorSpec| tensor.dtype == DType::I32 && tensor.shape.len() == 1;
    let inputs = model.inputs.as_deref().unwrap_or_default();
    let output = model.output.as_ref();
    if inputs.len() != 1 || !inputs.iter().all(ids) || !output.is_some_and(|o| ids(o) && o.ragged) {
        out.add(
            "model",
            format!("engine `{kind}` takes the token ids of a prompt and gives those of an answer"),
            "give one input and a ragged output, both i32 of one dimension, as in \
             `inputs: [{name: prompt, dtype: i32, shape: [2048], ragged: true}]`",
        );
    }
}
