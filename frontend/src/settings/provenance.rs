//! Origins of LoadGen's settings: all values given to each field, in order of precedence, and the
//! values without effect.

use std::{collections::BTreeMap, path::Path};

use loadgen_bridge::{LoadgenError, Scenario, conf_values, has_byte_order_mark};
use record::{DEFAULT, GivenValue, SettingOf, SettingRecord};
use serde_json::{Map, Value};

use super::{cli::SCENARIOS, prefix};

/// LoadGen's embedded file, which it reads together with a `user.conf`.
pub const MLPERF_CONF: &str = "mlperf.conf";

/// Fields whose values in `mlperf.conf` are placeholders: each user sets these fields.
const RATES: [&str; 4] = [
    "server_target_qps",
    "offline_expected_qps",
    "single_stream_expected_latency_ns",
    "multi_stream_expected_latency_ns",
];

/// Origin of each value of LoadGen's settings.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// All values by field; the last is in force.
    given: BTreeMap<String, Vec<GivenValue>>,
    /// Lines of a `user.conf` or `audit.config`, by origin, with their text.
    lines: BTreeMap<String, (usize, String)>,
    notes: Vec<String>,
}

impl Provenance {
    /// Records the default of every field.
    pub fn of_defaults(fields: &Map<String, Value>) -> Self {
        let mut p = Provenance::default();
        p.changed(&Map::new(), fields, DEFAULT);
        p
    }

    /// Adds a note, shown before and after the run.
    pub fn add_note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Records a value of a field, even if it equals the value before.
    pub fn set(&mut self, field: &str, value: impl Into<String>, from: impl Into<String>) {
        let given = GivenValue {
            value: value.into(),
            from: from.into(),
        };
        self.given.entry(field.to_owned()).or_default().push(given);
    }

    /// Records `from` as the origin of every value that differs.
    pub fn changed(&mut self, before: &Map<String, Value>, after: &Map<String, Value>, from: &str) {
        for (field, value) in after {
            if before.get(field) != Some(value) {
                self.set(field, text(value), from);
            }
        }
    }

