//! The HTML around the charts. The page is self-contained: its policy lets it load only its events.

use bytes::Bytes;
use report::SoFar;

pub const TYPE: &str = "text/html; charset=utf-8";

const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = "#link{position:sticky;top:0;z-index:1;margin:0;padding:5px 24px;max-width:none;\
     font-size:13px;color:var(--muted);background:var(--bg);border-bottom:1px solid var(--line)}\
     #link.bad{color:var(--bad)}#over{margin:0 0 16px}";

/// Returns the page before its first event.
pub fn html() -> Bytes {
    let (style, charts) = (report::STYLE, report::script());
    Bytes::from(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>A run</title><link rel=\"icon\" href=\"data:,\"><style>{style}{STYLE}</style></head>\n\
         <body><p id=\"link\" role=\"status\">waiting for the first figures</p><div id=\"run\"></div>\
         <noscript><p>This page draws what it is sent, and needs its script for that. The tables of the \
         run's page, when it is over, need none.</p></noscript>\
         {charts}<script>{SCRIPT}</script></body></html>\n"
    ))
}

/// Returns a tick as a server-sent event.
pub fn event(number: u64, so_far: &SoFar) -> Bytes {
    let over = matches!(so_far.state, report::State::Over(_));
    let (_, word, _) = so_far.verdict();
    let tick = serde_json::json!({
        "title": format!("{}: {}", so_far.title, word.to_lowercase()),
        "over": over,
        "html": report::so_far(so_far),
    });
    // JSON text contains no line breaks.
    Bytes::from(format!("id: {number}\nevent: tick\ndata: {tick}\n\n"))
}

#[cfg(test)]
mod tests {
    use record::timeline::{ConnectionTick, Event, NodeSide, ThreadSide, Tick, Timeline};
    use report::{RunEnd, State};

    use super::*;

    /// A state of maximum size, with different values.
    fn most() -> SoFar {
        let connection = |k: u64, c: u64| ConnectionTick {
            samples: (k * 7_919 + c) % 10_007,
            in_flight: (k * 31 + c) % 997,
            score: Some(((k + c) % 100) as f64 / 100.0),
            retransmits: (k * 17 + c) % 89,
            window_limited_us: (k * 13 + c) % 99_991,
            rtt_us: Some((k * 11 + c) % 9_973),
            ..ConnectionTick::default()
        };
        let latency = |k: u64, b: u16| (b, 1 + (k * 37 + u64::from(b) * 101) % 9_973);
        let tick = |k: u64| Tick {
            issued: 1_000_000 + k * 7 % 13,
            completed: 1_000_000 + k * 5 % 17,
            in_flight: k % 1_000,
            latency: (64..320).map(|b| latency(k, b)).collect(),
            connections: (0..64).map(|c| connection(k, c)).collect(),
            ..Tick::default()
        };
        let thread = |t: u16| ThreadSide {
            name: format!("thread-of-a-long-name-{t}"),
            on_core: (0..1_200).map(|k| (k * 7 + t) % 700).collect(),
            waited: (0..1_200).map(|k| (k * 3 + t) % 300).collect(),
        };
        let event = |k: u32| Event {
            at_s: f64::from(k),
            kind: "lost".to_owned(),
            text: "x".repeat(240),
        };
        let node = NodeSide {
            threads: (0..32).map(thread).collect(),
            ..NodeSide::default()
        };
        let timeline = Timeline {
            tick_ms: 1_000,
            ticks: (0..1_200).map(tick).collect(),
            events: (0..1_000).map(event).collect(),
            slowest: Vec::new(),
            nodes: vec![node],
        };
        let named = |n| (format!("an-accelerator/{n}"), ConnectionTick::default());
        SoFar {
            state: State::Running,
            timeline,
            connections: (0..64).map(named).collect(),
            ..SoFar::default()
        }
    }

    #[test]
    fn an_event_is_bounded_whatever_the_run_and_is_one_line() {
        let bytes = event(7, &most());
        let text = std::str::from_utf8(&bytes).expect("text");
        assert!(bytes.len() < 2 << 20, "{} bytes", bytes.len());
        let lines: Vec<_> = text.split('\n').collect();
        assert_eq!((lines.len(), lines[3], lines[4]), (5, "", ""));
        assert!(text.starts_with("id: 7\nevent: tick\ndata: {"));
    }

    #[test]
    fn the_last_one_says_where_the_page_lies_and_escapes_it() {
        let so_far = SoFar {
            state: State::Over(RunEnd {
                word: "VALID".to_owned(),
                page: Some("/results/<b>/report.html".into()),
                ..RunEnd::default()
            }),
            ..SoFar::default()
        };
        let bytes = event(1, &so_far);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("\"over\":true") && text.contains("/results/&lt;b&gt;/report.html"));
    }

    #[test]
    fn the_page_loads_nothing() {
        let page = html();
        // uPlot's comment contains its URL.
        let page = String::from_utf8_lossy(&page).replace(&report::script(), "");
        for word in ["http://", "https://", " src=", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
