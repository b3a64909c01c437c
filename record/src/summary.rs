//! One run on record: what the summary shows and the JSON holds.

use serde::{Deserialize, Serialize};

use super::{
    Accuracy, BatchSizes, Content, Evidence, GpuRecord, Ledger, Limits, LoadgenRecord, LossRecord,
    Mismatch, NodeFacts, NodeUse, PathUse, PhaseRecord, Places, RefusalRecord, SettingRecord,
    StageTable, ThroughputReport, TokenRecord, TrafficRecord, Verified, ledger,
    timeline::{ConnectionTick, Event, NodeSide},
};

/// Stands beside the fabric's name when its traffic never leaves the machine: the rules of the
/// Network division do not permit that for a submission.
pub const LOOPBACK_NOTE: &str = "loopback (not a permitted fabric)";

/// What LoadGen measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Speed.
    #[default]
    Performance,
    /// Every sample's response, for the accuracy script.
    Accuracy,
    /// The highest rate that is valid.
    FindPeak,
    /// Accuracy, then speed.
    Submission,
}

impl Mode {
    /// As in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Mode::Performance => "performance",
            Mode::Accuracy => "accuracy",
            Mode::FindPeak => "find_peak",
            Mode::Submission => "submission",
        }
    }
}

/// Payload carried by samples that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Carried {
    /// Bytes of requests.
    pub bytes_out: u64,
    /// Bytes of responses.
    pub bytes_in: u64,
    /// Gbit/s of requests over the whole run.
    pub gbit_out_per_s: f64,
    /// Gbit/s of responses over the whole run.
    pub gbit_in_per_s: f64,
}

impl Carried {
    /// From the bytes and the run's duration.
    pub fn new(bytes_out: u64, bytes_in: u64, duration_s: f64) -> Self {
        let gbit = |bytes: u64| {
            if duration_s > 0.0 {
                (bytes as f64 * 8.0 / duration_s / 1e3).round() / 1e6
            } else {
                0.0
            }
        };
        Carried {
            bytes_out,
            bytes_in,
            gbit_out_per_s: gbit(bytes_out),
            gbit_in_per_s: gbit(bytes_in),
        }
    }
}

/// One accelerator's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceleratorRecord {
    /// Its node's name.
    pub node: String,
    /// Its engine, as it calls it.
    pub engine: String,
    /// What that really runs, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// What the node says of itself and its machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<NodeFacts>,
    /// Connections to it.
    pub connections: usize,
    /// Samples it says it has answered; `None` when it could not be asked.
    pub samples: Option<u64>,
    /// Samples it says have arrived; `None` when it could not be asked.
    pub arrived: Option<u64>,
    /// Parts of responses that it says it posted before the last of each; `None` likewise.
    pub parts: Option<u64>,
    /// Samples it says it refused.
    pub refused: u64,
    /// Samples that it says got no response: dropped, or too late for their connection.
    pub dropped_late: u64,
    /// Inputs it says it copied before its engine could read them.
    pub copies: u64,
    /// Sizes of the batches it says it has run.
    pub batches: BatchSizes,
    /// The rule for its batches, from its configuration; empty where the engine batches by itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub batching: String,
    /// Each of its GPUs that its engine used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRecord>,
    /// Its own answers beside the labels, in accuracy mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// What its engine and threads were used for, without the warm-up.
    pub used: NodeUse,
    /// Why it was lost, if it was and has not come back.
    pub lost: Option<String>,
    /// What it had done in sessions that ended without its last word: as of the last heartbeat of
    /// each, and in none of the counts above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_sessions: Vec<LostSession>,
}

/// What an accelerator had said of a session before it was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostSession {
    /// When its last heartbeat came: seconds from the run's first query, `None` before it.
    pub as_of_s: Option<f64>,
    /// Samples that had arrived.
    pub arrived: u64,
    /// Samples it had answered.
    pub samples: u64,
    /// Samples that got no response.
    pub dropped_late: u64,
    /// Batches it had run.
    pub batches: u64,
}

impl LostSession {
    /// Counts a later session in.
    pub fn add(&mut self, later: &LostSession) {
        let LostSession {
            as_of_s,
            arrived,
            samples,
            dropped_late,
            batches,
        } = later;
        self.as_of_s = *as_of_s;
        self.arrived = self.arrived.saturating_add(*arrived);
        self.samples = self.samples.saturating_add(*samples);
        self.dropped_late = self.dropped_late.saturating_add(*dropped_late);
        self.batches = self.batches.saturating_add(*batches);
    }
}

impl AcceleratorRecord {
    /// Samples it is known to have answered, in all sessions; `None` where it never said.
    pub fn answered(&self) -> Option<u64> {
        let lost = self.lost_sessions.iter().map(|s| s.samples);
        let all = self.samples.into_iter().chain(lost);
        all.reduce(u64::saturating_add)
    }
}

