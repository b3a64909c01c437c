//! `frontend --config F.yaml`: connects LoadGen to accelerators over the network or, with
//! `--local`, to an engine in this process. The library lets measurement programs run LoadGen on
//! the same code.
//!
//! | module | purpose |
//! | --- | --- |
//! | `cli`, `settings` | the command line, and the resulting settings of LoadGen |
//! | `provenance`, `own_settings` | origins of LoadGen's settings, and of this node's own |
//! | `numpy` | NumPy arrays, as samples and labels |
//! | `dataset`, `qsl` | samples, and LoadGen's library of them in their send memory |
//! | `sut`, `backend` | LoadGen's system under test, over one of the backends |
//! | `network`, `local` | the backends: a cluster of accelerators, or an engine in this process |
//! | `completer`, `verify` | responses back to LoadGen, compared with their samples if requested |
//! | `tokens` | answers in tokens: their counts and errors |
//! | `run` | a run from beginning to end |
//! | `compliance` | `--compliance TEST06`: the official audit.config in the user's checkout |
//! | `check` | `--check`: the planned run and its resources |
//! | `commands` | the commands around a run, which `qdl` and this program share |
//! | `init` | `qdl init`: configurations for a model of the user |
//! | `tune` | `qdl tune`: the highest VALID rate, by many runs of this program |
//! | `progress`, `watchdog`, `interrupt`, `memory` | monitors of a run |
//! | `live` | `--live`: a page that shows the run in progress |
//! | `phases` | histograms for each of LoadGen's phases |
//! | `result`, `reasons` | LoadGen's verdict, and the reasons why a run is not valid |
//! | `accuracy`, `report`, `exit` | results: accuracy, files, exit code |
//! | `guard`, `left` | whether a submission accepts the run; the files it is made of |
//! | `describe` | `qdl describe`: this machine, or all nodes of a configuration |

pub mod accuracy;
pub mod backend;
pub mod check;
pub mod cli;
pub mod commands;
pub mod completer;
pub mod compliance;
pub mod dataset;
pub mod describe;
pub mod exit;
pub mod folder;
pub mod guard;
pub mod init;
pub mod interrupt;
pub mod left;
pub mod live;
pub mod local;
pub mod memory;
pub mod meter;
pub mod network;
pub mod numpy;
pub mod own_settings;
pub mod phases;
pub mod progress;
pub mod provenance;
pub mod qsl;
pub mod reasons;
pub mod report;
pub mod result;
pub mod run;
pub mod settings;
pub mod sut;
pub mod timeline;
pub mod tokens;
pub mod tune;
pub mod verify;
pub mod warm_up;
pub mod watchdog;
