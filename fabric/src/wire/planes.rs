//! First bytes of the data plane and the control plane, so that an error can name a wrong port.

/// The first bytes of a data connection.
pub const DATA_MAGIC: &[u8; 8] = b"QDLDATA1";

/// Whether a peer's first bytes begin a frame of the control plane.
pub fn is_control_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0, _, _, _, b'{', ..])
}
