//! Limits of the messages. Values of a message that passed [`check`] are safe as sizes, in sums and
//! in output. The check walks over the message's JSON, so that a new field has a limit from the
//! start: its entry in [`LIMITS`], or else [`OTHERS`].

use std::{collections::HashSet, ops::RangeInclusive};

use fabric::wire::{MAX_END, MAX_SLOTS};
use record::{MAX_CACHE_WORDS, MAX_CONTENT_NAME, MAX_ENGINE_NAME, MAX_HOST};
use serde_json::Value;

use super::message::{ConnectionRequest, MAX_REFUSAL, MAX_TEXT, Message};
use crate::{model::ModelSpec, wire::MAX_RAILS};

/// Longest node name, in bytes.
pub(crate) const MAX_NODE: usize = 64;
/// Longest name of a model or a tensor, and longest part of the SUT's name, in bytes.
pub const MAX_NAME: usize = 256;
/// Longest version and commit of a program, in bytes.
pub(crate) const MAX_VERSION: usize = 64;
/// Most connections of one session.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// Longest piece of a node's side in one frame, in bytes; escaping at most doubles its length.
pub(crate) const MAX_SIDE_PART: usize = 128 << 10;
/// Longest side of a node, in bytes; both nodes must hold it in memory.
pub(crate) const MAX_SIDE: u64 = 4 << 20;
/// Most GPUs of a node.
pub(crate) const MAX_GPUS: usize = 64;
/// Most kinds of threads of a node.
pub(crate) const MAX_THREAD_GROUPS: usize = 33;
/// Highest count: every JSON reader keeps it exactly, and sums of a run's counts cannot overflow.
pub(crate) const MAX_COUNT: u64 = 1 << 53;
/// Most inputs of a model.
pub(crate) const MAX_INPUTS: usize = 64;
/// Most dimensions of a tensor, the batch excluded.
pub(crate) const MAX_DIMENSIONS: usize = 16;
/// Most bytes of a sample or a response: the data plane has 32-bit lengths, which must also cover a
/// response's header and a slot's padding.
pub(crate) const MAX_SAMPLE: usize = 1 << 30;

/// Limit of a value.
pub(super) enum Limit {
    /// Elements of a list.
    List(RangeInclusive<usize>),
    /// Bytes of a text without control characters.
    Words(RangeInclusive<usize>),
    /// Bytes of a text whose control characters the receiver replaces.
    Text(RangeInclusive<usize>),
    /// Hexadecimal digits.
    Hash(usize),
    /// No limit here.
    Free,
}

use Limit::{Free, Hash, List, Text, Words};

