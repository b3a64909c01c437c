//! The head of a page: what it was, the verdict, the figures that matter.

use record::{Mode, Run, RunRecord, Stage};

use crate::text;

use crate::{html::escape, pictures::percent};

/// Scenario and mode.
pub fn title(run: &Run) -> String {
    let r = &run.summary.run;
    let mode = match r.mode {
        Mode::Performance => "",
        Mode::Accuracy => ", accuracy",
        Mode::FindPeak => ", find-peak",
        Mode::Submission => ", accuracy and performance",
    };
    let scenario = if r.scenario.is_empty() {
        "A run"
    } else {
        &r.scenario
    };
    format!("{scenario}{mode}")
}

/// A day and a time of UTC, from seconds since 1970.
pub fn date(seconds: f64) -> String {
    let whole = seconds.max(0.0) as i64;
    let (days, rest) = (whole.div_euclid(86_400), whole.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years.
    let z = days + 719_468;
    let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, more) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + more;
    let (hours, minutes, seconds) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02} UTC")
}

/// LoadGen's word, or ours.
fn verdict(r: &RunRecord) -> (&'static str, &'static str) {
    match (r.valid, r.exit.code) {
        (Some(true), _) => ("good", "VALID"),
        (Some(false), _) => ("bad", "INVALID"),
        (None, 0) if r.exit.reason.is_empty() => ("", "NOT OVER"),
        (None, 0) => ("good", "COMPLETE"),
        (None, _) => ("bad", "FAILED"),
    }
}

fn tiles(r: &RunRecord) -> Vec<(String, String)> {
    let loadgen = r.loadgen.as_ref();
    let mut tiles = Vec::new();
    let mut put = |name: &str, value: String| tiles.push((name.to_owned(), value));
    match r.scenario.as_str() {
        "SingleStream" | "MultiStream" => {
            if let Some((p, us)) = loadgen.and_then(|l| Some((l.percentile?, l.percentile_us?))) {
                put(&format!("p{p:.0} latency, the result"), text::time_us(us));
            }
        }
        _ => put("samples per second", text::rate(r.per_s)),
    }
    if let Some(tokens) = loadgen.and_then(|l| l.tokens_per_s) {
        put("tokens per second", text::rate(tokens));
    }
    if let Some(latency) = loadgen.and_then(|l| l.latency.as_ref()) {
        put("p99 latency, LoadGen's", text::time_us(latency.p99_us));
    } else if let Some(row) = r.stages.get(Stage::Total) {
        put(
            "p99 latency, issue to completion",
            text::time_us(row.p99_us),
        );
    }
    let bounds = loadgen.iter().flat_map(|l| &l.limits).filter(|l| l.at_most);
    let least = bounds.filter_map(|l| Some((l.margin()?, &l.name)));
    if let Some((margin, name)) = least.min_by(|a, b| a.0.total_cmp(&b.0)) {
        let said = match margin {
            m if m >= 0.0 => percent(m),
            m => format!("{} over", percent(-m)),
        };
        put(&format!("margin of {name}"), said);
    }
    if let Some(share) = r.accuracy {
        put("right answers", format!("{:.2} %", share * 100.0));
    }
    put("samples", text::grouped(r.samples));
    put("duration", text::time_us(r.duration_s * 1e6));
    tiles
}

/// The head.
pub fn html(run: &Run) -> String {
    let (s, r) = (&run.summary, &run.summary.run);
    let (class, word) = verdict(r);
    let accelerators: Vec<&str> = r
        .system
        .accelerators
        .iter()
        .map(|a| a.node.as_str())
        .collect();
    let to = match &accelerators[..] {
        [] => String::new(),
        few if few.len() <= 3 => format!(" to {}", few.join(", ")),
        many => format!(" to {} accelerators", many.len()),
    };
    let over = match r.fabric.as_str() {
        "" => String::new(),
        "local" => "in one process, without a network".to_owned(),
        fabric => format!("over {fabric}"),
    };
    let began = run
        .began
        .map_or_else(String::new, |s| format!(" - {}", date(s)));
    let loadgen = r.loadgen.as_ref().and_then(|l| l.version.as_deref());
    let loadgen = loadgen.map_or_else(String::new, |v| format!(" - LoadGen {v}"));
    let sub = format!("{}{to} {over}{began}{loadgen}", s.node);
    let tiles: String = tiles(r)
        .into_iter()
        .map(|(name, value)| {
            format!(
                "<li><small>{}</small><strong>{}</strong></li>",
                escape(&name),
                escape(&value)
            )
        })
        .collect();
    format!(
        "<h1>{}</h1><p class=\"sub\">{} - {}</p><div class=\"verdict {class}\"><b>{word}</b>\
         <span>{}</span></div><ul class=\"tiles\">{tiles}</ul>",
        escape(&title(run)),
        escape(&run.name),
        escape(&sub),
        escape(if r.exit.reason == "valid" {
            ""
        } else {
            &r.exit.reason
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, said) in [
            (0.0, "1970-01-01 00:00:00 UTC"),
            (951_782_400.0, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000.5, "2023-11-14 22:13:20 UTC"),
            (4_107_542_399.0, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400.0, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), said);
        }
    }
}
