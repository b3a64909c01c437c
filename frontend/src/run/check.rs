//! `--check`: prints the planned run and its resources. The caller has opened the files of the run;
//! this module opens the NICs or, with `--local`, the engine. `--check` sends nothing, so
//! accelerators may be absent, and busy accelerators are not disturbed.

use engines::EngineConfig;
use fabric::os::available_memory;
use frontend_config::{DatasetKind, FrontendFile, Verify};
use loadgen_bridge::{Plan, Queries, QuerySampleLibrary, Scenario, TestMode, TestSettings};
use qdl::run::{SlotNeeds, frontend_crew};
use record::{GivenValue, SettingRecord};
use view::{Page, counted, memory};

use crate::{
    accuracy::names_the_class,
    backend::local,
    loadgen::exit::ExitCode,
    loadgen::qsl::Qsl,
    run::{folder, memory::Estimate},
    settings::{Settings, cli::Args},
};

/// Minimum number of Server queries within the latency bound at the usual percentile of 99. Early
/// stopping wants 99 % confidence, and ln(0.01) / ln(0.99) is 458.2 (LoadGen's
/// `early_stopping.cc`).
pub const SERVER_QUERIES: u64 = 459;

/// The run that a check describes.
pub struct PlannedCheck<'a> {
    pub config: &'a FrontendFile,
    pub settings: &'a Settings,
    pub plan: &'a Plan,
    pub qsl: &'a Qsl,
    /// True if the data set has labels.
    pub labels: bool,
    /// Reasons why a submission would reject the run, one per line.
    pub uncounted: Vec<String>,
    /// All settings, with their origins.
    pub records: Vec<SettingRecord>,
}

/// Opens the NICs or the engine, and prints the page.
pub fn check(args: &Args, planned: &PlannedCheck<'_>) -> Result<ExitCode, anyhow::Error> {
    let PlannedCheck {
        config,
        settings,
        plan,
        qsl,
        ..
    } = planned;
    let loaded = qsl.region().len() as u64;
    let estimate = Estimate::of(plan, settings.runs.scenario, loaded);
    let mut page = Page::default();
    loadgen(&mut page, settings, plan);
    for note in settings.provenance.notes() {
        page.fact("note", note);
    }
    if settings.user_conf.is_some() || settings.runs.mode == TestMode::SubmissionRun {
        for line in &planned.uncounted {
            page.fact("note", format!("would not count in a submission: {line}"));
        }
    }
    let set = planned.records.iter().filter(|s| s.is_set());
    for (name, setting) in report::setting_rows(set) {
        let GivenValue { value, from } = &setting.given;
        page.fact("settings", format!("{name} {value} ({from})"));
    }
    model_and_data(&mut page, config, qsl, planned.labels);
    if args.local {
        let engine = local::check(config)?;
        page.fact("engine", format!("--local: {engine}"));
        let own = config.run.engine.as_ref();
        let most = own.map_or(0, EngineConfig::workers);
        let issuing = issuing(settings);
        page.fact("threads", format!("{most} of the engine, {issuing}"));
        if let Some(warning) = own.and_then(EngineConfig::too_many_threads) {
            page.fact("threads", warning);
        }
        page.fact("memory", estimate.line(0, available_memory()));
    } else {
        let needs = SlotNeeds::of(&config.cluster)?;
        needs.check_node(&config.cluster)?;
        network(&mut page, config, &needs);
        let nics = frontend_crew(&config.cluster).threads();
        let issuing = issuing(settings);
        let threads = format!("{nics} of NICs, 1 of the control plane, {issuing}");
        page.fact("threads", threads);
        let slots = needs.frontend_bytes() as u64;
        page.fact("memory", estimate.line(slots, available_memory()));
        locked(&mut page, config, qsl, &needs);
    }
    folder::check(settings, args.force)?;
    page.fact("output", settings.folder().display().to_string());
    page.fact(
        "checked",
        "nothing was sent and nothing measured; without --check the run begins",
    );
    page.print(args.json, args.screen.quiet);
    Ok(ExitCode::Good)
}

