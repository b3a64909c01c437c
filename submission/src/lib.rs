//! From runs to the folder that is handed in: what a round asks for, what a run leaves behind, what
//! a machine is, and whether all of it counts.
//!
//! It reads LoadGen's logs (`loadgen-log`) and writes JSON, Markdown and SVG; of `qdl` it knows the
//! topology alone. What depends on the round is data (`configs/rounds`), what the rules say is one
//! list ([`rules::ALL`]), which `docs/rules.md` explains.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`round`] | one round's models, limits, seeds, counts and tests |
//! | [`left`] | what a run leaves behind beside them: who ran what, with which files |
//! | [`guard`] | whether a run would count, before it is measured |
//! | [`describe`] | a machine, the form for what no machine knows, the system's JSON, the diagram |
//! | [`layout`] | where everything lies in the tree |
//! | [`build`] | runs into a tree |
//! | [`official`] | MLCommons' own scripts, from the user's checkout |
//! | [`explain`] | the official checker's complaints beside our own findings |
//! | [`rehearsal`] | what a rehearsal cannot have |
//! | [`rules`] | what a tree must keep to, and what of it a tree does not |
//! | [`table`] | findings for people |
//! | [`command`] | `submit` and `describe` |

pub mod build;
pub mod command;
pub mod describe;
mod error;
pub mod explain;
pub mod guard;
pub mod layout;
pub mod left;
pub mod official;
pub mod rehearsal;
pub mod round;
pub mod rules;
pub mod table;

pub use error::Error;
