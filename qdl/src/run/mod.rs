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
//! A frontend and an accelerator in one process, over TCP; the answer is the sample's first byte:
//!
//! ```
//! # use std::{path::Path, sync::{Arc, mpsc}, thread};
//! use fabric::{Region, SourceId, clock::now_ns};
//! use qdl::run::{Cluster, Node, NodeParams, SampleMemory};
//! use qdl::{config, dispatch, model::ModelSpec, serve};
//!
//! // The accelerator: its service answers arrivals.
//! # struct FirstByte;
//! # impl serve::Service for FirstByte {
//! #     fn arrived(&self, arrivals: &mut Vec<serve::Arrival>) {
//! #         let answered = arrivals.drain(..).map(|mut arrival| {
//! #             let first = arrival.input()[0];
//! #             arrival.output()[0] = first;
//! #             let (queue_us, compute_us, sent) = (0, 0, serve::Sent::default());
//! #             let ticket = arrival.ticket();
//! #             (arrival, serve::Finished { ticket, len: 1, queue_us, compute_us, sent })
//! #         });
//! #         serve::respond_all(answered, &mut Vec::new());
//! #     }
//! # }
//! let service: Arc<dyn serve::Service> = Arc::new(FirstByte);
//! let yaml = "node: acc\ncontrol: {listen: '127.0.0.1:0'}\nauth: none\nengine: {kind: digest}\n\
//!             nics: [{listen: '127.0.0.1:0'}]\nmodel: {name: m, max_input_bytes: 4}\n";
//! let node_config = config::parse_accelerator(yaml, "acc.yaml", Path::new("."))?;
//! # let params = NodeParams {
//! #     sut_name: "acc".to_owned(),
//! #     model: ModelSpec::opaque("m", 4, 1),
//! #     engine_info: record::EngineInfo { name: "first".to_owned(), ..Default::default() },
//! #     once: false,
//! #     engine: Arc::new(Default::default),
//! #     describe: Arc::new(|| Err("none".to_owned())),
//! # };
//! let node = Node::start(&node_config, params, &service)?;
//! let (stop, address) = (node.stopper(), node.control_address());
//! let node = thread::spawn(move || node.run_with(&mut |_| {}));
//!
//! // The frontend: its completer takes responses on a NIC's thread.
//! struct Answers(mpsc::Sender<Vec<u8>>);
//! impl dispatch::Completer for Answers {
//!     fn complete(&mut self, all: &mut dyn ExactSizeIterator<Item = dispatch::Response<'_>>) {
//!         all.for_each(|response| self.0.send(response.payload.to_vec()).unwrap());
//!     }
//! }
//! let yaml = format!(
//!     "node: front\nnics: [{{address: 127.0.0.1}}]\naccelerators: [{{control: '{address}'}}]\n\
//!      model: {{name: m, inputs: [{{name: input, dtype: u8, shape: [4], ragged: true}}], \
//!      output: {{name: output, dtype: u8, shape: [1]}}}}\n\
//!      dataset: {{kind: random, count: 1, max_bytes: 4}}\n"
//! );
//! let front = config::parse_frontend(&yaml, "front.yaml", Path::new("."))?;
//! let region = Arc::new(Region::new(4)?);
//! // SAFETY: no other reference to the region exists yet.
//! unsafe { region.bytes_mut(0, 4) }?.copy_from_slice(b"qdl!");
//! let memory = SampleMemory { sources: vec![region], staged_from: None };
//! let (send, answers) = mpsc::channel();
//! let mut completer = |_| -> Box<dyn dispatch::Completer> { Box::new(Answers(send.clone())) };
//! let cluster = Cluster::connect(&front, memory, &mut completer, Arc::new(|_| {}))?;
//! cluster.dispatcher().issue(&[dispatch::Sample {
//!     id: 1,
//!     index: 0,
//!     source: SourceId(0),
//!     offset: 0,
//!     len: 4,
//!     issued_ns: now_ns(),
//!     first: None,
//!     tries: Default::default(),
//!     has_options: false,
//! }]);
//! assert_eq!(answers.recv()?, b"q");
//! cluster.finish();
//! stop.stop("the example is over");
//! node.join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accelerator;
mod crew;
mod error;
mod facts;
mod frontend;
mod life;
mod nics;
mod records;
mod settings;
mod usage;

pub use accelerator::{
    Describe, EngineTotals, LoadingNode, Node, NodeCore, NodeFigures, NodeHandle, NodeParams,
    NodeParts, Stop,
};
pub use crew::{accelerator_crew, frontend_crew, settle_connections};
pub use error::{ClusterError, NicError, NodeError};
pub use facts::{node_facts, version};
pub use frontend::{
    Answers, Asked, Cluster, ClusterEvent, ClusterParts, Described, OnRefusal, Refusals,
    SampleMemory, SlotNeeds, Totals, descriptions,
};
pub use life::frontend_end::RetryPauses;
pub use usage::usage;

use crate::{
    lock::lock,
    response::{RESPONSE_HEADER_BYTES, RESPONSE_TRAILER_BYTES},
};

/// Bytes of a cache line; neighbouring responses share none.
const LINE: usize = 64;

/// Room that a frontend requests for a request's options where answers are token ids.
pub(crate) const OPTIONS_ROOM: usize = LINE;

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
