//! `onnx`: ONNX Runtime on the CPU, found at run time.
//!
//! Building needs no ONNX Runtime, and neither do the other engines: [`find_library`] looks for it when the engine
//! is made. `spec` reads the model's tensors from its own metadata; every worker has a session of its own,
//! because a session runs one batch at a time.
//!
//! A batch whose samples form one run is handed to the session where it lies. Any other batch is gathered into
//! an aligned buffer first, and the copies are counted.

mod library;
mod session;
mod spec;

use std::{fs, path::PathBuf};

use qdl::model::ModelSpec;

pub use library::find_library;

use self::session::{Settings, Worker as OnnxWorker};
use super::{Engine, EngineError, EngineParams, Worker};

/// An ONNX model that was loaded once and can be loaded again.
#[derive(Debug)]
pub struct Onnx {
    model: ModelSpec,
    settings: Settings,
}

impl Onnx {
    /// Finds ONNX Runtime, loads the model and reads its tensors.
    ///
    /// # Errors
    /// A library or a model that is missing or unusable, each with its path.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let path = params.file.clone().ok_or_else(|| EngineError::Param {
            field: "model.file",
            reason: "engine onnx needs a model file".to_owned(),
        })?;
        check_readable(&path)?;
        library::load(params.library.as_deref())?;
        let settings = Settings {
            path,
            intra_threads: params.intra_threads,
        };
        let session = settings.open()?;
        let model = spec::read(&session, &params.model, &params.ragged, &settings.path)?;
        Ok(Onnx { model, settings })
    }
}

impl Engine for Onnx {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        Ok(Box::new(OnnxWorker::new(&self.model, &self.settings)?))
    }
}

/// The system's reason is clearer than ONNX Runtime's, so it is asked first.
fn check_readable(path: &PathBuf) -> Result<(), EngineError> {
    let missing = |source| EngineError::ModelMissing {
        path: path.clone(),
        source,
    };
    let meta = fs::File::open(path)
        .and_then(|f| f.metadata())
        .map_err(missing)?;
    if meta.is_file() {
        Ok(())
    } else {
        Err(missing(std::io::Error::other("is not a file")))
    }
}
