//! The record of one run: the data of the summary's text and JSON.

use fabric::FabricCounts;
use serde::{Deserialize, Serialize};

use super::{
    Accuracy, BatchSizes, Content, Evidence, Goodput, GpuRecord, Limits, LoadgenRecord, LossRecord,
    NicWaits, NodeFacts, NodeRole, NodeUse, PathUse, PhaseRecord, Places, RefusalRecord,
    SettingRecord, StageTable, ThroughputReport, TokenRecord, Verified,
    counts::add_counts,
    timeline::{ConnectionTick, Event, NodeSide},
};

/// Note beside the fabric's name if its traffic never leaves the machine. The rules of the Network
/// division do not permit loopback in a submission.
pub const LOOPBACK_NOTE: &str = "loopback (not a permitted fabric)";

/// LoadGen's mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// LoadGen measures latency and throughput.
    #[default]
    Performance,
    /// LoadGen logs every sample's response for the accuracy script.
    Accuracy,
    /// LoadGen searches the highest valid rate.
    FindPeak,
    /// Accuracy mode, then performance mode.
    Submission,
}

/// Payload of the answered samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CarriedPayload {
    /// Bytes of requests.
    pub bytes_out: u64,
    /// Bytes of responses.
    pub bytes_in: u64,
    /// Gbit/s of requests over the whole run.
    pub gbit_out_per_s: f64,
    /// Gbit/s of responses over the whole run.
    pub gbit_in_per_s: f64,
}

impl CarriedPayload {
    /// Computes the rates from the bytes and the run's duration in seconds.
    pub fn new(bytes_out: u64, bytes_in: u64, duration_s: f64) -> Self {
        let gbit = |bytes: u64| {
            if duration_s > 0.0 {
                (bytes as f64 * 8.0 / duration_s / 1e3).round() / 1e6
            } else {
                0.0
            }
        };
        CarriedPayload {
            bytes_out,
            bytes_in,
            gbit_out_per_s: gbit(bytes_out),
            gbit_in_per_s: gbit(bytes_in),
        }
    }
}

/// One accelerator's part of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceleratorRecord {
    /// Name of the accelerator's node.
    pub node: String,
    /// Name of the engine, as the accelerator reports it.
    pub engine: String,
    /// Phase of an answer that the node computes.
    #[serde(skip_serializing_if = "NodeRole::is_both")]
    pub role: NodeRole,
    /// The engine's model or settings; `None` if the accelerator does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// The node's facts about itself and its machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<NodeFacts>,
    /// Connections to the accelerator.
    pub connections: usize,
    /// Samples answered, as the accelerator reports; `None` if the frontend got no report.
    pub samples: Option<u64>,
    /// Samples arrived, as the accelerator reports; `None` if the frontend got no report.
    pub arrived: Option<u64>,
    /// Parts posted before each answer's last part, as reported; `None` without a report.
    pub parts: Option<u64>,
    /// Samples refused, as the accelerator reports.
    pub refused: u64,
    /// Samples without a response, as reported: dropped, or too late for their connection.
    pub dropped_late: u64,
    /// Inputs copied before the engine could read them, as the accelerator reports.
    pub copies: u64,
    /// Sizes of the batches run, as the accelerator reports.
    pub batches: BatchSizes,
    /// Batching rule of the accelerator's configuration; empty if the engine batches by itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub batching: String,
    /// Each GPU that the engine used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRecord>,
    /// Accuracy of this accelerator's answers against the labels, in accuracy mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// Use of the engine and threads, without the warm-up.
    pub used: NodeUse,
    /// Reason of the loss, if the accelerator was lost and has not come back.
    pub lost: Option<String>,
    /// Counts of sessions without a final report, as of each last heartbeat; not included above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_sessions: Vec<LostSession>,
}

/// Counts of a session that an accelerator reported before the session was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostSession {
    /// Time of the last heartbeat, in seconds from the run's first query; `None` before that query.
    pub as_of_s: Option<f64>,
    /// Samples arrived.
    pub arrived: u64,
    /// Samples answered.
    pub samples: u64,
    /// Samples without a response.
    pub dropped_late: u64,
    /// Batches run.
    pub batches: u64,
}

