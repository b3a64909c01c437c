//! Tests of loading configurations, and of the errors of invalid ones.

mod defaults;
mod errors;
mod files;
mod in_code;
mod models;
mod nics;
mod relations;

use std::path::Path;

use super::*;
use crate::testkit::{assert_has, config::*};

fn frontend(text: &str) -> Result<FrontendConfig, ConfigError> {
    parse_frontend(text, "f.yaml", Path::new("/base")).map(in_code)
}

fn accelerator(text: &str) -> Result<AcceleratorConfig, ConfigError> {
    parse_accelerator(text, "a.yaml", Path::new("/base")).map(in_code)
}

/// Returns a configuration that passes the checks in code too.
#[track_caller]
fn in_code<C: ConfigFile + std::fmt::Debug>(config: C) -> C {
    good(check(config))
}

/// Returns the [`problems`] of a frontend with these lines after the head.
fn after_head(lines: &str) -> Vec<String> {
    problems(frontend(&format!("{FRONTEND}{lines}")))
}
