//! Checks `user.conf` and `audit.config` before LoadGen reads them.
//!
//! LoadGen's reader fails only for a file that it cannot open or a line that it cannot split; the
//! error names no line. It ignores unknown models, scenarios and keys, and reads count `1e6` as 1.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use loadgen_log::TestMode;

use crate::conf_text::{ConfText, is_break, nearest, unseen, words};
use crate::error::LoadgenError;
use crate::raw::{self, Said};
use crate::settings::TestSettings;

/// The kind of a file, with LoadGen's number for it (`conf_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConfKind {
    Embedded = 0,
    User = 1,
    Audit = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Integer,
    Number,
    /// Whole milliseconds in Server, a number of milliseconds in other scenarios.
    Latency,
    Mode,
}

/// The keys that LoadGen reads from a `user.conf` or an `audit.config`.
pub(crate) const KEYS: &[(&str, Value)] = &[
    ("mode", Value::Mode),
    ("use_token_latencies", Value::Integer),
    ("ttft_latency", Value::Integer),
    ("tpot_latency", Value::Integer),
    ("infer_token_latencies", Value::Integer),
    ("token_latency_scaling_factor", Value::Integer),
    ("target_latency_percentile", Value::Number),
    ("target_latency", Value::Latency),
    ("samples_per_query", Value::Integer),
    ("performance_issue_unique", Value::Integer),
    ("performance_issue_same", Value::Integer),
    ("performance_issue_same_index", Value::Integer),
    ("sample_concatenate_permutation", Value::Integer),
    ("coalesce_queries", Value::Integer),
    ("max_async_queries", Value::Integer),
    ("min_duration", Value::Integer),
    ("max_duration", Value::Integer),
    ("min_query_count", Value::Integer),
    ("max_query_count", Value::Integer),
    ("performance_sample_count_override", Value::Integer),
    ("accuracy_sample_count_override", Value::Integer),
    ("target_qps", Value::Number),
    ("print_timestamps", Value::Integer),
    ("accuracy_log_rng_seed", Value::Integer),
    ("accuracy_log_sampling_target", Value::Integer),
];

/// The keys that LoadGen reads only from its embedded `mlperf.conf`.
const EMBEDDED_KEYS: &[&str] = &[
    "qsl_rng_seed",
    "sample_index_rng_seed",
    "schedule_rng_seed",
    "accuracy_log_probability",
    "test05",
    "test05_qsl_rng_seed",
    "test05_sample_index_rng_seed",
    "test05_schedule_rng_seed",
];

const IDLE_KEYS: &[&str] = &["target_duration"];

/// A key that LoadGen ignores. Published files have it beside the key that LoadGen reads.
const LOADED: &str = "performance_sample_count";
const LOADED_OVERRIDE: &str = "performance_sample_count_override";

/// Keys of published `audit.config` files for the verification scripts; LoadGen ignores them.
const VERIFIERS_KEYS: &[&str] = &[
    "test07_accuracy_threshold",
    "test09_min_output_tokens",
    "test09_max_output_tokens",
];

const SCENARIOS: &[&str] = &["*", "SingleStream", "MultiStream", "Server", "Offline"];

/// Whether this process has given LoadGen a `user.conf`.
static TAKEN: AtomicBool = AtomicBool::new(false);

impl TestSettings {
    /// Applies LoadGen's embedded `mlperf.conf` and then a `user.conf` for `model` in this scenario
    /// (LoadGen's `FromConfig`). The fields hold the result. LoadGen allows one `user.conf` per
    /// process.
    ///
    /// Set `scenario` first; the call keeps it. `mode` changes only if the file sets a mode. The
    /// file may have lines for the models in `others`, which LoadGen does not know.
    ///
    /// # Errors
    ///
    /// The file cannot be read; a line names an unknown model, scenario or key, or has a value of
    /// the wrong kind; no line is for the model; or the process has applied a `user.conf` before.
    pub fn apply_user_conf(
        &mut self,
        path: &Path,
        model: &str,
        others: &[&str],
    ) -> Result<(), LoadgenError> {
        let conf = check_file(path, model, others, ConfKind::User)?;
        if TAKEN.swap(true, Ordering::Relaxed) {
            return Err(LoadgenError::Conf(format!(
                "{}: this process has taken a user.conf already; LoadGen allows one, so run each \
                 test in its own process",
                path.display()
            )));
        }
        self.apply_conf(path, conf.path(), model, ConfKind::User)
    }

