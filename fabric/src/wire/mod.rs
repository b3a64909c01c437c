//! Small types that the two ends of a connection exchange.
//!
//! | type | meaning |
//! | --- | --- |
//! | [`MAX_SLOTS`] | most slots of a window, bounded by the immediate's layout |
//! | [`IbEnd`] | one end of a queue pair: number, address, region |
//! | [`OfiEnd`] | one end of a libfabric connection |
//! | [`Stream`] | when the tokens of an answer leave the accelerator |
//! | [`DATA_MAGIC`], [`is_control_frame`] | the first bytes of each plane |

mod ib_end;
mod ofi_end;
mod planes;
mod stream;

pub use ib_end::{IbEnd, IbRegion};
pub use ofi_end::{OfiEnd, OfiForm, OfiRegion};
pub use planes::{DATA_MAGIC, is_control_frame};
pub use stream::Stream;

/// Most slots of a window.
pub const MAX_SLOTS: usize = 8192;
