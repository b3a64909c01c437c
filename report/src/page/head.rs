//! The head of a page: scenario, verdict, and main figures.

use record::{LoadgenLatency, LoadgenRecord, Mode, RunFolder, RunRecord, Stage, TokenTime};

use crate::{
    html::{Cell, escape},
    pictures::percent,
    text,
};

/// The title of a run: its scenario, and its mode unless performance.
pub fn title(scenario: &str, mode: Mode) -> String {
    let mode = match mode {
        Mode::Performance => "",
        Mode::Accuracy => ", accuracy",
        Mode::FindPeak => ", find-peak",
        Mode::Submission => ", accuracy and performance",
    };
    match scenario {
        "" => format!("A run{mode}"),
        scenario => format!("{scenario}{mode}"),
    }
}

/// CSS class and word of LoadGen's verdict; without a verdict, of the program's exit code.
pub fn verdict(r: &RunRecord) -> (&'static str, &'static str) {
    match (r.valid, r.exit.code) {
        (Some(true), _) => ("good", "VALID"),
        (Some(false), _) => ("bad", "INVALID"),
        (None, 0) if r.exit.reason.is_empty() => ("", "NOT OVER"),
        (None, 0) => ("good", "COMPLETE"),
        (None, _) => ("bad", "FAILED"),
    }
}

/// Name and value of a main figure.
pub type Tile = (String, String);

/// Title, and a line of HTML.
pub fn heading(title: &str, sub: &str) -> String {
    format!("<h1>{}</h1><p class=\"sub\">{sub}</p>", escape(title))
}

/// Title, a line of HTML, the verdict with its class, word and reason, and the main figures.
pub fn banner(title: &str, sub: &str, verdict: (&str, &str, &str), tiles: &[Tile]) -> String {
    let (class, word, why) = verdict;
    let tiles: String = tiles
        .iter()
        .map(|(name, value)| {
            let (name, value) = (escape(name), escape(value));
            format!("<li><small>{name}</small><strong>{value}</strong></li>")
        })
        .collect();
    format!(
        "{}<div class=\"verdict {class}\"><b>{}</b>\
         <span>{}</span></div><ul class=\"tiles\">{tiles}</ul>",
        heading(title, sub),
        escape(word),
        escape(why),
    )
}

pub fn over(fabric: &str) -> String {
    match fabric {
        "" => String::new(),
        "local" => "in one process, without a network".to_owned(),
        fabric => format!("over {fabric}"),
    }
}

/// A cell with a time in microseconds, or a dash.
pub fn time(us: Option<f64>) -> Cell {
    Cell::Figure(us.map_or_else(|| "-".to_owned(), text::time_us))
}

/// Requests that failed: `3 refused, 1 repeated`.
fn failed(r: &RunRecord) -> String {
    let ledger = &r.system.ledger;
    let kinds = [
        (ledger.refused.iter().sum(), "refused"),
        (ledger.emptied, "lost"),
        (ledger.redispatched, "repeated"),
    ];
    let some = kinds.iter().filter(|(n, _)| *n > 0);
    let some = some.map(|(n, word)| format!("{} {word}", text::grouped(*n)));
    match some.collect::<Vec<_>>() {
        none if none.is_empty() => "0".to_owned(),
        some => some.join(", "),
    }
}