    /// Applies LoadGen's embedded `mlperf.conf` for `model` in this scenario. Not needed before
    /// [`apply_user_conf`](Self::apply_user_conf), which applies it too.
    ///
    /// # Errors
    ///
    /// `model` contains a zero byte.
    pub fn apply_mlperf_conf(&mut self, model: &str) -> Result<(), LoadgenError> {
        self.apply_conf(Path::new(""), c"", model, ConfKind::Embedded)
    }

    /// The settings of the run: these settings, changed by `audit.config` and by `test05` as
    /// LoadGen changes them at the start of a test.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has a line that LoadGen would misread.
    pub fn as_run(&self, audit: Option<&Path>) -> Result<Self, LoadgenError> {
        Ok(self.audited(audit)?.0)
    }

    /// Like [`Self::as_run`], and returns the file for LoadGen too.
    pub(crate) fn audited(
        &self,
        audit: Option<&Path>,
    ) -> Result<(Self, Option<ConfText>), LoadgenError> {
        let mut runs = self.clone();
        let conf = match audit {
            Some(path) => {
                let conf = check_file(path, "*", &[], ConfKind::Audit)?;
                runs.apply_conf(path, conf.path(), "*", ConfKind::Audit)?;
                Some(conf)
            }
            None => None,
        };
        if runs.test05 {
            runs.mode = TestMode::PerformanceOnly;
            runs.qsl_rng_seed = self.test05_qsl_rng_seed;
            runs.sample_index_rng_seed = self.test05_sample_index_rng_seed;
            runs.schedule_rng_seed = self.test05_schedule_rng_seed;
        }
        Ok((runs, conf))
    }

    /// Applies `file` by LoadGen's `FromConfig`; errors name `path`.
    fn apply_conf(
        &mut self,
        path: &Path,
        file: &CStr,
        model: &str,
        kind: ConfKind,
    ) -> Result<(), LoadgenError> {
        let nul = |field| move |_| LoadgenError::Nul { field };
        let model = CString::new(model).map_err(nul("model"))?;
        let scenario = CString::new(self.scenario.name()).map_err(nul("scenario"))?;
        let mut said = Said::new();
        // SAFETY: the settings are a whole struct in the shim's layout, the strings end in zero,
        // and `said` has the given size.
        let code = unsafe {
            raw::lg_from_config(
                std::ptr::from_mut(self).cast(),
                file.as_ptr(),
                model.as_ptr(),
                scenario.as_ptr(),
                kind as i32,
                said.pointer(),
                said.size(),
            )
        };
        let why = match code {
            0 => return Ok(()),
            1 => said.text(),
            code => std::io::Error::from_raw_os_error(-code).to_string(),
        };
        let path = path.display();
        Err(LoadgenError::Conf(format!(
            "{path}: LoadGen's FromConfig failed: {why}"
        )))
    }
}

/// One text for each line of an `audit.config` that LoadGen ignores: lines for single models, and
/// keys of the verification scripts. Empty if the file cannot be read.
pub fn ignored_lines(path: &Path) -> Vec<String> {
    let Ok(conf) = ConfText::read(path) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    for (number, line) in conf.lines() {
        let Ok(Some(entry)) = parse(line) else {
            continue;
        };
        let why = if entry.model != "*" {
            "LoadGen reads an audit.config's lines for * alone"
        } else if VERIFIERS_KEYS.contains(&entry.key) {
            "it is for the script that verifies the test"
        } else {
            continue;
        };
        let (model, scenario, key) = (entry.model, entry.scenario, entry.key);
        let at = format!("{}:{number}", path.display());
        notes.push(format!(
            "{at}: {model}.{scenario}.{key} is passed over: {why}"
        ));
    }
    notes
}

