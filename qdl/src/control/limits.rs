//! Limits of every field of every message. Values of a message that passed [`check`] are safe as
//! sizes, in sums and in output. Every struct is destructured without `..`, so that a new field
//! without a limit does not compile.

use std::{collections::HashSet, ops::RangeInclusive};

use fabric::wire::{MAX_SLOTS, OfiEnd};
use record::{
    Content, DecompressedUse, EngineInfo, EngineUse, GpuRecord, LinkFact, MAX_CACHE_WORDS,
    MAX_CONTENT_NAME, MAX_ENGINE_NAME, MAX_HOST, NicUse, NodeFacts, NodeUse, PrefixCache,
    ThreadGroup,
};

use super::message::{
    ConnectionGrant, ConnectionRequest, Counters, GrantTransport, MAX_REFUSAL, MAX_TEXT, Message,
    RequestTransport, Scores,
};
use crate::{
    model::{ModelSpec, TensorSpec},
    wire::MAX_RAILS,
};

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

/// A field that exceeds its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outside {
    /// Name of the field.
    pub field: &'static str,
    /// Problem of its value.
    pub problem: String,
}

fn outside<T>(field: &'static str, problem: String) -> Result<T, Outside> {
    Err(Outside { field, problem })
}

/// Checks a node name: 1 to [`MAX_NODE`] letters, digits, `.`, `_` and `-`. It becomes part of the
/// SUT's name and of file names.
///
/// # Errors
/// The problem of the name.
pub(crate) fn check_node_name(name: &str) -> Result<(), String> {
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

/// Checks a node's part of the SUT's name: 1 to [`MAX_NAME`] bytes without control characters.
///
/// # Errors
/// The problem of the name.
pub(crate) fn check_sut_name(name: &str) -> Result<(), String> {
    check_words("name", name, 1..=MAX_NAME).map_err(|o| o.problem)
}

/// Checks the limits that the types do not enforce.
pub(super) fn check(message: &Message) -> Result<(), Outside> {
    match message {
        Message::Hello {
            version: _,
            role: _,
            node,
            auth: _,
            nonce: _,
            heartbeat_ms,
        } => {
            check_node_name(node).or_else(|p| outside("node", p))?;
            if *heartbeat_ms == 0 {
                return outside("heartbeat_ms", "0, must be at least 1".to_owned());
            }
            Ok(())
        }
        Message::Model {
            spec,
            stream: _,
            engine,
            facts,
        } => {
            check_model(spec)?;
            engine.as_ref().map_or(Ok(()), check_engine)?;
            check_facts(facts)
        }
        Message::Open { id: _, connections } => {
            check_connections(connections.iter().map(|l| (l.connection, l.epoch, l.slots)))?;
            connections.iter().try_for_each(check_request)
        }
        Message::Opened { id: _, connections } => {
            check_connections(connections.iter().map(|l| (l.connection, l.epoch, l.slots)))?;
            connections.iter().try_for_each(check_grant)
        }
        Message::Described { id: _, description } => {
            description.check().or_else(|(field, p)| outside(field, p))
        }
        Message::NameIs { id: _, name } => check_words("name", name, 1..=MAX_NAME),
        Message::SideIs { id: _, of: _, text } => {
            check_length("text", text.len(), 0..=MAX_SIDE_PART)
        }
        Message::Drained {
            id: _,
            counters,
            // The deserializer of `BatchSizes` checks them.
            batches: _,
            gpus,
            used,
        } => {
            check_counters("counters", counters)?;
            check_list("gpus", gpus.len(), 0..=MAX_GPUS)?;
            gpus.iter().try_for_each(check_gpu)?;
            check_used(used)
        }
        Message::RefusedSample {
            connection: _,
            epoch: _,
            slot: _,
            use_count: _,
            text,
        } => check_words("text", text, 0..=MAX_REFUSAL),
        // The receiver replaces control characters in these texts.
        Message::ConnectionLost {
            connection: _,
            epoch: _,
            cause: text,
        }
        | Message::Refused {
            id: _,
            code: _,
            text,
        }
        | Message::Error { code: _, text } => check_length("text", text.len(), 0..=MAX_TEXT),
        Message::Heartbeat {
            seq: _,
            counters,
            scores,
        } => {
            if let Some(counters) = counters {
                check_counters("counters", counters)?;
            }
            if let Some(Scores { interior: _, rails }) = scores {
                check_list("scores.rails", rails.len(), 0..=MAX_RAILS)?;
            }
            Ok(())
        }
        Message::Answer { mac: _ }
        | Message::Start { id: _ }
        | Message::Ready { id: _ }
        | Message::Name { id: _ }
        | Message::Drain { id: _ }
        | Message::Describe { id: _ }
        | Message::Side { id: _, at: _ }
        | Message::ConnectionReset {
            connection: _,
            epoch: _,
        }
        | Message::Bye {} => Ok(()),
    }
}

fn check_list(field: &'static str, n: usize, may: RangeInclusive<usize>) -> Result<(), Outside> {
    match may.contains(&n) {
        true => Ok(()),
        false => outside(
            field,
            format!("{n}, must be {} to {}", may.start(), may.end()),
        ),
    }
}

fn check_length(field: &'static str, n: usize, may: RangeInclusive<usize>) -> Result<(), Outside> {
    match may.contains(&n) {
        true => Ok(()),
        false => outside(
            field,
            format!("{n} bytes, must be {} to {}", may.start(), may.end()),
        ),
    }
}

/// Checks a text that is printed: its length, and that it has no control characters.
fn check_words(
    field: &'static str,
    text: &str,
    bytes: RangeInclusive<usize>,
) -> Result<(), Outside> {
    check_length(field, text.len(), bytes)?;
    match text.chars().any(char::is_control) {
        true => outside(field, "holds a control character".to_owned()),
        false => Ok(()),
    }
}

fn check_counts<const N: usize>(field: &'static str, counts: [u64; N]) -> Result<(), Outside> {
    match counts.into_iter().find(|n| *n > MAX_COUNT) {
        Some(n) => outside(field, format!("{n}, must be at most {MAX_COUNT}")),
        None => Ok(()),
    }
}

fn check_counters(field: &'static str, counters: &Counters) -> Result<(), Outside> {
    let Counters {
        arrived,
        responded,
        refused,
        dropped_late,
        batches,
        copies,
        parts,
    } = *counters;
    let counts = [
        arrived,
        responded,
        refused,
        dropped_late,
        batches,
        copies,
        parts,
    ];
    check_counts(field, counts)
}

fn check_gpu(gpu: &GpuRecord) -> Result<(), Outside> {
    let GpuRecord {
        index,
        name,
        batches: _,
        padded,
        copies_in,
        bytes_in,
        gathered,
        in_place,
        fences,
        graphs,
        bytes_out,
        copy_in_us,
        compute_us,
        copy_out_us,
    } = gpu;
    check_words("gpus.name", name, 0..=MAX_NAME)?;
    check_counts("gpus", [*index as u64, *padded, *copies_in, *bytes_in])?;
    check_counts("gpus", [*gathered, *in_place, *fences, *graphs, *bytes_out])?;
    check_counts("gpus", [*copy_in_us, *compute_us, *copy_out_us])
}

fn check_used(used: &NodeUse) -> Result<(), Outside> {
    let NodeUse {
        clock_us,
        cores: _,
        machine_ticks,
        machine_busy_ticks,
        threads,
        nics: NicUse {
            threads: _,
            worked_us,
            sleeps,
        },
        engine:
            EngineUse {
                max_batch,
                workers: _,
                busy_us,
                batches,
                samples,
                decompressed,
            },
    } = used;
    check_counts("used", [*clock_us, *machine_ticks, *machine_busy_ticks])?;
    check_list("used.threads", threads.len(), 0..=MAX_THREAD_GROUPS)?;
    for group in threads {
        let ThreadGroup {
            name,
            threads: _,
            ran_us,
            waited_us,
        } = group;
        check_words("used.threads.name", name, 0..=MAX_NODE)?;
        check_counts("used.threads", [*ran_us, *waited_us])?;
    }
    check_counts("used.nics", [*worked_us, *sleeps])?;
    check_counts("used.engine", [*max_batch, *busy_us, *batches, *samples])?;
    let DecompressedUse {
        samples,
        from_bytes,
        to_bytes,
        took_us,
    } = *decompressed;
    let counts = [samples, from_bytes, to_bytes, took_us];
    check_counts("used.engine.decompressed", counts)
}

fn check_connections(
    connections: impl ExactSizeIterator<Item = (u16, u32, u32)>,
) -> Result<(), Outside> {
    check_list("connections", connections.len(), 1..=MAX_CONNECTIONS)?;
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
        return outside("connections", format!("connection {connection}: {problem}"));
    }
    Ok(())
}

