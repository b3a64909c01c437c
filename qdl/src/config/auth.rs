//! How a node proves to the other that it belongs to the same system.

use std::path::PathBuf;

use serde::Deserialize;

use super::rules::Findings;

/// Authentication of the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Nothing was configured. Only loopback addresses may be used.
    #[default]
    LoopbackOnly,
    /// `auth: none`: no authentication on any address, at the user's word.
    None,
    /// `token_file: path`: both nodes hold the same token, and prove it without sending it.
    Token(PathBuf),
}

impl Auth {
    /// From the two keys of a file.
    pub(super) fn from_keys(
        token_file: Option<PathBuf>,
        auth: Option<AuthWord>,
        out: &mut Findings,
    ) -> Self {
        match (token_file, auth) {
            (Some(_), Some(AuthWord::None)) => {
                out.add(
                    "auth",
                    "`auth: none` and `token_file` contradict each other",
                    "remove one of the two",
                );
                Auth::None
            }
            (Some(path), None) => Auth::Token(path),
            (None, Some(AuthWord::None)) => Auth::None,
            (None, None) => Auth::LoopbackOnly,
        }
    }

    /// Complains where `address`, found at `path`, is reachable from elsewhere and nothing protects it.
    pub(super) fn check_address(
        &self,
        loopback: bool,
        address: &str,
        path: &str,
        out: &mut Findings,
    ) {
        if *self == Auth::LoopbackOnly && !loopback {
            out.add(
                path,
                format!("{address} is not a loopback address, and there is no token"),
                "add `token_file: PATH` with the same token on both nodes, or `auth: none` if the network \
                 is trusted",
            );
        }
    }
}

/// The value of the key `auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AuthWord {
    /// No authentication.
    None,
}
