//! LoadGen's settings.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{rules::resolve, values::scalars};

/// LoadGen's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// One query of one sample at a time.
    SingleStream,
    /// One query of several samples at a time.
    MultiStream,
    /// Queries of one sample at random times.
    Server,
    /// One query of all samples.
    Offline,
}

/// LoadGen's settings and files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadgenConfig {
    /// The scenario; default none: the command line must then name a scenario.
    pub scenario: Option<Scenario>,
    /// The model's name in `user.conf`; default the name in `model`.
    pub model: Option<String>,
    /// LoadGen's `user.conf`; default none.
    pub user_conf: Option<PathBuf>,
    /// LoadGen's `audit.config`; default none.
    pub audit_config: Option<PathBuf>,
    /// Folder for logs and histograms; see [`Self::output_dir`].
    pub output_dir: Option<PathBuf>,
    /// Further settings by the names of LoadGen's own fields, such as `server_target_qps`; default
    /// none. Values are text, as on the command line.
    #[serde(deserialize_with = "scalars")]
    pub settings: BTreeMap<String, String>,
}

impl LoadgenConfig {
    /// Returns the folder for logs and histograms; default `results` in the working directory, not
    /// in the configuration's folder.
    pub fn output_dir(&self) -> &Path {
        self.output_dir.as_deref().unwrap_or(Path::new("results"))
    }

    pub(super) fn resolve(&mut self, base: &Path) {
        let paths = [
            &mut self.user_conf,
            &mut self.audit_config,
            &mut self.output_dir,
        ];
        for path in paths.into_iter().flatten() {
            resolve(base, path);
        }
    }
}
