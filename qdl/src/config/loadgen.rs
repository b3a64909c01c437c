//! What LoadGen is told.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Scalar, load::resolve};

/// Default of [`LoadgenConfig::output_dir`]: a folder in the working directory.
pub const DEFAULT_OUTPUT_DIR: &str = "results";

/// LoadGen's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// One query of one sample after the other.
    SingleStream,
    /// One query of several samples after the other.
    MultiStream,
    /// Queries of one sample at random times.
    Server,
    /// One query of all samples.
    Offline,
}

/// What LoadGen is told.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadgenConfig {
    /// Scenario; default none, then the command line must name one.
    pub scenario: Option<Scenario>,
    /// Name of the model in `user.conf`; default the name in `model`.
    pub model: Option<String>,
    /// LoadGen's `user.conf`; default none.
    pub user_conf: Option<PathBuf>,
    /// LoadGen's `audit.config`; default none.
    pub audit_config: Option<PathBuf>,
    /// Folder for logs and histograms; default `results` in the working directory.
    // Empty until `resolved` has seen it: the default is no path of the file's folder.
    #[serde(default = "PathBuf::new")]
    pub output_dir: PathBuf,
    /// Further settings by the names of LoadGen's own fields, such as `server_target_qps`; default none.
    pub settings: BTreeMap<String, Scalar>,
}

impl Default for LoadgenConfig {
    fn default() -> Self {
        LoadgenConfig {
            scenario: None,
            model: None,
            user_conf: None,
            audit_config: None,
            output_dir: PathBuf::from(DEFAULT_OUTPUT_DIR),
            settings: BTreeMap::new(),
        }
    }
}

impl LoadgenConfig {
    /// With paths resolved against `base`.
    pub(super) fn resolved(mut self, base: &Path) -> Self {
        for file in [&mut self.user_conf, &mut self.audit_config] {
            *file = file.take().map(|f| resolve(base, f));
        }
        self.output_dir = if self.output_dir.as_os_str().is_empty() {
            PathBuf::from(DEFAULT_OUTPUT_DIR)
        } else {
            resolve(base, self.output_dir)
        };
        self
    }
}