/// Limits by message and field. An element of a list has the list's name.
pub(super) const LIMITS: [(&str, Limit); 38] = [
    ("model.node", Words(1..=MAX_NODE)),
    ("model.spec.name", Words(1..=MAX_NAME)),
    ("model.spec.inputs", List(1..=MAX_INPUTS)),
    ("model.spec.inputs.shape", List(0..=MAX_DIMENSIONS)),
    ("model.spec.output.shape", List(0..=MAX_DIMENSIONS)),
    ("model.spec.other_outputs", List(0..=MAX_INPUTS - 1)),
    ("model.spec.other_outputs.shape", List(0..=MAX_DIMENSIONS)),
    ("model.engine.name", Words(1..=MAX_ENGINE_NAME)),
    ("model.engine.content.name", Words(1..=MAX_CONTENT_NAME)),
    ("model.engine.content.sha256", Hash(64)),
    ("model.engine.prefix_cache.how", Words(0..=MAX_CACHE_WORDS)),
    ("model.engine.server.version", Words(1..=MAX_ENGINE_NAME)),
    ("model.facts.host", Words(0..=MAX_HOST)),
    ("model.facts.machine", Hash(32)),
    ("model.facts.boot", Hash(32)),
    ("model.facts.program", Hash(64)),
    ("model.facts.version", Words(0..=MAX_VERSION)),
    ("model.facts.commit", Words(1..=MAX_VERSION)),
    ("model.facts.links", List(0..=MAX_RAILS)),
    ("model.facts.links.name", Words(0..=MAX_NODE)),
    ("open.connections", List(1..=MAX_CONNECTIONS)),
    ("open.connections.transport.end", Words(0..=MAX_END)),
    ("opened.connections", List(1..=MAX_CONNECTIONS)),
    ("opened.connections.transport.end", Words(0..=MAX_END)),
    ("name_is.name", Words(1..=MAX_NAME)),
    // The description checks itself.
    ("described.description.machine", Free),
    ("described.description.config", Free),
    ("side_is.text", Text(0..=MAX_SIDE_PART)),
    ("drained.gpus", List(0..=MAX_GPUS)),
    ("drained.used.threads", List(0..=MAX_THREAD_GROUPS)),
    ("drained.used.threads.name", Words(0..=MAX_NODE)),
    ("heartbeat.scores.rails", List(0..=MAX_RAILS)),
    ("heartbeat.scores.standing.away", Words(0..=MAX_TEXT)),
    ("heartbeat.scores.standing.overdue", Words(0..=MAX_TEXT)),
    ("refused_sample.text", Words(0..=MAX_REFUSAL)),
    ("connection_lost.cause", Text(0..=MAX_TEXT)),
    ("refused.text", Text(0..=MAX_TEXT)),
    ("error.text", Text(0..=MAX_TEXT)),
];

/// Most elements of any other list, and most bytes of any other text, without control characters.
const OTHERS: usize = MAX_NAME;

/// Fields whose numbers are counts, a part of a field before the field.
pub(super) const COUNTS: [&str; 8] = [
    "drained.counters",
    "drained.gpus",
    "drained.used.threads",
    "drained.used.nics",
    "drained.used.engine",
    "drained.used",
    "heartbeat.counters",
    "model.engine.at_once",
];

/// A field that exceeds its limits, and the problem of its value.
type Outside = (&'static str, String);

/// Checks a node name: 1 to [`MAX_NODE`] letters, digits, `.`, `_` and `-`. The name becomes part
/// of the SUT's name and of file names.
///
/// # Errors
/// The problem of the name.
pub(super) fn check_node_name(name: &str) -> Result<(), String> {
    check_words(name, &(1..=MAX_NODE))?;
    let may = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().find(|c| !may(*c)) {
        Some(c) => Err(format!(
            "holds {c:?}; letters, digits, '.', '_' and '-' may"
        )),
        None => Ok(()),
    }
}

/// Checks the limits that the types do not enforce.
pub(super) fn check(message: &Message) -> Result<(), Outside> {
    match message {
        Message::Model {
            heartbeat_ms: 0, ..
        } => {
            return Err(("heartbeat_ms", "0, must be at least 1".to_owned()));
        }
        Message::Model { node, spec, .. } => {
            check_node_name(node).map_err(|p| ("node", p))?;
            check_sizes(spec)?;
        }
        Message::Open { connections, .. } => {
            check_connections(connections.iter().map(|l| (l.connection, l.epoch, l.slots)))?;
            let no_stride =
                |l: &&ConnectionRequest| l.request_stride == 0 || l.response_stride == 0;
            if let Some(l) = connections.iter().find(no_stride) {
                let problem = format!("connection {}: a stride of 0 bytes", l.connection);
                return Err(("connections", problem));
            }
        }
        Message::Opened { connections, .. } => {
            check_connections(connections.iter().map(|l| (l.connection, l.epoch, l.slots)))?;
        }
        Message::Described { description, .. } => {
            description.check()?;
        }
        _ => {}
    }
    let kind = message.kind();
    let json = serde_json::to_value(message).map_err(|e| (kind, e.to_string()))?;
    check_value(kind, &mut kind.to_owned(), &json)
}

/// Checks the value at `path` and all values below it.
pub(super) fn check_value(
    kind: &'static str,
    path: &mut String,
    value: &Value,
) -> Result<(), Outside> {
    let known = LIMITS.iter().find(|(known, _)| known == path);
    let (field, limit) = match known {
        Some((field, limit)) => (&field[kind.len() + 1..], limit),
        None if value.is_array() => (kind, &List(0..=OTHERS)),
        None => (kind, &Words(0..=OTHERS)),
    };
    let outside = |path: &str, problem: String| match known {
        Some(_) => (field, problem),
        None => (kind, format!("{}: {problem}", &path[kind.len() + 1..])),
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let length = path.len();
                path.push('.');
                path.push_str(name);
                check_value(kind, path, value)?;
                path.truncate(length);
            }
            Ok(())
        }
        Value::Array(items) => {
            if let List(may) = limit
                && !may.contains(&items.len())
            {
                let n = items.len();
                let problem = format!("{n}, must be {} to {}", may.start(), may.end());
                return Err(outside(path, problem));
            }
            items
                .iter()
                .try_for_each(|item| check_value(kind, path, item))
        }
        Value::String(text) => {
            let checked = match limit {
                Words(may) => check_words(text, may),
                Text(may) => check_length(text, may),
                Hash(digits) => check_hash(text, *digits),
                List(_) | Free => Ok(()),
            };
            checked.map_err(|problem| outside(path, problem))
        }
        Value::Number(n) if n.as_u64().is_some_and(|n| n > MAX_COUNT) => {
            let counted = COUNTS.iter().find(|counts| path.starts_with(**counts));
            counted.map_or(Ok(()), |counts| {
                let field = &counts[kind.len() + 1..];
                Err((field, format!("{n}, must be at most {MAX_COUNT}")))
            })
        }
        _ => Ok(()),
    }
}

