//! The commands `qdl submit` and `qdl describe`.

mod describe;
mod submit;

pub use describe::{AskAll, DescribeArgs, NodeAnswer, describe};
pub use submit::{SubmitArgs, submit};
