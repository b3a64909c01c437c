//! `frontend --config F.yaml`: connects LoadGen to accelerators over the network or, with
//! `--local`, to an engine in this process.
//!
//! | room | contents |
//! | --- | --- |
//! | [`entry`] | the program: its command line and its process |
//! | `settings` | the command line, LoadGen's settings, and the origin of each setting |
//! | `dataset` | samples and labels: files, arrays of NumPy, random ones |
//! | `loadgen` | the sample library, completion of samples, LoadGen's phases, and exit codes |
//! | `backend` | the system under test, over accelerators or an engine in this process |
//! | `run` | a run from beginning to end, its folder, its signals and its watchdogs |
//! | `live` | `--live`: the page of a run in progress |
//! | `accuracy` | the share of right answers in an accuracy run |
//! | `outcome` | LoadGen's result, the reasons for INVALID, the summary and the timeline |
//! | `fuzz` | entry functions of fuzz targets, with the feature `testkit` |
//! | `compliance` | what a submission needs: official tests, rules, `run.json`, descriptions |

mod accuracy;
mod backend;
mod compliance;
mod dataset;
pub mod entry;
#[cfg(feature = "testkit")]
pub mod fuzz;
mod live;
mod loadgen;
mod outcome;
mod run;
mod settings;

pub use accuracy::names_the_class;
pub use compliance::describe::command as describe;
pub use dataset::Dataset;
pub use loadgen::exit::ExitCode;
pub use outcome::reasons::KEEPS_UP;
pub use run::{check::SERVER_QUERIES, interrupt, run};
pub use settings::cli;
