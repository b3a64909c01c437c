//! Where LoadGen's settings came from: every value that somebody gave to a field, in the order in
//! which one goes before the other; and what was given in vain.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use loadgen_bridge::{ConfValue, LoadgenError, Scenario, TestSettings, conf_values};
use qdl::stats::{DEFAULT, GivenValue, SettingOf, SettingRecord};
use serde_json::{Map, Value};

/// LoadGen's embedded file, which it reads when it is given a `user.conf`.
pub const MLPERF_CONF: &str = "mlperf.conf";

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// By field: all values, the one in force last.
    given: BTreeMap<String, Vec<GivenValue>>,
    /// Lines of a `user.conf` or `audit.config` among them.
    lines: BTreeSet<String>,
    notes: Vec<String>,
}

impl Provenance {
    /// Every field of these, as LoadGen has it before anybody speaks.
    pub fn of_defaults(fields: &Map<String, Value>) -> Self {
        let mut p = Provenance::default();
        p.changed(&Map::new(), fields, DEFAULT);
        p
    }

    /// A field was given this value, even if it had it before.
    pub fn set(&mut self, field: &str, value: impl Into<String>, from: impl Into<String>) {
        let given = GivenValue {
            value: value.into(),
            from: from.into(),
        };
        self.given.entry(field.to_owned()).or_default().push(given);
    }

    /// Whatever differs was given by `from`.
    pub fn changed(&mut self, before: &Map<String, Value>, after: &Map<String, Value>, from: &str) {
        for (field, value) in after {
            if before.get(field) != Some(value) {
                self.set(field, text(value), from);
            }
        }
    }

    /// What a `user.conf` says of `model`, beside the fields it led to.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn user_conf(
        &mut self,
        path: &Path,
        model: &str,
        scenario: Scenario,
        fields: &Map<String, Value>,
    ) -> Result<(), LoadgenError> {
        let values = conf_values(path, model, scenario)?;
        if values.is_empty() {
            self.notes.push(format!(
                "{}: no line is for model {model} in {scenario}: it sets nothing here",
                path.display()
            ));
        }
        self.values(path, &values, scenario, |v| text(&fields[v]));
        Ok(())
    }

    /// What an `audit.config` says, which LoadGen itself reads last. `read` makes the value of a
    /// line that of its field.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn audit(
        &mut self,
        path: &Path,
        test: &TestSettings,
        mut read: impl FnMut(&ConfValue) -> Option<Map<String, Value>>,
    ) -> Result<(), LoadgenError> {
        let values = conf_values(path, "*", test.scenario)?;
        let by_field: BTreeMap<&str, &ConfValue> = values
            .iter()
            .filter(|v| v.beaten_by.is_none())
            .filter_map(|v| Some((v.field?, v)))
            .collect();
        self.values(path, &values, test.scenario, |field| {
            let value = by_field.get(field);
            let fields = value.and_then(|v| read(v));
            match fields.as_ref().and_then(|f| f.get(field)) {
                Some(v) => text(v),
                None => value.map_or_else(String::new, |v| v.value.clone()),
            }
        });
        Ok(())
    }

    fn values(
        &mut self,
        path: &Path,
        values: &[ConfValue],
        scenario: Scenario,
        mut value: impl FnMut(&str) -> String,
    ) {
        let file = name(path);
        for v in values {
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
                    let value = value(field);
                    self.lines.insert(at.clone());
                    self.set(field, value, at);
                }
            }
        }
    }

    /// What was given in vain: lines of a file that something else goes before.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        for (field, given) in &self.given {
            let Some((last, before)) = given.split_last() else {
                continue;
            };
            let beaten = before.iter().filter(|g| self.lines.contains(&g.from));
            for g in beaten.filter(|g| g.value != last.value) {
                notes.push(format!(
                    "{}: {field} = {} has no effect: {} sets {}",
                    g.from, g.value, last.from, last.value
                ));
            }
        }
        notes
    }

    /// Every field on record.
    pub fn records(&self) -> Vec<SettingRecord> {
        let record = |(field, given): (&String, &Vec<GivenValue>)| {
            let (last, before) = given.split_last()?;
            let overrode = before.iter().rev();
            Some(SettingRecord {
                name: field.clone(),
                of: SettingOf::Loadgen,
                given: last.clone(),
                overrode: overrode.filter(|g| g.from != DEFAULT).cloned().collect(),
            })
        };
        self.given.iter().filter_map(record).collect()
    }
}

/// A file without its folder.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// A value without quotation marks.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}
