//! Reads the configurations of a run's nodes from the copies in its folder.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

/// Maximum size of a configuration's copy in bytes; a node's configuration is never larger.
const MOST_BYTES: u64 = 1 << 17;
/// Keys of a node's identity and place, which may differ between repetitions.
const PLACES: [&str; 5] = [
    "node",
    "token_file",
    "metrics",
    "metrics_token_file",
    "loadgen.output_dir",
];

/// Returns the YAML documents in the folder of copies, by file name. Skips other files, whose
/// hashes are in `run.json`.
pub fn read(folder: &Path) -> BTreeMap<String, Value> {
    let files = fs::read_dir(folder).into_iter().flatten();
    let one = |file: fs::DirEntry| {
        let name = file.file_name().into_string().ok()?;
        let of = file.metadata().ok()?;
        let small = of.is_file() && of.len() <= MOST_BYTES;
        let text = (name.ends_with(".yaml") && small).then(|| fs::read_to_string(file.path()));
        Some((name, serde_saphyr::from_str(&text?.ok()?).ok()?))
    };
    files.flatten().filter_map(one).collect()
}

/// Returns the values that [`flat`] finds in a copy. Omits ports, the keys in `PLACES`, and
/// LoadGen's settings, which the run's summary has.
pub(crate) fn compared(document: &Value) -> Vec<(String, String)> {
    let mut all = flat(document);
    all.retain(|(key, _)| !PLACES.contains(&key.as_str()) && !key.starts_with("loadgen.settings."));
    for (key, text) in &mut all {
        let is_address = key.ends_with("listen") || key.ends_with("control");
        if let Some((host, _)) = text.rsplit_once(':').filter(|_| is_address) {
            *text = host.to_owned();
        }
    }
    all
}

/// Returns every value of a document with its full key: `nics[0].slots`. A list of plain values is
/// one value; a key without a value is left out.
pub fn flat(document: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    put(document, String::new(), &mut all);
    all
}

fn put(value: &Value, key: String, all: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if key.is_empty() { "" } else { "." };
                put(value, format!("{key}{dot}{name}"), all);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (i, value) in items.iter().enumerate() {
                put(value, format!("{key}[{i}]"), all);
            }
        }
        Value::Array(items) => {
            let texts: Vec<String> = items.iter().map(plain).collect();
            all.push((key, texts.join(",")));
        }
        Value::Null => {}
        value => all.push((key, plain(value))),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_key_and_no_port() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = folder.path();
        let yaml = "node: a\ncontrol: {listen: '127.0.0.1:7400'}\nengine: {threads: 2}\n\
                    nics: [{address: 10.0.0.1, slots: 8, cpus: [2, 3]}]\n\
                    loadgen: {settings: {x: 1}}\n";
        fs::write(files.join("accelerator-a.yaml"), yaml).expect("written");
        fs::write(files.join("accelerator-b.yaml"), "a: [").expect("written");
        fs::write(files.join("user.conf"), "x = 1").expect("written");
        let read = read(folder.path());
        assert_eq!(read.len(), 1);
        let compared = compared(&read["accelerator-a.yaml"]);
        let said: Vec<String> = compared.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            said,
            [
                "control.listen=127.0.0.1",
                "engine.threads=2",
                "nics[0].address=10.0.0.1",
                "nics[0].cpus=2,3",
                "nics[0].slots=8"
            ]
        );
    }
}
