//! Formats losses and refusals, one line each, and what the headline says beside the verdict.

use record::{AcceleratorRecord, EngineUse, LossRecord, RefusalRecord, RunRecord, TokenTime};

use view as text;

/// The headline's text on lost accelerators: their number and the time of the first loss. `None` if
/// only single connections were lost; those have lines of their own.
pub fn with_losses(losses: &[LossRecord]) -> Option<String> {
    let mut whole: Vec<_> = losses.iter().filter(|l| l.whole).collect();
    whole.sort_by(|a, b| a.at_s.unwrap_or(0.0).total_cmp(&b.at_s.unwrap_or(0.0)));
    let first = whole.first()?;
    let at = |s: Option<f64>| match s {
        Some(s) => format!("at {s:.1} s"),
        None => "before the first query".to_owned(),
    };
    let first_at = at(first.at_s);
    let mut nodes: Vec<_> = whole.iter().map(|l| &l.node).collect();
    nodes.sort();
    nodes.dedup();
    Some(match (nodes.len(), whole.len()) {
        (1, 1) => {
            let back = match (first.back, first.back_s) {
                (false, _) => String::new(),
                (true, s) => format!(" and back {}", at(s)),
            };
            format!("with one accelerator lost {first_at}{back}")
        }
        (1, n) => format!("with one accelerator lost {n} times, first {first_at}"),
        (n, _) => format!("with {n} accelerators lost, the first {first_at}"),
    })
}

/// Formats a refusal in one line: node, count, kind, first sample, message.
pub fn refusal(refusal: &RefusalRecord) -> String {
    let count = text::counted(refusal.count, "request");
    let RefusalRecord { node, kind, .. } = refusal;
    let (sample, words) = (refusal.sample, &refusal.words);
    format!("{node} failed {count} ({kind}), the first of sample {sample}: {words}")
}

/// The headline's text on failed requests: counts by kind, and the outcome of their samples. `nth`
/// counts first, second and third refusals of a sample. `None` if no request failed.
pub fn with_refusals(records: &[RefusalRecord], nth: [u64; 3]) -> Option<String> {
    let all: u64 = nth.iter().sum();
    if all == 0 {
        return None;
    }
    let mut kinds: Vec<(&str, u64)> = Vec::new();
    for r in records {
        match kinds.iter_mut().find(|(kind, _)| *kind == r.kind) {
            Some((_, count)) => *count += r.count,
            None => kinds.push((&r.kind, r.count)),
        }
    }
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let n = text::grouped;
    let kinds = kinds.iter().map(|(k, count)| format!("{k}: {}", n(*count)));
    let kinds: Vec<_> = kinds.collect();
    let [first, second, third] = nth;
    let became = match (first - second.min(first), second, third) {
        (_, 0, 0) => "each answered on a second try".to_owned(),
        (once, twice, 0) => {
            let (once, twice) = (n(once), n(twice));
            format!("{once} answered on a second try, {twice} on a third")
        }
        (.., third) => format!("{} refused three times", text::counted(third, "sample")),
    };
    let (all, kinds) = (n(all), kinds.join(", "));
    Some(format!("failed requests: {all} ({kinds}), {became}"))
}

/// Requests that a server refused for a while, by accelerator. `None` if there were none.
pub fn with_busy(accelerators: &[AcceleratorRecord]) -> Option<String> {
    let which = each_above_zero(accelerators, |used| used.server_busy)?;
    Some(format!("requests repeated for HTTP 429 or 503 ({which})"))
}

/// NaNs that a server reports, by accelerator. `None` if there were none.
pub fn with_nans(accelerators: &[AcceleratorRecord]) -> Option<String> {
    let which = each_above_zero(accelerators, |used| used.nans)?;
    Some(format!("NaNs in the logits of answers ({which})"))
}

/// Decode nodes that computed prompts again which prefill nodes had computed. `None` if none did.
pub fn with_unfetched(accelerators: &[AcceleratorRecord]) -> Option<String> {
    let idle = |a: &&AcceleratorRecord| {
        let used = &a.used.engine;
        used.handles > 0 && used.fetched_tokens == 0
    };
    let nodes: Vec<_> = accelerators.iter().filter(idle).map(|a| &*a.node).collect();
    let words = "no KV cache fetched from prefill nodes: each prompt was computed twice";
    (!nodes.is_empty()).then(|| format!("{words} ({})", nodes.join(", ")))
}