fn tiles(r: &RunRecord) -> Vec<Tile> {
    let loadgen = r.loadgen.as_ref();
    let mut tiles = Vec::new();
    let mut put = |name: &str, value: String| tiles.push((name.to_owned(), value));
    if let Some(tokens) = &r.tokens {
        let of = |row: fn(&LoadgenRecord) -> Option<LoadgenLatency>| loadgen.and_then(row);
        for (time, name, theirs) in [
            (TokenTime::Ttft, "p99 TTFT, LoadGen's", of(|l| l.ttft)),
            (TokenTime::Tpot, "p99 TPOT, LoadGen's", of(|l| l.tpot)),
        ] {
            if let Some(row) = theirs {
                put(name, text::time_us(row.p99_us));
            } else if let Some(row) = tokens.times.get(&time) {
                put(&format!("p99 {}", time.label()), text::time_us(row.p99_us));
            }
        }
        if let Some(row) = &tokens.events {
            let p99 = text::grouped(row.p99);
            put(
                "tokens an event (p99)",
                format!("{} ({p99})", text::three(row.mean)),
            );
        }
        put("tokens per second", text::rate(tokens.per_s));
        put("failed requests", failed(r));
    }
    match r.scenario.as_str() {
        "SingleStream" | "MultiStream" => {
            if let Some((p, us)) = loadgen.and_then(|l| Some((l.percentile?, l.percentile_us?))) {
                put(&format!("p{p:.0} latency, the result"), text::time_us(us));
            }
        }
        _ => put("samples per second", text::rate(r.per_s)),
    }
    if let Some(latency) = loadgen.and_then(|l| l.latency.as_ref()) {
        put("p99 latency, LoadGen's", text::time_us(latency.p99_us));
    } else if let Some(row) = r.stages.get(Stage::Total) {
        put(
            "p99 latency, issue to completion",
            text::time_us(row.p99_us),
        );
    }
    if let Some(good) = &r.goodput {
        let most = if good.at_most { "at most " } else { "" };
        let name = format!("goodput: {most}{} of samples", percent(good.share));
        put(&name, format!("{}/s", text::rate(good.per_s)));
    }
    if let Some(share) = r.accuracy {
        put("right answers", format!("{:.2} %", share * 100.0));
    }
    put("samples", text::grouped(r.samples));
    put("duration", text::time_us(r.duration_s * 1e6));
    tiles
}

pub fn html(run: &RunFolder) -> String {
    let (s, r) = (&run.summary, &run.summary.run);
    let (class, word) = verdict(r);
    let accelerators = r.system.accelerators.iter().map(|a| a.node.as_str());
    let accelerators: Vec<&str> = accelerators.collect();
    let to = match &accelerators[..] {
        [] => String::new(),
        few if few.len() <= 3 => format!(" to {}", few.join(", ")),
        many => format!(" to {} accelerators", many.len()),
    };
    // The page's script converts the time to the reader's local time.
    let began = run.began.map_or_else(String::new, |s| {
        format!(" - <time data-at=\"{s}\">{s:.0} s since 1970</time>")
    });
    let loadgen = r.loadgen.as_ref().and_then(|l| l.version.as_deref());
    let loadgen = loadgen.map_or_else(String::new, |v| format!(" - LoadGen {v}"));
    let over = over(&r.fabric);
    let sub = escape(&format!("{} - {}{to} {over}{loadgen}", run.name, s.node)) + &began;
    let why = match r.exit.reason.as_str() {
        "valid" => "",
        why => why,
    };
    banner(
        &title(&r.scenario, r.mode),
        &sub,
        (class, word, why),
        &tiles(r),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_time_is_named_by_its_clock() {
        let names = |loadgen: Value| {
            let time = json!({"p50_us": 1.0, "p90_us": 1.0, "p99_us": 2.0, "p999_us": 2.0,
                "max_us": 2.0, "mean_us": 1.0, "count": 9});
            let run = json!({
                "scenario": "Server", "stages": {"total": time}, "loadgen": loadgen,
                "tokens": {"times": {"ttft": time, "tpot": time},
                    "events": {"mean": 3.719, "p99": 5}},
            });
            let tiles = tiles(&serde_json::from_value(run).expect("a run"));
            let shown = tiles
                .into_iter()
                .map(|(name, value)| format!("{name}: {value}"));
            shown.collect::<Vec<_>>().join("\n")
        };
        let row = json!({"p99_us": 7.0});
        let theirs = names(json!({"latency": row, "ttft": row, "tpot": row}));
        for name in ["TTFT", "TPOT", "latency"] {
            assert!(
                theirs.contains(&format!("p99 {name}, LoadGen's: 7.00 us")),
                "{theirs}"
            );
        }
        assert!(
            theirs.contains("tokens an event (p99): 3.72 (5)"),
            "{theirs}"
        );
        let own = names(Value::Null);
        for name in [
            "TTFT, as issued",
            "TPOT after 1st event",
            "latency, issue to completion",
        ] {
            assert!(own.contains(&format!("p99 {name}: 2.00 us")), "{own}");
        }
    }
}
