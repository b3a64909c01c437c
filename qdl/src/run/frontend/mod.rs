//! The frontend's side of a run: the cluster of accelerators.
//!
//! [`Cluster`] owns the state that all threads share. `control_thread` brings the sessions up and
//! runs one `peer` task for each accelerator; `opening` has the steps that open a connection.

mod asked;
mod cluster;
mod cluster_state;
mod control_thread;
mod description;
mod needs;
mod notes;
mod opening;
mod outage;
mod peer;
mod peer_state;
mod rail_map;
mod refusals;
mod status;

pub use asked::{Answers, Asked};
pub use cluster::{Cluster, ClusterParts, SampleMemory, Totals};
pub use cluster_state::ClusterEvent;
pub use description::{Described, descriptions};
pub use needs::SlotNeeds;
pub use refusals::{OnRefusal, Refusals};
