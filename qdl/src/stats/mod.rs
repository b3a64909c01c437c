//! What a run was like: where each sample's time went, how many went by in each second, and what
//! everything cost.
//!
//! A NIC thread owns a [`Recorder`] and shares nothing with the others but the figures it shows in
//! [`Live`], which a progress thread reads. At the end the recorders are merged into one set of
//! [`Histograms`]; its [`StageTable`], the [`Throughput`] and the counts of every part make up the
//! [`RunRecord`], which reconciles itself and is written as text and as JSON.
//!
//! Two nodes' clocks are never compared: the accelerator reports durations, the frontend knows the
//! round trip, and `network` is the difference.

mod accuracy;
mod batches;
mod files;
mod gpu;
mod histograms;
mod judge;
mod ledger;
pub mod limits;
mod live;
mod loadgen;
mod losses;
mod page;
mod phases;
mod places;
mod record;
mod refusals;
mod render;
mod render_loadgen;
mod served;
mod settings;
mod stage;
mod table;
pub mod text;
mod throughput;
pub mod ticks;
pub mod timeline;
mod tokens;
mod traffic;
mod verified;

pub use accuracy::Accuracy;
pub use batches::BatchSizes;
pub use files::{SaveError, write_hgrm, write_log};
pub use gpu::GpuRecord;
pub use histograms::Histograms;
pub use ledger::{Ledger, Mismatch};
pub use live::{Figures, Live};
pub use loadgen::{
    EarlyStopping, LimitRecord, LimitUnit, LoadgenLatency, LoadgenRecord, ScheduledToIssue,
};
pub use losses::{LossRecord, SilentOn, with_losses};
pub use page::{Page, memory};
pub use phases::{PhaseKind, PhaseRecord};
pub use places::{NicPlace, Places};
pub use record::{
    AcceleratorRecord, Carried, ConnectionRecord, Exit, LOOPBACK_NOTE, LostSession, Mode,
    PostingRule, RailChange, RailRecord, RunRecord, Summary, SystemRecord, WarmUpRecord,
};
pub use refusals::{RefusalRecord, kind_of, with_refusals};
pub use served::{SequenceTotals, ServedConnection, ServedReport};
pub use settings::{DEFAULT, GivenValue, SettingOf, SettingRecord};
pub use stage::{SampleTimes, Stage};
pub use table::{StageRow, StageTable};
pub use throughput::{Throughput, ThroughputReport};
pub use ticks::Recorder;
pub use tokens::{CountRow, TokenHistograms, TokenRecord, TokenSizes, TokenTime};
pub use verified::Verified;
