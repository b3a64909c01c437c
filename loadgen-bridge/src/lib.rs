//! A safe Rust interface to MLCommons LoadGen, through a C shim.
//!
//! The build compiles LoadGen from its released sources, unaltered (`cargo xtask setup` fetches
//! them). The shim (`shim/shim.cc`) is plain C over LoadGen's C++ classes. No C++ exception passes
//! the shim towards Rust, and no panic passes the shim towards C++.
//!
//! Implement [`SystemUnderTest`] and [`QuerySampleLibrary`]. Fill in [`TestSettings`] and
//! [`LogSettings`] by hand, from YAML, or from a `user.conf`. Then call [`run_test`], and answer
//! issued samples with [`complete`]. `complete` is `unsafe`: the compiler cannot check that each
//! sample is completed once, while the test runs.
//!
//! A process runs one test, because LoadGen keeps global state of a test.
//!
//! | file | purpose |
//! | --- | --- |
//! | `settings`, `log_settings` | LoadGen's settings, every field |
//! | `conf`, `conf_text`, `conf_values` | `user.conf` and `audit.config`: checks and values |
//! | `plan` | how many queries LoadGen will generate from the settings |
//! | `run`, `control` | start and stop of a test |
//! | `sample` | samples and responses in LoadGen's memory layout |
//! | `log_room` | a workaround for entries that LoadGen's log loses |
//! | `summary` | LoadGen's summary, read back; crate `loadgen-log` reads the other logs |
//! | `raw` | the shim's declarations |

// The shim calls its functions.
use libmimalloc_sys as _;

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

pub use conf::{ignored_lines, known_models};
pub use conf_text::has_byte_order_mark;
pub use conf_values::{ConfValue, conf_field, conf_values};
pub use error::LoadgenError;
pub use loadgen_log::{
    AccuracyLog, AccuracyRecord, Detail, LogError, Phase, PhaseKind, Scenario, TestMode,
};
pub use log_room::{log_may_be_outgrown, outgrow_log};
pub use log_settings::{LogFiles, LogSettings};
pub use plan::{Effective, Plan, Queries};
pub use run::{QuerySampleLibrary, SystemUnderTest, THREAD, abort_test, exit, run_test};
pub use sample::{QuerySample, QuerySampleResponse, ResponseId, complete, first_token_complete};
pub use settings::TestSettings;
pub use summary::{Figure, TestOutcome, Verdict};
