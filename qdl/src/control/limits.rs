//! Limits of every field of every message: a message that has passed [`check`] is safe to size
//! things by.

use std::collections::HashSet;

use crate::{
    model::{ModelSpec, TensorSpec},
    wire::{
        Content, EngineInfo, MAX_CACHE_WORDS, MAX_CONTENT_NAME, MAX_ENGINE_NAME, MAX_HOST,
        MAX_RAILS, MAX_SLOTS, NodeFacts,
    },
};

use super::message::{ConnectionRequest, MAX_REFUSAL, MAX_TEXT, Message, Scores};

/// Longest node name, in bytes.
pub const MAX_NODE: usize = 64;
/// Longest name of a model or tensor, or part of the SUT's name, in bytes.
pub const MAX_NAME: usize = 256;
/// Longest version and commit of a program, in bytes.
pub const MAX_VERSION: usize = 64;
/// Most connections of one session.
pub const MAX_CONNECTIONS: usize = 1024;
/// Longest piece of a node's side in one frame, in bytes: as JSON within JSON it takes twice that
/// at most.
pub const MAX_SIDE_PART: usize = 128 << 10;
/// Most inputs of a model.
pub const MAX_INPUTS: usize = 64;
/// Most dimensions of a tensor, the batch not counted.
pub const MAX_DIMENSIONS: usize = 16;
/// Most bytes of a sample or of a response: a length is 32 bits on the data plane, with room left
/// for a response's header and a slot's padding.
pub const MAX_SAMPLE: usize = 1 << 30;

/// A field outside its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outside {
    /// Which.
    pub field: &'static str,
    /// How.
    pub problem: String,
}

fn outside<T>(field: &'static str, problem: String) -> Result<T, Outside> {
    Err(Outside { field, problem })
}

/// Is this a node name? Letters, digits, `.`, `_` and `-`, at most [`MAX_NODE`] of them: it becomes
/// part of the SUT's name and of file names.
///
/// # Errors
/// What is wrong with it.
pub fn check_node_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NODE {
        return Err(format!("{} bytes, must be 1 to {MAX_NODE}", name.len()));
    }
    match name
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')))
    {
        Some(c) => Err(format!(
            "holds {c:?}; letters, digits, '.', '_' and '-' may"
        )),
        None => Ok(()),
    }
}

/// May a node call itself this in the SUT's name? At most [`MAX_NAME`] bytes, nothing unprintable.
///
/// # Errors
/// What is wrong with it.
pub fn check_sut_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        Err(format!("{} bytes, must be 1 to {MAX_NAME}", name.len()))
    } else if name.chars().any(char::is_control) {
        Err("holds a control character".to_owned())
    } else {
        Ok(())
    }
}

/// Checks what the type system does not.
pub(super) fn check(message: &Message) -> Result<(), Outside> {
    match message {
        Message::Hello {
            node, heartbeat_ms, ..
        } => {
            check_node_name(node).or_else(|p| outside("node", p))?;
            if *heartbeat_ms == 0 {
                return outside("heartbeat_ms", "0, must be at least 1".to_owned());
            }
            Ok(())
        }
        Message::Model {
            spec,
            engine,
            facts,
            ..
        } => {
            check_model(spec)?;
            engine.as_ref().map_or(Ok(()), check_engine)?;
            check_facts(facts)
        }
        Message::Open { connections, .. } => {
            check_connections(connections.iter().map(|l| (l.connection, l.epoch, l.slots)))?;
            connections.iter().try_for_each(check_request)
        }
        Message::Opened { connections, .. } => {
            check_connections(connections.iter().map(|l| (l.connection, l.epoch, l.slots)))
        }
        Message::Described { description, .. } => {
            description.check().or_else(|(field, p)| outside(field, p))
        }
        Message::NameIs { name, .. } => check_sut_name(name).or_else(|p| outside("name", p)),
        Message::SideIs { text, .. } if text.len() > MAX_SIDE_PART => {
            let n = text.len();
            outside(
                "text",
                format!("{n} bytes, must be at most {MAX_SIDE_PART}"),
            )
        }
        Message::ConnectionLost { cause: text, .. } => check_text("cause", text),
        Message::RefusedSample { text, .. } => check_words("text", text, 0..=MAX_REFUSAL),
        Message::Refused { text, .. } | Message::Error { text, .. } => check_text("text", text),
        Message::Heartbeat {
            scores: Some(Scores { rails, .. }),
            ..
        } if rails.len() > MAX_RAILS => outside(
            "scores.rails",
            format!("{}, must be at most {MAX_RAILS}", rails.len()),
        ),
        Message::Heartbeat { .. }
        | Message::Answer { .. }
        | Message::Start { .. }
        | Message::Ready { .. }
        | Message::Name { .. }
        | Message::Drain { .. }
        | Message::Drained { .. }
        | Message::Describe { .. }
        | Message::Side { .. }
        | Message::SideIs { .. }
        | Message::ConnectionReset { .. }
        | Message::Bye {} => Ok(()),
    }
}

fn check_text(field: &'static str, text: &str) -> Result<(), Outside> {
    if text.len() > MAX_TEXT {
        return outside(
            field,
            format!("{} bytes, must be at most {MAX_TEXT}", text.len()),
        );
    }
    Ok(())
}

