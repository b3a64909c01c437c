//! An accelerator's configuration file with its engine.

use std::path::Path;

use garde::Validate;
use qdl::config::{self, AcceleratorConfig, ConfigError, Findings, SectionKeys};
use serde::{Deserialize, Serialize};

use super::EngineConfig;

/// The keys of an accelerator's file that belong to its engine.
#[derive(Default, Serialize, Deserialize, Validate)]
struct NodeEngine {
    #[garde(dive)]
    engine: EngineConfig,
}

impl SectionKeys<AcceleratorConfig> for NodeEngine {
    fn resolve(&mut self, base: &Path) {
        self.engine.resolve(base);
    }

    fn check(&self, config: &AcceleratorConfig, out: &mut Findings<'_>) {
        self.engine.check_model(&config.model, out);
        self.engine.check(out);
        self.engine.check_nics(&config.nics, out);
    }

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        let may_be_folder = self.engine.kind.entry().has_library_folder;
        let is_folder = |path: &&Path| may_be_folder && path.is_dir();
        let file = self.engine.library.as_deref();
        vec![("engine.library", file.filter(|path| !is_folder(path)))]
    }
}

/// Reads and checks an accelerator's file, and checks that the files it names exist.
///
/// # Errors
/// [`ConfigError`] names file, line and column.
pub fn load_accelerator(path: &Path) -> Result<(AcceleratorConfig, EngineConfig), ConfigError> {
    config::load(path, None).map(|(config, NodeEngine { engine })| (config, engine))
}

/// Checks an accelerator's YAML. `origin` names the text in errors; paths are relative to the
/// folder `base`. Reads no file.
///
/// # Errors
/// [`ConfigError::Invalid`] lists all problems.
pub fn parse_accelerator(
    text: &str,
    origin: &str,
    base: &Path,
) -> Result<(AcceleratorConfig, EngineConfig), ConfigError> {
    config::parse(text, origin, base).map(|(config, NodeEngine { engine })| (config, engine))
}