/// The models with lines in LoadGen's embedded `mlperf.conf`.
pub fn known_models() -> BTreeSet<String> {
    // SAFETY: LoadGen's constant is a C string that lives as long as the program.
    let text = unsafe { CStr::from_ptr(raw::lg_mlperf_conf()) }.to_string_lossy();
    let keys = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let models = keys
        .filter(|key| !key.starts_with('#'))
        .filter_map(|key| key.rsplitn(3, '.').nth(2));
    models
        .filter(|model| *model != "*")
        .map(str::to_owned)
        .collect()
}

fn check_file(
    path: &Path,
    model: &str,
    others: &[&str],
    kind: ConfKind,
) -> Result<ConfText, LoadgenError> {
    let conf = ConfText::read(path)?;
    let mut known = known_models();
    known.extend(others.iter().map(|model| (*model).to_owned()));
    let mut models = BTreeSet::new();
    let overrides = conf.lines().filter_map(|(_, text)| parse(text).ok()?);
    let overrides = overrides.filter(|entry| entry.key == LOADED_OVERRIDE);
    let overrides = Vec::from_iter(overrides);
    for (line, text) in conf.lines() {
        let wrong = |why| LoadgenError::Conf(format!("{}:{line}: {why}", path.display()));
        let Some(mut entry) = parse(text).map_err(wrong)? else {
            continue;
        };
        if entry.key == LOADED && overrides.iter().any(|o| o.covers(&entry)) {
            entry.key = LOADED_OVERRIDE;
        }
        check_entry(&entry, model, kind, &known).map_err(wrong)?;
        models.insert(entry.model);
    }
    let concerned = models.is_empty() || models.contains("*") || models.contains(model);
    if !concerned {
        let has = Vec::from_iter(models).join(", ");
        return Err(LoadgenError::ConfModel {
            path: path.to_owned(),
            model: model.to_owned(),
            has,
        });
    }
    Ok(conf)
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfEntry<'a> {
    pub model: &'a str,
    pub scenario: &'a str,
    pub key: &'a str,
    pub value: &'a str,
}

impl ConfEntry<'_> {
    /// Whether the models and scenarios of this entry include those of `other`.
    fn covers(&self, other: &ConfEntry<'_>) -> bool {
        let holds = |own, others| own == "*" || own == others;
        holds(self.model, other.model) && holds(self.scenario, other.scenario)
    }
}

/// Splits a line `model.scenario.key = value` at ASCII white space, as LoadGen does. `None` for an
/// empty line or a comment; a comment needs its own line.
pub(crate) fn parse(line: &str) -> Result<Option<ConfEntry<'_>>, String> {
    if let Some(c) = line.trim_end_matches('\r').chars().find(|c| is_break(*c)) {
        return Err(format!(
            "it has the line break U+{:04X}, which is none to LoadGen: save it with Unix's line ends",
            u32::from(c)
        ));
    }
    let mut words = words(line);
    let Some(name) = words.next().filter(|word| *word != "#") else {
        return Ok(None);
    };
    if name.starts_with('#') {
        // LoadGen reads the first word as a key, which is harmless if the word stands alone.
        let alone = words.next().is_none();
        return if alone {
            Ok(None)
        } else {
            Err("a comment's # needs a space behind it".to_owned())
        };
    }
    if let Some(c) = unseen(line) {
        let what = match c {
            '\u{fffd}' => "a byte that is not UTF-8".to_owned(),
            c => format!("the character U+{:04X}", u32::from(c)),
        };
        return Err(format!(
            "it has {what}, which LoadGen does not take for a space: write plain ones"
        ));
    }
    let (Some("="), Some(value)) = (words.next(), words.next()) else {
        return Err("expected `model.scenario.key = value`, with spaces around the =".to_owned());
    };
    if let Some(more) = words.next() {
        let hint = if more.starts_with('#') {
            "; a comment needs its own line"
        } else {
            ""
        };
        return Err(format!("{more:?} stands after the value{hint}"));
    }
    // A model's name may contain dots; scenario and key contain none.
    let mut parts = name.rsplitn(3, '.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(key), Some(scenario), Some(model)) => Ok(Some(ConfEntry {
            model,
            scenario,
            key,
            value,
        })),
        _ => Err(format!("{name:?} is not of the form `model.scenario.key`")),
    }
}

