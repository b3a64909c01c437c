//! The library for programs in C and Python: `libqdl.so`, whose face is `include/qdl.h`.
//!
//! ```text
//!  frontend    program --issue--> dispatcher ==== fabric ====> accelerator
//!              program <--poll--- Events <-- NIC thread
//!  accelerator NIC thread --> Mail --arrivals--> program --respond--> the arrival's connection
//! ```
//!
//! * [`face`] has the functions of the header. Each checks its pointers, catches panics and returns
//!   a code; [`failure`] keeps the text beside it. [`types`] has the structs of the header.
//! * [`handles`] gives clusters, nodes and leases numbers ([`numbered`]): a stale one is an error.
//! * [`frontend`] and [`events`] are the frontend's side, [`accelerator`] and [`tickets`] the
//!   accelerator's.
//!
//! `docs/library.md` is the page for its users.

mod accelerator;
mod events;
pub mod face;
mod failure;
mod frontend;
mod handles;
mod numbered;
mod sources;
mod tickets;
pub mod types;
