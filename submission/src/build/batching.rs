//! Writes the page on how the accelerators batch queries, from their configurations.

use qdl::config::EngineConfig;

use crate::{configs::RunConfigs, layout::Name};

/// The page of a system.
pub(super) fn page(system: &Name, configs: &RunConfigs) -> String {
    let mut out = format!(
        "# How {system} batches queries\n\nThe frontend batches nothing: each sample is a message of \
         its own, as LoadGen issues it. Batching is the accelerators'.\n\n"
    );
    for (node, config) in &configs.accelerators {
        out += &format!("* {node}: {}\n", sentence(&config.engine));
    }
    out
}

fn sentence(engine: &EngineConfig) -> String {
    let kind = engine.kind.as_str();
    if engine.kind.streams() {
        return format!(
            "engine `{kind}` batches continuously: a query joins the running batch at the next step, \
             and leaves it with its last token"
        );
    }
    let (most, wait, workers) = (engine.max_batch, engine.max_delay_us, engine.workers());
    format!(
        "engine `{kind}` runs batches of at most {most} samples on {workers} threads. An idle engine \
         takes the samples that are there; while it is busy, a sample waits at most {wait} us"
    )
}
