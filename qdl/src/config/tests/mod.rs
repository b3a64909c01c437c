//! Tests of loading configurations, and of the errors of invalid ones.

mod defaults;
mod errors;
mod files;
mod models;
mod nics;
mod relations;

use std::path::Path;

use super::*;
use crate::testkit::{assert_has, config::*};

fn frontend(text: &str) -> Result<FrontendConfig, ConfigError> {
    parse_frontend(text, "f.yaml", Path::new("/base"))
}

fn accelerator(text: &str) -> Result<AcceleratorConfig, ConfigError> {
    parse_accelerator(text, "a.yaml", Path::new("/base"))
}

/// Returns the [`problems`] of a frontend with these lines after the head.
fn after_head(lines: &str) -> Vec<String> {
    problems(frontend(&format!("{FRONTEND}{lines}")))
}
