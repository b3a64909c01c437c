//! Reads the nodes' configurations of a run with the programs' own parser.

use std::{collections::BTreeMap, path::Path};

use engines::{EngineConfig, config::parse_accelerator};
use frontend_config::FrontendFile;
use qdl::config::AcceleratorConfig;

use crate::{
    error,
    layout::{self, Name},
    manifest::{self, FRONTEND_YAML, accelerator_yaml},
};

/// A run's configurations, as far as they are known.
#[derive(Clone, Default)]
pub struct RunConfigs {
    /// The frontend's.
    pub frontend: Option<FrontendFile>,
    /// The accelerators', by node.
    pub accelerators: BTreeMap<Name, AcceleratorConfig>,
    /// The accelerators' engines, by node.
    pub engines: BTreeMap<Name, EngineConfig>,
}

impl RunConfigs {
    /// Reads a node's configuration.
    ///
    /// # Errors
    /// What the parser says, in one line.
    pub fn read(&mut self, node: Option<&Name>, text: &str) -> Result<(), String> {
        let file = node.map_or(FRONTEND_YAML.to_owned(), accelerator_yaml);
        let base = Path::new("");
        let read = match node {
            None => FrontendFile::parse(text, &file, base).map(|config| {
                self.frontend = Some(config);
            }),
            Some(node) => parse_accelerator(text, &file, base).map(|(config, engine)| {
                self.accelerators.insert(node.clone(), config);
                self.engines.insert(node.clone(), engine);
            }),
        };
        read.map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            let line = line.strip_prefix(&file).unwrap_or(line);
            format!(
                "the program does not take it: line {}",
                line.trim_start_matches(':')
            )
        })
    }

    /// Reads the configurations that a run kept in `folder`. The texts say what the parser refuses,
    /// with the file's name.
    pub(crate) fn kept(folder: &Path) -> (Self, Vec<(String, String)>) {
        let (mut configs, mut refused) = (RunConfigs::default(), Vec::new());
        for file in layout::files(folder) {
            let node = manifest::node_of_yaml(&file);
            let read = match error::read(&folder.join(&file)) {
                Ok(text) if file == FRONTEND_YAML || node.is_some() => {
                    configs.read(node.as_ref(), &text)
                }
                _ => continue,
            };
            refused.extend(read.err().map(|what| (file, what)));
        }
        (configs, refused)
    }
}
