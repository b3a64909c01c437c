//! The configuration of a trial: the user's, with some keys changed.
//!
//! It is written as JSON, which is YAML too. Comments are lost, so the user's own file is left
//! alone, and the page says line by line what to change in it.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// A file as it was read.
#[derive(Clone, Debug)]
pub struct Yaml(Value);

impl Yaml {
    /// Reads a file that was loaded before: it is sound.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let options = serde_saphyr::options! { strict_booleans: true };
        let value = serde_saphyr::from_str_with_options(&text, options);
        Ok(Yaml(value.with_context(|| path.display().to_string())?))
    }

    /// What the file says of a key, of the first where it is one of several (`nics[].slots`).
    pub fn get(&self, key: &str) -> Option<String> {
        let mut at = &self.0;
        for word in key.split('.') {
            at = match word.strip_suffix("[]") {
                Some(list) => at.get(list)?.get(0)?,
                None => at.get(word)?,
            };
        }
        Some(match at {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }

    /// Sets a key; of `nics[].slots` those of all entries.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        put(&mut self.0, key, &value)
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.0)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())
    }
}

fn put(at: &mut Value, key: &str, value: &Value) -> Result<()> {
    let (word, rest) = key.split_once('.').unwrap_or((key, ""));
    if let Some(list) = word.strip_suffix("[]") {
        let Some(Value::Array(entries)) = at.get_mut(list) else {
            bail!("{key}: the configuration has no list `{list}`");
        };
        return entries
            .iter_mut()
            .try_for_each(|entry| put(entry, rest, value));
    }
    if at.is_null() {
        *at = Value::Object(Map::new());
    }
    let Value::Object(map) = at else {
        bail!("{key}: what it is in is no mapping");
    };
    let place = map.entry(word).or_insert(Value::Null);
    if rest.is_empty() {
        *place = value.clone();
        return Ok(());
    }
    put(place, rest, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_set_in_every_entry_of_a_list() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.yaml");
        let text = "engine: {kind: \"null\"}\nnics:\n  - {slots: 4}\n  - {slots: 8}\n\
                    a: yes # a text\n";
        fs::write(&path, text).expect("written");
        let mut yaml = Yaml::read(&path).expect("sound");
        assert_eq!(yaml.get("nics[].slots").as_deref(), Some("4"));
        assert_eq!(yaml.get("nics[].connections"), None);
        yaml.set("nics[].slots", "16").expect("a key");
        yaml.set("nics[].completion.mode", "event")
            .expect("a new key");
        yaml.set("loadgen.settings.x", "2.5")
            .expect("a new mapping");
        assert!(yaml.set("node[].x", "1").is_err());
        yaml.write(&path).expect("written");
        let again = Yaml::read(&path).expect("JSON is YAML");
        assert_eq!(again.0["nics"][1]["slots"], 16);
        assert_eq!(again.0["nics"][1]["completion"]["mode"], "event");
        assert_eq!(again.get("loadgen.settings.x").as_deref(), Some("2.5"));
        assert_eq!(again.0["engine"]["kind"], "null");
        assert_eq!(again.0["a"], "yes");
    }
}
