//! Checks LoadGen's latency limits and the measured latencies.

use super::*;

const NS_PER_MS: u64 = 1_000_000;

/// Checks early stopping, limits and latencies of a run.
pub(super) fn check(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran, detail: &Detail) {
    let at = layout::run_folder(&result.folder, &ran.run).join(loadgen_log::DETAIL);
    let make = command(look, result, &ran.run);
    // Verifiers, not latencies, judge most tests' runs.
    let own = run::is_measured(look, ran);
    let mut say = |rule, what: String| look.say_make(rule, &at, what, make.clone());
    let scenario = &*result.place.scenario;
    let judged = ["Server", "Interactive", "SingleStream", "MultiStream"].contains(&scenario);
    if own && judged && detail.flag("early_stopping_met") != Some(true) {
        let why = detail.text("early_stopping_result");
        say(
            RUN_EARLY,
            format!("early stopping is not met {why}")
                .trim_end()
                .to_owned(),
        );
    }
    let Some(limits) = result.model.limits.get(scenario) else {
        return;
    };
    let told = [
        (
            limits.ttft_ms,
            "requested_server_ttft_latency",
            "to the first token",
        ),
        (
            limits.tpot_ms,
            "requested_server_tpot_latency",
            "to each other token",
        ),
        (
            limits.latency_ms,
            "effective_target_latency_ns",
            "to the answer",
        ),
    ];
    for (limit, key, what) in told {
        let Some(limit) = limit else { continue };
        let found = detail.whole(key);
        if found.is_none_or(|ns| ns > limit.saturating_mul(NS_PER_MS)) {
            let found = found.map_or("none".to_owned(), ms);
            say(
                RUN_LIMITS,
                format!("LoadGen's limit {what} is {found}, {scenario}'s {limit} ms"),
            );
        }
    }
    let measured = [
        (
            limits.ttft_ms,
            "result_first_token_99.00_percentile_latency_ns",
            "first tokens",
        ),
        (
            limits.tpot_ms,
            "result_time_per_output_token_99.00_percentile_ns",
            "other tokens",
        ),
        (
            limits.latency_ms,
            "result_99.00_percentile_latency_ns",
            "answers",
        ),
    ];
    for (limit, key, what) in measured {
        let Some(limit) = limit.filter(|_| own) else {
            continue;
        };
        let found = detail.whole(key);
        if found.is_none_or(|ns| ns >= limit.saturating_mul(NS_PER_MS)) {
            let found = found.map_or("no time is logged".to_owned(), |ns| {
                format!("{} at p99", ms(ns))
            });
            say(
                RUN_LATENCY,
                format!("{what}: {found}; {scenario} allows {limit} ms"),
            );
        }
    }
}

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / NS_PER_MS as f64)
}