/// One connection's part, seen from the frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionRecord {
    /// The accelerator's node and the connection's index: `acc-01/0`.
    pub name: String,
    /// Responses taken from it.
    pub samples: u64,
    /// Refusals taken from it.
    pub refused: u64,
    /// Samples posted on it, those sent again included.
    pub posted: u64,
    /// Slots at either end.
    pub slots: u64,
    /// How many of them were in use or to be had at the end: what the way and the engine needed,
    /// where `slots` is `auto`. 0 in records of before there was such a thing: all of them.
    pub allowed: u64,
    /// Most samples it had in flight at once; in the total, the most of any connection.
    pub in_flight_max: u64,
    /// Longest time in milliseconds that it was asked for a sign of life and gave none, the last
    /// before a loss included; in the total, the longest of any connection.
    pub silent_ms: u64,
    /// What the fabric says of the way, where it says something.
    pub path: PathUse,
    /// Times that the NIC thread slept and was woken for it.
    pub wakeups: u64,
    /// Doorbells after which something was left that its socket or queue pair had no room for.
    pub blocked: u64,
    /// Samples that warmed it up: in the counts of its halves, and in no other here.
    pub warmed: u64,
    /// Network time of the first of them, in microseconds;
    /// the longest of any connection in the total.
    pub cold_us: Option<u64>,
    /// The same once it was warm: the median of a few, one at a time.
    pub warm_us: Option<u64>,
    /// Its sending half's counts, over all epochs.
    pub tx: TrafficRecord,
    /// Its receiving half's counts, over all epochs.
    pub rx: TrafficRecord,
    /// Why it was lost, each time it was. In the total: of every connection.
    pub lost: Vec<String>,
}

/// What connections did before LoadGen's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WarmUpRecord {
    /// Samples sent and answered.
    pub samples: u64,
    /// Milliseconds it took.
    pub took_ms: f64,
    /// Sizes of samples that went over every connection.
    pub sizes: usize,
    /// Sizes there are; more, where the budget was too short for all.
    pub of_sizes: usize,
    /// Most samples at once on one connection.
    pub at_once: usize,
}

/// One rail, where rails are chosen by health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RailRecord {
    /// The accelerator's node, and the two NICs by their
    /// place in the configurations: `acc-01 nics[0]-nics[2]`.
    pub name: String,
    /// Where it stands at the end: `in service`, `congested`, `probation`, `down (whose fault)`.
    pub state: String,
    /// Its score, from 0 to 1: latency and occupancy.
    pub score: f64,
    /// The latency factor alone.
    pub latency: f64,
    /// Samples that took it, probes included.
    pub samples: u64,
    /// Bytes of samples answered over it.
    pub bytes: u64,
    /// Probes.
    pub probes: u64,
    /// What became of it when.
    pub changes: Vec<RailChange>,
}

/// A rail went from one state to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RailChange {
    /// Seconds since the connections came up.
    pub at_s: f64,
    /// From this state.
    pub from: String,
    /// To this one.
    pub to: String,
    /// Its latency factor at that time.
    pub latency: f64,
}

/// Which thread of the frontend posts a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PostingRule {
    /// Largest burst that the issuing thread posts, in payload bytes.
    pub up_to_bytes: u64,
    /// Each sample has a system call or doorbell of its own.
    pub one_by_one: bool,
}

/// What the system under test counted: a cluster's nodes, or an engine in this process. Whoever
/// counts fills it in, and [`RunRecord`] holds it as it is: in JSON its keys are the run's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SystemRecord {
    /// Each accelerator.
    pub accelerators: Vec<AcceleratorRecord>,
    /// Each connection.
    pub connections: Vec<ConnectionRecord>,
    /// All connections together; filled in by [`RunRecord::close`].
    pub connections_total: ConnectionRecord,
    /// Each rail, where they are chosen by health.
    pub rails: Vec<RailRecord>,
    /// The warm-up; `None` where connections began cold, or there are none.
    pub warm_up: Option<WarmUpRecord>,
    /// Samples copied into registered memory, because the QSL keeps them elsewhere.
    pub staged_copies: u64,
    /// Bytes of those.
    pub staged_bytes: u64,
    /// Most samples that waited at once because no slot was free.
    pub backlog_max: u64,
    /// Samples that found no free slot when they were issued. There is one backlog for all
    /// connections.
    pub backlogged: u64,
    /// Samples that the issuing thread left to a NIC thread although a slot was free.
    pub handed_over: u64,
    /// Which thread posts; `None` without a network, and in folders of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posting_rule: Option<PostingRule>,
    /// What was refused and why, by accelerator and kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalRecord>,
    /// What was lost when, in the order of the accelerators.
    pub losses: Vec<LossRecord>,
    /// What this node says of itself and its machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<NodeFacts>,
    /// NIC threads of this node; 0 in folders of earlier versions.
    pub nic_threads: u64,
    /// Times that NIC threads went to sleep.
    pub sleeps: u64,
    /// Times that NIC threads were woken by another thread:
    /// those that a connection woke are counted with it.
    pub woken: u64,
    /// Where NIC threads, slots and loaded samples are.
    pub places: Places,
    /// What the dispatcher counted.
    pub ledger: Ledger,
    /// What else the user ought to know, a line each: for the screen, not for the record.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// What happened when, but for losses: for the timeline.
    #[serde(skip)]
    pub events: Vec<Event>,
    /// What each connection came to: for the timeline.
    #[serde(skip)]
    pub readings: Vec<ConnectionTick>,
    /// What each accelerator told of its own side: for the timeline.
    #[serde(skip)]
    pub sides: Vec<NodeSide>,
}

