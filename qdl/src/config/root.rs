//! The two configuration files, and the keys in them that other crates read.

use std::path::Path;

use garde::Validate;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    nic::NicConfig,
    rules::{ConfigSide, Findings},
};

/// One of the two configuration files.
pub trait ConfigFile: Default + Serialize + DeserializeOwned + Validate<Context = ()> {
    /// Kind of node that the file configures.
    const SIDE: ConfigSide;

    /// Resolves paths relative to `base`.
    fn resolve(&mut self, base: &Path);

    /// Checks the relations between keys, beyond garde's ranges.
    fn check(&self, out: &mut Findings<'_>);

    /// Returns the entries of `nics`.
    fn nics(&mut self) -> &mut [NicConfig];

    /// Returns the keys of files that must exist at the start, and the files that are named.
    fn files(&self) -> Vec<(&'static str, Option<&Path>)>;
}

/// Keys of the file `C` that a crate above this one reads: a struct of them, with their defaults.
/// Problems of all keys are reported together.
pub trait SectionKeys<C>: Default + Serialize + DeserializeOwned + Validate<Context = ()> {
    /// Whether the file may have keys beyond those of `C` and of this type.
    const MORE: bool = false;

    /// Resolves paths relative to `base`.
    fn resolve(&mut self, base: &Path);

    /// Checks the relations between these keys, and with those of `config`.
    fn check(&self, config: &C, out: &mut Findings<'_>);

    /// Returns the keys of files that must exist at the start, and the files that are named.
    fn files(&self) -> Vec<(&'static str, Option<&Path>)>;
}

/// Reads nothing beyond `C`: for code that needs no keys of other crates.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, Validate)]
pub struct NoSection {}

impl<C> SectionKeys<C> for NoSection {
    const MORE: bool = true;

    fn resolve(&mut self, _: &Path) {}

    fn check(&self, _: &C, _: &mut Findings<'_>) {}

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        Vec::new()
    }
}
