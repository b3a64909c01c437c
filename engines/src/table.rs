//! The table of engines ([`crate::ENGINES`]), by kind.

use crate::{
    ENGINES, EngineParams,
    config::{AnswerSource, BATCHING, EngineKind},
    entry::{EngineEntry, Opened},
    onnx,
};

impl EngineKind {
    /// Returns the engine's row.
    pub(crate) fn entry(self) -> &'static EngineEntry {
        let found = ENGINES.iter().find(|entry| entry.kind == self);
        // Unreachable: a test finds the row of each kind.
        found.unwrap_or(&ENGINES[0])
    }

    /// Returns the kind's name in YAML.
    pub fn as_str(self) -> &'static str {
        self.entry().name
    }

    /// Returns where the answers come from.
    pub fn source(self) -> AnswerSource {
        self.entry().source
    }

    /// Returns whether the engine accepts any bytes and needs no model file.
    pub fn takes_any_bytes(self) -> bool {
        self.source() == AnswerSource::AnyBytes
    }

    /// Returns whether the engine runs a language model, batches itself, and answers in tokens.
    pub fn streams(self) -> bool {
        self.entry().streams
    }

    /// Returns whether answers come from a model; other engines make them up.
    pub fn runs_a_model(self) -> bool {
        self.reads_file() || self.has_server()
    }

    /// Returns whether the engine needs a model file.
    pub fn reads_file(self) -> bool {
        self.source() == AnswerSource::File
    }

    /// Returns whether a second program on this machine runs the model.
    pub fn has_server(self) -> bool {
        self.source() == AnswerSource::Server
    }

    /// Returns whether the engine has this key of `engine`.
    pub(crate) fn has(self, key: &str) -> bool {
        let entry = self.entry();
        entry.keys.contains(&key) || !entry.streams && BATCHING.contains(&key)
    }

    /// Returns the first engine that has this key.
    pub(crate) fn with_key(key: &str) -> Option<Self> {
        let found = ENGINES.iter().find(|entry| entry.kind.has(key));
        found.map(|entry| entry.kind)
    }
}

/// Makes the engine that `params` names. Loads the model, so that a bad model fails now.
///
/// # Errors
/// [`EngineError`](crate::EngineError): a library or model that cannot be loaded, or does not fit
/// the configuration.
pub fn create(params: &EngineParams) -> Opened {
    (params.engine.kind.entry().open)(params)
}

/// Describes engine, model file, library and batching in one line, for the log.
pub fn describe(params: &EngineParams) -> String {
    let engine = &params.engine;
    let mut line = engine.kind.as_str().to_owned();
    if let Some(file) = &params.file {
        line += &format!(", model file {}", file.display());
    }
    let runs_onnx = engine.kind.has("provider");
    if runs_onnx && let Ok(library) = onnx::find_library(engine.library.as_deref()) {
        line += &format!(", ONNX Runtime {}", library.display());
    }
    if let Some(batches) = engine.batching() {
        line += &format!(", batches of {batches}");
    }
    if runs_onnx {
        line += &format!(", intra_threads {}", engine.intra_threads);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_the_row_of_its_name() {
        for entry in ENGINES {
            let kind = serde_json::from_value(entry.name.into()).expect("a kind");
            assert_eq!((entry.kind, entry.kind.as_str()), (kind, entry.name));
        }
        let unknown = serde_json::from_value::<EngineKind>("x".into()).expect_err("no engine");
        let known = unknown.to_string().matches('`').count() / 2 - 1;
        assert_eq!(known, ENGINES.len(), "{unknown}");
    }
}
