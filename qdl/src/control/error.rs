//! Errors of the control plane. Every error names the peer or the setting, and the remedy.

use std::{io, sync::Arc, time::Duration};

use super::{
    auth::AuthError,
    message::{ErrorCode, Role, clip},
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
    /// The connection broke without an error frame.
    #[error("{peer}: {text}")]
    Broken { peer: String, text: String },
    /// The peer's end of a session vanished without a bye.
    #[error("{peer}: its program ended or was killed; see its log")]
    Vanished { peer: String },
    /// This node refuses the peer for what it sent or is, or since this node cannot go on.
    #[error("{peer}: {text}")]
    Refusing {
        peer: String,
        text: String,
        code: ErrorCode,
        /// Text for the peer.
        peer_text: String,
    },
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
        ControlError::refusing(peer, ErrorCode::Protocol, text.clone(), text)
    }

    /// Refuses the peer: `text` is for this node, `peer_text` for the peer.
    pub(super) fn refusing(
        peer: String,
        code: ErrorCode,
        text: impl Into<String>,
        peer_text: impl Into<String>,
    ) -> Self {
        ControlError::Refusing {
            peer,
            text: text.into(),
            code,
            peer_text: peer_text.into(),
        }
    }

    /// Error of this node, before a session.
    pub(super) fn no_random(e: &io::Error) -> Self {
        ControlError::Local(format!("no random bytes from the system: {e}"))
    }

    /// Error of this node, which cannot go on. Its log has the cause.
    pub(super) fn at_fault(peer: String, role: Role, text: String) -> Self {
        let peer_text = format!("the {role} cannot go on; see its log");
        ControlError::refusing(peer, ErrorCode::ShuttingDown, text, peer_text)
    }

    /// Whether the session ended in good order.
    pub(crate) fn is_clean(&self) -> bool {
        matches!(self, ControlError::Bye { .. })
    }

    /// Whether a frontend came before the engine of this accelerator was ready.
    pub(super) fn is_early(&self) -> bool {
        let is = |code: &ErrorCode| *code == ErrorCode::Loading;
        matches!(self, ControlError::Refusing { code, .. } if is(code))
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
        let (code, text) = match self {
            ControlError::Refusing {
                code, peer_text, ..
            } => (*code, peer_text.clone()),
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
                    "the {role} heard nothing from the {} for {:.2} s",
                    role.other(),
                    silent.as_secs_f64()
                ),
            ),
            _ => return None,
        };
        Some((code, clip(&text)))
    }
}

/// Checks that no two nodes of a run share a name. `nodes` are pairs of node name and address.
///
/// # Errors
/// [`ControlError::Local`] names the node and both addresses.
pub(crate) fn check_unique_names<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), ControlError> {
    let mut seen = std::collections::HashMap::new();
    for (node, address) in nodes {
        if let Some(first) = seen.insert(node, address) {
            return Err(ControlError::Local(format!(
                "node name {node:?} is taken by {first} and by {address}: names must be unique"
            )));
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
        let e = check_unique_names(nodes.into_iter().chain([("a", "10.0.0.3:7400")]));
        let text = e.expect_err("an error").to_string();
        let words = "node name \"a\" is taken by 10.0.0.1:7400 and by 10.0.0.3:7400";
        assert!(text.starts_with(words), "{text}");
    }
}
