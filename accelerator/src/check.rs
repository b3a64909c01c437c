//! Builds the page of `accelerator --check`: the served model and the resources it takes.
//!
//! At this point the model is loaded and has run once, and every port and device is open. The node
//! does not serve, so no frontend gets an answer.

use fabric::{ib::locked_memory_limit, os::available_memory};
use qdl::{
    config::{AcceleratorConfig, Auth, NicConfig},
    model::{ModelSpec, TensorSpec},
    run::{accelerator_crew, request_stride, response_stride},
};
use report::text::{Page, memory};

use crate::{node::Accelerator, pipeline::WarmUp};

/// The facts of the check, as a page.
pub fn page(config: &AcceleratorConfig, accelerator: &Accelerator) -> Page {
    let mut page = Page::default();
    page.fact("node", &config.node);
    let model = &accelerator.model;
    page.fact("model", tensors(model));
    page.fact("engine", &accelerator.engine);
    if let Some(WarmUp { cold_us, warm_us }) = accelerator.pipelines.warm_up() {
        let [cold, warm] = [cold_us, warm_us].map(|us| report::text::time_us(us as f64));
        let times = format!("a sample of zeros took {cold} cold and {warm} warm, alone");
        page.fact("engine", times);
    }
    if let Some((ms, sequences)) = accelerator.pipelines.sequences() {
        page.fact(
            "engine",
            format!("started in {ms} ms, {sequences} sequences at once"),
        );
    }
    page.fact("control", config.control.listen.to_string());
    page.fact("token", token(config.auth()));
    for nic in &config.nics {
        let facts = nic.facts();
        let any = match facts.listen {
            Some(at) if at.port() == 0 => ", a port of the system's choice",
            _ => "",
        };
        page.fact("nics", format!("{} {}{any}", facts.fabric, facts.label));
    }
    let request = request_stride(model).unwrap_or(usize::MAX);
    let response = response_stride(model).unwrap_or(usize::MAX);
    let slot = request.saturating_add(response);
    let auto = NicConfig::default().resolve_slots(request.max(response));
    page.fact(
        "slots",
        format!(
            "of {request} B and {response} B; how many, the frontend says: its default is {auto}, {} for each connection",
            memory(slot.saturating_mul(auto) as u64)
        ),
    );
    page.fact("memory", budget(config, slot));
    if config.nics.iter().any(|n| n.facts().locks_memory) {
        let bytes = config.memory() as u64;
        page.fact("locked", locked(bytes, "slots (memory_mib)"));
    }
    let engine = match accelerator.pipelines.runs_inline() {
        true => "none of the engine, which answers on them".to_owned(),
        false => format!("{} of the engine", config.engine.workers()),
    };
    page.fact(
        "threads",
        format!(
            "{} of NICs, {engine}, 1 of the control plane",
            accelerator_crew(config).threads()
        ),
    );
    if let Some(warning) = config.engine.too_many_threads() {
        page.fact("threads", warning);
    }
    page.fact(
        "checked",
        "nobody was served; without --check it waits for a frontend",
    );
    page
}

/// Names a model with its inputs and outputs.
pub fn tensors(model: &ModelSpec) -> String {
    let list = |tensors: &mut dyn Iterator<Item = &TensorSpec>| {
        let all: Vec<_> = tensors.map(TensorSpec::to_string).collect();
        all.join(", ")
    };
    let (inputs, outputs) = (list(&mut model.inputs.iter()), list(&mut model.outputs()));
    format!("{}: {inputs} -> {outputs}", model.name)
}

/// Names the source of the session token.
pub fn token(auth: Auth<'_>) -> String {
    match auth {
        Auth::LoopbackOnly => "none, on loopback alone".to_owned(),
        Auth::None => "none: `auth: none`".to_owned(),
        Auth::Token(path) => path.display().to_string(),
    }
}

/// Compares `bytes` of locked memory, of `what`, with the limit of this user.
pub fn locked(bytes: u64, what: &str) -> String {
    let limit = match locked_memory_limit() {
        Some(limit) if limit < bytes => {
            format!("WARNING: the limit is {}: raise `ulimit -l`", memory(limit))
        }
        Some(limit) => format!("the limit is {}", memory(limit)),
        None => "there is no limit for this user".to_owned(),
    };
    format!("{} of {what}; {limit}", memory(bytes))
}

/// The fact about the memory budget. `slot`: bytes of a request and its response.
fn budget(config: &AcceleratorConfig, slot: usize) -> String {
    let budget = config.memory() as u64;
    let text = match config.memory() / slot.max(1) {
        0 => format!(
            "WARNING: up to {} for slots (memory_mib), and one takes {}: raise memory_mib",
            memory(budget),
            memory(slot as u64)
        ),
        slots => format!(
            "up to {} for slots (memory_mib), which holds {slots} on all connections together",
            memory(budget)
        ),
    };
    match available_memory() {
        Some(free) if free < budget => {
            format!("{text}; {} are available", memory(free))
        }
        _ => text,
    }
}
