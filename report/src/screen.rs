//! The summary of a run on a terminal: some fifteen lines, each reason once. The whole report has
//! the tables too.

use record::{RunFolder, Stage, StageTable};

use crate::{
    page::{
        self,
        head::{sentence, verdict},
    },
    pictures::{facts, ledger, loadgen, phases},
    terminal,
    text::{
        Page, RED, YELLOW, grouped, kv_caches, rate, refusal, time_us, with_busy, with_events,
        with_losses, with_nans, with_refusals, with_unfetched,
    },
};

const GREEN: &str = "1;32";
const BOLD: &str = "1";
/// Maximum number of lines on losses, refusals or mismatches each; the report has all.
const MOST: usize = 4;

/// Formats the summary in lines of at most 100 characters, with `color` in ANSI escapes. With
/// `whole`, the tables of the report go before it.
pub fn screen(run: &RunFolder, whole: bool, color: bool) -> String {
    let page = summary(run).text(color);
    match whole {
        true => format!(
            "{}\n{page}",
            terminal::sections(&page::sections(run), color).trim_start()
        ),
        false => page,
    }
}

fn summary(run: &RunFolder) -> Page {
    let (s, r) = (&run.summary, &run.summary.run);
    let (system, loadgen) = (&r.system, r.loadgen.as_ref());
    let mut page = Page::default();
    let (class, word) = verdict(r);
    page.styled(
        word,
        sentence(run, ""),
        if class == "bad" { RED } else { GREEN },
    );
    let failed = with_refusals(&system.refusals, system.ledger.refused);
    let with = [
        with_losses(&system.losses),
        failed,
        with_busy(&system.accelerators),
        with_nans(&system.accelerators),
        with_unfetched(&system.accelerators),
    ];
    page.list(
        word,
        with.into_iter().flatten().chain(with_events(r)),
        YELLOW,
    );
    page.list(word, &r.reasons, RED);
    let is_said = r.exit.code == 0 || r.reasons.iter().any(|why| r.exit.reason.contains(why));
    page.list("exit", (!is_said).then_some(&r.exit.reason), RED);
    page.list("SUT", Some(&s.name).filter(|name| !name.is_empty()), "");
    // LoadGen does not ask for the SUT's name after an accuracy run, so list losses here.
    let gone = system.accelerators.iter().filter(|a| a.lost.is_some());
    let gone: Vec<&str> = gone.map(|a| a.node.as_str()).collect();
    if !gone.is_empty() {
        page.styled(
            "SUT",
            format!("lost when the run ended: {}", gone.join(", ")),
            YELLOW,
        );
    }
    facts::models(&mut page, &system.accelerators);
    if let Some(l) = loadgen {
        if let Some(asked) = &l.asked_mode {
            let line = format!(
                "LoadGen ran {}, though {asked} was asked for: audit.config goes before everything",
                l.mode
            );
            page.styled("mode", line, YELLOW);
        }
        page.list("peak", phases::peak(&r.phases, l), "");
        page.fact("LoadGen", loadgen::rates(l));
        page.list(
            "LoadGen",
            loadgen::warnings(l).into_iter().take(MOST),
            YELLOW,
        );
    }
    page.fact("samples", facts::samples(r));
    facts::right_answers(&mut page, r);
    if let Some(tokens) = &r.tokens {
        page.fact(
            "tokens",
            format!("{}: {}/s", grouped(tokens.tokens), rate(tokens.per_s)),
        );
    }
    page.list("stages", stages(&r.stages), "");
    page.list("KV caches", kv_caches(&system.accelerators).take(MOST), "");
    page.list("settings", r.setting_notes.iter().take(MOST), YELLOW);
    page.list(
        "refused",
        system.refusals.iter().map(refusal).take(MOST),
        YELLOW,
    );
    // The judge's line has one of the losses.
    let losses = system.losses.iter().map(ToString::to_string);
    let losses = losses.filter(|loss| !r.limits.line.contains(loss));
    page.list("lost", losses.take(MOST), RED);
    if r.mismatches.is_empty() {
        page.fact("reconciled", ledger::agreed(r));
    }
    page.list("MISMATCH", r.mismatches.iter().take(MOST), RED);
    r.verified
        .iter()
        .for_each(|v| facts::verified(&mut page, v));
    page.list(
        "limited by",
        Some(&r.limits.line).filter(|line| !line.is_empty()),
        BOLD,
    );
    page
}

/// The means of the stages in one line.
fn stages(stages: &StageTable) -> Option<String> {
    let mean = |stage: Stage| {
        stages
            .get(stage)
            .map(|row| row.mean_us)
            .filter(|us| *us > 0.0)
    };
    let one = |stage: Stage| Some(format!("{} {}", stage.label(), time_us(mean(stage)?)));
    let each: Vec<String> = Stage::PARTS.into_iter().filter_map(one).collect();
    let total = time_us(mean(Stage::Total)?);
    Some(format!("{} of {total} on average", each.join(", ")))
}
