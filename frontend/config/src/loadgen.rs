//! LoadGen's settings.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use loadgen_log::Scenario;
use qdl::config::resolve;
use serde::{Deserialize, Deserializer, Serialize};

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

    pub(crate) fn resolve(&mut self, base: &Path) {
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

/// Value of a setting that is passed on to LoadGen as text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "it must be true, false, a number or a text")]
enum Scalar {
    Bool(bool),
    Int(i64),
    /// LoadGen's seeds have 64 bits; as an `f64` they would be other seeds.
    Seed(u64),
    Float(f64),
    Text(String),
}

fn scalars<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let text = |(key, value)| {
        let value = match value {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(value) => value.to_string(),
            Scalar::Seed(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Text(value) => value,
        };
        (key, value)
    };
    let all = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
    Ok(all.into_iter().map(text).collect())
}