fn check_request(request: &ConnectionRequest) -> Result<(), Outside> {
    let ConnectionRequest {
        connection,
        nic: _,
        gpu_turn: _,
        epoch: _,
        slots: _,
        request_stride,
        response_stride,
        transport,
    } = request;
    if *request_stride == 0 || *response_stride == 0 {
        return outside(
            "connections",
            format!("connection {connection}: a stride of 0 bytes"),
        );
    }
    match transport {
        RequestTransport::Tcp {} => Ok(()),
        // Only numbers, which the device checks.
        RequestTransport::Ib { end: _ } => Ok(()),
        RequestTransport::Ofi { end } => check_ofi_end(end),
    }
}

fn check_grant(grant: &ConnectionGrant) -> Result<(), Outside> {
    let ConnectionGrant {
        connection: _,
        epoch: _,
        slots: _,
        nic: _,
        gpu: _,
        key: _,
        transport,
    } = grant;
    match transport {
        GrantTransport::Tcp { address: _ } => Ok(()),
        // Only numbers, which the device checks.
        GrantTransport::Ib { end: _ } => Ok(()),
        GrantTransport::Ofi { end } => check_ofi_end(end),
    }
}

fn check_ofi_end(end: &OfiEnd) -> Result<(), Outside> {
    let OfiEnd {
        provider,
        address,
        form: _,
        slots: _,
        cells: _,
    } = end;
    check_words("connections.end.provider", provider, 0..=MAX_NAME)?;
    check_words("connections.end.address", address, 0..=MAX_TEXT)
}

