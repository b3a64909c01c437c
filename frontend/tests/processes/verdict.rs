//! What must hold after the faults.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use world::plan::{Event, Kind, Plan};

use crate::{
    common::{ProgramEnd, TestFolder},
    plans::Connections,
    schedule::Phase,
    wires::slowness,
};

/// Time without an accelerator that each run outlasts, in microseconds.
const OUTLASTED_US: u64 = 1_500_000;

/// Longest time in which an end that gets no reset finds a loss, in microseconds.
const NOTICED_US: u64 = 1_300_000;

/// Judges the frontend that had the faults.
pub fn of_run(
    plan: &Plan,
    place: &TestFolder,
    ended: &ProgramEnd,
    hits: &[(Event, Phase)],
    is_aborted: bool,
) -> Result<()> {
    ensure!(!ended.stderr.contains("panicked"), "the frontend panicked");
    let is_early = hits.iter().any(|(_, phase)| *phase <= Phase::WarmUp);
    let may_be_alone = (0..plan.shape.servers)
        .all(|k| outage_us(plan, hits, k) > OUTLASTED_US * u64::from(slowness()));
    match ended.code {
        Some(0) => is_whole(place, "out"),
        Some(130) if is_aborted => Ok(()),
        // The signal came before the program had its handler.
        None if is_aborted && is_early => Ok(()),
        Some(2) if is_early => names_a_node(ended),
        Some(3) if is_early || may_be_alone => {
            names_a_node(ended)?;
            let marker = place.path("out/INVALID");
            ensure!(marker.is_file(), "a run that is not valid is not marked");
            Ok(())
        }
        code => bail!("the frontend ended with {code:?}"),
    }
}

/// Judges the next frontend.
pub fn of_next(place: &TestFolder, ended: &ProgramEnd) -> Result<()> {
    let code = ended.code;
    ensure!(code == Some(0), "the next frontend ended with {code:?}");
    is_whole(place, "next").context("the next frontend")
}

/// No file of a program stays but those of its run folder.
pub fn of_folders(place: &TestFolder) -> Result<()> {
    for run in ["out", "next"] {
        let Ok(files) = fs::read_dir(place.path(run)) else {
            continue;
        };
        for file in files {
            let name = file?.file_name().to_string_lossy().into_owned();
            ensure!(!name.starts_with('.'), "{run} has the file {name} left");
        }
        let mut temporary = fs::read_dir(place.path(&format!("{run}.tmp")))?;
        ensure!(
            temporary.next().is_none(),
            "{run}: a temporary file is left"
        );
    }
    Ok(())
}

/// Longest time that the faults keep accelerator `k` from the frontend. Faults of one connection
/// count where it is the accelerator's control connection, or its only one.
fn outage_us(plan: &Plan, hits: &[(Event, Phase)], k: u64) -> u64 {
    let shape = &plan.shape;
    let of_connection = |connection: u64, us: u64| {
        let is_important = connection.is_multiple_of(shape.all()) || shape.data() == 1;
        if is_important { us } else { 0 }
    };
    let each = hits.iter().map(|(e, _)| {
        let (server, us) = match e.kind {
            Kind::Leave => (e.on, u64::MAX / 2),
            Kind::Stop if e.on == 0 => (k, e.n),
            Kind::Stop => (e.on - 1, e.n),
            Kind::Away => (e.on, e.n),
            // The reset ends the session at the frontend alone.
            Kind::Busy if e.on % 2 == 0 => (e.on / 2, e.n + NOTICED_US),
            Kind::Busy | Kind::Delay => (e.on / 2, e.n),
            Kind::Silent => (e.on / shape.all(), of_connection(e.on, NOTICED_US)),
            Kind::Hole => (e.on / 2 / shape.all(), of_connection(e.on / 2, NOTICED_US)),
            _ => (k, 0),
        };
        if server == k { us } else { 0 }
    });
    each.fold(0, u64::saturating_add)
}

/// Each sample has one answer, its own, and LoadGen says VALID.
fn is_whole(place: &TestFolder, out: &str) -> Result<()> {
    let text = fs::read_to_string(place.path(out).join("summary.json")).context("a summary")?;
    let s: Value = serde_json::from_str(&text)?;
    let ledger = &s["ledger"];
    ensure!(s["valid"] == true, "not valid: {}", s["exit"]);
    ensure!(ledger["emptied"] == 0, "empty answers: {ledger}");
    ensure!(
        ledger["issued"] == ledger["answered"],
        "not each is answered: {ledger}"
    );
    let wrong = s["mismatches"].as_array().map_or(0, Vec::len);
    ensure!(wrong == 0, "wrong answers: {}", s["mismatches"]);
    Ok(())
}

/// The only error line names a node or its address.
fn names_a_node(ended: &ProgramEnd) -> Result<()> {
    let error = ended.error();
    let is_named = ["acc-", "10.97.", "127.0.0.1:74"]
        .iter()
        .any(|word| error.contains(word));
    ensure!(is_named, "the error names no node: {error}");
    Ok(())
}
