//! libfabric, found at run time.
//!
//! Nothing is linked: a program with this crate starts on a machine that has no libfabric, and says
//! so only when one of its providers is asked for. It is always the system's library, since a
//! second copy in one process can take a device from the first. Two layers, kept apart:
//!
//! * [`raw`] - the ABI: structures, constants, a table of functions, in libfabric's own names
//! * [`safe`] - what the rest of the project uses: [`Ofi`] -> [`Info`] -> [`Domain`] -> [`Mr`],
//!   [`Endpoint`]. Each object keeps alive what it stands on, so nothing can be destroyed under its
//!   user
//!
//! # What is safe here, and what is promised by whom
//!
//! A provider writes into a window whenever the peer pleases, outside of any borrow, and reads what
//! is being sent until it says that it has. So memory never becomes a Rust reference here: the
//! owner promises ([`Memory`]'s contract) that it stays mapped for as long as somebody keeps it,
//! and an [`Endpoint`] keeps everything that its operations may touch until it is closed. Closing
//! it is the one thing after which a provider touches nothing: closing a region alone lets a write
//! that has begun go on (measured with `tcp`: `docs/ofi.md`).

pub mod raw;
pub mod safe;

mod error;

pub use error::{Error, OpError};
pub use safe::*;
