//! Shared parts of the engines that use a language model's server, over HTTP (`http`) or ZeroMQ
//! (`vllm`).

mod account;

pub(super) use account::{Account, Finish, Limits, uncounted};