fn check_length(text: &str, may: &RangeInclusive<usize>) -> Result<(), String> {
    match may.contains(&text.len()) {
        true => Ok(()),
        false => {
            let (n, least, most) = (text.len(), may.start(), may.end());
            Err(format!("{n} bytes, must be {least} to {most}"))
        }
    }
}

/// Checks a text that is printed.
fn check_words(text: &str, may: &RangeInclusive<usize>) -> Result<(), String> {
    check_length(text, may)?;
    match text.chars().any(record::is_unprintable) {
        true => Err("holds a control or format character".to_owned()),
        false => Ok(()),
    }
}

fn check_hash(text: &str, digits: usize) -> Result<(), String> {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    match text.len() == digits && text.bytes().all(digit) {
        true => Ok(()),
        false => Err(format!("a hash that is not {digits} hexadecimal digits")),
    }
}

fn check_connections(
    connections: impl ExactSizeIterator<Item = (u16, u32, u32)>,
) -> Result<(), Outside> {
    let mut seen = HashSet::new();
    for (connection, epoch, slots) in connections {
        let problem = if !seen.insert(connection) {
            "is there twice".to_owned()
        } else if epoch == 0 {
            "epoch 0, must be at least 1".to_owned()
        } else if slots == 0 || slots as usize > MAX_SLOTS {
            format!("{slots} slots, must be 1 to {MAX_SLOTS}")
        } else {
            continue;
        };
        return Err(("connections", format!("connection {connection}: {problem}")));
    }
    Ok(())
}

fn check_sizes(model: &ModelSpec) -> Result<(), Outside> {
    if !model.other_outputs.is_empty() && model.outputs().any(|t| t.ragged) {
        return Err(("spec.output", "one of several is ragged".to_owned()));
    }
    let each = |field, bytes| match bytes {
        Some(n) if n <= MAX_SAMPLE => Ok(()),
        _ => Err((field, format!("more than {MAX_SAMPLE} bytes a sample"))),
    };
    model
        .inputs
        .iter()
        .try_for_each(|t| each("spec.inputs", t.bytes()))?;
    model
        .outputs()
        .try_for_each(|t| each("spec.output", t.bytes()))?;
    each("spec.output", model.max_output_bytes())?;
    each("spec.inputs", model.max_input_bytes())
}