fn loadgen(page: &mut Page, settings: &Settings, plan: &Plan) {
    let test = &settings.runs;
    let mode = match test.mode {
        TestMode::PerformanceOnly => "performance",
        TestMode::AccuracyOnly => "accuracy",
        TestMode::SubmissionRun => "submission: accuracy, then performance",
        TestMode::FindPeakPerformance => "find-peak",
    };
    page.fact("scenario", format!("{}, {mode}", test.scenario));
    let made = |queries: Queries, mode: &str| {
        let (count, samples) = (queries.count, queries.samples);
        let about = if queries.exact { "" } else { "about " };
        format!("{about}{count} of {samples} samples in all, made before {mode}")
    };
    if let Some(queries) = plan.accuracy {
        page.fact("queries", made(queries, "accuracy"));
    }
    if let Some(queries) = plan.performance {
        page.fact("queries", made(queries, "performance"));
        let condition = match settings.own_length {
            false => valid_if(test, plan, queries),
            true => "its validity is not asked: audit.config sets how long it is; exit code 0 if \
                     its own data are complete"
                .to_owned(),
        };
        page.fact("valid if", condition + &cut_short(test, plan, queries));
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// LoadGen's condition for VALID, in numbers; LoadGen makes the queries `made` before the run.
fn valid_if(t: &TestSettings, plan: &Plan, made: Queries) -> String {
    let e = &plan.effective;
    let seconds = e.min_duration_ms as f64 / 1000.0;
    match t.scenario {
        Scenario::SingleStream | Scenario::MultiStream => {
            let least = e.min_query_count;
            let queries = match t.scenario {
                Scenario::MultiStream => format!("queries of {} samples", e.samples_per_query),
                _ => "queries".to_owned(),
            };
            let least_us = seconds * 1e6 / made.count.max(1) as f64;
            format!(
                "it has gone on for {seconds} s and {least} {queries}, whatever they take from \
                 {least_us:.0} us on: where they are faster, raise --target-qps"
            )
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
            let share = (e.target_latency_percentile * 1e9).round() / 1e7;
            let planned = made.count;
            let few = match planned < SERVER_QUERIES && share >= 99.0 {
                true => format!(
                    "; WARNING: {planned} queries are too few for LoadGen's early stopping, which takes \
                     {SERVER_QUERIES} or more: raise --target-qps, --duration-s or --samples"
                ),
                false => String::new(),
            };
            format!("{share} % of {planned} queries are answered {bound}{few}")
        }
        Scenario::Offline => {
            let samples = made.samples;
            if e.min_duration_ms == 0 {
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

/// A warning if a maximum ends the run before its minimum: LoadGen then logs an error.
fn cut_short(t: &TestSettings, plan: &Plan, made: Queries) -> String {
    let e = &plan.effective;
    let least = match t.scenario {
        // Offline issues one query, which no maximum cuts short.
        Scenario::Offline => return String::new(),
        Scenario::Server => made.count,
        Scenario::SingleStream | Scenario::MultiStream => e.min_query_count,
    };
    let short = |most: u64, least: u64| most > 0 && most < least;
    // In Server, LoadGen logs the error also at the last query.
    let server = u64::from(t.scenario == Scenario::Server);
    let (most, most_ms) = (e.max_query_count, e.max_duration_ms);
    if short(most, least + server) {
        return format!(
            "; WARNING: max_query_count {most} ends the run with an error at query {most} of \
             {least}: raise it above that, or leave it out"
        );
    }
    if short(most_ms, e.min_duration_ms) {
        let least = e.min_duration_ms;
        return format!(
            "; WARNING: max_duration_ms {most_ms} ends the run with an error before \
             min_duration_ms {least}: raise it above that, or leave it out"
        );
    }
    String::new()
}

fn model_and_data(page: &mut Page, config: &FrontendFile, qsl: &Qsl, labels: bool) {
    page.fact("model", program::check::tensors(&config.cluster.model));
    let others = config.cluster.model.other_outputs.len();
    if others > 0 {
        let class = names_the_class(&config.cluster.model.output);
        let of = format!("{class}, which is `output`; the other outputs: {others}");
        page.fact("class", of);
    }
    let source = match (&config.run.dataset.samples, config.run.dataset.kind) {
        (Some(path), _) => path.display().to_string(),
        (None, DatasetKind::Raw | DatasetKind::Random) => "random bytes".to_owned(),
        (None, DatasetKind::Tokens) => "random tokens".to_owned(),
    };
    let most = config.cluster.model.max_input_bytes().unwrap_or(0);
    let size = match config.cluster.model.fixed_size() {
        true => format!("of {most} bytes"),
        false => format!("of up to {most} bytes"),
    };
    let (total, loaded) = (qsl.total_sample_count(), qsl.performance_sample_count());
    let data = format!("{source}: {total} samples {size}, {loaded} loaded at a time");
    page.fact("data", data);
    let labels = match labels {
        true => "one for each sample: --mode accuracy gives a figure",
        false => "none: --mode accuracy writes LoadGen's log, and gives no figure",
    };
    page.fact("labels", labels);
    let verify = match config.run.verify {
        Verify::None => return,
        Verify::Digest => "each response is compared with its sample's digest",
        Verify::Tokens => "each answer is compared with what `tokens` makes",
    };
    page.fact("verify", verify);
}

fn network(page: &mut Page, config: &FrontendFile, needs: &SlotNeeds) {
    for accelerator in &config.cluster.accelerators {
        let control = &accelerator.control;
        page.fact("accelerators", format!("{control} (not asked)"));
    }
    page.fact("token", program::check::token(config.cluster.auth()));
    for (nic, slots) in config.cluster.nics.iter().zip(&needs.nic_slots) {
        let nic = nic.facts();
        let line = format!(
            "{} {}: {} to each accelerator, {slots} slots each",
            nic.fabric,
            nic.label,
            counted(nic.connections as u64, "connection")
        );
        page.fact("nics", line);
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
    let own = settings.runs.server_num_issue_query_threads.max(1);
    format!("{own} of LoadGen that issues")
}

/// Reports the locked memory that NICs need, against the limit of this user.
fn locked(page: &mut Page, config: &FrontendFile, qsl: &Qsl, needs: &SlotNeeds) {
    if !config.cluster.nics.iter().any(|n| n.facts().locks_memory) {
        return;
    }
    let bytes = qsl.region().len().saturating_add(needs.frontend_bytes()) as u64;
    page.fact("locked", program::check::locked(bytes, "samples and slots"));
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;

    use super::*;

    fn test(scenario: Scenario) -> TestSettings {
        TestSettings {
            scenario,
            ..TestSettings::default()
        }
    }

    /// The condition for VALID of 500 samples, with the warning if a maximum cuts the run short.
    fn asked(t: &TestSettings) -> String {
        let plan = Plan::of(t, 500, 500).expect("sound");
        let made = plan.performance.expect("a performance run");
        valid_if(t, &plan, made) + &cut_short(t, &plan, made)
    }

    #[test]
    fn what_makes_a_run_invalid_is_said_in_figures() {
        let mut t = test(Scenario::Offline);
        t.offline_expected_qps = 1000.0;
        assert_has(&asked(&t), &["11000 samples", "1100/s or less"]);
        t.sample_concatenate_permutation = true;
        t.offline_expected_qps = 1001.0;
        assert_has(&asked(&t), &["11500 samples", "1150/s or less"]);
        t.min_duration_ms = 0;
        assert_has(&asked(&t), &["500 samples are answered, however fast"]);

        let mut t = test(Scenario::Server);
        assert_has(&asked(&t), &["WARNING: 100 queries are too few"]);
        t.sample_concatenate_permutation = true;
        assert_has(&asked(&t), &["99 % of 500 queries"]);
        t.max_query_count = 500;
        assert_has(
            &asked(&t),
            &["max_query_count 500 ends the run with an error"],
        );

        let mut t = test(Scenario::SingleStream);
        t.single_stream_expected_latency_ns = 20_000.0;
        assert_has(&asked(&t), &["from 10 us on"]);
        t.sample_concatenate_permutation = true;
        (t.min_duration_ms, t.max_query_count) = (1, 100);
        assert_has(&asked(&t), &["and 500 queries", "max_query_count 100 ends"]);
        t.max_query_count = 0;
        assert!(!asked(&t).contains("WARNING"), "{}", asked(&t));
        let text = asked(&test(Scenario::MultiStream));
        assert_has(&text, &["queries of 8 samples"]);
    }
}
