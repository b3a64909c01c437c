//! The head of a report: a sentence with the result, and the main figures.

use record::{
    LoadgenLatency, LoadgenRecord, Mode, RunFolder, RunRecord, Stage, TokenTime, kind_of,
};

use crate::{
    html::escape,
    model::Cell,
    text::{accuracy, date, grouped, percent, rate, three, time_us},
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

/// The run and its result: `digits, Server: 4,018/s`.
pub fn result(run: &RunFolder) -> String {
    let r = &run.summary.run;
    let loadgen = r.loadgen.as_ref();
    let found = match (r.scenario.as_str(), r.mode) {
        (_, Mode::Accuracy) => match &r.labelled {
            Some(labelled) => format!("right answers {}", accuracy(labelled)),
            None => format!("{} samples", grouped(r.samples)),
        },
        ("SingleStream" | "MultiStream", _) => {
            let result = loadgen.and_then(|l| l.percentile.zip(l.percentile_us));
            let result = result.map(|(p, us)| format!("p{p:.0} latency {}", time_us(us)));
            result.unwrap_or_else(|| format!("{}/s", rate(r.per_s)))
        }
        _ => match (&r.tokens, loadgen.and_then(|l| l.peak_qps)) {
            (_, Some(peak)) => format!("peak {}/s", rate(peak)),
            (Some(tokens), _) => format!("{} tokens/s", rate(tokens.per_s)),
            _ => format!("{}/s", rate(r.per_s)),
        },
    };
    let model = run.manifest.as_ref().map_or("", |m| m.model.as_str());
    let comma = if model.is_empty() { "" } else { ", " };
    format!("{model}{comma}{}: {found}", title(&r.scenario, r.mode))
}

/// The result, the nearest of LoadGen's bounds, the verdict unless `word` is empty, and the first
/// reason why the run would not count: `..., p99 latency 7.20 ms of 50.0 ms, VALID; not a
/// submission: loopback`.
pub fn sentence(run: &RunFolder, word: &str) -> String {
    let r = &run.summary.run;
    let bounds = r
        .loadgen
        .iter()
        .flat_map(|l| &l.limits)
        .filter(|l| l.at_most);
    let bounds = bounds.filter_map(|l| Some((&l.name, l.was?, l.limit)));
    let nearest = bounds.max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)));
    let nearest =
        nearest.map(|(name, was, limit)| format!("{name} {} of {}", time_us(was), time_us(limit)));
    let word = Some(word.to_owned()).filter(|word| !word.is_empty());
    let said = [Some(result(run)), nearest, word].into_iter().flatten();
    let said = said.collect::<Vec<_>>().join(", ");
    let rule = r.would_not_count.first();
    let rule = rule.map(|line| {
        line.split_once(": ")
            .map_or(line.as_str(), |(_, what)| what)
    });
    let note = r.fabric_notes.first().map(|note| kind_of(note));
    let more = match r.would_not_count.len().max(r.fabric_notes.len()) {
        0 | 1 => String::new(),
        n => format!(", and {} more", n - 1),
    };
    match note.or(rule.map(str::to_owned)) {
        Some(against) => format!("{said}; not a submission: {against}{more}"),
        None => said,
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
    Cell::Figure(us.map_or_else(|| "-".to_owned(), time_us))
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
    let some = some.map(|(n, word)| format!("{} {word}", grouped(*n)));
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
                put(name, time_us(row.p99_us));
            } else if let Some(row) = tokens.times.get(&time) {
                put(&format!("p99 {}", time.label()), time_us(row.p99_us));
            }
        }
        if let Some(row) = &tokens.events {
            let p99 = grouped(row.p99);
            put(
                "tokens an event (p99)",
                format!("{} ({p99})", three(row.mean)),
            );
        }
        put("tokens per second", rate(tokens.per_s));
        put("failed requests", failed(r));
    }
    match r.scenario.as_str() {
        "SingleStream" | "MultiStream" => {
            if let Some((p, us)) = loadgen.and_then(|l| Some((l.percentile?, l.percentile_us?))) {
                put(&format!("p{p:.0} latency, the result"), time_us(us));
            }
        }
        _ => put("samples per second", rate(r.per_s)),
    }
    if let Some(latency) = loadgen.and_then(|l| l.latency.as_ref()) {
        put("p99 latency, LoadGen's", time_us(latency.p99_us));
    } else if let Some(row) = r.stages.get(Stage::Total) {
        put("p99 latency, issue to completion", time_us(row.p99_us));
    }
    if let Some(good) = &r.goodput {
        let most = if good.at_most { "at most " } else { "" };
        let name = format!("goodput: {most}{} of samples", percent(good.share));
        put(&name, format!("{}/s", rate(good.per_s)));
    }
    if let Some(share) = r.accuracy {
        put("right answers", percent(share));
    }
    put("samples", grouped(r.samples));
    put("duration", time_us(r.duration_s * 1e6));
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
        format!(" - <time data-at=\"{s}\">{}</time>", date(s))
    });
    let loadgen = r.loadgen.as_ref().and_then(|l| l.version.as_deref());
    let loadgen = loadgen.map_or_else(String::new, |v| format!(" - LoadGen {v}"));
    let over = over(&r.fabric);
    let sub = escape(&format!("{} - {}{to} {over}{loadgen}", run.name, s.node)) + &began;
    let why = match r.exit.reason.as_str() {
        "valid" => "",
        why => why,
    };
    banner(&sentence(run, word), &sub, (class, word, why), &tiles(r))
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
