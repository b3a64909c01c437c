//! What can go wrong on the control plane. Every error names the peer or the setting, and what to
//! do.

use std::{fmt, io, sync::Arc, time::Duration};

use crate::model::ModelMismatch;

use super::{
    auth::AuthError,
    frame::FrameError,
    message::{ErrorCode, Role, VERSION, clip},
};

/// The other side of a session as errors print it: its address, and its node name once it has said
/// it.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer(Arc<str>);

impl Peer {
    /// A peer that has not given its name.
    pub(crate) fn at(address: &str) -> Self {
        Peer(address.into())
    }

    /// A peer whose node name is known.
    pub(super) fn named(node: &str, address: &str) -> Self {
        Peer(format!("{node} ({address})").into())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.0)
    }
}

/// Why a session could not be made, or why it ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// Another program listens there.
    #[error(
        "control.listen: {address} is in use by another program: stop it or choose another port"
    )]
    PortInUse {
        /// Address asked for.
        address: String,
    },
    /// The address cannot be listened on.
    #[error(
        "control.listen: cannot listen on {address}: {source}; it must be an address of this node"
    )]
    Listen {
        /// Address asked for.
        address: String,
        /// The system's word.
        source: Arc<io::Error>,
    },
    /// No connection could be made.
    #[error(
        "{peer}: cannot connect: {source}; is the accelerator running, and is this its \
         control.listen?"
    )]
    Connect {
        /// Address tried.
        peer: Peer,
        /// The system's word.
        source: Arc<io::Error>,
    },
    /// No connection could be made for as long as an accelerator may load.
    #[error("{error}; it was tried for {} s (deadlines.connect_ms)", after.as_secs_f64())]
    StillLoading {
        /// The last attempt's.
        error: Box<ControlError>,
        /// How long it was tried.
        after: Duration,
    },
    /// A deadline passed.
    #[error(
        "{peer}: no {waiting_for} within {after:?}; is it running, reachable and not overloaded?"
    )]
    Timeout {
        /// The peer that was silent.
        peer: Peer,
        /// What was waited for.
        waiting_for: &'static str,
        /// How long.
        after: Duration,
    },
    /// The peer closed the connection without a word.
    #[error("{peer}: closed the control connection while {waiting_for} was expected; see its log")]
    Closed {
        /// The peer that closed it.
        peer: Peer,
        /// What was waited for.
        waiting_for: &'static str,
    },
    /// The peer's end of a session is no more, and it had not said that it would go.
    #[error("{peer}: its program ended or was killed; see its log")]
    Vanished {
        /// The peer that is gone.
        peer: Peer,
    },
    /// The socket failed.
    #[error("{peer}: {doing} on the control connection: {source}")]
    Io {
        /// The other side.
        peer: Peer,
        /// What was being done.
        doing: &'static str,
        /// The system's word.
        source: Arc<io::Error>,
    },
    /// A frame that cannot be read.
    #[error("{peer}: {source}")]
    Frame {
        /// The peer that sent it.
        peer: Peer,
        /// What is wrong with it.
        source: FrameError,
    },
    /// A frame that does not belong here.
    #[error("{peer}: sent {got} where {expected} was expected")]
    Unexpected {
        /// The peer that sent it.
        peer: Peer,
        /// Type that came.
        got: &'static str,
        /// What the protocol wants here.
        expected: &'static str,
    },
    /// A field whose value makes no sense at this point.
    #[error("{peer}: {kind}.{field}: {problem}")]
    Field {
        /// The peer that sent it.
        peer: Peer,
        /// Type of the frame.
        kind: &'static str,
        /// Field within it.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Another version of the protocol.
    #[error(
        "{peer}: speaks protocol version {theirs}, this node speaks {VERSION}: run the same \
         release on both"
    )]
    Version {
        /// The other side.
        peer: Peer,
        /// Its version.
        theirs: u64,
    },
    /// Two frontends or two accelerators met.
    #[error("{peer}: is {theirs} too: a frontend talks to an accelerator; check the address")]
    Role {
        /// The other side.
        peer: Peer,
        /// Its role, which is also ours.
        theirs: Role,
    },
    /// Two nodes of one name.
    #[error("node name {node:?} is taken by {first} and by {second}: names must be unique")]
    NameTaken {
        /// The name.
        node: String,
        /// The node that has it.
        first: String,
        /// The other node that has it.
        second: Peer,
    },
    /// One side has a token and the other has none.
    #[error(
        "{peer}: {} a token and this node {}: set token_file on both nodes, to the same token",
        if *here { "brought no proof of" } else { "wants" },
        if *here { "wants one" } else { "has none" }
    )]
    TokenMissing {
        /// The other side.
        peer: Peer,
        /// True where this node has the token.
        here: bool,
    },
    /// The peer's proof is wrong.
    #[error("{peer}: its token is not this node's: token_file must hold the same on both")]
    TokenWrong {
        /// The other side.
        peer: Peer,
    },
    /// This node's own token or policy.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The nodes do not run the same model.
    #[error("{peer}: {mismatch}: both nodes must name the same model")]
    Model {
        /// The other side.
        peer: Peer,
        /// First difference.
        mismatch: ModelMismatch,
    },
    /// Another frontend is being served.
    #[error("{peer}: came while frontend {served} is served")]
    Busy {
        /// The peer that came.
        peer: Peer,
        /// Node name of the frontend that is served.
        served: String,
    },
    /// A request was not granted; the session goes on.
    #[error("{peer}: refused {asked} ({code}): {text}")]
    Refused {
        /// The peer that refused.
        peer: Peer,
        /// Request that was refused.
        asked: &'static str,
        /// Its reason as a code.
        code: ErrorCode,
        /// Its reason in words.
        text: String,
    },
    /// The peer ended the session and said why.
    #[error("{peer}: ended the session ({code}): {text}")]
    Remote {
        /// The peer that ended it.
        peer: Peer,
        /// Its reason as a code.
        code: ErrorCode,
        /// Its reason in words.
        text: String,
    },
    /// Nothing was heard for too long.
    #[error(
        "{peer}: not heard of for {:.2} s on the control connection; it counts as gone",
        silent.as_secs_f64()
    )]
    Silent {
        /// The peer that fell silent.
        peer: Peer,
        /// For how long.
        silent: Duration,
    },
    /// The session ended as it should.
    #[error("{peer}: said bye")]
    Bye {
        /// The other side.
        peer: Peer,
    },
    /// This node ended the session.
    #[error("{peer}: session ended by this node ({code}): {text}")]
    Ended {
        /// The other side.
        peer: Peer,
        /// Code the peer was told.
        code: ErrorCode,
        /// Reason the peer was told.
        text: String,
    },
    /// The reader of this session's events does not read them.
    #[error("{peer}: {unread} events of its session were left unread")]
    EventsUnread {
        /// The other side.
        peer: Peer,
        /// How many.
        unread: usize,
    },
    /// The settings of this node make no sense.
    #[error("{key}: {problem}")]
    Setting {
        /// Which setting.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The system gave no random bytes.
    #[error("no random bytes from the system: {0}")]
    Random(Arc<io::Error>),
}