fn check_engine(engine: &EngineInfo) -> Result<(), Outside> {
    let EngineInfo {
        name,
        tokens: _,
        at_once,
        content,
        prefix_cache,
    } = engine;
    check_words("engine.name", name, 1..=MAX_ENGINE_NAME)?;
    check_counts("engine.at_once", [*at_once])?;
    if let Some(PrefixCache { state: _, how }) = prefix_cache {
        check_words("engine.prefix_cache", how, 0..=MAX_CACHE_WORDS)?;
    }
    let Some(content) = content else {
        return Ok(());
    };
    if let Content::File { name, sha256: _ } | Content::Server { name } = content {
        check_words("engine.content", name, 1..=MAX_CONTENT_NAME)?;
    }
    check_hash("engine.content", content.sha256(), 64)
}

fn check_facts(facts: &NodeFacts) -> Result<(), Outside> {
    let NodeFacts {
        host,
        machine,
        boot,
        version,
        commit,
        dirty: _,
        program,
        started: _,
        links,
    } = facts;
    check_words("facts.host", host, 0..=MAX_HOST)?;
    check_words("facts.version", version, 0..=MAX_VERSION)?;
    check_hash("facts.machine", machine.as_deref(), 32)?;
    check_hash("facts.boot", boot.as_deref(), 32)?;
    check_hash("facts.program", program.as_deref(), 64)?;
    if let Some(commit) = commit {
        check_words("facts.commit", commit, 1..=MAX_VERSION)?;
    }
    check_list("facts.links", links.len(), 0..=MAX_RAILS)?;
    links.iter().try_for_each(|link| {
        let LinkFact {
            nic: _,
            name,
            layer: _,
        } = link;
        check_words("facts.links", name, 0..=MAX_NODE)
    })
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

fn check_model(model: &ModelSpec) -> Result<(), Outside> {
    let ModelSpec {
        name,
        inputs,
        output: _,
        other_outputs,
        compression: _,
    } = model;
    check_words("spec.name", name, 1..=MAX_NAME)?;
    check_list("spec.inputs", inputs.len(), 1..=MAX_INPUTS)?;
    check_list(
        "spec.other_outputs",
        other_outputs.len(),
        0..=MAX_INPUTS - 1,
    )?;
    for t in inputs {
        check_tensor("spec.inputs", t)?;
    }
    for t in model.outputs() {
        check_tensor("spec.output", t)?;
    }
    if !other_outputs.is_empty() && model.outputs().any(|t| t.ragged) {
        return outside("spec.output", "one of several is ragged".to_owned());
    }
    check_sample("spec.output", model.max_output_bytes())?;
    check_sample("spec.inputs", model.max_input_bytes())
}

fn check_sample(field: &'static str, bytes: Option<usize>) -> Result<(), Outside> {
    match bytes {
        Some(n) if n <= MAX_SAMPLE => Ok(()),
        _ => outside(field, format!("more than {MAX_SAMPLE} bytes a sample")),
    }
}

fn check_tensor(field: &'static str, t: &TensorSpec) -> Result<(), Outside> {
    let TensorSpec {
        name,
        dtype: _,
        shape,
        ragged: _,
    } = t;
    check_words(field, name, 0..=MAX_NAME)?;
    if shape.len() > MAX_DIMENSIONS {
        let n = shape.len();
        return outside(
            field,
            format!("{n} dimensions, must be at most {MAX_DIMENSIONS}"),
        );
    }
    check_sample(field, t.bytes())
}