fn check_entry(
    entry: &ConfEntry<'_>,
    model: &str,
    kind: ConfKind,
    known: &BTreeSet<String>,
) -> Result<(), String> {
    let (scenario, key, value) = (entry.scenario, entry.key, entry.value);
    // Published files have lines for single models, which LoadGen ignores ([`ignored_lines`]). A
    // model that LoadGen does not know is a spelling error.
    if kind == ConfKind::Audit && entry.model != "*" && !known.contains(entry.model) {
        return Err(format!(
            "model {:?}: LoadGen reads an audit.config's lines for * only",
            entry.model
        ));
    }
    if entry.model != "*" && entry.model != model && !known.contains(entry.model) {
        let names = || known.iter().map(String::as_str);
        let near = nearest(entry.model, names().chain([model]));
        let hint = near.map_or_else(
            || format!("nor one of {}", Vec::from_iter(names()).join(", ")),
            |near| format!("nor one of LoadGen's or the round's: did you mean {near}?"),
        );
        return Err(format!(
            "unknown model {:?}: it is neither the one that runs, {model:?} (loadgen.model in the \
             configuration), {hint}",
            entry.model
        ));
    }
    if scenario == "Interactive" {
        return Err(
            "unknown scenario \"Interactive\": it is Server, of the model's name with -interactive"
                .to_owned(),
        );
    }
    if !SCENARIOS.contains(&scenario) {
        let all = || format!("there are {}", SCENARIOS.join(", "));
        let near = nearest(scenario, SCENARIOS.iter().copied().skip(1));
        let hint = near.map_or_else(all, |near| format!("did you mean {near}?"));
        return Err(format!("unknown scenario {scenario:?}: {hint}"));
    }
    if IDLE_KEYS.contains(&key) || (kind == ConfKind::Audit && VERIFIERS_KEYS.contains(&key)) {
        return Ok(());
    }
    if EMBEDDED_KEYS.contains(&key) {
        return Err(format!(
            "LoadGen takes {key} from its own mlperf.conf alone; set the field of the test settings"
        ));
    }
    let Some((_, wanted)) = KEYS.iter().find(|(name, _)| *name == key) else {
        let keys = || KEYS.iter().map(|(name, _)| *name);
        let all = || format!("LoadGen knows {}", Vec::from_iter(keys()).join(", "));
        let hint = nearest(key, keys()).map_or_else(all, |near| format!("did you mean {near}?"));
        return Err(format!("unknown key {key:?}: {hint}"));
    };
    let whole = match wanted {
        Value::Integer | Value::Mode => true,
        Value::Number => false,
        Value::Latency => matches!(scenario, "Server" | "*"),
    };
    if whole {
        let number = integer(value).map_err(|why| format!("{key} = {value}: {why}"))?;
        if *wanted == Value::Mode && number > 3 {
            return Err(format!(
                "mode = {value}: 0 submission, 1 accuracy, 2 performance, 3 find-peak"
            ));
        }
    } else if !value.parse::<f64>().is_ok_and(f64::is_finite) {
        let hint = match value.replace(',', "").parse::<f64>() {
            Ok(plain) if plain.is_finite() => format!("; write {plain}"),
            _ => String::new(),
        };
        return Err(format!("{key} = {value}: not a number{hint}"));
    }
    Ok(())
}

