//! Facts on the model from its folder: vocabulary, context, end of sequence, experts.

use std::{
    fs::{self, File},
    path::Path,
};

use qdl::model::ForeignFormat;
use serde_json::Value;

/// Keys of `config.json` that only a mixture of experts has.
const EXPERTS: [&str; 4] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
];

/// What the files of a model say. The keys of the configuration replace what is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFolder {
    /// Number of ids in the vocabulary.
    pub vocab: Option<usize>,
    /// Maximum tokens of prompt and answer together.
    pub context: Option<usize>,
    /// Ids of the end of sequence.
    pub eos: Vec<u32>,
    /// The model is a mixture of experts.
    pub has_experts: bool,
}

impl ModelFolder {
    /// Reads `config.json`, and `generation_config.json` if there is one; refuses pointers in the
    /// place of these files and of weights.
    ///
    /// # Errors
    /// Text: the file, and why it cannot be read.
    pub fn read(folder: &Path) -> Result<Self, String> {
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "safetensors") {
                check_format(&entry.path())?;
            }
        }
        let config = read(&folder.join("config.json"))?;
        // Models for text and images have the language model's keys one level below.
        let of = |key: &str| {
            let inner = config.get("text_config").and_then(|c| c.get(key));
            config.get(key).or(inner)
        };
        let generation = folder.join("generation_config.json");
        let generation = match generation.exists() {
            true => read(&generation)?,
            false => Value::Null,
        };
        let eos = generation.get("eos_token_id").filter(|v| !v.is_null());
        let number = |key| of(key).and_then(Value::as_u64).map(|n| n as usize);
        Ok(ModelFolder {
            vocab: number("vocab_size"),
            context: number("max_position_embeddings"),
            eos: ids(eos.or(of("eos_token_id"))),
            has_experts: EXPERTS
                .iter()
                .any(|key| number(key).is_some_and(|experts| experts > 1)),
        })
    }
}

/// Refuses a file in whose place something else lies, such as a pointer of Git LFS.
fn check_format(path: &Path) -> Result<(), String> {
    let format = File::open(path).and_then(|file| ForeignFormat::of_file(&file));
    match format.map_err(|e| format!("{}: {e}", path.display()))? {
        Some(f) if f.instead.is_some() => Err(format!("{} is {}", path.display(), f.text(""))),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Value, String> {
    check_format(path)?;
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// A number, or a list of numbers.
fn ids(value: Option<&Value>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(all)) => all.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_folder_give_the_facts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let error = ModelFolder::read(path).expect_err("empty");
        assert!(error.contains("config.json: No such file"), "{error}");
        let facts = |config: &str, generation: Option<&str>| {
            fs::write(path.join("config.json"), config).expect("written");
            let other = path.join("generation_config.json");
            let _ = fs::remove_file(&other);
            if let Some(generation) = generation {
                fs::write(&other, generation).expect("written");
            }
            let f = ModelFolder::read(path).expect("sound");
            (f.vocab, f.context, f.eos, f.has_experts)
        };
        let plain = r#"{"vocab_size": 9, "eos_token_id": 2}"#;
        assert_eq!(facts(plain, None), (Some(9), None, vec![2], false));
        let generation = Some(r#"{"eos_token_id": [3, 4]}"#);
        let several = (Some(9), None, vec![3, 4], false);
        assert_eq!(facts(plain, generation), several);
        let inner = r#"{"text_config": {"vocab_size": 8}}"#;
        assert_eq!(facts(inner, Some("{}")), (Some(8), None, vec![], false));
        let experts = r#"{"num_local_experts": 8}"#;
        assert_eq!(facts(experts, None), (None, None, vec![], true));
        let one = r#"{"n_routed_experts": 1}"#;
        assert_eq!(facts(one, None), (None, None, vec![], false));
        let long = r#"{"max_position_embeddings": 64}"#;
        assert_eq!(facts(long, None), (None, Some(64), vec![], false));
        fs::write(path.join("config.json"), "{").expect("written");
        let error = ModelFolder::read(path).expect_err("broken");
        assert!(error.contains("config.json: EOF"), "{error}");
        for name in ["config.json", "model-00001-of-00002.safetensors"] {
            let pointer = "version https://git-lfs.github.com/spec/v1\n";
            fs::write(path.join(name), pointer).expect("written");
            let error = ModelFolder::read(path).expect_err("a pointer");
            assert!(
                error.contains(&format!("{name} is a pointer of Git LFS")),
                "{error}"
            );
            fs::write(path.join(name), "{}").expect("written");
        }
    }
}
