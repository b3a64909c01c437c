//! Errors of the control plane. Every error names the peer or the setting, and the remedy.

use std::{io, sync::Arc, time::Duration};

use super::{
    auth::AuthError,
    message::{ErrorCode, Role, VERSION, clip},
};

/// Error of opening a session, or cause of its end. A field `peer` is the peer's address, after the
/// node name once the name is known: `acc-1 (10.0.0.1:7400)`.
#[allow(missing_docs, reason = "the texts say what each field is")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// The connection attempt failed.
    #[error(
        "{peer}: cannot connect: {source}; is the accelerator running, and is this its \
         control.listen?"
    )]
    Connect {
        peer: String,
        source: Arc<io::Error>,
    },
    /// The host name has no address.
    #[error("{peer}: no address of this name: {source}; is it right, and known to the resolver?")]
    Lookup {
        peer: String,
        source: Arc<io::Error>,
    },
    /// The frontend came before the accelerator's engine was ready.
    #[error("{peer}: came while the model loads")]
    Loading { peer: String },
    /// A deadline passed.
    #[error(
        "{peer}: no {waiting_for} within {after:?}; is it running, reachable and not overloaded?"
    )]
    Timeout {
        peer: String,
        /// The frame or action that did not come in time.
        waiting_for: &'static str,
        after: Duration,
    },
    /// The peer closed the connection without an error frame.
    #[error("{peer}: closed the control connection while {waiting_for} was expected; see its log")]
    Closed {
        peer: String,
        waiting_for: &'static str,
    },
    /// The peer's end of a session vanished without a bye.
    #[error("{peer}: its program ended or was killed; see its log")]
    Vanished { peer: String },
    /// The socket failed.
    #[error("{peer}: {doing} on the control connection: {source}")]
    Io {
        peer: String,
        doing: &'static str,
        source: Arc<io::Error>,
    },
    /// This node refuses the peer for what it sent, or for what it is.
    #[error("{peer}: {text}")]
    Refusing {
        peer: String,
        text: String,
        code: ErrorCode,
        /// Text for the peer.
        told: String,
    },
    /// The peer speaks a different protocol version.
    #[error(
        "{peer}: speaks protocol version {theirs}, this node speaks {VERSION}: run the same \
         release on both"
    )]
    Version { peer: String, theirs: u64 },
    /// Both nodes are frontends, or both are accelerators.
    #[error("{peer}: is {theirs} too: a frontend talks to an accelerator; check the address")]
    Role {
        peer: String,
        /// The peer's role, equal to this node's.
        theirs: Role,
    },
    /// Two nodes have the same name.
    #[error("node name {node:?} is taken by {first} and by {second}: names must be unique")]
    NameTaken {
        node: String,
        /// Address of the first node, or `this node`.
        first: String,
        second: String,
    },
    /// Only one of the two sides has a token.
    #[error(
        "{peer}: {} token and this node {}: set token_file on both nodes, to the same token",
        if *here { "has no" } else { "wants a" },
        if *here { "wants one" } else { "has none" }
    )]
    TokenMissing {
        peer: String,
        /// Whether this node has the token.
        here: bool,
    },
    /// The peer's token differs, or its handshake was changed on the way.
    #[error("{peer}: its token is not this node's: token_file must hold the same on both")]
    TokenWrong { peer: String },
    /// This node is at fault, or no node was there in time.
    #[error("{0}")]
    Local(String),
    /// The peer refused a request; the session goes on.
    #[error("{peer}: refused {asked} ({code}): {text}")]
    Refused {
        peer: String,
        asked: &'static str,
        code: ErrorCode,
        text: String,
    },
    /// The peer ended the session with an error frame.
    #[error("{peer}: ended the session ({code}): {text}")]
    Remote {
        peer: String,
        code: ErrorCode,
        text: String,
    },
    /// The peer sent no frame for too long.
    #[error(
        "{peer}: not heard of for {:.2} s on the control connection; it counts as gone",
        silent.as_secs_f64()
    )]
    Silent { peer: String, silent: Duration },
    /// The session ended in good order.
    #[error("{peer}: said bye")]
    Bye { peer: String },
    /// This node ended the session.
    #[error("{peer}: session ended by this node ({code}): {text}")]
    Ended {
        peer: String,
        /// Error code sent to the peer.
        code: ErrorCode,
        /// Explanation sent to the peer.
        text: String,
    },
    /// A setting of this node is invalid.
    #[error("{key}: {problem}")]
    Setting { key: &'static str, problem: String },
    /// The system has no random bytes.
    #[error("no random bytes from the system: {0}")]
    Random(Arc<io::Error>),
}

/// What [`ControlError::Timeout`] waits for before the first frame.
pub(super) const CONNECTION: &str = "connection";

/// Why a node does not serve yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotYet {
    /// No node is there; the text follows the address.
    Absent(&'static str),
    /// The node loads its model.
    Loading,
}

