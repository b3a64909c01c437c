//! Settings of a run, and the source of each value.

use serde::{Deserialize, Serialize};

/// The `from` of a [`GivenValue`] that no file or flag sets.
pub const DEFAULT: &str = "default";

/// The program that reads a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingOf {
    /// LoadGen.
    #[default]
    Loadgen,
    /// This frontend.
    Frontend,
}

/// A value and its source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenValue {
    /// The value as text.
    pub value: String,
    /// Source: `default`, `user.conf:3`, `front.yaml:12`, `--target-qps`, `audit.config:1`.
    pub from: String,
}

/// One setting with its value in force and the values that it overrode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingRecord {
    /// LoadGen's field, or the configuration's key: `nics[0].slots`.
    pub name: String,
    /// Program that reads the setting.
    pub of: SettingOf,
    /// True if the setting has no effect in this run's scenario and mode.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
    /// The value in force and its source.
    #[serde(flatten)]
    pub given: GivenValue,
    /// Values that this value overrode, the last first, without defaults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrode: Vec<GivenValue>,
}

impl SettingRecord {
    /// Whether the setting has an effect in this run, and a file or flag sets it.
    pub fn is_set(&self) -> bool {
        !self.idle && (self.given.from != DEFAULT || !self.overrode.is_empty())
    }
}
