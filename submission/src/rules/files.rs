//! Checks files and folders: documents, scenarios, measurements.json, README.md, user.conf.

use std::{collections::BTreeSet, path::Path};

use serde_json::Value;

use super::*;
use crate::{build, describe::pages, error};

/// Folders that a submitter's folder may contain.
const OWN: [&str; 5] = ["systems", "src", "code", "documentation", "results"];

pub(super) fn check(check: &mut TreeCheck<'_>) {
    let tree = check.tree;
    let own = tree.own();
    if tree.systems().iter().all(|s| tree.results(s).is_empty()) {
        check.say(TREE_EMPTY, &own.join("results"), "it has no result");
    }
    let all = layout::folders(&own).into_iter().chain(layout::files(&own));
    let mapping = |name: &str| tree.division == Division::Open && name == "model_mapping.json";
    for extra in all.filter(|name| !OWN.contains(&name.as_str()) && !mapping(name)) {
        check.say(TREE_EXTRA, &own.join(extra), "it has no place there");
    }
    upload(check, &own);
    let documents = tree.documentation();
    let mut pages = vec![
        (TREE_SESSION, documents.join(layout::SESSION_PAGE)),
        (TREE_QUANTIZATION, documents.join(layout::QUANTIZATION_PAGE)),
    ];
    let with_results: BTreeSet<Name> = tree.systems().into_iter().collect();
    let mut models = BTreeSet::new();
    for system in &with_results {
        for (rule, name) in [
            (TREE_DIAGRAM, layout::DIAGRAM),
            (TREE_NETWORK, layout::NETWORK_PAGE),
            (TREE_BANDWIDTH, layout::BANDWIDTH_PAGE),
            (TREE_PATH, layout::PATH_PAGE),
        ] {
            pages.push((rule, tree.page(system, name)));
        }
        bandwidths(check, system);
        for id in tree.results(system) {
            batching(check, &id);
            models.insert(id.model);
        }
        let json = tree.system_json(system);
        if !json.is_file() {
            let what = format!("{system} has results and no JSON");
            check.say(TREE_SYSTEM, &json, what);
        }
    }
    for model in &models {
        source(check, model);
    }
    for (rule, path) in pages {
        let path = layout::document(&path);
        check.has(rule, &path);
    }
    for file in layout::files(&tree.systems_folder()) {
        let system = file.strip_suffix(".json");
        if system.is_some_and(|s| !with_results.contains(s)) {
            let path = tree.systems_folder().join(&file);
            check.say(TREE_SYSTEM, &path, "the system has no results");
        }
    }
}

/// Maximum size of an uploaded file, in bytes.
const LARGEST: u64 = 50 << 20;

/// Reports what MLCommons' upload check (repository_checks.sh) rejects below a folder.
fn upload(check: &mut TreeCheck<'_>, folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(of) = path.symlink_metadata() else {
            continue;
        };
        let what = match name.to_str() {
            _ if of.is_symlink() => "it is a link",
            None => "its name is not UTF-8",
            Some(name) if name.starts_with('.') => "its name begins with a dot",
            Some(name) if name.contains(char::is_whitespace) => "its name has a blank",
            _ if of.is_file() && of.len() > LARGEST => "it is larger than 50 MB",
            _ if of.is_dir() => {
                upload(check, &path);
                continue;
            }
            _ if !of.is_file() => "it is no plain file",
            _ => continue,
        };
        check.say(TREE_UPLOAD, &path, format!("{what}: no upload takes it"));
    }
}

