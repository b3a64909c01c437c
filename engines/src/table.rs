//! Makes the engine that a configuration names.

use std::sync::Arc;

use qdl::config::EngineKind;

use crate::{
    Engine, EngineError, EngineParams,
    aoti::Aoti,
    batching,
    digest::Digest,
    llm::Llm,
    llm_server::{Http, Vllm},
    onnx::{self, Onnx},
    tensorrt::TensorRtEngine,
    tokens::Tokens,
};

/// Makes the engine that `params` names. Loads the model, so that a bad model fails now.
///
/// # Errors
/// [`EngineError`]: a library or model that cannot be loaded, or does not fit the configuration.
pub fn create(params: &EngineParams) -> Result<Arc<dyn Engine>, EngineError> {
    Ok(match params.engine.kind {
        EngineKind::Null | EngineKind::Digest => Arc::new(Digest::new(params)),
        EngineKind::Onnx => Arc::new(Onnx::open(params)?),
        EngineKind::Aoti => Arc::new(Aoti::open(params)?),
        EngineKind::TensorRt => Arc::new(TensorRtEngine::open(params)?),
        EngineKind::Tokens => Arc::new(Tokens::new(params)?),
        EngineKind::Http => Arc::new(Http::open(params)?),
        EngineKind::Vllm => Arc::new(Vllm::open(params)?),
        EngineKind::Llm => Arc::new(Llm::open(params)?),
        other => {
            return Err(EngineError::param(
                "kind",
                format!("this build has no engine `{}`", other.as_str()),
            ));
        }
    })
}

/// Describes engine, model file, library and batching in one line, for the log.
pub fn describe(params: &EngineParams) -> String {
    let engine = &params.engine;
    let mut line = engine.kind.as_str().to_owned();
    if let Some(file) = &params.file {
        line += &format!(", model file {}", file.display());
    }
    let runs_onnx = matches!(engine.kind, EngineKind::Onnx | EngineKind::Llm);
    if runs_onnx && let Ok(library) = onnx::find_library(engine.library.as_deref()) {
        line += &format!(", ONNX Runtime {}", library.display());
    }
    if let Some(batches) = batching(engine) {
        line += &format!(", batches of {batches}");
    }
    if runs_onnx {
        line += &format!(", intra_threads {}", engine.intra_threads);
    }
    line
}