/// How the process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// Exit code: 0 valid, 1 LoadGen says invalid, 2 bad usage or config, 3 a peer was lost, 130
    /// interrupted.
    pub code: u8,
    /// In words.
    pub reason: String,
}

/// One run; an element of `runs` in a summary's JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// LoadGen's name of the scenario: `Server`.
    pub scenario: String,
    /// LoadGen's mode.
    pub mode: Mode,
    /// `tcp`, `ib`, or `local` when there is none.
    pub fabric: String,
    /// Why the Network division would not permit it, a line each, as [`LOOPBACK_NOTE`]: loopback,
    /// nodes on one machine, link layers that are not known. Empty where nothing speaks against it.
    pub fabric_notes: Vec<String>,
    /// Why it would not count in a submission, a line each: the rule's name, and what is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub would_not_count: Vec<String>,
    /// LoadGen's verdict; `None` in accuracy mode or when it gave none.
    pub valid: Option<bool>,
    /// Its reasons for calling the run invalid.
    pub reasons: Vec<String>,
    /// Samples completed.
    pub samples: u64,
    /// Samples per second as LoadGen counts them: in find-peak at the rate that it ended with, in a
    /// submission run in its performance phase.
    pub per_s: f64,
    /// What was asked for then, where the scenario has such a figure.
    pub target_qps: Option<f64>,
    /// Seconds from the first sample to the last.
    pub duration_s: f64,
    /// Share of correct answers, in accuracy mode.
    pub accuracy: Option<f64>,
    /// What LoadGen said; `None` where it came to no end.
    pub loadgen: Option<LoadgenRecord>,
    /// The phases, in their order: their samples are the run's.
    pub phases: Vec<PhaseRecord>,
    /// What the run was made with: LoadGen's settings, then this node's.
    pub settings: Vec<SettingRecord>,
    /// What was set in vain, a line each.
    pub setting_notes: Vec<String>,
    /// The counts behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labelled: Option<Accuracy>,
    /// What is to be known of it: why there is no figure, or an accelerator that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy_note: Option<String>,
    /// Where the time went.
    pub stages: StageTable,
    /// Samples whose stages do not add up: the accelerator's time is longer than the round trip.
    pub uneven: u64,
    /// What comparing responses came to, where they were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
    /// Where answers are tokens: when they came, and how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenRecord>,
    /// Second by second.
    pub throughput: ThroughputReport,
    /// Payload.
    pub carried: Carried,
    /// The system under test.
    #[serde(flatten)]
    pub system: SystemRecord,
    /// What else is known, by which it is judged what limited the run.
    pub evidence: Evidence,
    /// What limited the run, as `report` judges it.
    pub limits: Limits,
    /// What does not agree; filled in by [`RunRecord::close`].
    pub mismatches: Vec<String>,
    /// How the process ended.
    pub exit: Exit,
}

impl RunRecord {
    /// All connections as one.
    pub fn total(&self) -> ConnectionRecord {
        let mut total = ConnectionRecord {
            name: "total".to_owned(),
            ..ConnectionRecord::default()
        };
        for c in &self.system.connections {
            total.samples = total.samples.saturating_add(c.samples);
            total.in_flight_max = total.in_flight_max.max(c.in_flight_max);
            total.slots = total.slots.saturating_add(c.slots);
            total.allowed = total.allowed.saturating_add(c.allowed);
            total.silent_ms = total.silent_ms.max(c.silent_ms);
            total.path.add(&c.path);
            total.refused = total.refused.saturating_add(c.refused);
            total.posted = total.posted.saturating_add(c.posted);
            total.warmed = total.warmed.saturating_add(c.warmed);
            total.cold_us = total.cold_us.max(c.cold_us);
            total.warm_us = total.warm_us.max(c.warm_us);
            total.wakeups = total.wakeups.saturating_add(c.wakeups);
            total.blocked = total.blocked.saturating_add(c.blocked);
            total.lost.extend_from_slice(&c.lost);
            total.tx.add(&c.tx);
            total.rx.add(&c.rx);
        }
        total
    }

    /// Compares all counts that ought to agree; an empty list is what a sound run has.
    pub fn reconcile(&self) -> Vec<Mismatch> {
        ledger::reconcile(self)
    }

    /// Fills in what follows from the rest. Returns whether everything agrees.
    pub fn close(&mut self) -> bool {
        self.system.connections_total = self.total();
        self.mismatches = self.reconcile().iter().map(Mismatch::to_string).collect();
        self.mismatches.is_empty()
    }
}

/// A run and the node that saw it. In JSON the run's keys stand beside the node's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// This node's name.
    pub node: String,
    /// What `Name()` answered.
    pub name: String,
    /// Microseconds that asking every node for it took; `None` when no node was asked.
    pub name_round_trip_us: Option<f64>,
    /// The run.
    #[serde(flatten)]
    pub run: RunRecord,
}
