//! Authentication between the nodes of a system.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::rules::Findings;

/// Value of the key `auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthWord {
    /// No authentication on any address.
    None,
}

/// Authentication of the control plane, from the keys `token_file` and `auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth<'a> {
    /// Neither key is set. Only loopback addresses are permitted.
    LoopbackOnly,
    /// `auth: none`: no authentication on any address.
    None,
    /// `token_file: path`: both nodes prove that they hold the same token, which is never sent.
    Token(&'a Path),
}

impl<'a> Auth<'a> {
    pub(super) fn of(token_file: Option<&'a PathBuf>, auth: Option<AuthWord>) -> Self {
        match (token_file, auth) {
            (Some(path), _) => Auth::Token(path),
            (None, Some(AuthWord::None)) => Auth::None,
            (None, None) => Auth::LoopbackOnly,
        }
    }

    /// Reports a contradiction between the two keys.
    pub(super) fn check(self, auth: Option<AuthWord>, out: &mut Findings<'_>) {
        if let (Auth::Token(_), Some(AuthWord::None)) = (self, auth) {
            out.add(
                "auth",
                "`auth: none` and `token_file` contradict each other",
                "remove one of the two",
            );
        }
    }

    /// Reports `address`, set at `path`, if other machines can reach it without authentication.
    pub(super) fn check_address(
        self,
        loopback: bool,
        address: &str,
        path: &str,
        out: &mut Findings<'_>,
    ) {
        if self == Auth::LoopbackOnly && !loopback {
            out.add(
                path,
                format!("{address} is not a loopback address, and there is no token"),
                "add `token_file: PATH` with the same token on both nodes, or `auth: none` if the \
                 network is trusted",
            );
        }
    }
}
