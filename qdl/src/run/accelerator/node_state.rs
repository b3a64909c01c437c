//! State of an accelerator's node that outlives its sessions: NIC threads, memory budget, totals.

use std::sync::{Arc, Mutex};

use record::{BatchSizes, EngineInfo, EngineUse, GpuRecord, SequenceTotals};

use super::budget::Budget;
use crate::{
    config::AcceleratorConfig,
    control::Counters,
    model::ModelSpec,
    rails::Score,
    serve::{ServeConnection, Server, Service},
    topology::LinkWatch,
    wire::{Description, Standing},
};
use fabric::{
    Nic,
    os::{Near, ThreadTime},
};

/// Totals of the engine since the node started.
#[derive(Clone, Debug, Default)]
pub struct EngineTotals {
    /// Inputs copied before the engine could read them.
    pub copies: u64,
    /// Batches by size.
    pub batches: BatchSizes,
    /// Grows with each step of work: batches, and tokens of unfinished answers.
    pub progress: u64,
    /// Totals of sequences, where the engine batches by itself.
    pub sequences: Option<SequenceTotals>,
    /// Health of this node's interior, where measured.
    pub interior: Option<Score>,
    /// Whether the engine takes samples.
    pub standing: Standing,
    /// Record of each GPU.
    pub gpus: Vec<GpuRecord>,
    /// Work of the engine.
    pub used: EngineUse,
}

/// Totals of a node's samples since it started, and the numbers of connections up and lost.
pub type NodeFigures = (Counters, [u64; 2]);

/// Parameters of a node beside its configuration.
#[derive(Clone)]
pub struct NodeParams {
    /// This node's part of the SUT's name.
    pub sut_name: String,
    /// The engine's model, taken from the model file where the configuration leaves it open.
    pub model: ModelSpec,
    /// Description of the engine for frontends.
    pub engine_info: EngineInfo,
    /// Serves one frontend, then ends.
    pub once: bool,
    /// Returns the engine's totals.
    pub engine: Arc<dyn Fn() -> EngineTotals + Send + Sync>,
    /// Describes the node and its machine, or says why it cannot. May block the thread.
    pub describe: Describe,
}

impl NodeParams {
    /// Parameters of a node whose service runs `model` and has neither totals nor a description.
    /// The node's part of the SUT's name is that of its engine.
    pub fn new(engine: &str, model: ModelSpec) -> Self {
        NodeParams {
            sut_name: engine.to_owned(),
            model,
            engine_info: EngineInfo {
                name: engine.to_owned(),
                ..EngineInfo::default()
            },
            once: false,
            engine: Arc::new(EngineTotals::default),
            describe: Arc::new(|| Err("this node has no description".to_owned())),
        }
    }
}

/// Type of [`NodeParams::describe`].
pub type Describe = Arc<dyn Fn() -> Result<Description, String> + Send + Sync>;

/// State that NIC threads, tasks and sessions share.
pub(crate) struct NodeState {
    pub config: AcceleratorConfig,
    pub params: NodeParams,
    pub nics: Vec<Box<dyn Nic>>,
    pub links: Vec<LinkWatch>,
    pub near: Vec<Near>,
    pub server: Server,
    pub service: Arc<dyn Service>,
    /// Reads the work of this process's threads.
    pub thread_times: fn() -> Vec<ThreadTime>,
    pub budget: Budget<ServeConnection>,
    /// Totals of the samples of connections that have ended.
    pub ended: Mutex<Counters>,
}