/// Bytes and time of the KV caches that came to each decode node, a prompt, where its engine counts
/// them. Transfers that overlap count each.
pub fn kv_caches(accelerators: &[AcceleratorRecord]) -> impl Iterator<Item = String> {
    let moved = accelerators
        .iter()
        .filter(|a| a.used.engine.handles > 0 && a.used.engine.transfer_bytes > 0);
    moved.map(|a| {
        let used = &a.used.engine;
        let prompts = text::counted(used.handles, "prompt");
        let bytes = text::bytes(used.transfer_bytes / used.handles);
        let time = text::time_us(used.transfer_us as f64 / used.handles as f64);
        format!("{}: {prompts}, {bytes} and {time} each", a.node)
    })
}

/// The count of each accelerator whose count is not 0.
fn each_above_zero(all: &[AcceleratorRecord], count: fn(&EngineUse) -> u64) -> Option<String> {
    let counts = all.iter().map(|a| (&a.node, count(&a.used.engine)));
    let each = counts.filter(|(_, n)| *n > 0);
    let each = each.map(|(node, n)| format!("{node}: {}", text::grouped(n)));
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| each.join(", "))
}

/// Least mean number of tokens in an event of which the headline speaks.
const SEVERAL: f64 = 1.01;

/// The headline's text on tokens that came several at once, where LoadGen measures TPOT: LoadGen
/// divides by all tokens after the first, also those that came with the first. `None` if each
/// event brought one.
pub fn with_events(run: &RunRecord) -> Option<String> {
    let (tokens, theirs) = (run.tokens.as_ref()?, run.loadgen.as_ref()?.tpot?);
    if tokens.whole == 0 && tokens.events.is_none_or(|row| row.mean < SEVERAL) {
        return None;
    }
    let events = tokens.events.map(|row| {
        let (mean, p99) = (text::three(row.mean), text::grouped(row.p99));
        format!("{mean} tokens an event (p99 {p99})")
    });
    let whole = (tokens.whole > 0).then(|| {
        let cause = match tokens.stream.as_str() {
            "none" => " (stream: none)",
            _ => "",
        };
        let whole = text::counted(tokens.whole, "whole answer");
        format!("{whole}{cause}, of which LoadGen's TPOT means nothing")
    });
    // Where each event brings one token, both are one time, which differs by a rank of a sample.
    let own = tokens.times.get(&TokenTime::Tpot);
    let own = own.filter(|_| tokens.events.is_some_and(|row| row.mean >= SEVERAL));
    let both = own.filter(|own| own.count > 0).map(|own| {
        let [theirs, own] = [theirs.p99_us, own.p99_us].map(text::time_us);
        format!("p99 TPOT {theirs} by LoadGen, {own} after the first event's tokens")
    });
    let all: Vec<String> = [events, whole, both].into_iter().flatten().collect();
    Some(format!("with {}", all.join("; ")))
}

#[cfg(test)]
mod tests {
    use record::{CountRow, LoadgenLatency, LoadgenRecord, StageRow, TokenRecord};

    use super::*;

    #[test]
    fn counts_of_a_server_are_named_with_its_accelerator() {
        let accelerator = |node: &str, server_busy| {
            let mut a = AcceleratorRecord {
                node: node.to_owned(),
                ..AcceleratorRecord::default()
            };
            a.used.engine.server_busy = server_busy;
            a
        };
        assert_eq!(with_busy(&[accelerator("a", 0)]), None);
        let all = ["a", "b", "c"].map(|n| accelerator(n, u64::from(n != "b") * 1057));
        let words = "requests repeated for HTTP 429 or 503 (a: 1,057, c: 1,057)";
        assert_eq!(with_busy(&all).as_deref(), Some(words));
        let mut all = all;
        assert_eq!(with_nans(&all), None);
        all[1].used.engine.nans = 5;
        let words = "NaNs in the logits of answers (b: 5)";
        assert_eq!(with_nans(&all).as_deref(), Some(words));
        assert_eq!(with_unfetched(&all), None);
        all[2].used.engine.handles = 3;
        let words = with_unfetched(&all).expect("a warning");
        assert!(words.ends_with("computed twice (c)"), "{words}");
        all[2].used.engine.fetched_tokens = 1;
        assert_eq!(with_unfetched(&all), None);
    }

    #[test]
    fn kv_caches_are_shown_a_prompt_where_an_engine_counts_their_bytes() {
        let mut all = ["a", "b"].map(|node| AcceleratorRecord {
            node: node.to_owned(),
            ..AcceleratorRecord::default()
        });
        all[1].used.engine.handles = 4;
        assert_eq!(kv_caches(&all).count(), 0);
        let used = &mut all[1].used.engine;
        (used.transfer_bytes, used.transfer_us) = (4_000_000, 10_000);
        let lines: Vec<_> = kv_caches(&all).collect();
        assert_eq!(lines, ["b: 4 prompts, 1.00 MB and 2.50 ms each"]);
    }