fn check_connections(
    connections: impl ExactSizeIterator<Item = (u16, u32, u32)>,
) -> Result<(), Outside> {
    if connections.len() == 0 || connections.len() > MAX_CONNECTIONS {
        return outside(
            "connections",
            format!("{}, must be 1 to {MAX_CONNECTIONS}", connections.len()),
        );
    }
    let mut seen = HashSet::new();
    for (connection, epoch, slots) in connections {
        if !seen.insert(connection) {
            return outside(
                "connections",
                format!("connection {connection} is there twice"),
            );
        }
        if epoch == 0 {
            return outside(
                "connections",
                format!("connection {connection}: epoch 0, must be at least 1"),
            );
        }
        if slots == 0 || slots as usize > MAX_SLOTS {
            return outside(
                "connections",
                format!("connection {connection}: {slots} slots, must be 1 to {MAX_SLOTS}"),
            );
        }
    }
    Ok(())
}

fn check_request(l: &ConnectionRequest) -> Result<(), Outside> {
    if l.request_stride == 0 || l.response_stride == 0 {
        return outside(
            "connections",
            format!("connection {}: a stride of 0 bytes", l.connection),
        );
    }
    Ok(())
}

fn check_engine(engine: &EngineInfo) -> Result<(), Outside> {
    let name = &engine.name;
    if name.is_empty() || name.len() > MAX_ENGINE_NAME {
        return outside(
            "engine.name",
            format!("{} bytes, must be 1 to {MAX_ENGINE_NAME}", name.len()),
        );
    }
    if name.chars().any(char::is_control) {
        return outside("engine.name", "holds a control character".to_owned());
    }
    if let Some(cache) = &engine.prefix_cache {
        check_words("engine.prefix_cache", &cache.how, 0..=MAX_CACHE_WORDS)?;
    }
    let Some(content) = &engine.content else {
        return Ok(());
    };
    if let Content::File { name, .. } | Content::Server { name } = content {
        check_words("engine.content", name, 1..=MAX_CONTENT_NAME)?;
    }
    check_hash("engine.content", content.sha256(), 64)
}

fn check_facts(facts: &NodeFacts) -> Result<(), Outside> {
    check_words("facts.host", &facts.host, 0..=MAX_HOST)?;
    check_words("facts.version", &facts.version, 0..=MAX_VERSION)?;
    check_hash("facts.machine", facts.machine.as_deref(), 32)?;
    check_hash("facts.boot", facts.boot.as_deref(), 32)?;
    check_hash("facts.program", facts.program.as_deref(), 64)?;
    if let Some(commit) = &facts.commit {
        check_words("facts.commit", commit, 1..=MAX_VERSION)?;
    }
    if facts.links.len() > MAX_RAILS {
        let n = facts.links.len();
        return outside("facts.links", format!("{n}, must be at most {MAX_RAILS}"));
    }
    let mut names = facts.links.iter().map(|l| &l.name);
    names.try_for_each(|name| check_words("facts.links", name, 0..=MAX_NODE))
}

/// Something that is printed.
fn check_words(
    field: &'static str,
    text: &str,
    bytes: std::ops::RangeInclusive<usize>,
) -> Result<(), Outside> {
    if !bytes.contains(&text.len()) {
        let (n, least, most) = (text.len(), bytes.start(), bytes.end());
        return outside(field, format!("{n} bytes, must be {least} to {most}"));
    }
    if text.chars().any(char::is_control) {
        return outside(field, "holds a control character".to_owned());
    }
    Ok(())
}

fn check_hash(field: &'static str, hash: Option<&str>, digits: usize) -> Result<(), Outside> {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    match hash {
        Some(h) if h.len() != digits || !h.bytes().all(digit) => outside(
            field,
            format!("a hash that is not {digits} hexadecimal digits"),
        ),
        _ => Ok(()),
    }
}

fn check_model(m: &ModelSpec) -> Result<(), Outside> {
    if m.name.is_empty() || m.name.len() > MAX_NAME {
        return outside(
            "spec.name",
            format!("{} bytes, must be 1 to {MAX_NAME}", m.name.len()),
        );
    }
    if m.inputs.is_empty() || m.inputs.len() > MAX_INPUTS {
        return outside(
            "spec.inputs",
            format!("{}, must be 1 to {MAX_INPUTS}", m.inputs.len()),
        );
    }
    m.inputs
        .iter()
        .try_for_each(|t| check_tensor("spec.inputs", t))?;
    if m.other_outputs.len() >= MAX_INPUTS {
        return outside(
            "spec.other_outputs",
            format!("{}, must be below {MAX_INPUTS}", m.other_outputs.len()),
        );
    }
    m.outputs()
        .try_for_each(|t| check_tensor("spec.output", t))?;
    if m.max_output_bytes().is_none_or(|n| n > MAX_SAMPLE) {
        return outside(
            "spec.output",
            format!("more than {MAX_SAMPLE} bytes a sample"),
        );
    }
    if !m.other_outputs.is_empty() && m.outputs().any(|t| t.ragged) {
        return outside("spec.output", "one of several is ragged".to_owned());
    }
    match m.max_input_bytes() {
        Some(n) if n <= MAX_SAMPLE => Ok(()),
        _ => outside(
            "spec.inputs",
            format!("more than {MAX_SAMPLE} bytes a sample"),
        ),
    }
}

fn check_tensor(field: &'static str, t: &TensorSpec) -> Result<(), Outside> {
    if t.name.len() > MAX_NAME {
        return outside(
            field,
            format!(
                "a name of {} bytes, must be at most {MAX_NAME}",
                t.name.len()
            ),
        );
    }
    if t.shape.len() > MAX_DIMENSIONS {
        return outside(
            field,
            format!(
                "{} dimensions, must be at most {MAX_DIMENSIONS}",
                t.shape.len()
            ),
        );
    }
    match t.bytes() {
        Some(n) if n <= MAX_SAMPLE => Ok(()),
        _ => outside(field, format!("more than {MAX_SAMPLE} bytes a sample")),
    }
}
