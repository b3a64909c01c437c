//! Builds the page of `accelerator --check`: the served model and the resources it takes.
//!
//! At this point the model is loaded and has run once, and every port and device is open. The node
//! does not serve, so no frontend gets an answer.

use engines::{EngineConfig, pipeline::WarmUp};
use fabric::os::available_memory;
use program::check::{locked, tensors, token};
use qdl::{
    config::{AcceleratorConfig, NicConfig},
    run::{accelerator_crew, request_stride, response_stride},
};
use view::{Page, memory};

use crate::node::Accelerator;

/// The facts of the check, as a page.
pub fn page(config: &AcceleratorConfig, engine: &EngineConfig, accelerator: &Accelerator) -> Page {
    let mut page = Page::default();
    page.fact("node", &config.node);
    let model = &accelerator.model;
    page.fact("model", tensors(model));
    page.fact("engine", &accelerator.engine);
    if let Some(WarmUp { cold_us, warm_us }) = accelerator.pipelines.warm_up() {
        let [cold, warm] = [cold_us, warm_us].map(|us| view::time_us(us as f64));
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
    let workers = match accelerator.pipelines.runs_inline() {
        true => "none of the engine, which answers on them".to_owned(),
        false => format!("{} of the engine", engine.workers()),
    };
    page.fact(
        "threads",
        format!(
            "{} of NICs, {workers}, 1 of the control plane",
            accelerator_crew(config).threads()
        ),
    );
    if let Some(warning) = engine.too_many_threads() {
        page.fact("threads", warning);
    }
    page.fact(
        "checked",
        "nobody was served; without --check it waits for a frontend",
    );
    page
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
