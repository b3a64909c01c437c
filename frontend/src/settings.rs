//! LoadGen's settings, merged from all sources. Later sources override earlier ones:
//!
//! 1. LoadGen's own defaults,
//! 2. `user.conf`, with LoadGen's embedded `mlperf.conf` under it,
//! 3. `loadgen.settings` of the configuration,
//! 4. the flags of the command line,
//! 5. `--set`,
//! 6. `audit.config`, which LoadGen reads itself when the test begins.
//!
//! LoadGen's trace is off by default: with the trace the highest rate is less than half.

pub mod cli;
pub mod own_settings;
pub mod provenance;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow, bail};
use frontend_config::LoadgenConfig;
use loadgen_bridge::{
    LoadgenError, LogSettings, Scenario, TestMode, TestSettings, conf_field, ignored_lines,
};
use qdl::config::{self, Written};
use record::{DEFAULT, SettingRecord};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use submission::round::{Round, newest};

use crate::settings::{
    cli::{Args, SCENARIOS},
    provenance::{MLPERF_CONF, Provenance},
};

/// Adds to an error of a `user.conf` the line that the file needs for the configured model.
fn with_model_hint(error: LoadgenError, scenario: Scenario) -> anyhow::Error {
    match &error {
        LoadgenError::ConfModel { model, .. } => anyhow!(
            "{error}\n   = add {} to it; or set loadgen.model in the configuration to the model's \
             name in it; or leave --user-conf (loadgen.user_conf) out",
            provenance::example(model, scenario)
        ),
        _ => error.into(),
    }
}

/// Names that a `user.conf` may give the models of the newest round.
fn round_models() -> Vec<&'static str> {
    static ROUND_OF: LazyLock<Option<Round>> = LazyLock::new(|| Round::find(newest()).ok());
    let models = ROUND_OF.iter().flat_map(|round| round.models.values());
    models.flat_map(|m| m.names().map(String::as_str)).collect()
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// LoadGen's test settings without the `audit.config`.
    pub test: TestSettings,
    /// LoadGen's test settings in force, with the `audit.config`.
    pub runs: TestSettings,
    pub log: LogSettings,
    pub user_conf: Option<PathBuf>,
    pub audit: Option<PathBuf>,
    /// True if the `audit.config` sets the run's length: such a test collects its own data and
    /// needs no VALID.
    pub own_length: bool,
    /// True if the user named the run's folder.
    pub own_folder: bool,
    pub provenance: Provenance,
}

impl Settings {
    /// Merges the settings of a command line and a configuration. `written` locates the
    /// configuration's keys in its file; `model` is the model's name in `user.conf`.
    pub fn build(
        args: &Args,
        config: &LoadgenConfig,
        written: &Written,
        model: &str,
    ) -> Result<Self> {
        let mut test = TestSettings::default();
        let log = LogSettings {
            outdir: PathBuf::from("."),
            enable_trace: false,
        };
        let mut provenance = Provenance::of_defaults(&both(&test, &log));
        test.scenario = args.scenario.or(config.scenario).context(
            "no scenario: give --scenario server, offline, single-stream or multi-stream, or \
                 set loadgen.scenario in the configuration",
        )?;
        let runs = test.scenario;
        let conf = move |error| with_model_hint(error, runs);
        let user_conf = args.user_conf.as_ref().or(config.user_conf.as_ref());
        if let Some(path) = user_conf {
            let before = fields(&test);
            let mut embedded = test.clone();
            embedded.apply_mlperf_conf(model).map_err(conf)?;
            provenance.changed(&before, &fields(&embedded), MLPERF_CONF);
            test.apply_user_conf(path, model, &round_models())
                .map_err(conf)?;
            let fields = fields(&test);
            provenance
                .conf(path, model, test.scenario, &fields)
                .map_err(conf)?;
        }
        let mut settings = Settings {
            runs: test.clone(),
            test,
            log,
            user_conf: user_conf.cloned(),
            audit: args
                .audit_config
                .as_ref()
                .or(config.audit_config.as_ref())
                .cloned(),
            own_length: false,
            own_folder: false,
            provenance,
        };
        let at = |key: &str| match written.line(&format!("loadgen.{key}")) {
            Some(line) => format!("{}:{line}", written.name()),
            None => format!("loadgen.{key}"),
        };
        for (given, from) in [
            (config.scenario, at("scenario")),
            (args.scenario, "--scenario".to_owned()),
        ] {
            if let Some(scenario) = given {
                settings.provenance.set("scenario", scenario.name(), from);
            }
        }
        let name = new_folder(settings.test.scenario, SystemTime::now());
        settings.log.outdir = config.output_dir().join(name);
        if config.output_dir.is_some() {
            settings.note("outdir", at("output_dir"));
        }
        for (key, value) in &config.settings {
            let path = format!("settings.{key}");
            let set = settings.set(&at(&path), key, value);
            set.map_err(
                |why| match written.problem(&format!("loadgen.{path}"), why.clone()) {
                    Some(problem) => anyhow!("{problem}"),
                    None => anyhow!("loadgen.settings: {why}"),
                },
            )?;
        }
        settings.flags(args)?;
        for (key, value) in &args.set {
            let set = settings.set("--set", key, value);
            set.map_err(|why| anyhow!("--set: {why}"))?;
        }
        let set = config
            .settings
            .keys()
            .chain(args.set.iter().map(|(key, _)| key));
        settings.own_folder = args.output.is_some() || set.into_iter().any(|key| key == "outdir");
        if settings.test.mode == TestMode::SubmissionRun && user_conf.is_none() {
            settings.provenance.add_note(
                "a submission run without a user.conf: LoadGen's own durations and bounds apply, and \
                 not the rules': give --user-conf FILE (or loadgen.user_conf)",
            );
        }
        settings.audited().map_err(conf)?;
        Ok(settings)
    }