impl ControlError {
    /// True where the session ended because both sides were done.
    pub fn is_clean(&self) -> bool {
        matches!(self, ControlError::Bye { .. })
    }

    /// True where no process listens at the address yet, or the node there is about to leave.
    pub(crate) fn is_of_loading(&self) -> bool {
        match self {
            ControlError::Connect { source, .. } => {
                source.kind() == io::ErrorKind::ConnectionRefused
            }
            ControlError::Remote { code, .. } => *code == ErrorCode::ShuttingDown,
            _ => false,
        }
    }

    /// What the peer is told before the connection is closed, if it should be told anything. `role`
    /// is this node's.
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
            ControlError::Model { mismatch, .. } => (
                ErrorCode::Model,
                format!(
                    "model {}: the {role} has {}, the {other} has {}: both nodes must name the \
                     same model",
                    mismatch.field, mismatch.ours, mismatch.theirs
                ),
            ),
            ControlError::Busy { served, .. } => (
                ErrorCode::Busy,
                format!("frontend {served} is served now: one frontend at a time"),
            ),
            ControlError::Ended { code, text, .. } => (*code, text.clone()),
            ControlError::Frame { source, .. } => (ErrorCode::Protocol, source.to_string()),
            ControlError::Unexpected { got, expected, .. } => (
                ErrorCode::Protocol,
                format!("{got} came where {expected} was expected"),
            ),
            ControlError::Field {
                kind,
                field,
                problem,
                ..
            } => (ErrorCode::Protocol, format!("{kind}.{field}: {problem}")),
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
            ControlError::EventsUnread { .. } | ControlError::Random(_) => (
                ErrorCode::ShuttingDown,
                format!("the {role} cannot go on; see its log"),
            ),
            ControlError::PortInUse { .. }
            | ControlError::Listen { .. }
            | ControlError::Connect { .. }
            | ControlError::StillLoading { .. }
            | ControlError::Closed { .. }
            | ControlError::Vanished { .. }
            | ControlError::Io { .. }
            | ControlError::Auth(_)
            | ControlError::Refused { .. }
            | ControlError::Remote { .. }
            | ControlError::Setting { .. }
            | ControlError::Bye { .. } => return None,
        };
        Some((code, clip(&text)))
    }
}

/// Refuses two nodes of one name: `nodes` are (node name, address) of every node of a run.
///
/// # Errors
/// [`ControlError::NameTaken`] names the node and both addresses.
pub fn check_unique_names<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), ControlError> {
    let mut seen = std::collections::HashMap::new();
    for (node, address) in nodes {
        if let Some(first) = seen.insert(node, address) {
            return Err(ControlError::NameTaken {
                node: node.to_owned(),
                first: first.to_owned(),
                second: Peer::at(address),
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
