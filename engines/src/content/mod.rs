//! Identifies what determines an engine's answers: the hash of the model's files, or settings.
//!
//! The hash is SHA-256, so that `sha256sum` can check the record; xxh3 would be several times as
//! fast. A separate thread reads the files while the engine loads them. So a large file adds little
//! time: one of the two reads comes mostly from the page cache.

mod onnx_data;

use std::{
    io,
    path::Path,
    thread::{self, JoinHandle},
    time::Instant,
};

use fabric::os::{sha256_of, sha256_of_file};
use record::{Content, EngineInfo, MAX_CONTENT_NAME, NodeRole, OptionSet};

use crate::{Engine, EngineError, EngineParams, Streaming, config::AnswerSource};
pub use onnx_data::files as onnx_data_files;

/// A hash that a separate thread computes, or a content that needs no hash.
pub struct Hashing(Result<Hashed, JoinHandle<Result<Hashed, EngineError>>>);

/// The content of an engine, and the cost of hashing the model's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashed {
    /// The content; `None` for an engine without a model.
    pub content: Option<Content>,
    /// Bytes of the hashed files.
    pub bytes: u64,
    /// Milliseconds of hashing, while the engine loads the model.
    pub ms: u64,
}

impl Hashed {
    /// Content and cost as one line, for the log; `None` without content.
    pub fn line(&self) -> Option<String> {
        let content = self.content.as_ref()?;
        let read = match self.bytes {
            0 => String::new(),
            n => format!(" ({n} bytes hashed in {} ms, beside loading)", self.ms),
        };
        Some(format!("model: {content}{read}"))
    }

    /// Description of the engine for the frontend, without its role. `at_once` is 0:
    /// [`Pipelines::at_once`](crate::pipelines::Pipelines::at_once) has the value.
    pub fn info(&self, engine: &dyn Engine) -> EngineInfo {
        EngineInfo {
            name: engine.name().to_owned(),
            tokens: engine.streaming().is_some(),
            at_once: 0,
            content: self.content.clone(),
            prefix_cache: engine.prefix_cache(),
            options: (engine.streaming()).map_or(OptionSet::NONE, Streaming::options),
            role: NodeRole::Both,
            server: engine.server(),
        }
    }
}

impl Hashing {
    /// Starts to hash the model file on a separate thread. Call before the engine is made.
    pub fn begin(params: &EngineParams) -> Hashing {
        let engine = &params.engine;
        let content = match engine.kind.source() {
            AnswerSource::AnyBytes => None,
            AnswerSource::Settings => Some(settings(params)),
            AnswerSource::Server => {
                let named = engine.http.as_ref().and_then(|h| h.model.as_ref());
                let name = short(named.unwrap_or(&params.model));
                Some(Content::Server { name })
            }
            AnswerSource::File => {
                let path = params.file.clone().unwrap_or_default();
                let thread = thread::Builder::new().name("model-hash".to_owned());
                let started =
                    thread.spawn(move || of_file(&path).map_err(|e| EngineError::model(&path, e)));
                // If no thread can start, the content stays unknown.
                return Hashing(started.map_or_else(|_| Ok(Hashed::default()), Err));
            }
        };
        Hashing(Ok(Hashed {
            content,
            ..Hashed::default()
        }))
    }

    /// Waits for the hash. Call after the engine is made.
    ///
    /// # Errors
    /// The model file, or a file of weights, cannot be read.
    pub fn end(self) -> Result<Hashed, EngineError> {
        self.0.or_else(|thread| {
            let hashed = thread.join();
            hashed.unwrap_or_else(|panic| Err(EngineError::panicked("hash", 0, panic.as_ref())))
        })
    }
}

/// The settings that determine the answers of the engine `tokens`; step times do not.
fn settings(params: &EngineParams) -> Content {
    let t = params.engine.tokens.clone().unwrap_or_default();
    let room = params.spec.as_ref().and_then(|s| s.max_output_bytes());
    let most = t.max_tokens.or(room.map(|bytes| bytes / size_of::<i32>()));
    let text = format!(
        "tokens min {} max {most:?} vocab {} eos {}",
        t.min_tokens, t.vocab, t.eos
    );
    Content::Settings {
        sha256: sha256_of(text.as_bytes()),
    }
}