impl LostSession {
    /// Adds the counts of the session `later`, and takes over the time of its last heartbeat.
    pub fn add(&mut self, later: &LostSession) {
        self.as_of_s = later.as_of_s;
        add_counts!(self += later: arrived samples dropped_late batches);
    }
}

impl AcceleratorRecord {
    /// Samples answered in all sessions, as far as reported; `None` without any report.
    pub fn answered(&self) -> Option<u64> {
        let lost = self.lost_sessions.iter().map(|s| s.samples);
        let all = self.samples.into_iter().chain(lost);
        all.reduce(u64::saturating_add)
    }
}

/// One connection's part of a run, seen from the frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionRecord {
    /// The accelerator's node and the connection's index: `acc-01/0`.
    pub name: String,
    /// Responses received.
    pub samples: u64,
    /// Refusals received.
    pub refused: u64,
    /// Samples posted, including repeated dispatches.
    pub posted: u64,
    /// Slots at each end.
    pub slots: u64,
    /// Slots that flow control allowed or that were in use at the end, if `slots` is `auto`.
    /// Records of earlier versions have 0, which means all slots.
    pub allowed: u64,
    /// Maximum number of samples in flight; in the total, the maximum over all connections.
    pub in_flight_max: u64,
    /// Longest time in milliseconds that the peer left an echo request unanswered, including the
    /// last before a loss; in the total, the maximum over all connections.
    pub silent_ms: u64,
    /// The fabric's measurements of the path, if it reports any.
    pub path: PathUse,
    /// Times that this connection woke the sleeping NIC thread.
    pub wakeups: u64,
    /// Doorbells that left data unsent because the socket or queue pair was full.
    pub blocked: u64,
    /// Warm-up samples; of the other counts only `tx` and `rx` include them.
    pub warmed: u64,
    /// Network time of the first warm-up sample, in microseconds; in the total, the maximum over
    /// all connections.
    pub cold_us: Option<u64>,
    /// Network time after the warm-up, in microseconds: the median of a few samples, one at a time.
    pub warm_us: Option<u64>,
    /// Counts of the sending half, over all epochs.
    pub tx: FabricCounts,
    /// Counts of the receiving half, over all epochs.
    pub rx: FabricCounts,
    /// Reason of each loss; in the total, of all connections.
    pub lost: Vec<String>,
}

/// The connections' warm-up, before LoadGen's clock starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WarmUpRecord {
    /// Samples sent and answered.
    pub samples: u64,
    /// Duration in milliseconds.
    pub took_ms: f64,
    /// Sample sizes that every connection carried.
    pub sizes: usize,
    /// Sample sizes that exist; greater than `sizes` if the budget was too short for all.
    pub of_sizes: usize,
    /// Maximum number of samples in flight on one connection.
    pub at_once: usize,
    /// Connections that carried a sample.
    pub connections: usize,
}

/// One rail, if the dispatcher chooses rails by health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RailRecord {
    /// The accelerator's node, and the indexes of both NICs in the configurations: `acc-01
    /// nics[0]-nics[2]`.
    pub name: String,
    /// State at the end: `in service`, `congested`, `probation`, `down (whose fault)`.
    pub state: String,
    /// The rail's health score from 0 to 1: the product of its latency factor and its occupancy.
    pub score: f64,
    /// The latency factor, from 0 to 1: low if samples take longer than on the unloaded rail.
    pub latency: f64,
    /// Samples sent over the rail, including probes.
    pub samples: u64,
    /// Bytes of samples answered over the rail.
    pub bytes: u64,
    /// Probes sent.
    pub probes: u64,
    /// Changes of state, with their times.
    pub changes: Vec<RailChange>,
}

/// A rail's transition from one state to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RailChange {
    /// Seconds since the connections came up.
    pub at_s: f64,
    /// State before the transition.
    pub from: String,
    /// State after the transition.
    pub to: String,
    /// Latency factor at the transition.
    pub latency: f64,
}

