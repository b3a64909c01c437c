//! Tests of the keys of engines, and of the errors of invalid ones.

mod http;
mod keys;
mod vllm;

use std::path::Path;

use qdl::{
    config::{AcceleratorConfig, ConfigError},
    testkit::{assert_has, config::*},
};

use super::*;

fn node(text: &str) -> Result<(AcceleratorConfig, EngineConfig), ConfigError> {
    parse_accelerator(text, "a.yaml", Path::new("/base"))
}

fn accelerator(text: &str) -> Result<EngineConfig, ConfigError> {
    node(text).map(|(_, engine)| engine)
}

fn with_engine(model: &str, engine: &str) -> Result<EngineConfig, ConfigError> {
    let text = ACCELERATOR.replace("max_input_bytes: 4", model);
    accelerator(&text.replace("kind: digest", engine))
}
