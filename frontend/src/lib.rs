//! `frontend --config F.yaml`: LoadGen on one side, the
//! network (or, with `--local`, an engine) on the other. A library too, so that measurements put
//! LoadGen before the same code.
//!
//! | file | what it is for |
//! | --- | --- |
//! | `cli`, `settings` | the command line, and what LoadGen is told in the end |
//! | `dataset`, `qsl` | samples, and LoadGen's library of them in the memory they are sent from |
//! | `sut`, `backend` | LoadGen's system under test, over whatever stands behind it |
//! | `network`, `local` | behind it: a cluster of accelerators, or an engine in this process |
//! | `completer`, `verify` | responses back to LoadGen, compared with their samples if asked |
//! | `tokens` | answers in tokens: who counts them, and what is wrong with them |
//! | `run` | a run from beginning to end |
//! | `progress`, `watchdog`, `interrupt`, `memory` | what is watched meanwhile |
//! | `accuracy`, `report`, `exit` | what it came to |

pub mod accuracy;
pub mod backend;
pub mod cli;
pub mod completer;
pub mod dataset;
pub mod exit;
pub mod interrupt;
pub mod local;
pub mod memory;
pub mod network;
pub mod progress;
pub mod qsl;
pub mod report;
pub mod run;
pub mod settings;
pub mod sut;
pub mod tokens;
pub mod verify;
pub mod warm_up;
pub mod watchdog;