impl From<AuthError> for ControlError {
    fn from(e: AuthError) -> Self {
        ControlError::Local(e.to_string())
    }
}

impl ControlError {
    /// Error of a frame that breaks the protocol.
    pub(super) fn protocol(peer: String, text: String) -> Self {
        ControlError::Refusing {
            peer,
            told: text.clone(),
            code: ErrorCode::Protocol,
            text,
        }
    }

    /// Whether the session ended in good order.
    pub(crate) fn is_clean(&self) -> bool {
        matches!(self, ControlError::Bye { .. })
    }

    /// Why a later attempt to reach the node may succeed, if it may.
    pub(crate) fn not_yet(&self) -> Option<NotYet> {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable};
        match self {
            ControlError::Connect { source, .. } => match source.kind() {
                ConnectionRefused => Some(NotYet::Absent("takes no connections yet")),
                HostUnreachable => Some(NotYet::Absent("is not reachable yet")),
                _ => None,
            },
            ControlError::Lookup { .. } => Some(NotYet::Absent("has no address yet")),
            ControlError::Timeout { waiting_for, .. } if *waiting_for == CONNECTION => {
                Some(NotYet::Absent("does not answer yet"))
            }
            ControlError::Remote { code, .. } => match code {
                ErrorCode::ShuttingDown => Some(NotYet::Absent("is about to stop")),
                ErrorCode::Loading => Some(NotYet::Loading),
                _ => None,
            },
            _ => None,
        }
    }

    /// Error frame for the peer before the connection closes, if the peer should get one. `role` is
    /// this node's role.
    pub(super) fn for_peer(&self, role: Role) -> Option<(ErrorCode, String)> {
        let other = role.other();
        let (code, text) = match self {
            ControlError::Version { theirs, .. } => (
                ErrorCode::Version,
                format!(
                    "the {role} speaks protocol version {VERSION}, the {other} {theirs}: run the \
                     same release on both"
                ),
            ),
            ControlError::Role { theirs, .. } => (
                ErrorCode::Role,
                format!("both sides are {theirs}s: a frontend talks to an accelerator"),
            ),
            ControlError::NameTaken { node, .. } => (
                ErrorCode::NameTaken,
                format!("node name {node:?} is taken: names must be unique"),
            ),
            ControlError::TokenMissing { here, .. } => (
                ErrorCode::Auth,
                format!(
                    "the {} has a token and the {} has none: set token_file on both nodes, to \
                     the same token",
                    if *here { role } else { other },
                    if *here { other } else { role },
                ),
            ),
            ControlError::TokenWrong { .. } => (
                ErrorCode::Auth,
                "the tokens differ: token_file must hold the same on both nodes".to_owned(),
            ),
            ControlError::Refusing { code, told, .. } => (*code, told.clone()),
            ControlError::Loading { .. } => {
                (ErrorCode::Loading, format!("the {role} loads its model"))
            }
            ControlError::Ended { code, text, .. } => (*code, text.clone()),
            ControlError::Timeout {
                waiting_for, after, ..
            } => (
                ErrorCode::Protocol,
                format!("no {waiting_for} within {after:?}"),
            ),
            ControlError::Silent { silent, .. } => (
                ErrorCode::Protocol,
                format!(
                    "the {role} heard nothing from the {other} for {:.2} s",
                    silent.as_secs_f64()
                ),
            ),
            ControlError::Random(_) => (
                ErrorCode::ShuttingDown,
                format!("the {role} cannot go on; see its log"),
            ),
            ControlError::Connect { .. }
            | ControlError::Lookup { .. }
            | ControlError::Closed { .. }
            | ControlError::Vanished { .. }
            | ControlError::Io { .. }
            | ControlError::Local(_)
            | ControlError::Refused { .. }
            | ControlError::Remote { .. }
            | ControlError::Setting { .. }
            | ControlError::Bye { .. } => return None,
        };
        Some((code, clip(&text)))
    }
}

/// Checks that no two nodes of a run share a name. `nodes` are pairs of node name and address.
///
/// # Errors
/// [`ControlError::NameTaken`] names the node and both addresses.
pub(crate) fn check_unique_names<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), ControlError> {
    let mut seen = std::collections::HashMap::new();
    for (node, address) in nodes {
        if let Some(first) = seen.insert(node, address) {
            return Err(ControlError::NameTaken {
                node: node.to_owned(),
                first: first.to_owned(),
                second: address.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_of_one_name_are_refused_with_both_addresses() {
        let nodes = [("a", "10.0.0.1:7400"), ("b", "10.0.0.2:7400")];
        check_unique_names(nodes).expect("all different");
        let e = check_unique_names(nodes.into_iter().chain([("a", "10.0.0.3:7400")]))
            .expect_err("an error");
        let text = e.to_string();
        assert!(
            matches!(e, ControlError::NameTaken { .. })
                && text.contains("10.0.0.1:7400")
                && text.contains("10.0.0.3:7400")
                && text.contains("\"a\""),
            "{text}"
        );
    }
}