/// Checks that the page on bandwidths has each result: the row that `submit` writes, with NICs that
/// suffice, else a statement by hand.
fn bandwidths(check: &mut TreeCheck<'_>, system: &Name) {
    let path = layout::document(&check.tree.page(system, layout::BANDWIDTH_PAGE));
    let described = check.described(system);
    let (Ok(text), Some(described)) = (error::read(&path), described) else {
        return;
    };
    let is_text = !text.starts_with("%PDF") && !text.starts_with("PK");
    let words = text.split(|c: char| !c.is_alphanumeric() && !"-_.".contains(c));
    for rate in build::rates(check.tree, check.round, system) {
        let id = &rate.id;
        let own = pages::bandwidth_row(&described, &rate);
        let begin = format!("| {} | {} | {} |", id.system, id.model, id.scenario);
        let mut names = [&id.model, &id.scenario].into_iter();
        // The last two columns are of the NICs.
        let of_result = |row: &str| row.rsplitn(4, '|').nth(3).map(str::to_owned);
        let row = text.lines().find(|line| line.starts_with(&begin));
        let both = [row.unwrap_or_default(), &own];
        let what = match row {
            None if !is_text || names.all(|n| words.clone().any(|w| w == &**n)) => continue,
            None => "it has no row for",
            Some(row) if rate.per_second.is_some() && of_result(row) != of_result(&own) => {
                "its runs make another row for"
            }
            _ if both.iter().any(|row| row.ends_with("| NO |")) => "the NICs carry too little for",
            _ if both.iter().all(|row| row.ends_with("| yes |")) => continue,
            _ => "the NICs do not say their rate, for",
        };
        check.say(TREE_BANDWIDTH, &path, format!("{what} {id}"));
    }
}

/// Checks that a benchmark has a source: `src/BENCHMARK/IMPLEMENTATION/`.
fn source(check: &mut TreeCheck<'_>, model: &Name) {
    let source = check.tree.source();
    // The reference's folder has no accuracy in its name: 3d-unet-99.9.
    let folders = layout::folders(&source).into_iter();
    let mut own = folders.filter(|name| model.starts_with(name.as_str()));
    let has = |benchmark: String| {
        let folder = source.join(benchmark);
        let all = layout::folders(&folder).into_iter();
        all.map(|name| folder.join(name)).any(|f| holds_a_file(&f))
    };
    if check.round.models.contains_key(model) && !own.any(has) {
        let what = "there is no source of the QDL: IMPLEMENTATION/ with its files";
        check.say(TREE_SOURCE, &source.join(model), what);
    }
}

/// Checks that a server's batching is explained.
fn batching(check: &mut TreeCheck<'_>, id: &ResultId) {
    let row = check.round.scenarios.get(&*id.scenario);
    let page = check.tree.page(&id.system, layout::BATCHING_PAGE);
    let readme = check.tree.scenario(id).join("README.md");
    let is_explained = |path: &Path| {
        let text = error::read(path).unwrap_or_default().to_ascii_lowercase();
        text.contains("batch")
    };
    if row.is_some_and(|row| row.batching) && ![&page, &readme].iter().any(|p| is_explained(p)) {
        check.say(
            TREE_BATCHING,
            &page,
            "neither it nor the README says how queries are batched",
        );
    }
}

fn holds_a_file(folder: &Path) -> bool {
    let (files, folders) = (layout::files(folder), layout::folders(folder));
    let is_filled = files.iter().any(|f| filled(&folder.join(f)));
    is_filled || folders.iter().any(|f| holds_a_file(&folder.join(f)))
}

pub(super) fn scenarios(
    check: &mut TreeCheck<'_>,
    system: &Name,
    model: &Name,
    scenarios: &[&str],
) {
    let folder = check.tree.own().join("results").join(system).join(model);
    let Some(of_round) = check.round.models.get(model) else {
        let all: Vec<_> = check.round.models.keys().map(|m| &**m).collect();
        let (round, all) = (&check.round.round, all.join(", "));
        let what = format!("{model} is no datacenter model of round {round}; there are {all}");
        check.say(MODEL_KNOWN, &folder, what);
        return;
    };
    let is_known = |s: &&&str| of_round.scenarios().any(|known| known == **s);
    for odd in scenarios.iter().filter(|s| !is_known(s)) {
        let what = format!("{model} has no scenario {odd}");
        check.say(SCENARIO_KNOWN, &folder.join(odd), what);
    }
    let has = |wanted: &String| scenarios.contains(&wanted.as_str());
    for missing in of_round.required.iter().filter(|s| !has(s)) {
        let what = format!("{model} needs {missing} too");
        check.say(SCENARIO_REQUIRED, &folder.join(missing), what);
    }
    if !of_round.one_of.is_empty() && !of_round.one_of.iter().any(has) {
        let what = format!("{model} needs one of {}", of_round.one_of.join(", "));
        check.say(SCENARIO_REQUIRED, &folder, what);
    }
}

