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

#[path = "../../examples/own_engine.rs"]
mod own_engine;

#[test]
fn the_example_of_an_engine_runs_to_its_end() -> Result<(), Box<dyn std::error::Error>> {
    own_engine::main()
}
