//! Errors of libfabric, with the call, the provider and the next step for the user.

use std::fmt;

/// An error of the control path: discovery, opening, registration, addressing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum Error {
    #[error(
        "no libfabric on this machine ({detail}): install it (Debian: libfabric1), or configure an \
         address or a device without `ofi`"
    )]
    NoLibrary { detail: String },
    #[error(
        "libfabric {version} offers no provider {provider:?} here; it offers {present}: choose one \
         of them, or see `fi_info -p '{provider}'`"
    )]
    NoProvider {
        provider: String,
        version: Version,
        present: String,
    },
    /// A NIC, a version or a feature that the library or the provider does not have. The text names
    /// the missing thing and the alternatives.
    #[error("{0}")]
    Refused(String),
    #[error("{call} of provider {provider}: {text} ({errno}) while {doing}")]
    Call {
        call: &'static str,
        provider: String,
        errno: i32,
        text: String,
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

/// The error of an operation. Allocates no text, because it occurs on the hot path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: error {errno} of libfabric")]
pub struct OpError {
    /// The call by its libfabric name.
    pub call: &'static str,
    /// The error number, above 0.
    pub errno: i32,
}

impl OpError {
    /// Whether the provider's queue is full: poll, then retry.
    pub fn is_again(&self) -> bool {
        self.errno == libc::EAGAIN
    }
}
