//! The configuration of a trial: the user's, with some keys changed.
//!
//! The trial's file is JSON, which is YAML, without the user's comments. The user's file stays as
//! it is; the result page shows the change line by line.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

/// A configuration file as a tree of values.
#[derive(Clone, Debug)]
pub struct Yaml(Value);

impl Yaml {
    /// Reads a file that passed the configuration loader.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let options = serde_saphyr::options! { strict_booleans: true };
        let value = serde_saphyr::from_str_with_options(&text, options);
        Ok(Yaml(value.with_context(|| path.display().to_string())?))
    }

    /// The value of a key. A key such as `nics[].slots` gives the value in the list's first entry.
    pub fn get(&self, key: &str) -> Option<String> {
        let path = format!("/{}", key.replace("[]", "/0").replace('.', "/"));
        self.0.pointer(&path).map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }

    /// Sets a key. A key such as `nics[].slots` is set in every entry of the list.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        let Some((list, rest)) = key.split_once("[].") else {
            return put(&mut self.0, key, value);
        };
        let entries = self.0.get_mut(list).and_then(Value::as_array_mut);
        let entries = entries.with_context(|| format!("{key}: there is no list `{list}`"))?;
        entries
            .iter_mut()
            .try_for_each(|entry| put(entry, rest, value.clone()))
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.0)? + "\n";
        disk::write(path, text).with_context(|| path.display().to_string())
    }
}

fn put(mut at: &mut Value, key: &str, value: Value) -> Result<()> {
    for word in key.split('.') {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let map = at.as_object_mut();
        let map = map.with_context(|| format!("{key}: the parent of `{word}` is no mapping"))?;
        at = map.entry(word).or_insert(Value::Null);
    }
    *at = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_set_in_every_entry_of_a_list() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.yaml");
        let text = "engine: {kind: \"null\"}\nnics: [{slots: 4}, {slots: 8}]\na: yes # text\n";
        fs::write(&path, text).expect("written");
        let mut yaml = Yaml::read(&path).expect("sound");
        assert_eq!(yaml.get("nics[].slots").as_deref(), Some("4"));
        assert_eq!(yaml.get("nics[].connections"), None);
        yaml.set("nics[].slots", "16").expect("a key");
        yaml.set("nics[].completion.mode", "event").expect("new");
        yaml.set("loadgen.settings.x", "2.5").expect("new");
        assert!(yaml.set("node[].x", "1").is_err());
        yaml.write(&path).expect("written");
        let again = Yaml::read(&path).expect("JSON is YAML");
        assert_eq!(again.0["nics"][1]["slots"], 16);
        assert_eq!(
            again.get("nics[].completion.mode").as_deref(),
            Some("event")
        );
        assert_eq!(again.get("loadgen.settings.x").as_deref(), Some("2.5"));
        assert_eq!(again.0["engine"]["kind"], "null");
        assert_eq!(again.0["a"], "yes");
    }
}
