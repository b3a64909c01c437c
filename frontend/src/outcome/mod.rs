//! What a run came to: LoadGen's result, the reasons, the record, the time line.

pub mod meter;
pub mod phases;
pub mod reasons;
pub mod report;
pub mod result;
pub mod timeline;
