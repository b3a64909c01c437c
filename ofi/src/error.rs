//! What can go wrong, said so that the reader knows which call, of which provider, and what to do
//! next.

use std::fmt;

/// An error of the control path: finding, opening, registering, introducing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is not on this machine.
    #[error(
        "no libfabric on this machine ({detail}): install it (Debian: libfabric1), or configure an \
         address or a device without `ofi`"
    )]
    NoLibrary {
        /// What the loader said.
        detail: String,
    },
    /// A file by the right name is not libfabric.
    #[error("{library} has no function {symbol}: this is not a libfabric that can be used")]
    MissingSymbol {
        /// The function that is missing.
        symbol: &'static str,
        /// The file that was opened.
        library: String,
    },
    /// The library has no such provider, or the provider finds nothing to run on.
    #[error(
        "libfabric {version} offers no provider {provider:?} here; it offers {present}: choose one \
         of them, or see `fi_info -p '{provider}'`"
    )]
    NoProvider {
        /// The provider asked for.
        provider: String,
        /// The library's version.
        version: Version,
        /// Providers that could be used.
        present: String,
    },
    /// The provider is there, and the NIC is not.
    #[error("provider {provider} has no {asked}; it has {present}")]
    NoNic {
        /// The provider.
        provider: String,
        /// The domain or address asked for.
        asked: String,
        /// The domains there are.
        present: String,
    },
    /// The library is older than what is asked of it.
    #[error("libfabric {version} is too old for provider {provider}: {needs}")]
    TooOld {
        /// The provider.
        provider: String,
        /// The library's version.
        version: Version,
        /// What is needed, and since when there is.
        needs: &'static str,
    },
    /// The provider lacks something.
    #[error("provider {provider} cannot be used: {lacks}")]
    Unsupported {
        /// The provider.
        provider: String,
        /// What it lacks.
        lacks: String,
    },
    /// A call failed.
    #[error("{call} of provider {provider}: {text} ({errno}) while {doing}")]
    Call {
        /// The call by its libfabric name.
        call: &'static str,
        /// The provider.
        provider: String,
        /// The error number.
        errno: i32,
        /// libfabric's text for it.
        text: String,
        /// What was being done, with names and numbers.
        doing: String,
    },
}

/// A version of libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 16, self.0 & 0xffff)
    }
}

/// The error of an operation: on the hot path, so without any text of its own until it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: error {errno} of libfabric")]
pub struct OpError {
    /// The call by its libfabric name.
    pub call: &'static str,
    /// The error number, above 0.
    pub errno: i32,
}

impl OpError {
    /// Whether the provider had no room: poll, then try again.
    #[must_use]
    pub fn is_again(&self) -> bool {
        self.errno == libc::EAGAIN
    }
}
