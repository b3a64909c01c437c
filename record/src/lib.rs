//! Writes and reads the files of a run's folder, as plain data. `qdl` and `engines` count in types
//! of this crate, and the files have the counts as they are. Fabrics do not know the crate: they
//! count in [`FabricCounts`], a part of the record.
//!
//! | module | file of the folder, or content of the record |
//! | --- | --- |
//! | `folder` | a run's whole folder ([`RunFolder`]) |
//! | `summary` | `summary.json` ([`Summary`], [`RunRecord`], [`SystemRecord`]) |
//! | `manifest` | `run.json` ([`Manifest`]) |
//! | [`timeline`] | `timeline.json` |
//! | `histograms` | `latency.hlog` |
//! | `configurations` | copies of the nodes' configurations |
//! | `stages`, `tokens`, `loadgen` | times and rates |
//! | `reconcile` | comparison of all counts |
//! | `usage` | use of connections, threads and engines |
//! | `limits` | causes that limited the run, as `report` judges |
//! | `losses`, `correctness` | losses and refusals, correctness of answers |
//! | `engine`, `options`, `facts`, `batches` | nodes' reports about themselves |
//! | `served` | a session, seen from the accelerator |
//! | [`secrets`] | masks of values that look like keys |
//! | `settings` | settings of the run |
//! | `words` | characters that no text from elsewhere may print |

mod batches;
mod configurations;
mod correctness;
mod counts;
mod engine;
mod error;
mod facts;
mod folder;
mod histograms;
mod limits;
mod loadgen;
mod losses;
mod manifest;
mod options;
mod reconcile;
pub mod secrets;
mod served;
mod settings;
mod stages;
mod summary;
pub mod timeline;
mod tokens;
mod usage;
mod words;

pub use batches::{BatchSizes, GpuRecord};
pub use configurations::flat;
pub use correctness::{Accuracy, Verified};
pub use engine::{
    CacheState, Content, EngineInfo, MAX_CACHE_WORDS, MAX_CONTENT_NAME, MAX_ENGINE_NAME, NodeRole,
    PrefixCache, ServerVersion,
};
pub use error::FileError;
pub use fabric::FabricCounts;
pub use facts::{LinkFact, LinkLayer, MAX_HOST, NodeFacts};
pub use folder::{RunFolder, SUMMARY, TIMELINE, write_summary, write_timeline};
pub use histograms::{HISTOGRAMS, save};
pub use limits::{Cause, Evidence, Finding, ISSUE, Limits, NIC};
pub use loadgen::{
    EarlyStopping, LimitRecord, LimitUnit, LoadgenLatency, LoadgenRecord, ScheduledToIssue,
    latency_bound_us,
};
pub use losses::{LossRecord, RefusalRecord, SilentOn, grouped, kind_of};
pub use manifest::{COPIES, FileRecord, MANIFEST, Manifest, NodeRecord};
pub use options::{OptionSet, RequestOption};
pub use served::{SequenceTotals, ServedConnection, ServedReport};
pub use settings::{DEFAULT, GivenValue, SettingOf, SettingRecord};
pub use stages::{
    Goodput, PhaseKind, PhaseRecord, Stage, StageRow, StageTable, ThroughputReport, rate_per_s,
};
pub use summary::{
    AcceleratorRecord, CarriedPayload, ConnectionRecord, LOOPBACK_NOTE, Ledger, LostSession, Mode,
    PostingRule, QueueCounts, RailChange, RailRecord, RunExit, RunRecord, Summary, SystemRecord,
    WarmUpRecord,
};
pub use timeline::Figures;
pub use tokens::{CountRow, TokenRecord, TokenTime};
pub use usage::{EngineUse, NicPlace, NicUse, NicWaits, NodeUse, PathUse, Places, ThreadGroup};
pub use words::is_unprintable;