/// The rule that chooses the frontend thread that posts a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PostingRule {
    /// Maximum payload of a burst that the issuing thread posts, in bytes.
    pub up_to_bytes: u64,
    /// True if each sample has its own system call or doorbell.
    pub one_by_one: bool,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Counts of samples, as the dispatcher counts them. After a drain, `issued` is `answered` and
/// `emptied` together. Only `warmed` counts warm-up samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// Samples that LoadGen issued.
    pub issued: u64,
    /// Samples completed with the accelerator's response, as the calls to LoadGen count them.
    pub answered: u64,
    /// Samples completed empty, because the run was given up.
    pub emptied: u64,
    /// Writes of samples posted, including repeated dispatches.
    pub posted: u64,
    /// Responses read from their slots, as the threads that poll the connections count them.
    pub responses: u64,
    /// Samples dispatched again because their connection was lost.
    pub redispatched: u64,
    /// Answers of prefill nodes whose samples were dispatched again: mostly to a decode node, and
    /// to a prefill node if the handle was stale.
    #[serde(skip_serializing_if = "is_zero")]
    pub prefilled: u64,
    /// Refusals by accelerators: first, second and third refusals of a sample.
    pub refused: [u64; 3],
    /// Connections lost.
    pub lost_connections: u64,
    /// Warm-up samples sent, without those lost with their connection; no other field includes
    /// them.
    pub warmed: u64,
}

/// Counts of samples that were queued at their issue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueCounts {
    /// Maximum number of samples in the backlog, which wait for a free slot.
    pub backlog_max: u64,
    /// Samples that found no free slot at their issue. All connections share one backlog.
    pub backlogged: u64,
    /// Samples that the issuing thread left to a NIC thread, although a slot was free.
    pub handed_over: u64,
}

/// Counts of the system under test: a cluster's nodes, or an engine in this process. In JSON its
/// keys are keys of the [`RunRecord`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SystemRecord {
    /// Protection of the control plane, as text; empty without a fabric.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub control: String,
    /// Protection of the payloads, as text; empty without a fabric.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub payloads: String,
    /// Each accelerator.
    pub accelerators: Vec<AcceleratorRecord>,
    /// Each connection.
    pub connections: Vec<ConnectionRecord>,
    /// The sum of all connections; [`RunRecord::close`] computes it.
    pub connections_total: ConnectionRecord,
    /// Each rail, if the dispatcher chooses rails by health.
    pub rails: Vec<RailRecord>,
    /// The warm-up; `None` if connections began cold or there are no connections.
    pub warm_up: Option<WarmUpRecord>,
    /// Samples copied into registered memory, because the QSL's memory is not registered.
    pub staged_copies: u64,
    /// Bytes of `staged_copies`.
    pub staged_bytes: u64,
    /// Samples that were queued at their issue.
    #[serde(flatten)]
    pub queued: QueueCounts,
    /// The rule for posting; `None` without a network, and in folders of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posting_rule: Option<PostingRule>,
    /// Refusals and their reasons, by accelerator and kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalRecord>,
    /// Losses with their times, in the order of the accelerators.
    pub losses: Vec<LossRecord>,
    /// The node's facts about itself and its machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<NodeFacts>,
    /// NIC threads of this node; 0 in folders of earlier versions.
    pub nic_threads: u64,
    /// Sleeps of NIC threads, and their ends by another thread.
    #[serde(flatten)]
    pub waits: NicWaits,
    /// NUMA places of NIC threads, slots and loaded samples.
    pub places: Places,
    /// The dispatcher's counts.
    pub ledger: Ledger,
    /// Further notes to the user, one line each: printed, not recorded.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Events other than losses, for the timeline.
    #[serde(skip)]
    pub events: Vec<Event>,
    /// Final counts of each connection, for the timeline.
    #[serde(skip)]
    pub readings: Vec<ConnectionTick>,
    /// Each accelerator's report of its own ticks, for the timeline.
    #[serde(skip)]
    pub sides: Vec<NodeSide>,
}

/// Exit status of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunExit {
    /// Exit code: 0 valid, 1 LoadGen says invalid, 2 bad usage or configuration, 3 a peer was lost,
    /// 130 interrupted.
    pub code: u8,
    /// Reason of the code, as text.
    pub reason: String,
}

