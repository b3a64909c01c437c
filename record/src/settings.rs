//! The settings a run was made with, and where each came from.

use serde::{Deserialize, Serialize};

/// Where a value came from that nobody set.
pub const DEFAULT: &str = "default";

/// Who takes a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingOf {
    /// LoadGen.
    #[default]
    Loadgen,
    /// This node.
    Frontend,
}

/// A value and who gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenValue {
    /// As text.
    pub value: String,
    /// `default`, `mlperf.conf`, `user.conf:3`, `front.yaml:12`, `--target-qps`, `audit.config:1`.
    pub from: String,
}

/// One setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingRecord {
    /// LoadGen's field, or the configuration's key: `nics[0].slots`.
    pub name: String,
    /// Whose it is.
    pub of: SettingOf,
    /// It has no effect in this run's scenario and mode.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
    /// What was in force, and who gave it.
    #[serde(flatten)]
    pub given: GivenValue,
    /// What it went before, the last first; defaults are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrode: Vec<GivenValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_value_and_origin_beside_the_name() {
        let s = SettingRecord {
            name: "mode".to_owned(),
            given: GivenValue {
                value: "AccuracyOnly".to_owned(),
                from: "--mode".to_owned(),
            },
            ..SettingRecord::default()
        };
        let json = serde_json::to_value(&s).expect("JSON");
        let expected = serde_json::json!({
            "name": "mode", "of": "loadgen", "value": "AccuracyOnly", "from": "--mode"
        });
        assert_eq!(json, expected);
        assert_eq!(
            serde_json::from_value::<SettingRecord>(json).expect("reads back"),
            s
        );
    }
}
