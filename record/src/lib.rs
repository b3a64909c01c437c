//! Writes and reads the files of a run's folder, as plain data. Dispatch and fabrics do not depend
//! on this crate: they count, and `qdl::run` turns the counts into a record.
//!
//! | module | file of the folder, or content of the record |
//! | --- | --- |
//! | `folder` | a run's whole folder ([`Run`]) |
//! | `summary` | `summary.json` ([`Summary`], [`RunRecord`], [`SystemRecord`]) |
//! | [`timeline`] | `timeline.json` |
//! | `histograms`, `hlog` | `latency.hlog` and `latency-STAGE.us.hgrm` |
//! | `configurations` | copies of the nodes' configurations |
//! | `stages`, `phases`, `tokens`, `throughput`, `loadgen` | times and rates |
//! | `ledger` | the dispatcher's counts, and their comparison with all others |
//! | `traffic`, `usage` | use of connections, threads and engines |
//! | `limits` | causes that limited the run, as `report` judges |
//! | `losses`, `refusals`, `verified`, `accuracy` | losses and refusals, correctness of answers |
//! | `engine`, `content`, `facts`, `places`, `gpu`, `batches` | nodes' reports about themselves |
//! | `served` | a session, seen from the accelerator |
//! | `settings` | settings of the run |

mod accuracy;
mod batches;
mod configurations;
mod content;
mod engine;
mod facts;
mod folder;
mod gpu;
mod histograms;
mod hlog;
mod ledger;
mod limits;
mod loadgen;
mod losses;
mod phases;
mod places;
mod refusals;
mod served;
mod settings;
mod stages;
mod summary;
mod throughput;
pub mod timeline;
mod tokens;
mod traffic;
mod usage;
mod verified;

pub use accuracy::Accuracy;
pub use batches::BatchSizes;
pub use content::{Content, MAX_CONTENT_NAME};
pub use engine::{CacheState, EngineInfo, MAX_CACHE_WORDS, MAX_ENGINE_NAME, PrefixCache};
pub use facts::{LinkFact, LinkLayer, MAX_HOST, MachineIds, NodeFacts};
pub use folder::{
    HISTOGRAMS, LEFT, ReadError, Run, SUMMARY, TIMELINE, write_summary, write_timeline,
};
pub use gpu::GpuRecord;
pub use histograms::{SaveError, file_names, save, write_hgrm, write_log};
pub use ledger::{Ledger, Mismatch};
pub use limits::{Cause, Evidence, Finding, ISSUE, Limits, LoadgenView, NIC};
pub use loadgen::{
    EarlyStopping, LimitRecord, LimitUnit, LoadgenLatency, LoadgenRecord, ScheduledToIssue,
};
pub use losses::{LossRecord, SilentOn, grouped};
pub use phases::{PhaseKind, PhaseRecord};
pub use places::{NicPlace, Places};
pub use refusals::{RefusalRecord, kind_of};
pub use served::{SequenceTotals, ServedConnection, ServedReport};
pub use settings::{DEFAULT, GivenValue, SettingOf, SettingRecord};
pub use stages::{Stage, StageRow, StageTable};
pub use summary::{
    AcceleratorRecord, Carried, ConnectionRecord, Exit, LOOPBACK_NOTE, LostSession, Mode,
    PostingRule, RailChange, RailRecord, RunRecord, Summary, SystemRecord, WarmUpRecord,
};
pub use throughput::ThroughputReport;
pub use timeline::Figures;
pub use tokens::{CountRow, TokenRecord, TokenTime};
pub use traffic::TrafficRecord;
pub use usage::{DecompressedUse, EngineUse, NicUse, NodeUse, PathUse, ThreadGroup};
pub use verified::Verified;
