//! Templates of drafts: `<<name|meaning>>` becomes a known value, or says what to fill in.

use std::collections::BTreeMap;

use serde_json::Value;

/// What stands where nothing is known. A draft with it is refused.
pub(super) const FILL_IN: &str = "FILL IN";

/// Known values by name. An empty text counts as unknown.
pub(super) type Known = BTreeMap<&'static str, Value>;

/// How a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As JSON, which YAML reads too.
    Json,
    /// A text without quotes.
    Plain,
}

/// Fills in a template. `parts` replace `<<<name>>>` as they are.
pub(super) fn fill(template: &str, form: Form, known: &Known, parts: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    for (name, part) in parts {
        text = text.replace(&format!("<<<{name}>>>"), part);
    }
    let mut out = String::new();
    let mut rest = &*text;
    while let Some((before, after)) = rest.split_once("<<") {
        let (hole, behind) = after.split_once(">>").unwrap_or((after, ""));
        let (name, meaning) = hole.split_once('|').unwrap_or((hole, hole));
        out += before;
        let said = known.get(name).filter(|value| value.as_str() != Some(""));
        let value = said.cloned();
        let value = value.unwrap_or_else(|| format!("{FILL_IN}: {meaning}").into());
        out += &match (form, value) {
            (Form::Plain, Value::String(text)) => text,
            (_, value) => value.to_string(),
        };
        rest = behind;
    }
    out + rest
}
