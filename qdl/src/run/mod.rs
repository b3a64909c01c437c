//! The life of a run: opening, supervision and end of all connections.
//!
//! [`Cluster`] is the frontend's side ([`frontend`]). The frontend connects to every accelerator
//! over the control plane, opens the granted connections, passes them to the dispatcher, and
//! supervises them. It quarantines a lost connection and opens it again, reconnects to a lost
//! accelerator, and aborts the run when no connection has been up for too long.
//!
//! [`Node`] is the accelerator's side ([`accelerator`]). The node grants slots within its memory
//! budget, admits data connections that present their keys, and takes a session's connections down
//! when its frontend leaves or dies.
//!
//! Both sides drive the state machine of a connection in [`life`].
//!
//! `qdl/examples/cluster.rs` runs both sides in one process, over TCP and without YAML.

mod accelerator;
mod crew;
mod error;
mod facts;
mod frontend;
mod life;
mod nics;
mod places;
mod settings;
mod usage;

pub use accelerator::{
    Describe, EngineTotals, LoadingNode, Node, NodeCore, NodeFigures, NodeHandle, NodeParams,
    NodeParts, Stop,
};
pub use crew::{accelerator_crew, frontend_crew, settle_connections};
pub use error::RunError;
pub use facts::{node_facts, version};
pub use frontend::{
    Answers, Asked, Cluster, ClusterEvent, ClusterParts, Described, OnRefusal, Refusals,
    SampleMemory, SlotNeeds, Totals, descriptions,
};
pub use life::frontend_end::RetryPauses;
pub use usage::usage;

use crate::{
    request::{HANDLE_ROOM, MAX_HANDLE},
    response::{RESPONSE_HEADER_BYTES, RESPONSE_TRAILER_BYTES},
};
use fabric::os::lock;
use record::NodeRole;

/// Bytes of a cache line; neighbouring responses share none.
const LINE: usize = 64;

/// Room that a frontend requests for a request's options where answers are token ids.
pub(crate) const OPTIONS_ROOM: usize = crate::request::MAX_ENCODED_OPTIONS.next_multiple_of(LINE);

/// Bytes from one request slot to the next, without room for options. Equals the sample size where
/// it is fixed, so that neighbouring slots form a batch in place.
pub fn request_stride(model: &crate::model::ModelSpec) -> Option<usize> {
    let bytes = model.max_input_bytes()?;
    if model.fixed_size() {
        Some(bytes)
    } else {
        bytes.checked_next_multiple_of(LINE)
    }
}

/// Bytes from one request slot to the next, and from one response slot to the next, as a frontend
/// requests them of a node with this role. Where answers are token ids, requests have room for
/// options, and those of a decode node also for a handle.
pub fn slot_strides(model: &crate::model::ModelSpec, role: NodeRole) -> Option<(usize, usize)> {
    let options = match (model.answers_tokens(), role) {
        (false, _) => 0,
        (true, NodeRole::Decode) => OPTIONS_ROOM + HANDLE_ROOM.next_multiple_of(LINE),
        (true, NodeRole::Both | NodeRole::Prefill) => OPTIONS_ROOM,
    };
    let request = request_stride(model)?.checked_add(options)?;
    Some((request, response_stride_of(model, role)?))
}

/// As [`response_stride`], of a node with this role: a prefill node answers with one token and a
/// handle.
pub(crate) fn response_stride_of(model: &crate::model::ModelSpec, role: NodeRole) -> Option<usize> {
    match role {
        NodeRole::Prefill => {
            let token = model.output.dtype.bytes();
            Some((RESPONSE_HEADER_BYTES + token + MAX_HANDLE).next_multiple_of(LINE))
        }
        NodeRole::Both | NodeRole::Decode => response_stride(model),
    }
}

/// Bytes from one response slot to the next, header included. Ragged outputs also have a trailer:
/// only their responses may come in parts.
pub fn response_stride(model: &crate::model::ModelSpec) -> Option<usize> {
    let trailer = match model.output.ragged {
        true => RESPONSE_TRAILER_BYTES,
        false => 0,
    };
    model
        .max_output_bytes()?
        .checked_add(RESPONSE_HEADER_BYTES + trailer)?
        .checked_next_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    use crate::model::{DType, ModelSpec};

    #[test]
    fn a_ragged_output_has_room_for_a_trailer() {
        let mut model = ModelSpec::opaque("m", 64, 48);
        assert_eq!(super::response_stride(&model), Some(64));
        model.output.ragged = true;
        assert_eq!(super::response_stride(&model), Some(128));
        (model.output.dtype, model.output.shape) = (DType::I32, vec![1024]);
        assert_eq!(super::response_stride(&model), Some(4160));
    }
}
