//! The outcome of a run: LoadGen's result, the reasons for INVALID, the summary, the timeline.

pub mod reasons;
pub mod report;
pub mod result;
pub mod timeline;
