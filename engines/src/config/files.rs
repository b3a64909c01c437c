//! Both configuration files with their engine.

use std::path::Path;

use garde::Validate;
use qdl::config::{self, AcceleratorConfig, ConfigError, Findings, FrontendConfig, SectionKeys};
use serde::Deserialize;

use super::EngineConfig;

/// The keys of an accelerator's file that belong to its engine.
#[derive(Deserialize, Validate)]
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
        vec![("engine.library", self.engine.library.as_deref())]
    }
}

/// The keys of a frontend's file that belong to the engine of `--local`.
#[derive(Deserialize, Validate)]
struct LocalEngine {
    #[garde(dive)]
    engine: Option<EngineConfig>,
}

impl SectionKeys<FrontendConfig> for LocalEngine {
    fn resolve(&mut self, base: &Path) {
        self.engine
            .iter_mut()
            .for_each(|engine| engine.resolve(base));
    }

    fn check(&self, config: &FrontendConfig, out: &mut Findings<'_>) {
        let Some(engine) = &self.engine else { return };
        engine.check(out);
        if engine.kind.reads_file() && config.model_file.is_none() {
            out.add(
                "engine.kind",
                format!("engine `{}` needs a model file", engine.kind.as_str()),
                "add `model_file: PATH`",
            );
        }
    }

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        Vec::new()
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

/// As [`load_accelerator`], for a frontend. Paths are relative to the folder `base`; default: the
/// file's folder.
///
/// # Errors
/// As [`load_accelerator`].
pub fn load_frontend(
    path: &Path,
    base: Option<&Path>,
) -> Result<(FrontendConfig, Option<EngineConfig>), ConfigError> {
    config::load(path, base).map(|(config, LocalEngine { engine })| (config, engine))
}

/// As [`parse_accelerator`], for a frontend.
///
/// # Errors
/// As [`parse_accelerator`].
pub fn parse_frontend(
    text: &str,
    origin: &str,
    base: &Path,
) -> Result<(FrontendConfig, Option<EngineConfig>), ConfigError> {
    config::parse(text, origin, base).map(|(config, LocalEngine { engine })| (config, engine))
}

/// Fuzz target: a configuration file of either node. Each error names its file and line.
#[cfg(feature = "testkit")]
pub fn fuzz_yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let base = Path::new("/nowhere");
    let errors = [
        parse_frontend(text, "f.yaml", base).err(),
        parse_accelerator(text, "a.yaml", base).err(),
    ];
    for error in errors.into_iter().flatten() {
        let text = error.to_string();
        assert!(text.contains(".yaml"), "no place in {text}");
    }
}
