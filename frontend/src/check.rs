//! `--check`: what would run, and what it would take. Whatever a run opens is open when this is
//! reached; here come the NICs and, with `--local`, the engine. Nothing is sent: accelerators need
//! not be there yet, and one that is at work for somebody else is left in peace.

use std::io::Write;

use loadgen_bridge::{QuerySampleLibrary, Scenario, TestMode, TestSettings};
use qdl::{
    config::{Auth, DatasetKind, EngineConfig, FrontendConfig, Verify},
    fabric::ib::locked_memory_limit,
    model::{ModelSpec, TensorSpec},
    os::available_memory,
    run::{SlotNeeds, frontend_crew},
    stats::{Page, memory},
};

use crate::{
    accuracy::names_the_class,
    cli::Args,
    exit::ExitCode,
    local,
    memory::{Estimate, SLACK, STREAM_SLACK},
    qsl::Qsl,
    settings::Settings,
};

/// Queries within the bound that Server takes at least, at its usual percentile of 99: early
/// stopping wants 99 % confidence, and ln(0.01) / ln(0.99) is 458.2 (LoadGen's
/// `early_stopping.cc`).
pub(crate) const SERVER_QUERIES: u64 = 459;

/// Opens what is left to open, and prints the page. `labels`: there are some, and they fit.
/// `uncounted`: why the run would not count in a submission, a line each.
///
/// # Errors
/// What a run would have ended with before its first sample.
pub fn check(
    args: &Args,
    config: &FrontendConfig,
    settings: &Settings,
    qsl: &Qsl,
    labels: bool,
    uncounted: impl Iterator<Item = String>,
) -> Result<ExitCode, anyhow::Error> {
    let mut page = Page::new();
    loadgen(&mut page, settings);
    for note in settings.provenance.notes() {
        page.fact("note", note);
    }
    let user_conf = args.user_conf.is_some() || config.loadgen.user_conf.is_some();
    if user_conf || settings.test.mode == TestMode::SubmissionRun {
        for line in uncounted {
            page.fact("note", format!("would not count in a submission: {line}"));
        }
    }
    model_and_data(&mut page, config, qsl, labels);
    if args.local {
        let engine = local::check(config)?;
        page.fact("engine", format!("--local: {engine}"));
        let own = config.engine.as_ref();
        let most = own.map_or(0, EngineConfig::workers);
        page.fact(
            "threads",
            format!("{most} of the engine, {}", issuing(settings)),
        );
        page.fact("memory", needed(settings, qsl, 0));
    } else {
        let needs = SlotNeeds::of(config)?;
        needs.check_node(config)?;
        network(&mut page, config, &needs);
        let nics = frontend_crew(config).threads();
        page.fact(
            "threads",
            format!(
                "{nics} of NICs, 1 of the control plane, {}",
                issuing(settings)
            ),
        );
        page.fact("memory", needed(settings, qsl, needs.frontend_bytes()));
        locked(&mut page, config, qsl, &needs);
    }
    let folder = settings.folder();
    let replaced = match folder.join(crate::report::SUMMARY_FILE).is_file() {
        true => ": files of an earlier run in it will be replaced",
        false => "",
    };
    page.fact("output", format!("{}{replaced}", folder.display()));
    page.fact(
        "checked",
        "nothing was sent and nothing measured; without --check the run begins",
    );
    if !args.quiet {
        // Nobody may be reading any more.
        let _ = write!(std::io::stdout(), "{page}");
    }
    Ok(ExitCode::Good)
}

fn loadgen(page: &mut Page, settings: &Settings) {
    let test = &settings.test;
    let mode = match test.mode {
        TestMode::PerformanceOnly => "performance",
        TestMode::AccuracyOnly => "accuracy",
        TestMode::SubmissionRun => "submission: accuracy, then performance",
        TestMode::FindPeakPerformance => "find-peak",
    };
    page.fact("scenario", format!("{}, {mode}", test.scenario));
    page.fact("loadgen", in_force(test).join(", "));
    if let Some(audit) = &settings.audit {
        let audit = audit.display();
        page.fact(
            "loadgen",
            format!("{audit} goes before all of it when the test begins"),
        );
    }
    if test.mode != TestMode::AccuracyOnly {
        page.fact("valid if", valid_if(test));
    }
}

