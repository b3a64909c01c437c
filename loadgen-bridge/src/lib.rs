//! MLCommons LoadGen behind a C shim, with a safe Rust face.
//!
//! LoadGen is compiled from its released sources, unaltered (`cargo xtask
//! setup` fetches them). The shim (`shim/shim.cc`) is plain C over its C++
//! classes: no C++ exception crosses it towards Rust, and no panic towards C++.
//!
//! Implement [`SystemUnderTest`] and [`QuerySampleLibrary`], fill in [`TestSettings`] and
//! [`LogSettings`] (by hand, from YAML, or from a `user.conf`), and call [`run_test`]; answer what
//! is issued with [`complete`]. The one promise that the compiler cannot check is that a sample is
//! completed once, while its test runs: `complete` is `unsafe` for that.
//!
//! A process runs one test: LoadGen keeps what a test left behind.
//!
//! | file | what it is for |
//! | --- | --- |
//! | `settings`, `log_settings` | LoadGen's settings, every field |
//! | `conf`, `conf_text`, `conf_values` | `user.conf`, `audit.config`: checked, and what they say |
//! | `plan` | what LoadGen will make of the settings, before it does |
//! | `run`, `control` | a test, and how it is stopped |
//! | `sample` | samples and responses, as LoadGen lays them out |
//! | `log_room` | how LoadGen's log is kept from losing what a quick thread completes |
//! | `summary` | LoadGen's summary, read back; crate `loadgen-log` reads the other logs |
//! | `raw` | the shim's declarations |

#[cfg(feature = "bench")]
mod bench;
mod conf;
mod conf_text;
mod conf_values;
mod control;
mod error;
mod log_room;
mod log_settings;
mod plan;
mod raw;
mod run;
mod sample;
mod settings;
mod summary;

#[cfg(feature = "bench")]
pub use bench::null_sut_cpp;
pub use conf::{known_models, passed_over};
pub use conf_text::has_byte_order_mark;
pub use conf_values::{ConfValue, conf_values};
pub use error::LoadgenError;
pub use loadgen_log::{
    AccuracyLog, AccuracyRecord, Detail, LogError, Phase, PhaseKind, Scenario, TestMode,
};
pub use log_room::{log_may_be_outgrown, outgrow_log};
pub use log_settings::{LogFiles, LogSettings, LoggingMode};
pub use plan::{Effective, Plan, Queries};
pub use run::{
    QuerySampleLibrary, SystemUnderTest, THREAD, abort_test, exit, register_issue_query_thread,
    run_test,
};
pub use sample::{QuerySample, QuerySampleResponse, ResponseId, complete, first_token_complete};
pub use settings::TestSettings;
pub use summary::{Figure, TestOutcome, Verdict};
