//! `frontend --config F.yaml`: connects LoadGen to accelerators over the network or, with
//! `--local`, to an engine in this process. `qdl` has the same commands.
//!
//! | room | contents |
//! | --- | --- |
//! | `commands` | the commands around a run, which `qdl` and this program share |
//! | `settings` | the command line, what LoadGen is told, and where each setting came from |
//! | `dataset` | samples and labels: files, arrays of NumPy, random ones |
//! | `loadgen` | the library of samples, completion, and how a run ends |
//! | `backend` | the system under test, over accelerators or an engine in this process |
//! | `run` | a run from beginning to end, its folder, and what watches it |
//! | `live` | `--live`: a run looked at while it goes on |
//! | `accuracy` | the figure of an accuracy run |
//! | `outcome` | LoadGen's result, the reasons, the record and the time line |
//! | `compliance` | whether a run counts: official tests, rules, provenance, descriptions |

mod accuracy;
mod backend;
pub mod commands;
mod compliance;
mod dataset;
mod live;
mod loadgen;
mod outcome;
mod run;
mod settings;

pub use loadgen::exit::ExitCode;
pub use run::{progress::say, run};
pub use settings::cli;