    /// Records the lines of a `user.conf` or an `audit.config` for `model`, with LoadGen's
    /// resulting fields. Returns the fields that the lines set. `*` stands for all models.
    pub fn conf(
        &mut self,
        path: &Path,
        model: &str,
        scenario: Scenario,
        fields: &Map<String, Value>,
    ) -> Result<Vec<&'static str>, LoadgenError> {
        let values = conf_values(path, model, scenario)?;
        let file = path.file_name().unwrap_or(path.as_os_str());
        let file = file.to_string_lossy();
        if values.is_empty() && model != "*" {
            self.notes.push(format!(
                "{}: no line is for model {model} in {scenario}: it sets nothing here; write {}",
                path.display(),
                example(model, scenario)
            ));
        }
        if has_byte_order_mark(path) {
            self.notes
                .push(format!("{file}: its byte order mark is passed over"));
        }
        for v in &values {
            let at = format!("{file}:{}", v.line);
            match (v.field, v.beaten_by) {
                (_, Some(line)) => self.notes.push(format!(
                    "{at}: {} = {} has no effect: line {line} goes before it",
                    v.name, v.value
                )),
                (None, None) => self.notes.push(format!(
                    "{at}: {} = {} has no effect: LoadGen has no use for {} in {scenario}",
                    v.name, v.value, v.key
                )),
                (Some(field), None) => {
                    let value = fields.get(field).map(text).unwrap_or_default();
                    let line = (v.line, format!("{} = {}", v.name, v.value));
                    self.lines.insert(at.clone(), line);
                    self.set(field, value, at);
                }
            }
        }
        Ok(values.iter().filter_map(|v| v.field).collect())
    }

    /// Returns a field's value in force, with its origin.
    pub fn of(&self, field: &str) -> Option<&GivenValue> {
        self.given.get(field)?.last()
    }

    /// Returns the notes, and one note for each line without effect.
    pub fn notes(&self) -> Vec<String> {
        let mut beaten = Vec::new();
        for (field, given) in &self.given {
            let Some((last, before)) = given.split_last() else {
                continue;
            };
            for g in before.iter().filter(|g| g.value != last.value) {
                if let Some((line, words)) = self.lines.get(&g.from) {
                    let (by, value) = (&last.from, &last.value);
                    let note = format!(
                        "{}: {words} has no effect: {by} sets {field} to {value}",
                        g.from
                    );
                    beaten.push((*line, note));
                } else if self.lines.contains_key(&last.from)
                    && ![DEFAULT, MLPERF_CONF].contains(&g.from.as_str())
                {
                    // An audit.config overrides flags and the configuration.
                    let (from, was, by, value) = (&g.from, &g.value, &last.from, &last.value);
                    let note =
                        format!("{from}: {field} = {was} has no effect: {by} sets it to {value}");
                    beaten.push((usize::MAX, note));
                }
            }
        }
        beaten.sort();
        let rules = self
            .given
            .iter()
            .filter_map(|(f, given)| self.rule_beaten(f, given));
        beaten.extend(rules.map(|note| (usize::MAX, note)));
        let beaten = beaten.into_iter().map(|(_, note)| note);
        self.notes.iter().cloned().chain(beaten).collect()
    }

    /// A note if a value of `mlperf.conf`, which states the rules, is not in force; no note if a
    /// line of a `user.conf` or `audit.config` replaces the value.
    fn rule_beaten(&self, field: &str, given: &[GivenValue]) -> Option<String> {
        let last = given.last()?;
        let at = given.iter().position(|g| g.from == MLPERF_CONF)?;
        let replaced = given.iter().any(|g| self.lines.contains_key(&g.from));
        let rule = &given[at].value;
        let told = !replaced && !RATES.contains(&field) && *rule != last.value;
        told.then(|| {
            let (by, value) = (&last.from, &last.value);
            format!(
                "{MLPERF_CONF}: the rules' {field} = {rule} has no effect: {by} sets it to \
                 {value}; leave that out for a run that is to count"
            )
        })
    }

    /// Returns the record of every field; `scenario` is the scenario of the run.
    pub fn records(&self, scenario: Scenario) -> Vec<SettingRecord> {
        let test05 = self.given.get("test05").and_then(|given| given.last());
        let test05 = test05.is_some_and(|given| given.value == "true");
        let record = |(field, given): (&String, &Vec<GivenValue>)| {
            let (last, before) = given.split_last()?;
            let overrode = before.iter().rev();
            Some(SettingRecord {
                name: field.clone(),
                of: SettingOf::Loadgen,
                idle: is_idle(field, scenario, test05),
                given: last.clone(),
                overrode: overrode.filter(|g| g.from != DEFAULT).cloned().collect(),
            })
        };
        self.given.iter().filter_map(record).collect()
    }
}

/// Returns the `user.conf` line that every submission has, for one model or for all.
pub fn example(model: &str, scenario: Scenario) -> String {
    let name = scenario.name();
    let line = match scenario {
        Scenario::Server | Scenario::Offline => format!("{name}.target_qps = RATE"),
        Scenario::SingleStream | Scenario::MultiStream => format!("{name}.target_latency = MS"),
    };
    format!("`{model}.{line}` or `*.{line}`")
}

/// Whether a field has no effect in this scenario.
fn is_idle(field: &str, scenario: Scenario, test05: bool) -> bool {
    let mut others = SCENARIOS.iter().filter(|(s, ..)| *s != scenario);
    let of_another = others.any(|(s, ..)| field.starts_with(prefix(*s)));
    of_another || (field.starts_with("test05_") && !test05)
}

