//! The commands of the programs: `qdl submit`, and `describe` of both.

mod describe;
mod submit;

pub use describe::{AskAll, DescribeArgs, NodeAnswer, describe};
pub use submit::{SubmitArgs, submit};