/// Checks measurements.json, README.md and user.conf of a result.
pub(super) fn measured(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    let path = result.folder.join("measurements.json");
    match error::read_json::<serde_json::Map<String, Value>>(&path) {
        Err(error) => check.say(MEASURED_FIELD, &path, error.to_string()),
        Ok(fields) => {
            for field in &check.round.measurements {
                let value = fields.get(field);
                if value.is_none_or(is_empty) {
                    check.say(
                        MEASURED_FIELD,
                        &path,
                        format!("{field} is missing, or empty"),
                    );
                }
            }
        }
    }
    readme(check, result, runs);
    user_conf(check, result);
}

/// Checks that the README has all words of each command, or names a script that has them. The
/// program's path and the output folder may be others.
fn readme(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    let path = result.folder.join("README.md");
    let text = match error::read(&path) {
        Ok(text) => text,
        Err(error) => return check.say(MEASURED_README, &path, error.to_string()),
    };
    // A shell takes quotes and backslashes away.
    let plain = |text: &str| text.replace(['\'', '"', '\\'], "");
    let text = plain(&text);
    let mut words = text.split(|c: char| c.is_whitespace() || c == '`');
    let is_script = |word: &str| match Path::new(word).extension() {
        None => word.starts_with("./"),
        Some(kind) => kind == "sh",
    };
    if words.any(is_script) {
        return;
    }
    let with_manifest = runs.iter();
    let with_manifest = with_manifest.filter_map(|r| Some((&r.kind, r.manifest.as_ref()?)));
    for (kind, manifest) in with_manifest {
        let is_output = |word: &String| word == "--output" || word == "-o";
        let command = &manifest.command;
        let words = (1..command.len()).filter(|i| !command[i - 1..=*i].iter().any(is_output));
        let mut words = words
            .map(|i| &command[i])
            .filter(|w| !w.starts_with("--output=") && !w.starts_with("-o"));
        let missing = |word: &&String| !text.contains(&plain(word));
        if let Some(word) = words.find(missing) {
            let what = format!("the command of the {kind} run is not in it: no {word:?}");
            return check.say(MEASURED_README, &path, what);
        }
    }
}

/// Whether the checker calls a value empty: "", blanks, null, 0, false, [] and {}.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) => false,
    }
}

fn user_conf(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>) {
    let path = result.folder.join("user.conf");
    let text = match error::read(&path) {
        Ok(text) => text,
        Err(error) => return check.say(MEASURED_CONF, &path, error.to_string()),
    };
    if text.starts_with('\u{feff}') {
        let what = "it begins with a byte order mark, so LoadGen does not read its first line";
        check.say(MEASURED_CONF, &path, what);
    }
    let mut lines = 0;
    for (number, line) in text.lines().enumerate() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name.is_empty() || name.starts_with('#') {
            continue;
        }
        lines += 1;
        let key = name.rsplit('.').next().unwrap_or_default();
        if !check.round.user_conf.iter().any(|k| k == key) {
            let what = format!("line {}: {key} is not the submitter's to set", number + 1);
            check.say(MEASURED_CONF, &path, what);
        }
    }
    if lines == 0 {
        let what = "it sets nothing: LoadGen ran with a target of 1 per second";
        check.say(MEASURED_CONF, &path, what);
    }
}
