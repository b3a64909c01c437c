//! `--local`: LoadGen, data set and engine in one process, without a network. Only the engine
//! copies inputs. Such a run is the baseline for a run over the network with the same engine.
//!
//! ```text
//! issue --> a free output slot? --yes--> pipeline --> engine --> respond --> LoadGen
//!                 \--no--> backlog <-- drawn from as slots come free --/
//! ```
//!
//! Single tokens go to the completer in parts, as over the network. Slots and backlog are the
//! dispatcher's types, so both backends account for a sample alike. An arrival's input is in the
//! QSL's memory; the output is in a slot of this backend.

mod backend;
mod part_times;

use std::{fmt::Display, sync::Arc};

use anyhow::{Context, Result, anyhow};
use engines::{
    Engine, EngineConfig, EngineParams, Hashing, describe,
    pipeline::Options,
    pipelines::{self, Pipelines},
};
use fabric::{MAX_SLOTS, Region, wire::Stream};
use frontend_config::FrontendFile;
use qdl::serve::Service;

use crate::{
    loadgen::completer::Completers,
    loadgen::exit::{ExitCode, Verdict},
};

pub use backend::LocalBackend;

use backend::{LocalParts, stride};

/// Memory for outputs, unless a single batch needs more.
const OUTPUT_BYTES: usize = 256 << 20;

/// Number of completers, and of live counters, of a local run: one for each engine thread and one
/// for the issuing thread.
pub fn completers(engine: Option<&EngineConfig>) -> usize {
    engine.map_or(0, EngineConfig::workers) + 1
}

fn engine_of(config: &FrontendFile) -> Result<(&EngineConfig, EngineParams)> {
    let engine = config.run.engine.as_ref().context(
        "--local runs the engine in this process, and the configuration has none: add `engine: \
         {kind: digest}`, or `engine: {kind: onnx}` and `model_file: PATH`",
    )?;
    let (model, file) = (&config.cluster.model, config.run.model_file.as_deref());
    Ok((
        engine,
        EngineParams::of(engine, &model.name, file, Some(model)),
    ))
}

fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("--local: {error}")
}

/// Creates the engine and loads the model, but does not run the model. Returns a description.
pub fn check(config: &FrontendFile) -> Result<String> {
    let (cfg, params) = engine_of(config)?;
    let engines = pipelines::create(&params, &cfg.all_gpus()).map_err(failed)?;
    check_model(config, cfg, engines[0].1.as_ref())?;
    Ok(describe(&params))
}

/// Creates the engine, loads the model and warms up. For an engine with single tokens, `stream`
/// selects the parts of an answer to deliver before the answer's end.
pub fn start(
    config: &FrontendFile,
    inputs: Arc<Region>,
    completers: &Completers,
    verdict: &Verdict,
    stream: Stream,
) -> Result<Arc<LocalBackend>> {
    let completed_by = self::completers(config.run.engine.as_ref());
    let (cfg, params) = engine_of(config)?;
    let hashing = Hashing::begin(&params);
    let engines = pipelines::create(&params, &cfg.all_gpus()).map_err(failed)?;
    let hashed = hashing.end().map_err(failed)?;
    let engine = engines[0].1.clone();
    if let Some(line) = hashed.line() {
        tracing::info!("{line}");
    }
    let output = check_model(config, cfg, engines[0].1.as_ref())?;

    let (batch, workers) = match engines[0].1.streaming() {
        Some(streaming) => (streaming.in_flight(), engines.len()),
        None => (cfg.max_batch, cfg.workers()),
    };
    let slots = slots(batch, workers, output);
    let mut options = Options::from(&params);
    options.queue = slots;
    let lost = verdict.clone();
    let pipelines = Pipelines::start(engines, &options, move |error| {
        // Only errors after the start: errors of creation and warm-up are return values.
        lost.fail(ExitCode::Lost, format!("engine: {error}"));
    })
    .map_err(failed)?;
    // Ask after the start: the engine learns some of this information during the start.
    let info = hashed.info(engine.as_ref());
    if let Some(w) = pipelines.warm_up() {
        let (cold, warm) = (w.cold_us, w.warm_us);
        tracing::info!("engine warm: first sample {cold} us cold, {warm} us warm");
    }
    if let Some((ms, sequences)) = pipelines.sequences() {
        tracing::info!("engine started in {ms} ms: up to {sequences} sequences at once");
    }
    pipelines.memory(&inputs);
    let backend = LocalBackend::new(LocalParts {
        node: config.cluster.node.clone(),
        model: config.cluster.model.name.clone(),
        info,
        pipelines,
        inputs,
        slots,
        output,
        stream,
        completers: completers.clone(),
        threads: completed_by,
        verdict: verdict.clone(),
    });
    backend.map_err(|e| anyhow!("--local, outputs: {e}"))
}

/// Returns the size of the largest output, in bytes. Error: the engine does not run the configured
/// model.
fn check_model(config: &FrontendFile, cfg: &EngineConfig, engine: &dyn Engine) -> Result<usize> {
    let engine_bytes = engine.model().max_output_bytes().unwrap_or(0);
    if !cfg.kind.takes_any_bytes() {
        config
            .cluster
            .model
            .check_against(engine.model())
            .map_err(|e| {
                let owner = format!("engine `{}`", engine.name());
                failed(e.between("the configuration", &owner))
            })?;
        return Ok(engine_bytes);
    }
    let model_bytes = config.cluster.model.max_output_bytes().unwrap_or(0);
    if engine_bytes != model_bytes {
        return Err(failed(format!(
            "engine `{}` answers with {engine_bytes} bytes, the model's output in the \
             configuration has {model_bytes}",
            cfg.kind.as_str()
        )));
    }
    Ok(engine_bytes)
}

/// Number of output slots: four batches for each of the engine's `threads`, or fewer, at least two,
/// to fit in [`OUTPUT_BYTES`].
fn slots(max_batch: usize, threads: usize, output: usize) -> usize {
    let threads = threads.max(1);
    let wanted = max_batch.saturating_mul(4 * threads).max(1024);
    let least = max_batch.saturating_mul(2 * threads);
    let fit = OUTPUT_BYTES / stride(output);
    wanted.min(fit.max(least)).min(MAX_SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_for_whole_batches_within_memory() {
        assert_eq!(slots(64, 2, 8), 1024);
        assert_eq!(slots(512, 2, 8), 4096);
        assert_eq!(slots(65_536, 1, 8), MAX_SLOTS);
        assert_eq!(slots(16, 1, 64 << 20), 32);
        assert_eq!(stride(0), 64);
        assert_eq!(stride(65), 128);
    }
}
