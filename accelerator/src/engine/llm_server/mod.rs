//! Shared parts of the engines that use a language model's server, over HTTP (`http`) or ZeroMQ
//! (`vllm`).

mod account;
mod http;
mod vllm;

pub use http::Http;
#[cfg(feature = "testkit")]
pub use http::fuzz_server_events;
pub use vllm::{ModelFolder, Vllm};
