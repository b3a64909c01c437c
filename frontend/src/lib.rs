//! `frontend --config F.yaml`: LoadGen on one side, the
//! network (or, with `--local`, an engine) on the other. A library too, so that measurements put
//! LoadGen before the same code.
//!
//! | file | what it is for |
//! | --- | --- |
//! | `cli`, `settings` | the command line, and what LoadGen is told in the end |
//! | `provenance`, `own_settings` | where LoadGen's settings, and this node's own, came from |
//! | `numpy` | arrays of NumPy's, as samples and labels |
//! | `dataset`, `qsl` | samples, and LoadGen's library of them in the memory they are sent from |
//! | `sut`, `backend` | LoadGen's system under test, over whatever stands behind it |
//! | `network`, `local` | behind it: a cluster of accelerators, or an engine in this process |
//! | `completer`, `verify` | responses back to LoadGen, compared with their samples if asked |
//! | `tokens` | answers in tokens: who counts them, and what is wrong with them |
//! | `run` | a run from beginning to end |
//! | `compliance` | `--compliance TEST06`: the official audit.config in the user's checkout |
//! | `check` | `--check`: what would run, and what it takes |
//! | `commands` | the commands around a run, which `qdl` and this program share |
//! | `init` | `qdl init`: configurations for a model of one's own |
//! | `tune` | `qdl tune`: the highest rate that is VALID, by many runs of this program |
//! | `progress`, `watchdog`, `interrupt`, `memory` | what is watched meanwhile |
//! | `live` | `--live`: a run looked at while it goes on |
//! | `phases` | histograms for each of LoadGen's phases |
//! | `result`, `reasons` | what it came to in LoadGen's words, and why it is not valid |
//! | `accuracy`, `report`, `exit` | what it came to |
//! | `guard`, `left` | whether a run would count in a submission; what else one is made of |
//! | `describe` | `qdl describe`: this machine, or all of a configuration |

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
