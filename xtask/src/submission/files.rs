//! Files that a rehearsal writes: configurations, and marked replacements for a submitter's input.

use anyhow::{Context, Result};

/// The number of samples of llama3.1-8b; each sample is far smaller.
const SAMPLES: u32 = 13368;
const MODEL: &str = "model: {name: llama3.1-8b, inputs: [{name: prompt, dtype: i32, shape: [16], ragged: true}], \
                     output: {name: tokens, dtype: i32, shape: [8], ragged: true}}\n";
const CONTROL: u16 = 7460;

/// Replaces the official audit.config of TEST06: the same keys with other text.
pub const AUDIT: &str = "*.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
                         *.*.accuracy_log_sampling_target = 100\n*.*.min_query_count = 100\n*.*.min_duration = 0\n\
                         *.*.sample_concatenate_permutation = 0\n";

/// Replaces the accuracy script's output for a correct model; no model is scored.
pub const SCORES: &str = "rehearsal: nothing was scored\n{'rouge1': '38.9', 'rouge2': '16.0', 'rougeL': '24.6', \
                          'rougeLsum': '36.0', 'gen_len': 8167644}\n";

pub fn accelerator(address: &str) -> String {
    format!(
        "node: acc-a\ncontrol: {{listen: \"{address}:{CONTROL}\"}}\nauth: none\n{MODEL}\
         nics: [{{listen: \"{address}:{}\"}}]\n\
         engine: {{kind: tokens, tokens: {{min_tokens: 3, max_tokens: 8, sequences: 256}}}}\n",
        CONTROL + 1
    )
}

/// The frontend's configuration for one model name in user.conf.
pub fn frontend(own: &str, accelerator: &str, model: &str) -> String {
    format!(
        "node: lg\nauth: none\n{MODEL}\
         dataset: {{kind: random, count: {SAMPLES}, min_bytes: 64, max_bytes: 64, distribution: fixed}}\n\
         accelerators: [{{control: \"{accelerator}:{CONTROL}\"}}]\n\
         nics: [{{address: {own}, connections: 2}}]\n\
         loadgen: {{model: {model}, user_conf: user.conf}}\n"
    )
}

/// user.conf with the rates in `table`, the text of `configs/rounds/rehearsal.yaml`.
pub fn user_conf(table: &str) -> Result<String> {
    let (offline, server) = (value(table, "offline")?, value(table, "server")?);
    Ok(format!(
        "llama3_1-8b.Offline.target_qps = {offline}\nllama3_1-8b-interactive.Server.target_qps = {server}\n"
    ))
}

/// The value of `key` in `table`: `2` in `duration_s: 2`, or `20` in `{offline: 20, …}`.
pub fn value(table: &str, key: &str) -> Result<String> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let found = lines
        .flat_map(|line| line.split([',', '{', '}']))
        .find_map(|part| {
            let (name, value) = part.split_once(':')?;
            let value = value.trim();
            (name.trim() == key && !value.is_empty()).then(|| value.to_owned())
        });
    found.with_context(|| format!("{}: no {key}", super::TABLE))
}

/// Fills in the form, with a marked answer in each required field.
pub fn fill(blank: &str) -> String {
    let (head, _) = blank.split_once("models:\n").unwrap_or((blank, ""));
    let mut text = String::new();
    for line in head.lines() {
        let key = line.split(':').next().unwrap_or_default();
        // Optional fields, and fields that the machine reports, stay empty.
        let value = match key.trim() {
            "submitter" | "system" | "quantization" => "rehearsal",
            "status" => "available",
            key if key.starts_with("network_") || key.starts_with("host_memory") => "",
            "host_storage_type" => "",
            _ if key.starts_with("  ") && line.ends_with(": \"\"") => "rehearsal/none over it",
            _ => "",
        };
        match value {
            "" => text += line,
            value => text += &format!("{key}: {value}"),
        }
        text.push('\n');
    }
    text + "models:\n  llama3.1-8b: {input_data_types: int32, retraining: \"no\", \
            starting_weights_filename: rehearsal, weight_data_types: rehearsal, weight_transformations: rehearsal}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_what_a_rehearsal_is_shortened_by() {
        let table = include_str!("../../../configs/rounds/rehearsal.yaml");
        let number = |key| value(table, key).expect(key).parse::<f64>().expect(key);
        assert!(number("duration_s") > 0.0 && number("offline") > 0.0 && number("server") > 0.0);
        assert!(value(table, "no such key").is_err());
    }

    #[test]
    fn whatever_a_form_asks_for_is_filled_in_and_marked() {
        let blank = "# a form\nsubmitter: \"\"   # who\nhost_memory_ecc: \"\"\nfields:\n  # air\n  cooling: \"\"\n\nmodels:\n  m:\n";
        let text = fill(blank);
        assert!(text.contains("submitter: rehearsal\n"), "{text}");
        assert!(text.contains("host_memory_ecc: \"\"\n"), "{text}");
        assert!(
            text.contains("  cooling: rehearsal/none over it\n"),
            "{text}"
        );
        assert!(text.contains("models:\n  llama3.1-8b:"), "{text}");
    }
}
