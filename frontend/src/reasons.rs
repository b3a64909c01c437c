//! Why LoadGen's result is not valid, in words that name the setting that would have to change.

use loadgen_bridge::{Scenario, TestOutcome, Verdict};
use qdl::stats::{EarlyStopping, LimitRecord, LimitUnit, LoadgenRecord};

/// So long an Offline run shows its rate, in microseconds; half of its shortest duration does too.
const SURE_US: f64 = 1e6;

/// Why a run is not valid, each with the setting that would have to change; then LoadGen's errors.
pub fn reasons(outcome: &TestOutcome, l: &LoadgenRecord) -> Vec<String> {
    let mut all = Vec::new();
    if outcome.verdict == Verdict::Invalid {
        all.extend(l.limits.iter().filter(|limit| !limit.met).map(|limit| {
            if limit.at_most {
                too_slow(limit, l)
            } else {
                too_little(limit, outcome, l)
            }
        }));
        all.extend(
            l.early_stopping
                .as_ref()
                .and_then(|early| not_sure(early, l)),
        );
        if all.is_empty() {
            // A reason that is new to us: LoadGen's own words.
            all.clone_from(&l.reasons);
        }
    }
    let errors = outcome.detail.error_messages.iter();
    all.extend(errors.map(|m| format!("LoadGen logged an error: {m}")));
    all
}

/// A bound on latency that was not kept.
fn too_slow(limit: &LimitRecord, l: &LoadgenRecord) -> String {
    let was = limit.was.map_or_else(|| "more".to_owned(), ms);
    let target = target_qps(l).map_or_else(String::new, |qps| format!(", now {qps}"));
    let done = match (l.scheduled_per_s, l.completed_per_s) {
        (Some(scheduled), Some(completed)) if completed < 0.95 * scheduled => format!(
            ": {} samples/s of {} were completed",
            shortly(completed),
            shortly(scheduled)
        ),
        _ => String::new(),
    };
    format!(
        "{} was {was} of at most {}{done}; lower --target-qps{target}, or raise {}",
        limit.name,
        ms(limit.limit),
        limit.setting
    )
}

/// A run that was too short.
fn too_little(limit: &LimitRecord, outcome: &TestOutcome, l: &LoadgenRecord) -> String {
    let amount = |n: f64| match limit.unit {
        LimitUnit::Us => ms(n),
        LimitUnit::Queries => format!("{n:.0} queries"),
        LimitUnit::Samples => format!("{n:.0} samples"),
    };
    let asked = amount(limit.limit);
    let what = match limit.was {
        Some(was) => format!("{} was {} of at least {asked}", limit.name, amount(was)),
        None => format!("{} was below {asked}", limit.name),
    };
    let effective = |name: &str| {
        outcome
            .detail
            .number(&format!("effective_{name}"))
            .filter(|n| *n > 0.0)
    };
    // What ends a run before it is long enough.
    let cut = [
        ("max_duration_ms", effective("max_duration_ms")),
        ("max_query_count", effective("max_query_count")),
    ];
    let cut = cut.iter().find_map(|(name, value)| Some((name, (*value)?)));
    if let Some((name, value)) = cut {
        return format!(
            "{what}; {name}, {value}, ended the run: raise it, or lower {}",
            limit.setting
        );
    }
    let scenario = outcome.detail.scenario();
    if limit.unit != LimitUnit::Us {
        return format!(
            "{what}; lower {} (--samples), or see LoadGen's errors",
            limit.setting
        );
    }
    let offline = || {
        let rate = l.completed_per_s?;
        let now = target_qps(l)?;
        let was = limit.was?;
        let made =
            format!("; LoadGen made samples for {now} a second beforehand: raise --target-qps");
        // The first samples' way and the last ones' are in the rate: the shorter the run, the more.
        if was < SURE_US && was < limit.limit / 2.0 {
            return Some(format!(
                "{made} to {}, twice what was completed: {} are too short to tell the rate, so it \
                 may take another run",
                shortly((2.0 * rate).ceil()),
                ms(was)
            ));
        }
        Some(format!(
            "{made} to {}, a tenth above what was completed",
            shortly((1.1 * rate).ceil())
        ))
    };
    let advice = match scenario {
        Some(Scenario::Offline) => offline(),
        Some(Scenario::SingleStream | Scenario::MultiStream) => Some(
            "; LoadGen makes its queries beforehand: raise --target-qps, so that it makes more"
                .to_owned(),
        ),
        _ => None,
    };
    let advice = advice.unwrap_or_else(|| "; raise --target-qps, or lower --duration-s".to_owned());
    format!("{what}{advice}")
}

/// Early stopping that was not met, where no other reason explains it.
fn not_sure(early: &EarlyStopping, l: &LoadgenRecord) -> Option<String> {
    if early.met {
        return None;
    }
    let slow = l.limits.iter().any(|limit| limit.at_most && !limit.met);
    let (Some(needs), Some(queries)) = (early.needs, early.queries) else {
        return Some(format!("early stopping: {}", early.text));
    };
    if slow {
        // More of the same would not help, and the bound is named already.
        return None;
    }
    let rate = l
        .scheduled_per_s
        .or(l.completed_per_s)
        .filter(|rate| *rate > 0.0);
    let longer = rate.map_or_else(String::new, |rate| {
        format!(", or --duration-s to {:.0}", (needs as f64 / rate).ceil())
    });
    Some(format!(
        "early stopping: {queries} queries are too few to be sure of the percentile; raise --samples \
         (min_query_count) to {needs}{longer}"
    ))
}

/// The rate that LoadGen went by.
fn target_qps(l: &LoadgenRecord) -> Option<f64> {
    l.effective.get("target_qps")?.parse().ok()
}

/// A rate without decimals that say nothing.
fn shortly(rate: f64) -> String {
    if rate < 100.0 {
        format!("{:.2}", rate)
    } else {
        format!("{rate:.0}")
    }
}

/// Microseconds in milliseconds: LoadGen's files give bounds in those.
fn ms(us: f64) -> String {
    let ms = us / 1000.0;
    match ms {
        _ if ms < 1.0 => format!("{ms:.3} ms"),
        _ if ms < 100.0 => format!("{ms:.2} ms"),
        _ => format!("{ms:.0} ms"),
    }
}
