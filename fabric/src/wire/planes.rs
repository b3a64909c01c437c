//! The first bytes of the two planes: a peer at the wrong port is told by name.

/// The first bytes of a data connection.
pub const DATA_MAGIC: &[u8; 8] = b"QDLDATA1";

/// Do a stranger's first bytes begin a frame of the control plane?
pub fn is_control_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0, _, _, _, b'{', ..])
}
