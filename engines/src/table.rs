//! The engines: one row each, with the facts that the rest of the programs has to know.

use std::{sync::Arc, time::Duration};

use qdl::config::Findings;

use crate::{
    Engine, EngineError, EngineParams,
    aoti::Aoti,
    config::{AnswerSource, BATCHING, EngineConfig, EngineKind, HttpConfig, MAX_BATCH, VllmConfig},
    digest::Digest,
    llm::Llm,
    llm_server::{Http, Vllm},
    onnx::{self, Onnx},
    tensorrt::TensorRtEngine,
    tokens::Tokens,
};

type Opened = Result<Arc<dyn Engine>, EngineError>;

/// A row of the table.
struct EngineEntry {
    kind: EngineKind,
    /// The engine's name in YAML.
    name: &'static str,
    source: AnswerSource,
    /// Runs a language model, batches by itself, and answers in tokens.
    streams: bool,
    /// Runs on a GPU, whatever the configuration.
    on_gpu: bool,
    /// Keys of `engine`, beside those that every engine has and [`BATCHING`].
    keys: &'static [&'static str],
    /// Checks the values of `keys`.
    check: fn(&EngineConfig, &mut Findings<'_>),
    /// Makes the engine. Loads the model, so that a bad model fails now.
    open: fn(&EngineParams) -> Opened,
    /// Time that the engine's own deadlines permit its start. Their messages are better than the
    /// pipeline's, whose deadline is later.
    start: fn(&EngineConfig) -> Duration,
}

/// The row of an engine that takes any bytes, runs the batches of the batcher in this process, and
/// has no keys.
const fn row(
    kind: EngineKind,
    name: &'static str,
    open: fn(&EngineParams) -> Opened,
) -> EngineEntry {
    EngineEntry {
        kind,
        name,
        source: AnswerSource::AnyBytes,
        streams: false,
        on_gpu: false,
        keys: &[],
        check: |_, _| (),
        open,
        start: |_| Duration::ZERO,
    }
}

fn digest(params: &EngineParams) -> Opened {
    Ok(Arc::new(Digest::new(params)))
}

static TABLE: [EngineEntry; 9] = [
    EngineEntry {
        keys: &["delay_us"],
        ..row(EngineKind::Digest, "digest", digest)
    },
    EngineEntry {
        keys: &["delay_us"],
        ..row(EngineKind::Null, "null", digest)
    },
    EngineEntry {
        source: AnswerSource::File,
        keys: &["library", "intra_threads", "provider", "gpu"],
        ..row(EngineKind::Onnx, "onnx", |params| {
            Ok(Arc::new(Onnx::open(params)?))
        })
    },
    EngineEntry {
        source: AnswerSource::File,
        on_gpu: true,
        keys: &["library", "intra_threads", "gpu", "batch_sizes"],
        check: |engine, out| {
            engine.check_sizes("batch_sizes", &engine.batch_sizes, engine.max_batch, out);
        },
        ..row(EngineKind::Aoti, "aoti", |params| {
            Ok(Arc::new(Aoti::open(params)?))
        })
    },
    EngineEntry {
        source: AnswerSource::File,
        on_gpu: true,
        keys: &[
            "library",
            "intra_threads",
            "gpu",
            "batch_sizes",
            "precision",
            "profiles",
            "optimization_level",
        ],
        check: |engine, out| {
            engine.check_sizes("batch_sizes", &engine.batch_sizes, engine.max_batch, out);
            engine.check_sizes("profiles", &engine.profiles, MAX_BATCH, out);
        },
        ..row(EngineKind::TensorRt, "tensorrt", |params| {
            Ok(Arc::new(TensorRtEngine::open(params)?))
        })
    },
    EngineEntry {
        source: AnswerSource::Settings,
        streams: true,
        keys: &["tokens"],
        check: |engine, out| engine.tokens.iter().for_each(|tokens| tokens.check(out)),
        ..row(EngineKind::Tokens, "tokens", |params| {
            Ok(Arc::new(Tokens::new(params)?))
        })
    },
    EngineEntry {
        source: AnswerSource::Server,
        streams: true,
        keys: &["http", "threads"],
        check: HttpConfig::check_engine,
        start: |engine| {
            let http = engine.http.as_ref();
            http.map_or(Duration::ZERO, |http| http.ready() + 2 * http.first_token())
        },
        ..row(EngineKind::Http, "http", |params| {
            Ok(Arc::new(Http::open(params)?))
        })
    },
    EngineEntry {
        source: AnswerSource::Server,
        streams: true,
        keys: &["vllm"],
        check: VllmConfig::check_engine,
        start: |engine| {
            let vllm = engine.vllm.as_ref();
            vllm.map_or(Duration::ZERO, |vllm| vllm.ready() + 2 * vllm.step())
        },
        ..row(EngineKind::Vllm, "vllm", |params| {
            Ok(Arc::new(Vllm::open(params)?))
        })
    },
    EngineEntry {
        source: AnswerSource::File,
        streams: true,
        keys: &["library", "intra_threads", "provider", "gpu", "llm"],
        check: |engine, out| engine.llm.iter().for_each(|llm| llm.check(out)),
        ..row(EngineKind::Llm, "llm", |params| {
            Ok(Arc::new(Llm::open(params)?))
        })
    },
];

impl EngineKind {
    fn entry(self) -> &'static EngineEntry {
        let found = TABLE.iter().find(|entry| entry.kind == self);
        // Unreachable: a test finds the row of each kind.
        found.unwrap_or(&TABLE[0])
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

    pub(crate) fn on_gpu(self) -> bool {
        self.entry().on_gpu
    }

    /// Returns whether the engine has this key of `engine`.
    pub(crate) fn has(self, key: &str) -> bool {
        let entry = self.entry();
        entry.keys.contains(&key) || !entry.streams && BATCHING.contains(&key)
    }

    /// Returns the first engine that has this key.
    pub(crate) fn with_key(key: &str) -> Option<Self> {
        let found = TABLE.iter().find(|entry| entry.kind.has(key));
        found.map(|entry| entry.kind)
    }

    /// Checks the values of the keys that this engine has beside others.
    pub(crate) fn check(self, engine: &EngineConfig, out: &mut Findings<'_>) {
        (self.entry().check)(engine, out);
    }

    /// Returns the time that the engine's own deadlines permit its start.
    pub(crate) fn start_timeout(self, engine: &EngineConfig) -> Duration {
        (self.entry().start)(engine)
    }
}

/// Makes the engine that `params` names. Loads the model, so that a bad model fails now.
///
/// # Errors
/// [`EngineError`]: a library or model that cannot be loaded, or does not fit the configuration.
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
        for entry in &TABLE {
            let kind = serde_json::from_value(entry.name.into()).expect("a kind");
            assert_eq!((entry.kind, entry.kind.as_str()), (kind, entry.name));
        }
        let unknown = serde_json::from_value::<EngineKind>("x".into()).expect_err("no engine");
        let known = unknown.to_string().matches('`').count() / 2 - 1;
        assert_eq!(known, TABLE.len(), "{unknown}");
    }
}
