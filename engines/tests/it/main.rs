//! The engines and their pipelines through the public interface.

#[path = "../common/mod.rs"]
mod common;

mod aoti;
mod llm;
mod onnx;
mod pipeline;
mod pipelines;
mod sequence;
mod streaming;