/// Returns a value without quotation marks.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Number(n) => match n.as_f64() {
            // Write 800, not 800.0. A seed is an integer and keeps all its digits.
            Some(f) if n.is_f64() && f.fract() == 0.0 && f.abs() < 1e15 => format!("{f:.0}"),
            // Write 0.95, not all digits of LoadGen's product 95 x 0.01.
            Some(f) if n.is_f64() && f.abs() < 1e3 => ((f * 1e12).round() / 1e12).to_string(),
            _ => n.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use loadgen_bridge::{TestMode, TestSettings};

    use super::*;

    fn fields(of: &TestSettings) -> Map<String, Value> {
        match serde_json::to_value(of) {
            Ok(Value::Object(map)) => map,
            other => panic!("{other:?}"),
        }
    }

    fn server() -> TestSettings {
        TestSettings {
            scenario: Scenario::Server,
            mode: TestMode::PerformanceOnly,
            server_target_qps: 800.0,
            ..TestSettings::default()
        }
    }

    fn conf(text: &str) -> Provenance {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("user.conf");
        fs::write(&path, text).expect("written");
        let mut p = Provenance::of_defaults(&fields(&TestSettings::default()));
        p.conf(&path, "m", Scenario::Server, &fields(&server()))
            .expect("read");
        p
    }

    fn find(p: &Provenance, name: &str) -> SettingRecord {
        let all = p.records(Scenario::Server);
        all.into_iter().find(|s| s.name == name).expect("a field")
    }

    #[test]
    fn a_field_has_its_origin_and_the_values_that_it_overrides() {
        let mut p = conf("m.Server.target_qps = 800\n");
        let qps = find(&p, "server_target_qps");
        assert_eq!(qps.given.value, "800");
        assert_eq!(qps.given.from, "user.conf:1");
        assert_eq!((qps.overrode, p.notes()), (vec![], vec![]));
        // A flag that repeats the value is no reason for a note.
        let mut same = p.clone();
        same.set("server_target_qps", "800", "--target-qps");
        assert_eq!(same.notes(), [""; 0]);
        p.set("server_target_qps", "300", "--target-qps");
        let qps = find(&p, "server_target_qps");
        assert_eq!(qps.given.value, "300");
        assert_eq!(qps.overrode[0].from, "user.conf:1");
        let note = "user.conf:1: m.Server.target_qps = 800 has no effect: --target-qps sets \
                    server_target_qps to 300";
        assert_eq!(p.notes(), [note]);
        assert_eq!(find(&p, "max_query_count").given.from, DEFAULT);
    }

    #[test]
    fn a_file_with_nothing_for_this_run_says_so() {
        let notes = conf("m.Offline.target_qps = 7\nbert.Server.target_qps = 9\n").notes();
        assert_eq!(notes.len(), 1);
        let words = "user.conf: no line is for model m in Server: it sets nothing here; write \
                     `m.Server.target_qps = RATE` or `*.Server.target_qps = RATE`";
        assert!(notes[0].ends_with(words), "{notes:?}");
    }

    #[test]
    fn lines_that_others_of_the_file_beat_and_keys_without_a_use_are_named() {
        let text = "*.*.min_duration = 5\nm.*.min_duration = 6\nm.Server.samples_per_query = 2\n";
        let expected = [
            "user.conf:1: *.*.min_duration = 5 has no effect: line 2 goes before it",
            "user.conf:3: m.Server.samples_per_query = 2 has no effect: LoadGen has no use for \
             samples_per_query in Server",
        ];
        assert_eq!(conf(text).notes(), expected);
    }

    #[test]
    fn a_rule_that_something_else_goes_before_is_named_but_not_by_a_user_conf() {
        let given = |text: &str, by: &str| {
            let mut p = conf(text);
            let mut ruled = TestSettings::default();
            let before = fields(&ruled);
            (ruled.min_duration_ms, ruled.server_target_qps) = (600_000, 2.0);
            p.given.remove("min_duration_ms");
            p.changed(&before, &fields(&ruled), MLPERF_CONF);
            p.set("server_target_qps", "100", by);
            p
        };
        let mut p = given("m.Server.coalesce_queries = 1\n", "f.yaml:8");
        assert_eq!(p.notes(), [""; 0], "a rate is everybody's own");
        p.set("min_duration_ms", "10000", "f.yaml:9");
        let note = "mlperf.conf: the rules' min_duration_ms = 600000 has no effect: f.yaml:9 sets \
                    it to 10000; leave that out for a run that is to count";
        assert_eq!(p.notes(), [note]);
        p.set("min_duration_ms", "600000", "--set");
        assert_eq!(p.notes(), [""; 0], "the same value");
        let p = conf("m.Server.min_duration = 700000\n");
        assert_eq!(p.notes(), [""; 0]);
    }

    #[test]
    fn fields_of_other_scenarios_are_idle() {
        let p = conf("");
        let idle = |name| find(&p, name).idle;
        assert!(idle("offline_expected_qps") && idle("test05_qsl_rng_seed"));
        assert!(!idle("server_target_qps") && !idle("qsl_rng_seed"));
    }
}
