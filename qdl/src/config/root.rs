//! A whole configuration file.

use std::path::Path;

use garde::Validate;
use serde::de::DeserializeOwned;

use super::{
    nic::NicConfig,
    rules::{Findings, Side},
};

/// What a whole file becomes.
pub(super) trait Root: DeserializeOwned + Validate<Context = ()> {
    /// Whose file it is.
    const SIDE: Side;

    /// Makes paths that are relative to the folder `base` the process's own.
    fn resolve(&mut self, base: &Path);

    /// What garde's ranges do not say: how keys go together.
    fn check(&self, out: &mut Findings<'_>);

    /// The entries of `nics`.
    fn nics(&mut self) -> &mut [NicConfig];

    /// The files it names that must be there at the start, with the keys that name them.
    fn files(&self) -> Vec<(&'static str, &Path)>;
}
