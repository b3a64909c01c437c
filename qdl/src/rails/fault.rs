//! Location of the fault that lost a rail.
//!
//! A lost connection alone does not show the location. The state of the same NIC's other
//! connections and of other connections to the same peer distinguishes three cases. Each has its
//! own remedy: another local NIC, another path, or another accelerator.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Location of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// This node's NIC, port or cable: every rail over it is lost, whatever the peer.
    LocalNic,
    /// The path between both NICs, or the peer's NIC: other rails of both nodes work.
    Path,
    /// The peer: no rail to it works.
    Peer,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::LocalNic => "fault of the local NIC",
            Fault::Path => "fault of the path",
            Fault::Peer => "fault of the peer",
        })
    }
}

/// State of the other rails and of the NIC when a rail is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// True if the local NIC or port reports that it is down (no carrier, a port or device event);
    /// `None` if the NIC reports nothing.
    pub local_down: Option<bool>,
    /// True if the control session with the peer is lost.
    pub control_lost: bool,
    /// Other rails over the same local NIC that are up.
    pub same_nic_up: usize,
    /// Other rails over the same local NIC that are down.
    pub same_nic_down: usize,
    /// Other rails to the same peer that are up.
    pub same_peer_up: usize,
    /// Other rails to the same peer that are down.
    pub same_peer_down: usize,
}

impl Evidence {
    /// Locates the fault. First the NIC's own report counts, then working rails, which exonerate
    /// both of their ends, and last the lost rails.
    pub(crate) fn fault(&self) -> Fault {
        if self.local_down == Some(true) {
            return Fault::LocalNic;
        }
        let nic_works = self.local_down == Some(false) || self.same_nic_up > 0;
        let peer_works = self.same_peer_up > 0;
        match (nic_works, peer_works) {
            (true, true) => Fault::Path,
            (true, false) if self.control_lost || self.same_peer_down > 0 => Fault::Peer,
            (true, false) => Fault::Path,
            (false, true) if self.same_nic_down > 0 => Fault::LocalNic,
            (false, true) => Fault::Path,
            // No other rail works at either end. A lost control session then points to the peer.
            (false, false) if self.control_lost => Fault::Peer,
            (false, false) if self.same_nic_down > self.same_peer_down => Fault::LocalNic,
            (false, false) if self.same_peer_down > 0 => Fault::Peer,
            (false, false) => Fault::Path,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_usual_cases() {
        // The NIC's report, loss of the control session, and other rails (up, down): over the same
        // NIC, to the same peer.
        let cases = [
            // A local cable is unplugged: the port reports it.
            (Some(true), false, [0, 0], [3, 0], Fault::LocalNic),
            // A NIC hangs without a report: its rails to both peers are lost, other NICs reach the
            // peers.
            (None, false, [0, 1], [3, 0], Fault::LocalNic),
            // A cable is unplugged at the peer: all other rails work.
            (Some(false), false, [1, 0], [3, 0], Fault::Path),
            // A peer dies: its four rails are lost, and the same NIC reaches the other peer.
            (None, true, [1, 0], [0, 3], Fault::Peer),
            // The only peer dies.
            (None, true, [0, 0], [0, 3], Fault::Peer),
            // One of two rails to the only peer is lost.
            (None, false, [0, 0], [1, 0], Fault::Path),
        ];
        for (local_down, control_lost, nic, peer, fault) in cases {
            let evidence = Evidence {
                local_down,
                control_lost,
                same_nic_up: nic[0],
                same_nic_down: nic[1],
                same_peer_up: peer[0],
                same_peer_down: peer[1],
            };
            assert_eq!(evidence.fault(), fault, "{evidence:?}");
        }
    }

    proptest! {
        /// A working NIC or peer is never blamed.
        #[test]
        fn what_works_is_not_blamed(
            local_down: Option<bool>, control_lost: bool,
            a in 0usize..3, b in 0usize..3, c in 0usize..3, d in 0usize..3,
        ) {
            let e = Evidence {
                local_down, control_lost,
                same_nic_up: a, same_nic_down: b, same_peer_up: c, same_peer_down: d,
            };
            match e.fault() {
                Fault::LocalNic => {
                    let silent = local_down.is_none() && a == 0;
                    prop_assert!(local_down == Some(true) || silent);
                }
                Fault::Peer => prop_assert!(c == 0 && (control_lost || d > 0)),
                Fault::Path => prop_assert_ne!(local_down, Some(true)),
            }
        }
    }
}
