//! Common trait of the two configuration files.

use std::path::Path;

use garde::Validate;
use serde::de::DeserializeOwned;

use super::{
    nic::NicConfig,
    rules::{ConfigSide, Findings},
};

pub(super) trait ConfigFile: DeserializeOwned + Validate<Context = ()> {
    /// Kind of node that the file configures.
    const SIDE: ConfigSide;

    fn resolve(&mut self, base: &Path);

    /// Checks the relations between keys, beyond garde's ranges.
    fn check(&self, out: &mut Findings<'_>);

    fn nics(&mut self) -> &mut [NicConfig];

    /// Returns the keys of files that must exist at the start, and the files that are named.
    fn files(&self) -> Vec<(&'static str, Option<&Path>)>;
}
