//! What ran, and what came of it, as labelled facts.

use record::{AcceleratorRecord, CountRow, Goodput, RunFolder, RunRecord, Verified};
use view::node::places;

use crate::{
    model::Part,
    text::{
        Page, RED, YELLOW, accuracy, bit_rate, bytes, counted, grouped, percent, rate, three,
        time_us,
    },
};

/// Samples, their time and payload.
pub fn samples(run: &RunRecord) -> String {
    let c = &run.carried;
    let took = time_us(run.duration_s * 1e6);
    let (out, back) = (bytes(c.bytes_out), bytes(c.bytes_in));
    let [fast, slow] = [c.gbit_out_per_s, c.gbit_in_per_s].map(bit_rate);
    // Phases have rates of their own.
    let of = match run.phases.len() {
        n @ 2.. => format!(" with {n} phases and what lay between"),
        _ => String::new(),
    };
    let samples = grouped(run.samples);
    format!("{samples} in {took}{of}; payload {out} out ({fast}), {back} back ({slow})")
}

/// Adds the engines' models: one line if all accelerators have the same.
pub fn models(page: &mut Page, all: &[AcceleratorRecord]) {
    let said: Vec<_> = all.iter().filter_map(|a| a.content.as_ref()).collect();
    match said.first() {
        Some(first) if said.len() == all.len() && said.iter().all(|c| c.agrees(first)) => {
            page.fact("model", first.to_string());
        }
        _ => {
            let line = |a: &AcceleratorRecord| Some(format!("{}: {}", a.node, a.content.as_ref()?));
            page.list("model", all.iter().filter_map(line), YELLOW);
        }
    }
}

/// Adds the share of right answers, per accelerator if there are several.
pub fn right_answers(page: &mut Page, run: &RunRecord) {
    if let Some(labelled) = &run.labelled {
        page.fact("accuracy", accuracy(labelled));
        let all = &run.system.accelerators;
        for a in all.iter().filter(|_| all.len() > 1) {
            let own = a.accuracy.as_ref().map(accuracy);
            let own = own.unwrap_or("answered none of them".to_owned());
            page.fact("accuracy", format!("{} {own}", a.node));
        }
    }
    page.list("accuracy", &run.accuracy_note, YELLOW);
}

/// Adds the result of comparing the responses.
pub fn verified(page: &mut Page, v: &Verified) {
    let compared = counted(v.compared, "response");
    if v.sound() {
        return page.fact(
            "verified",
            format!("{compared} compared, each its own sample's"),
        );
    }
    let line = format!(
        "{compared} compared: {} not their own sample's, {} came twice; {} never answered",
        grouped(v.mismatches),
        grouped(v.duplicates),
        counted(v.lost, "sample")
    );
    page.styled("verified", line, RED);
}

fn goodput(good: &Goodput) -> String {
    let (samples, share) = (counted(good.samples, "sample"), percent(good.share));
    let head = format!("{samples} ({share}) within");
    let per_s = rate(good.per_s);
    let Some((n, of_tokens)) = good.tokens.zip(good.tokens_per_s) else {
        return format!("{head} LoadGen's limit: {per_s}/s");
    };
    let (most, clock) = match good.at_most {
        true => ("at most ", "by LoadGen's percentiles"),
        false => ("", "from issue_query on"),
    };
    let (n, of_tokens) = (grouped(n), rate(of_tokens));
    format!("{most}{head} all limits {clock}: {per_s}/s; {n} tokens: {of_tokens}/s")
}

fn tokens(page: &mut Page, run: &RunRecord) {
    let Some(tokens) = &run.tokens else { return };
    let of = |row: &CountRow| {
        let [min, max, p50, p99] = [row.min, row.max, row.p50, row.p99].map(grouped);
        format!(
            "{min} to {max} tokens, mean {}, p50 {p50}, p99 {p99}",
            three(row.mean)
        )
    };
    let (n, per_s) = (grouped(tokens.tokens), rate(tokens.per_s));
    let (stream, parts) = (&tokens.stream, three(tokens.parts.mean));
    page.fact(
        "tokens",
        format!("{n} answered: {per_s}/s; stream {stream}, {parts} parts an answer"),
    );
    page.fact("prompts", of(&tokens.input));
    page.fact("answers", of(&tokens.output));
    page.list("events", tokens.events.as_ref().map(of), "");
}

pub fn picture(run: &RunFolder) -> Part {
    let (s, r) = (&run.summary, &run.summary.run);
    let mut page = Page::default();
    page.list("SUT", Some(&s.name).filter(|name| !name.is_empty()), "");
    let asked = s.name_round_trip_us.map(time_us);
    page.list(
        "name",
        asked.map(|took| format!("every node answered LoadGen's Name() within {took}")),
        "",
    );
    page.list(
        "fabric",
        Some(&r.fabric).filter(|fabric| !fabric.is_empty()),
        "",
    );
    if !r.system.payloads.is_empty() {
        let (payloads, control) = (&r.system.payloads, &r.system.control);
        page.fact("payloads", format!("{payloads}; control plane: {control}"));
    }
    models(&mut page, &r.system.accelerators);
    page.fact("samples", samples(r));
    page.list("goodput", r.goodput.as_ref().map(goodput), "");
    tokens(&mut page, r);
    right_answers(&mut page, r);
    r.verified.iter().for_each(|v| verified(&mut page, v));
    page.list("NUMA", places(&r.system.places), "");
    Part::Facts(page)
}

#[cfg(test)]
mod tests {
    use record::{Accuracy, Content};

    use super::*;

    #[test]
    fn models_and_right_answers_are_one_line_or_one_for_each() {
        let accelerator = |node: &str, digit: &str, accuracy| AcceleratorRecord {
            node: node.to_owned(),
            accuracy,
            content: Some(Content::Settings {
                sha256: digit.to_owned(),
            }),
            ..AcceleratorRecord::default()
        };
        let own = Some(Accuracy::new(1_500, 2_000, 0));
        let mut run = RunRecord {
            labelled: own,
            accuracy_note: Some("acc-2 differs".to_owned()),
            ..RunRecord::default()
        };
        run.system.accelerators = vec![
            accelerator("acc-1", "a", own),
            accelerator("acc-2", "b", None),
        ];
        let mut page = Page::default();
        models(&mut page, &run.system.accelerators);
        models(&mut page, &run.system.accelerators[..1]);
        right_answers(&mut page, &run);
        let expected = "\
model        acc-1: settings, SHA-256 a
             acc-2: settings, SHA-256 b
             settings, SHA-256 a
accuracy     75.000 %: 1,500 of 2,000
             acc-1 75.000 %: 1,500 of 2,000
             acc-2 answered none of them
             acc-2 differs
";
        assert_eq!(page.to_string(), expected);
    }

    #[test]
    fn what_was_compared_is_said_whether_right_or_wrong() {
        let mut found = Verified {
            compared: 48_209,
            ..Verified::default()
        };
        let mut page = Page::default();
        verified(&mut page, &found);
        (found.compared, found.lost) = (1, 2);
        verified(&mut page, &found);
        let expected = "\
verified     48,209 responses compared, each its own sample's
             1 response compared: 0 not their own sample's, 0 came twice; 2 samples never answered
";
        assert_eq!(page.to_string(), expected);
    }
}