/// LoadGen's settings that decide how long this scenario runs and what it is judged by, under
/// LoadGen's own names.
fn in_force(t: &TestSettings) -> Vec<String> {
    let mut all = match t.scenario {
        Scenario::SingleStream => vec![format!(
            "single_stream_expected_latency_ns {}",
            t.single_stream_expected_latency_ns
        )],
        Scenario::MultiStream => vec![
            format!(
                "multi_stream_expected_latency_ns {}",
                t.multi_stream_expected_latency_ns
            ),
            format!(
                "multi_stream_samples_per_query {}",
                t.multi_stream_samples_per_query
            ),
        ],
        Scenario::Server => {
            let mut all = vec![format!("server_target_qps {}", t.server_target_qps)];
            match t.use_token_latencies {
                true => {
                    all.push(format!("server_ttft_latency {}", t.server_ttft_latency));
                    all.push(format!("server_tpot_latency {}", t.server_tpot_latency));
                }
                false => all.push(format!(
                    "server_target_latency_ns {}",
                    t.server_target_latency_ns
                )),
            }
            let percentile = t.server_target_latency_percentile;
            all.push(format!("server_target_latency_percentile {percentile}"));
            all
        }
        Scenario::Offline => vec![format!("offline_expected_qps {}", t.offline_expected_qps)],
    };
    all.push(format!("min_duration_ms {}", t.min_duration_ms));
    all.push(format!("min_query_count {}", t.min_query_count));
    for (name, value) in [
        ("max_duration_ms", t.max_duration_ms),
        ("max_query_count", t.max_query_count),
    ] {
        if value > 0 {
            all.push(format!("{name} {value}"));
        }
    }
    all
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// What LoadGen will ask of the run, in figures that follow from its settings.
fn valid_if(t: &TestSettings) -> String {
    let seconds = t.min_duration_ms as f64 / 1000.0;
    let stream = |name: &str, expected_ns: f64, queries: &str| {
        let least_us = expected_ns / STREAM_SLACK / 1000.0;
        format!(
            "it has gone on for {seconds} s and {} {queries}, whatever they take from {least_us:.0} us on: where they \
             are faster, lower {name}_expected_latency_ns",
            t.min_query_count
        )
    };
    match t.scenario {
        Scenario::SingleStream => stream(
            "single_stream",
            t.single_stream_expected_latency_ns,
            "queries",
        ),
        Scenario::MultiStream => {
            let queries = format!("queries of {} samples", t.multi_stream_samples_per_query);
            stream("multi_stream", t.multi_stream_expected_latency_ns, &queries)
        }
        Scenario::Server => {
            let bound = match t.use_token_latencies {
                false => format!("within {} ms", ms(t.server_target_latency_ns)),
                true => format!(
                    "with a first token within {} ms and {} ms for each further one",
                    ms(t.server_ttft_latency),
                    ms(t.server_tpot_latency)
                ),
            };
            let share = t.server_target_latency_percentile * 100.0;
            let planned = (t.server_target_qps * seconds) as u64;
            let planned = planned.max(t.min_query_count);
            let few = match planned < SERVER_QUERIES && share >= 99.0 {
                true => format!(
                    "; WARNING: {planned} queries are too few for LoadGen's early stopping, which takes \
                     {SERVER_QUERIES} or more: raise --target-qps, --duration-s or --samples"
                ),
                false => String::new(),
            };
            format!("{share} % of about {planned} queries are answered {bound}{few}")
        }
        Scenario::Offline => {
            let by_time = (SLACK * seconds * t.offline_expected_qps) as u64;
            let samples = by_time.max(t.min_query_count);
            if t.min_duration_ms == 0 {
                return format!("its {samples} samples are answered, however fast");
            }
            let fastest = samples as f64 / seconds;
            format!(
                "its {samples} samples take {seconds} s or longer, which is {fastest:.0}/s or less: where \
                 they are faster, raise --target-qps to the samples/s that the summary shows"
            )
        }
    }
}

fn tensors(model: &ModelSpec) -> String {
    let list = |tensors: Vec<&TensorSpec>| {
        let all: Vec<_> = tensors.into_iter().map(TensorSpec::to_string).collect();
        all.join(", ")
    };
    let (inputs, outputs) = (model.inputs.iter().collect(), model.outputs().collect());
    format!("{}: {} -> {}", model.name, list(inputs), list(outputs))
}

fn model_and_data(page: &mut Page, config: &FrontendConfig, qsl: &Qsl, labels: bool) {
    page.fact("model", tensors(&config.model));
    let others = config.model.other_outputs.len();
    if others > 0 {
        let class = names_the_class(&config.model.output);
        let of = format!("{class}, which is `output`; the other outputs: {others}");
        page.fact("class", of);
    }
    let source = match (&config.dataset.samples, config.dataset.kind) {
        (Some(path), _) => path.display().to_string(),
        (None, DatasetKind::Raw | DatasetKind::Random) => "random bytes".to_owned(),
        (None, DatasetKind::Tokens) => "random tokens".to_owned(),
    };
    let most = config.model.max_input_bytes().unwrap_or(0);
    let size = match config.model.fixed_size() {
        true => format!("of {most} bytes"),
        false => format!("of up to {most} bytes"),
    };
    let (total, loaded) = (qsl.total_sample_count(), qsl.performance_sample_count());
    page.fact(
        "data",
        format!("{source}: {total} samples {size}, {loaded} loaded at a time"),
    );
    page.fact(
        "labels",
        match labels {
            true => "one for each sample: --mode accuracy gives a figure",
            false => "none: --mode accuracy writes LoadGen's log, and gives no figure",
        },
    );
    match config.verify {
        Verify::None => {}
        Verify::Digest => page.fact(
            "verify",
            "each response is compared with its sample's digest",
        ),
        Verify::Tokens => page.fact("verify", "each answer is compared with what `tokens` makes"),
    }
}

fn network(page: &mut Page, config: &FrontendConfig, needs: &SlotNeeds) {
    for accelerator in &config.accelerators {
        page.fact(
            "accelerators",
            format!("{} (not asked)", accelerator.control),
        );
    }
    page.fact(
        "token",
        match config.auth() {
            Auth::LoopbackOnly => "none, on loopback alone".to_owned(),
            Auth::None => "none: `auth: none`".to_owned(),
            Auth::Token(path) => path.display().to_string(),
        },
    );
    for nic in &needs.nics {
        page.fact(
            "nics",
            format!(
                "{} {}: {} connections to each accelerator, {} slots each",
                nic.fabric, nic.label, nic.connections, nic.slots
            ),
        );
    }
    page.fact(
        "slots",
        format!(
            "{} of {} B here, {}; on each accelerator {} of its memory_mib",
            needs.slots,
            needs.response_bytes,
            memory(needs.frontend_bytes() as u64),
            memory(needs.accelerator_bytes() as u64)
        ),
    );
}

fn issuing(settings: &Settings) -> String {
    let own = settings.test.server_num_issue_query_threads.max(1);
    format!("{own} of LoadGen that issues")
}

fn needed(settings: &Settings, qsl: &Qsl, slots: usize) -> String {
    let loaded = qsl.region().len() as u64;
    let estimate = Estimate::of(&settings.test, qsl.total(), loaded);
    let need = estimate.loadgen + loaded + slots as u64;
    let mut parts = format!(
        "{}: {} for LoadGen's {} samples, {} for loaded samples",
        memory(need),
        memory(estimate.loadgen),
        estimate.samples,
        memory(loaded),
    );
    if slots > 0 {
        parts += &format!(", {} for slots", memory(slots as u64));
    }
    match available_memory() {
        Some(free) if need > free => format!(
            "{parts}; WARNING: {} are available: shorten the run or lower performance_sample_count",
            memory(free)
        ),
        Some(free) => format!("{parts}; {} are available", memory(free)),
        None => parts,
    }
}

/// A NIC that is a device writes into locked memory.
fn locked(page: &mut Page, config: &FrontendConfig, qsl: &Qsl, needs: &SlotNeeds) {
    if config.nics.iter().all(|nic| nic.device.is_none()) {
        return;
    }
    let bytes = qsl.region().len().saturating_add(needs.frontend_bytes()) as u64;
    let limit = match locked_memory_limit() {
        Some(limit) if limit < bytes => {
            format!(
                "; WARNING: the limit is {}: raise `ulimit -l`",
                memory(limit)
            )
        }
        Some(limit) => format!("; the limit is {}", memory(limit)),
        None => "; there is no limit for this user".to_owned(),
    };
    page.fact(
        "locked",
        format!("{} of samples and slots{limit}", memory(bytes)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(scenario: Scenario) -> TestSettings {
        TestSettings {
            scenario,
            ..TestSettings::default()
        }
    }

    #[test]
    fn what_makes_a_run_invalid_is_said_in_figures() {
        let mut t = test(Scenario::Offline);
        t.min_duration_ms = 10_000;
        t.offline_expected_qps = 1000.0;
        let text = valid_if(&t);
        assert!(
            text.contains("11000 samples") && text.contains("1100/s or less"),
            "{text}"
        );
        t.min_duration_ms = 0;
        let text = valid_if(&t);
        assert!(text.contains("however fast"), "{text}");

        let mut t = test(Scenario::Server);
        let text = valid_if(&t);
        assert!(text.contains("WARNING: 100 queries are too few"), "{text}");
        t.server_target_qps = 100.0;
        let text = valid_if(&t);
        assert!(
            text.contains("99 % of about 1000") && !text.contains("WARNING"),
            "{text}"
        );

        let mut t = test(Scenario::SingleStream);
        t.single_stream_expected_latency_ns = 20_000.0;
        assert!(valid_if(&t).contains("from 10 us on"), "{}", valid_if(&t));
        let text = valid_if(&test(Scenario::MultiStream));
        assert!(text.contains("queries of 8 samples"), "{text}");
    }

    #[test]
    fn settings_in_force_are_those_of_the_scenario() {
        let mut t = test(Scenario::Server);
        t.max_query_count = 7;
        let text = in_force(&t).join(", ");
        assert!(text.starts_with("server_target_qps 1, "), "{text}");
        assert!(
            text.contains("max_query_count 7") && !text.contains("max_duration"),
            "{text}"
        );
    }
}
