//! Builds a submission tree out of run folders, and checks it and its runs against a round's rules.
//!
//! The crate reads LoadGen's logs (`loadgen-log`) and writes JSON, Markdown and SVG. From `qdl` it
//! uses the topology, wire types and the configurations' parser. Files in `configs/rounds` hold
//! what differs by round. `rules::ALL` lists all rules of a tree, and `docs/rules.md` explains
//! them.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`round`] | one round's models, limits, seeds, counts and tests |
//! | [`manifest`] | a run's manifest beside LoadGen's logs, and copies of the run's files |
//! | [`guard`] | checks of a run before it is measured |
//! | `describe` | the submitter's form, the system's JSON, the diagram, pages on machines |
//! | `layout` | paths in a tree |
//! | `configs` | the nodes' configurations, as the programs read them |
//! | `build` | copies runs into a tree |
//! | `official` | MLCommons' scripts, from the user's checkout |
//! | `rules` | checks of a finished tree |
//! | `table` | findings as text for the terminal |
//! | [`endpoints`] | drafts for MLPerf Endpoints, and the call of its checker |
//! | [`command`] | `submit` and `describe` |

mod build;
pub mod command;
mod configs;
mod describe;
pub mod endpoints;
mod error;
pub mod guard;
mod layout;
pub mod manifest;
mod official;
pub mod round;
mod rules;
mod table;

pub use error::Error;
pub use layout::Name;
