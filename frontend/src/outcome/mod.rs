//! What a run came to: LoadGen's result, the reasons, the record, the time line.

pub mod reasons;
pub mod report;
pub mod result;
pub mod timeline;