    /// Applies the `audit.config`: computes `runs`, and records the origins of its values.
    fn audited(&mut self) -> Result<(), LoadgenError> {
        self.runs = self.test.as_run(self.audit.as_deref())?;
        let Some(path) = &self.audit else {
            return Ok(());
        };
        for note in ignored_lines(path) {
            self.provenance.add_note(note);
        }
        let (scenario, fields) = (self.runs.scenario, fields(&self.runs));
        let lines = self.provenance.conf(path, "*", scenario, &fields)?;
        self.own_length = lines.contains(&"min_duration_ms");
        Ok(())
    }

    /// Adds the origin of the value to LoadGen's error about a setting.
    pub fn with_origin(&self, error: LoadgenError) -> anyhow::Error {
        let field = match &error {
            LoadgenError::Settings { field, .. } => self.provenance.of(field),
            _ => None,
        };
        match field.filter(|given| given.from != DEFAULT) {
            Some(given) => anyhow::anyhow!("{error} ({})", given.from),
            None => error.into(),
        }
    }

    /// Returns the record of each of LoadGen's settings.
    pub fn records(&self) -> Vec<SettingRecord> {
        self.provenance.records(self.runs.scenario)
    }

    pub fn folder(&self) -> &Path {
        &self.log.outdir
    }

    /// Returns the target rate in queries per second, if the scenario has one.
    pub fn target_qps(&self) -> Option<f64> {
        match self.test.scenario {
            Scenario::Server => Some(self.test.server_target_qps),
            Scenario::Offline => Some(self.test.offline_expected_qps),
            Scenario::SingleStream | Scenario::MultiStream => None,
        }
    }

    fn flags(&mut self, args: &Args) -> Result<()> {
        if let Some(output) = &args.output {
            self.log.outdir = output.clone();
            self.note("outdir", "--output");
        }
        if let Some(mode) = args.mode {
            self.test.mode = mode;
            self.note("mode", "--mode");
        }
        if let Some(qps) = args.target_qps {
            let set = self.set("--target-qps", "target_qps", &qps.to_string());
            set.map_err(|why| anyhow!("--target-qps: {why}"))?;
        }
        if let Some(s) = args.duration_s {
            let ms = (s * 1000.0).round();
            if !(0.0..1e15).contains(&ms) {
                bail!("--duration-s: min_duration_ms = {s}: it is no duration");
            }
            self.test.min_duration_ms = ms as u64;
            self.note("min_duration_ms", "--duration-s");
        }
        if let Some(n) = args.samples {
            self.test.min_query_count = n;
            self.note("min_query_count", "--samples");
        }
        Ok(())
    }

    /// Records the origin of a field's current value.
    fn note(&mut self, field: &str, from: impl Into<String>) {
        let fields = both(&self.test, &self.log);
        let value = fields.get(field).map(provenance::text);
        self.provenance.set(field, value.unwrap_or_default(), from);
    }

    /// Sets one field of `TestSettings` or [`LogSettings`] by its name, or by its name in
    /// `user.conf`, and records its origin. The error names the setting.
    fn set(&mut self, from: &str, key: &str, value: &str) -> Result<(), String> {
        let wrong = |why: String| format!("{key} = {value}: {why}");
        let (field, text) = self.alias(key, value).map_err(wrong)?;
        let (mut test, mut log) = (fields(&self.test), fields(&self.log));
        let old = test.get(&field).or_else(|| log.get(&field)).cloned();
        let wrong = |why: String| {
            let expected = old.as_ref().and_then(|old| kind_of(old, &text));
            wrong(expected.unwrap_or(why))
        };
        if put(&mut test, &field, &text) {
            self.test = read(test).map_err(wrong)?;
        } else if put(&mut log, &field, &text) {
            self.log = read(log).map_err(wrong)?;
        } else {
            let names: Vec<_> = test.keys().chain(log.keys()).map(String::as_str).collect();
            let hint = hint(key, &names);
            return Err(format!("LoadGen has no setting `{key}`; {hint}"));
        }
        self.note(&field, from);
        Ok(())
    }

