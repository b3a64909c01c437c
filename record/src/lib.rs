//! What a run leaves behind, as plain data: the files of its folder, written and read. Dispatch and
//! fabrics do not know this crate: they count, and `qdl::run` puts the counts on record.
//!
//! | module | file of the folder, or what the record holds |
//! | --- | --- |
//! | `folder` | a run's whole folder, read ([`Run`]) |
//! | `summary` | `summary.json` ([`Summary`], [`RunRecord`], [`SystemRecord`]) |
//! | [`timeline`] | `timeline.json` |
//! | `histograms`, `hlog` | `latency.hlog` and `latency-STAGE.us.hgrm` |
//! | `configurations` | copies of the nodes' configurations |
//! | `stages`, `phases`, `tokens`, `throughput`, `loadgen` | times and rates |
//! | `ledger` | the dispatcher's counts, and whether all counts agree |
//! | `traffic`, `usage` | what connections, threads and engines were used for |
//! | `limits` | what limited the run, as `report` judges it |
//! | `losses`, `refusals`, `verified`, `accuracy` | what went wrong, what was right |
//! | `engine`, `content`, `facts`, `places`, `gpu`, `batches` | what nodes say of themselves |
//! | `served` | a session as an accelerator saw it |
//! | `settings` | what the run was made with |

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