/// The hash of a model file and, for ONNX, of the files of weights that the model names.
fn of_file(path: &Path) -> io::Result<Hashed> {
    let began = Instant::now();
    let named = path.extension().is_some_and(|e| e == "onnx");
    let (own, mut bytes) = sha256_of_file(path)?;
    let mut each = Vec::new();
    for name in named.then(|| onnx_data::names(path)).into_iter().flatten() {
        let file = path.with_file_name(&name);
        // The engine reports a missing file.
        if !file.is_file() {
            continue;
        }
        let (hash, more) = sha256_of_file(&file)?;
        bytes += more;
        each.push(format!("{hash}  {name}\n"));
    }
    let sha256 = match each.is_empty() {
        true => own,
        // Hash the list of hashes: the model's, then the lines of `sha256sum` for the weights.
        false => sha256_of(format!("{own}\n{}", each.concat()).as_bytes()),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Hashed {
        content: Some(Content::File {
            name: short(&name),
            sha256,
        }),
        bytes,
        ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
    })
}

/// The name, cut to the size limit of the wire protocol, with `?` for control characters.
fn short(name: &str) -> String {
    let mut out = String::new();
    for c in name
        .chars()
        .map(|c| if record::is_unprintable(c) { '?' } else { c })
    {
        if out.len() + c.len_utf8() > MAX_CONTENT_NAME {
            break;
        }
        out.push(c);
    }
    if out.is_empty() { "?".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use crate::EngineKind;
    use std::fs;

    use super::onnx_data::tests::model as model_with_data;
    use super::*;

    fn hash_of(path: &Path) -> String {
        let mut params = EngineParams::new(EngineKind::Onnx);
        params.file = Some(path.to_owned());
        let hashed = Hashing::begin(&params).end().expect("readable");
        let content = hashed.content.expect("a file's");
        content.sha256().expect("a hash").to_owned()
    }

    #[test]
    fn a_model_in_one_file_has_its_own_hash_and_one_in_several_that_of_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.onnx");
        fs::write(&path, "abc").expect("written");
        assert_eq!(
            hash_of(&path),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        // A named file that does not exist does not count.
        fs::write(&path, model_with_data("m.data")).expect("written");
        let alone = hash_of(&path);
        assert_eq!(alone, sha256_of(&model_with_data("m.data")));
        let weights = folder.path().join("m.data");
        fs::write(&weights, [1; 9]).expect("written");
        let with = hash_of(&path);
        assert_ne!(with, alone);
        fs::write(&weights, [2; 9]).expect("written");
        assert_ne!(hash_of(&path), with, "other weights are another model");
        fs::write(&weights, [1; 9]).expect("written");
        assert_eq!(hash_of(&path), with);
    }

    #[test]
    fn an_engine_without_a_file_names_its_settings_or_server() {
        let of = |kind, change: &dyn Fn(&mut crate::config::TokensConfig)| {
            let mut params = EngineParams::new(kind);
            let mut tokens = crate::config::TokensConfig::default();
            change(&mut tokens);
            params.engine.tokens = Some(tokens);
            Hashing::begin(&params).end().expect("no file").content
        };
        assert_eq!(of(EngineKind::Null, &|_| ()), None);
        assert_eq!(of(EngineKind::Digest, &|_| ()), None);
        let tokens = of(EngineKind::Tokens, &|_| ());
        assert!(matches!(tokens, Some(Content::Settings { .. })));
        let slower = of(EngineKind::Tokens, &|t| t.step_us = 9);
        assert_eq!(slower, tokens, "how long they take is no other answer");
        assert_ne!(of(EngineKind::Tokens, &|t| t.vocab = 9), tokens);
        let server = of(EngineKind::Http, &|_| ());
        let name = "opaque".to_owned();
        assert_eq!(server, Some(Content::Server { name }));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let mut params = EngineParams::new(EngineKind::Aoti);
        params.file = Some("/no/such/model.pt2".into());
        let e = Hashing::begin(&params).end().expect_err("missing");
        assert!(e.to_string().contains("/no/such/model.pt2"), "{e}");
    }
}