/// The record of one run; an element of `runs` in a summary's JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// LoadGen's name of the scenario: `Server`.
    pub scenario: String,
    /// LoadGen's mode.
    pub mode: Mode,
    /// `tcp`, `ib`, `ofi`, several as `ib + tcp`, or `local` without a fabric.
    pub fabric: String,
    /// Reasons why the Network division does not permit the fabric, one line each: loopback
    /// ([`LOOPBACK_NOTE`]), nodes on one machine, unknown link layers. Empty if there is no reason.
    pub fabric_notes: Vec<String>,
    /// Reasons why the run would not count in a submission: one line of rule and violation each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub would_not_count: Vec<String>,
    /// LoadGen's verdict; `None` in accuracy mode or without a verdict.
    pub valid: Option<bool>,
    /// LoadGen's reasons for an invalid run.
    pub reasons: Vec<String>,
    /// Samples completed.
    pub samples: u64,
    /// Samples per second as LoadGen counts them: of find-peak's final rate, or of a submission
    /// run's performance phase.
    pub per_s: f64,
    /// Target rate of `per_s`, if the scenario has one.
    pub target_qps: Option<f64>,
    /// Seconds from the first sample's issue to the last completion.
    pub duration_s: f64,
    /// Fraction of correct answers, in accuracy mode.
    pub accuracy: Option<f64>,
    /// LoadGen's result; `None` if LoadGen reached no result.
    pub loadgen: Option<LoadgenRecord>,
    /// The phases in order; their samples add up to the run's.
    pub phases: Vec<PhaseRecord>,
    /// Settings of the run: LoadGen's, then this node's.
    pub settings: Vec<SettingRecord>,
    /// Settings without effect, one line each.
    pub setting_notes: Vec<String>,
    /// Counts behind `accuracy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labelled: Option<Accuracy>,
    /// Remark on `accuracy`: why it is missing, or an accelerator that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy_note: Option<String>,
    /// Times of the stages.
    pub stages: StageTable,
    /// Samples with inconsistent stages: the accelerator's time exceeds the round trip.
    pub uneven: u64,
    /// Result of verifying the responses, if the run verified them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
    /// Times and counts of tokens, if answers are tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenRecord>,
    /// Samples within LoadGen's limits; `None` without limits, or if LoadGen judged nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<Goodput>,
    /// Throughput, second by second.
    pub throughput: ThroughputReport,
    /// Payload of the answered samples.
    pub carried: CarriedPayload,
    /// Counts of the system under test.
    #[serde(flatten)]
    pub system: SystemRecord,
    /// Further evidence for the judgement of what limited the run.
    pub evidence: Evidence,
    /// Limits of the run, as `report` judges them.
    pub limits: Limits,
    /// Counts that do not agree; [`RunRecord::close`] computes them.
    pub mismatches: Vec<String>,
    /// Exit status of the process.
    pub exit: RunExit,
}

impl RunRecord {
    /// Returns the sum of all connections.
    pub fn total(&self) -> ConnectionRecord {
        let mut total = ConnectionRecord {
            name: "total".to_owned(),
            ..ConnectionRecord::default()
        };
        for c in &self.system.connections {
            add_counts!(total += c: samples slots allowed refused posted warmed wakeups blocked);
            total.in_flight_max = total.in_flight_max.max(c.in_flight_max);
            total.silent_ms = total.silent_ms.max(c.silent_ms);
            total.path.add(&c.path);
            total.cold_us = total.cold_us.max(c.cold_us);
            total.warm_us = total.warm_us.max(c.warm_us);
            total.lost.extend_from_slice(&c.lost);
            total.tx.add(&c.tx);
            total.rx.add(&c.rx);
        }
        total
    }
}

/// A run and its frontend node. In JSON the run's keys are beside the node's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Name of this node.
    pub node: String,
    /// Name of the system under test, as `Name()` returned it.
    pub name: String,
    /// Round trip of the name request to all nodes in microseconds; `None` without a request.
    pub name_round_trip_us: Option<f64>,
    /// The run.
    #[serde(flatten)]
    pub run: RunRecord,
}