    fn loss(node: &str, at_s: Option<f64>) -> LossRecord {
        LossRecord {
            node: node.to_owned(),
            whole: true,
            at_s,
            why: "it was killed".to_owned(),
            connections: vec![0, 1, 2],
            of: 3,
            losses: 3,
            again: 1_204,
            ..LossRecord::default()
        }
    }

    #[test]
    fn tokens_that_come_several_at_once_are_named_with_both_clocks() {
        let said = |mean: f64, whole: u64, stream: &str, own: u64| {
            let mut run = RunRecord::default();
            let row = |p99_us, count| StageRow {
                p99_us,
                count,
                ..StageRow::default()
            };
            run.tokens = Some(TokenRecord {
                stream: stream.to_owned(),
                events: Some(CountRow {
                    mean,
                    p99: 5,
                    ..CountRow::default()
                }),
                whole,
                times: [(TokenTime::Tpot, row(10_000.0, own))].into(),
                ..TokenRecord::default()
            });
            assert_eq!(with_events(&run), None, "LoadGen measures no TPOT");
            let tpot = LoadgenLatency {
                p99_us: 9_460.0,
                ..LoadgenLatency::default()
            };
            run.loadgen = Some(LoadgenRecord {
                tpot: Some(tpot),
                ..LoadgenRecord::default()
            });
            with_events(&run).unwrap_or_default()
        };
        assert_eq!(said(1.0, 0, "first", 9), "");
        let both = "p99 TPOT 9.46 ms by LoadGen, 10.0 ms after the first event's tokens";
        let expected = format!("with 3.72 tokens an event (p99 5); {both}");
        assert_eq!(said(3.72, 0, "all", 9), expected);
        let nothing = "of which LoadGen's TPOT means nothing";
        let expected = format!("with 1.00 tokens an event (p99 5); 1 whole answer, {nothing}");
        assert_eq!(said(1.0, 1, "first", 0), expected);
        let expected = "8 whole answers (stream: none), of";
        assert!(said(1.0, 8, "none", 0).contains(expected));
    }

    #[test]
    fn the_headline_names_how_many_and_when() {
        let said = |losses: &[LossRecord]| with_losses(losses).unwrap_or_default();
        let a = loss("a", Some(12.3));
        let expected = "with one accelerator lost at 12.3 s";
        assert_eq!(said(std::slice::from_ref(&a)), expected);
        let (back, back_s) = (true, Some(14.0));
        let back = LossRecord {
            back,
            back_s,
            ..a.clone()
        };
        let both = "with one accelerator lost at 12.3 s and back at 14.0 s";
        assert_eq!(said(std::slice::from_ref(&back)), both);
        let twice = [back, loss("a", Some(20.0))];
        let expected = "with one accelerator lost 2 times, first at 12.3 s";
        assert_eq!(said(&twice), expected);
        let two = [a.clone(), loss("b", Some(3.0))];
        assert_eq!(said(&two), "with 2 accelerators lost, the first at 3.0 s");
        let part = LossRecord { whole: false, ..a };
        assert_eq!(said(&[part]), "");
        assert_eq!(said(&[]), "");
    }

    fn failed(node: &str, kind: &str, count: u64) -> RefusalRecord {
        RefusalRecord {
            node: node.to_owned(),
            kind: kind.to_owned(),
            count,
            sample: 57,
            words: format!("{kind}: overloaded"),
        }
    }

    #[test]
    fn the_headline_counts_by_kind_and_says_what_became_of_the_samples() {
        let records = [
            failed("a", "HTTP 503", 2),
            failed("a", "HTTP 500", 9),
            failed("b", "HTTP 500", 6),
        ];
        let said = |nth| with_refusals(&records, nth).unwrap_or_default();
        assert_eq!(
            said([17, 0, 0]),
            "failed requests: 17 (HTTP 500: 15, HTTP 503: 2), each answered on a second try"
        );
        assert!(said([15, 2, 0]).ends_with("13 answered on a second try, 2 on a third"));
        assert!(said([15, 1, 1]).ends_with("1 sample refused three times"));
        assert_eq!(with_refusals(&[], [0; 3]), None);
        assert_eq!(
            refusal(&records[1]),
            "a failed 9 requests (HTTP 500), the first of sample 57: HTTP 500: overloaded"
        );
    }
}
