//! The two configuration files, and the keys in them that other crates read.

use std::path::Path;

use garde::Validate;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};

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

/// Value of a key that a crate above this one reads ([`SectionKeys`]): any YAML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Section;

impl<'de> Deserialize<'de> for Section {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Section)
    }
}

impl Validate for Section {
    type Context = ();

    fn validate_into(&self, (): &(), _: &mut dyn FnMut() -> garde::Path, _: &mut garde::Report) {}
}

/// Keys of the file `C` that a crate above this one reads: a struct of the root's keys with each
/// [`Section`]. Problems of all keys are reported together.
pub trait SectionKeys<C>: DeserializeOwned + Validate<Context = ()> {
    /// Resolves paths relative to `base`.
    fn resolve(&mut self, base: &Path);

    /// Checks the relations between these keys, and with those of `config`.
    fn check(&self, config: &C, out: &mut Findings<'_>);

    /// Returns the keys of files that must exist at the start, and the files that are named.
    fn files(&self) -> Vec<(&'static str, Option<&Path>)>;
}

/// Reads nothing: for code that needs no section.
impl<C> SectionKeys<C> for Section {
    fn resolve(&mut self, _: &Path) {}

    fn check(&self, _: &C, _: &mut Findings<'_>) {}

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        Vec::new()
    }
}