/// Parses a value that LoadGen reads with `strtoull` in base 0. Rejects values that a person reads
/// differently from LoadGen.
fn integer(text: &str) -> Result<u64, String> {
    if let Some(digits) = text.strip_prefix("0x") {
        let number = u64::from_str_radix(digits, 16);
        return number.map_err(|_| "not a hexadecimal number".to_owned());
    }
    if text.len() > 1 && text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("LoadGen reads a leading 0 as octal".to_owned());
    }
    text.parse().map_err(|_| {
        let cut = "not a whole number, and LoadGen would cut it off";
        match text.replace(',', "").parse::<f64>() {
            Ok(n) if n.fract() == 0.0 && (0.0..1e15).contains(&n) => format!("{cut}; write {n}"),
            _ => cut.to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use loadgen_log::Scenario;

    fn check(text: &str, model: &str, kind: ConfKind) -> Result<(), LoadgenError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.conf");
        fs::write(&path, text).unwrap();
        check_file(&path, model, &["e2e-rag-db"], kind).map(drop)
    }

    #[test]
    fn loadgens_models_are_known() {
        let known = known_models();
        assert!(
            known.contains("resnet50") && known.contains("wan-2.2-t2v-a14b"),
            "{known:?}"
        );
        assert!(!known.contains("*") && !known.contains("digits"));
    }

    #[test]
    fn good_files_pass() {
        let user = "# a comment\n#another\n# no\u{a0}break\n\n*.*.min_duration = 1000\nresnet50.Server.target_qps = 1.5e3\n\
                    wan-2.2-t2v-a14b.Offline.min_query_count = 0x10\ne2e-rag-db.Offline.target_qps = 0\ndigits.SingleStream.target_latency = 0.5\n\
                    *.Server.target_duration = 0\n";
        check(user, "digits", ConfKind::User).unwrap();
        check("", "digits", ConfKind::User).unwrap();
        let audit = "# mode dictionary (0 = submission, 1 = accuracy, 2 = performance)\n\
                     *.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
                     *.*.accuracy_log_sampling_target = 100\n*.*.min_query_count = 100\n\
                     *.*.min_duration = 0\n*.*.sample_concatenate_permutation = 0";
        check(audit, "*", ConfKind::Audit).unwrap();
        for key in VERIFIERS_KEYS {
            let line = format!("{audit}\n*.*.{key} = 60.698\n");
            check(&line, "*", ConfKind::Audit).unwrap();
            check(&line, "digits", ConfKind::User).unwrap_err();
        }
    }

    /// The keys and models of all published files: TEST01, 04, 06, 07, 08, 09.
    #[test]
    fn what_the_published_files_have_passes_and_what_is_nothing_to_loadgen_is_said() {
        let text = "*.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
                    *.*.accuracy_log_sampling_target = 4096\n*.MultiStream.performance_issue_unique = 0\n\
                    *.Server.performance_issue_same = 1\n*.Offline.performance_issue_same_index = 3\n\
                    stable-diffusion-xl.Offline.min_query_count = 500\n\
                    wan-2.2-t2v-a14b.SingleStream.min_query_count = 20\n# stable-diffusion-xl.Offline.target_qps = 0.75\n\
                    *.*.test09_max_output_tokens = 1406.02\n";
        check(text, "*", ConfKind::Audit).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.config");
        fs::write(&path, text).unwrap();
        let notes = ignored_lines(&path);
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes[0].contains("audit.config:7: stable-diffusion-xl.Offline.min_query_count"));
        assert!(notes[2].contains("verifies the test"));
    }

    /// Each user.conf of NVIDIA's in v6.0 and v6.1 has both keys.
    #[test]
    fn a_sample_count_that_loadgen_ignores_passes_beside_the_one_that_it_reads() {
        let ignored = "digits.Server.performance_sample_count = 64\n";
        let with = |name| {
            let line = format!("{name}.performance_sample_count_override = 64\n");
            let both = [format!("{ignored}{line}"), format!("{line}{ignored}")];
            both.map(|text| check(&text, "digits", ConfKind::User).is_ok())
        };
        assert_eq!(with("digits.Server"), [true; 2]);
        assert_eq!(with("*.*"), [true; 2]);
        assert_eq!(with("digits.Offline"), [false; 2]);
        assert_eq!(with("resnet50.Server"), [false; 2]);
    }

    #[test]
    fn each_mistake_names_the_file_the_line_and_the_reason() {
        let cases = "resnet5O.Server.target_qps = 3 => unknown model \"resnet5O\"
            digits.server.target_qps = 3 => unknown scenario \"server\": did you mean Server?
            digits.Interactive.target_qps = 3 => name with -interactive
            digits.Server.target_qsp = 3 => did you mean target_qps?
            digits.Server.performance_sample_count = 3 => performance_sample_count_override?
            e2e-rag-dp.Server.target_qps = 3 => did you mean e2e-rag-db?
            digits.Server.target_qps = 1,000 => write 1000
            digits.Server.min_duration = 1e3 => write 1000
            digits.Server.target_qps\u{a0}=\u{a0}3 => U+00A0
            digits.Server.target_qps = 3\u{2003} => U+2003
            \u{3000}digits.Server.target_qps = 3 => U+3000
            digits.Server.target_qps = 3\u{85} => U+0085
            # mine\rdigits.Server.target_qps = 3 => line break U+000D
            # mine\u{2028}digits.Server.target_qps = 3 => U+2028
            digits.Server.target\u{200b}_qps = 3 => U+200B
            digits.Server.target_qps = \u{fffd}3 => a byte that is not UTF-8
            digits.Server.target_qps = 3\u{0} => save it as UTF-8
            digits.Server.qsl_rng_seed = 3 => mlperf.conf alone
            digits.Server.min_query_count = 1e6 => whole number
            digits.Server.min_query_count = -1 => whole number
            digits.Server.min_query_count = 010 => octal
            digits.Server.target_latency = 0.5 => whole number
            digits.Server.target_qps = many => not a number
            digits.Server.target_qps = inf => not a number
            digits.Server.mode = 4 => find-peak
            digits.Server.target_qps=3 => spaces around
            digits.Server.target_qps = 3 # fast => its own line
            target_qps = 3 => model.scenario.key
            #fast digits => a space behind";
        for case in cases.split('\n') {
            let (line, part) = case.trim_start_matches(' ').split_once(" => ").unwrap();
            let error = check(&format!("# first\n{line}\n"), "digits", ConfKind::User);
            let error = error.unwrap_err().to_string();
            let is_named = error.contains("user.conf:2: ") && error.contains(part);
            assert!(is_named, "{line}: {error}");
        }
        let error = check("digits.*.mode = 2\n", "*", ConfKind::Audit)
            .unwrap_err()
            .to_string();
        assert!(error.contains("for * only"), "{error}");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        for text in [
            "*.Server.target_qps = 500\n",
            "# mine\r\n*.Server.target_qps = 500\r\n",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("audit.config");
            fs::write(&path, format!("\u{feff}{text}")).unwrap();
            let settings = TestSettings {
                scenario: Scenario::Server,
                ..TestSettings::default()
            };
            let runs = settings.as_run(Some(&path)).unwrap();
            assert_eq!(runs.server_target_qps, 500.0, "LoadGen has read the line");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.conf");
        fs::write(&path, b"\xff\xfe*\0.\0").unwrap();
        let error = check_file(&path, "*", &[], ConfKind::User)
            .map(drop)
            .unwrap_err();
        assert!(error.to_string().contains("UTF-16"), "{error}");
    }

    #[test]
    fn a_file_without_a_line_for_the_model_is_refused() {
        let error = check("resnet50.Server.target_qps = 3\n", "digits", ConfKind::User)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"digits\"") && error.contains("resnet50"),
            "{error}"
        );
    }

    #[test]
    fn the_embedded_file_applies() {
        let mut settings = TestSettings {
            scenario: Scenario::Server,
            ..TestSettings::default()
        };
        settings.apply_mlperf_conf("resnet50").unwrap();
        assert_eq!(settings.server_target_latency_ns, 15_000_000);
        assert_eq!(settings.performance_sample_count_override, 1024);
        assert_eq!(settings.qsl_rng_seed, 2_085_463_073_848_966_840);
    }
}