    /// Translates a name of `user.conf` into the field of this scenario, and the value into the
    /// field's unit.
    fn alias(&self, key: &str, value: &str) -> Result<(String, String), String> {
        use Scenario::{MultiStream, Server, SingleStream};
        let scenario = self.test.scenario;
        let ns = |of: fn(f64) -> f64| match value.parse() {
            Ok(value) => Ok(of(value).to_string()),
            Err(_) => Err("it is no number".to_owned()),
        };
        let text = match (key, scenario) {
            ("target_qps", SingleStream | MultiStream) => {
                let field = format!("{}_expected_latency_ns", prefix(scenario));
                let text = ns(|qps| match 1e9 / qps {
                    // Round to whole nanoseconds.
                    ns if ns > 1.0 => ns.round(),
                    ns => ns,
                });
                return Ok((field, text?));
            }
            ("target_latency", SingleStream | MultiStream) => ns(|ms| ms * 1e6)?,
            ("target_latency", Server) | ("ttft_latency" | "tpot_latency", _) => {
                ns(|ms| (ms * 1e6).round())?
            }
            _ => value.to_owned(),
        };
        // The field of another scenario, if no third scenario has one.
        let others = SCENARIOS.iter().filter_map(|(s, ..)| conf_field(key, *s));
        let others: BTreeSet<&str> = others.collect();
        let other = others.first().filter(|_| others.len() == 1).copied();
        let field = conf_field(key, scenario).or(other).unwrap_or(key);
        Ok((field.to_owned(), text))
    }
}

/// Default name of a run's folder, in local time: `2026-11-25T12-58-48-server`.
fn new_folder(scenario: Scenario, at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let seconds = libc::time_t::try_from(seconds).unwrap_or(0);
    // SAFETY: all-zero is a valid tm; both pointers are to local variables.
    let t = unsafe {
        let mut t: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut t);
        t
    };
    let named = SCENARIOS.iter().find(|(s, ..)| *s == scenario);
    let scenario = named.map_or("", |(_, name, _)| name);
    let (year, month) = (t.tm_year + 1900, t.tm_mon + 1);
    let (day, hour, minute, second) = (t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}-{scenario}")
}

/// The beginning of the names of a scenario's own settings.
fn prefix(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::SingleStream => "single_stream",
        Scenario::MultiStream => "multi_stream",
        Scenario::Server => "server",
        Scenario::Offline => "offline",
    }
}

/// The fields of LoadGen's two settings structs, by name.
fn both(test: &TestSettings, log: &LogSettings) -> Map<String, Value> {
    let mut all = fields(test);
    all.extend(fields(log));
    all
}

pub(crate) fn fields(of: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(map)) => map,
        // A struct of scalars serializes to an object; `put` refuses floats that are not finite.
        _ => Map::new(),
    }
}

fn read<T: DeserializeOwned>(map: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(map)).map_err(|e| e.to_string())
}

/// Replaces the value of `key`, with the type of the old value. Returns false if the map has no
/// such key.
fn put(map: &mut Map<String, Value>, key: &str, text: &str) -> bool {
    let Some(old) = map.get_mut(key) else {
        return false;
    };
    *old = match old {
        Value::Bool(_) => match text {
            "1" | "true" => true.into(),
            "0" | "false" => false.into(),
            _ => text.into(),
        },
        Value::Number(n) => number(text, n.is_f64()).unwrap_or_else(|| text.into()),
        _ => text.into(),
    };
    true
}

/// Describes the type that a field takes, from its value `old`, if `text` has another type.
fn kind_of(old: &Value, text: &str) -> Option<String> {
    let wanted = match old {
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_f64() => "a number",
        Value::Number(n) if n.is_u64() => "a whole number, 0 or more",
        Value::Number(_) => "a whole number",
        _ => return None,
    };
    let got = match text.parse::<f64>() {
        Ok(f) if !f.is_finite() => "it is not finite: ",
        _ => "",
    };
    Some(format!("{got}it takes {wanted}"))
}

/// Parses a JSON number; `1e6` is a valid integer. `None` if malformed or not finite.
fn number(text: &str, float: bool) -> Option<Value> {
    if !float {
        if let Ok(n) = text.parse::<u64>() {
            return Some(n.into());
        }
        if let Ok(n) = text.parse::<i64>() {
            return Some(n.into());
        }
    }
    let f: f64 = text.parse().ok()?;
    if !float && f.fract() == 0.0 && (0.0..9e15).contains(&f) {
        return Some((f as u64).into());
    }
    serde_json::Number::from_f64(f).map(Value::Number)
}

/// Suggests the name most like `key`, else those that hold it; lists all if there are none.
fn hint(key: &str, names: &[&str]) -> String {
    let holds = |name: &&str| name.contains(key);
    let near: Vec<&str> = match config::nearest(key, names) {
        Some(near) => vec![near],
        None => names.iter().copied().filter(holds).collect(),
    };
    match near.is_empty() {
        true => format!("it has {}", names.join(", ")),
        false => format!("did you mean {}?", near.join(" or ")),
    }
}

#[cfg(test)]
mod tests;
