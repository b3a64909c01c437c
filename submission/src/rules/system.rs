//! Checks the system's JSON and the descriptions of its nodes.

use serde_json::{Map, Value};

use super::{files::is_empty, *};
use crate::{describe, error};

pub(super) fn check(check: &mut TreeCheck<'_>, system: &Name) {
    let path = check.tree.system_json(system);
    if !path.is_file() {
        return;
    }
    let fields: Map<String, Value> = match error::read_json(&path) {
        Ok(fields) => fields,
        Err(error) => return check.say(SYSTEM_JSON, &path, error.to_string()),
    };
    let round = check.round;
    let make = |field: &str| match field {
        "status" => format!("fill in status of the form; {REBUILD}"),
        "division" | "submitter" | "system_type" => REBUILD.to_owned(),
        _ => format!("fill in fields.{field} of the form; {REBUILD}"),
    };
    let division = check.tree.division;
    let said = fields.get("is_network");
    // The checker asks for the fields of a network where is_network says something.
    let network = match said
        .and_then(Value::as_str)
        .is_some_and(|text| !text.is_empty())
    {
        true => &round.system.network[..],
        false => round.system.network_of(division),
    };
    let all = round.system.fields.iter().chain(network);
    for missing in all.filter(|f| !fields.contains_key(*f)) {
        check.say_make(
            SYSTEM_FIELD,
            &path,
            format!("{missing} is missing"),
            make(missing),
        );
    }
    let must_say = round.system.filled.iter().chain(network);
    for field in must_say {
        // The checker calls the number 0 empty, but not the text "0".
        if fields.get(field).is_some_and(is_empty) {
            check.say_make(
                SYSTEM_EMPTY,
                &path,
                format!("{field} is empty"),
                make(field),
            );
        }
    }
    for field in &round.system.numbers {
        if let Some(value) = fields.get(field).filter(|v| !is_whole(v)) {
            let what = format!("{field} is {value}, no whole number");
            check.say_make(SYSTEM_NUMBER, &path, what, make(field));
        }
    }
    let text = |field: &str| {
        let value = fields.get(field).and_then(Value::as_str);
        value.map_or("", str::trim)
    };
    let shown = |field: &str| fields.get(field).cloned().unwrap_or_default();
    let right = match (division, said) {
        (Division::Network, said) => said == Some(&Value::from("True")),
        (_, None) => true,
        // The checker calls lower() on the value. A system of the Open division may have a network.
        (Division::Open, Some(said)) => said.is_string(),
        (Division::Closed, Some(said)) => {
            let text = said.as_str().map(str::to_ascii_lowercase);
            text.is_some_and(|text| text != "true")
        }
    };
    if !right {
        let wanted = match division {
            Division::Network => "is not the string \"True\"",
            Division::Closed => "has no place in the Closed division",
            Division::Open => "is no string",
        };
        let what = format!("is_network is {}, which {wanted}", shown("is_network"));
        check.say(SYSTEM_NETWORK, &path, what);
    }
    for (rule, field, wanted) in [
        (SYSTEM_DIVISION, "division", division.name()),
        (SYSTEM_SUBMITTER, "submitter", &check.tree.submitter),
        (SYSTEM_TYPE, "system_type", &round.system_type),
    ] {
        // The checker ignores case in the first two, and aborts on an unknown system_type.
        let same = match field {
            "system_type" => text(field) == wanted,
            _ => text(field).to_lowercase() == wanted.to_lowercase(),
        };
        if !same {
            let what = format!("{field} is {}, not {wanted:?}", shown(field));
            check.say(rule, &path, what);
        }
    }
    let status = text("status").to_ascii_lowercase();
    if !round.statuses.contains(&status) {
        let all = round.statuses.join(", ");
        let what = format!("status is {}, none of {all}", shown("status"));
        check.say(SYSTEM_STATUS, &path, what);
    }
    let fabric = text("network_type");
    if !fabric.is_empty() && facts::fabrics(round, fabric).is_none() {
        let all = round.fabrics.join(", ");
        let what = format!("network_type is {fabric:?}, which does not begin with one of {all}");
        check.say(SYSTEM_FABRIC, &path, what);
    }
    let protocol = text("network_protocol");
    let words = facts::words(protocol);
    let names = |layer: &[String]| words.iter().any(|word| layer.contains(word));
    let known = facts::vocabulary();
    let has_both = names(&known.layer_3) && names(&known.layer_4);
    if !protocol.is_empty() && !has_both {
        let what = format!(
            "network_protocol is {protocol:?}: name layers 3 and 4, as TCP/IPv4 over Ethernet"
        );
        check.say(SYSTEM_LAYERS, &path, what);
    }
    facts::check(check, system, &fields);
    ecc(check, system);
}

fn is_whole(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.is_u64(),
        Value::String(text) => text.trim().parse::<u64>().is_ok(),
        _ => false,
    }
}

/// Checks that the nodes' descriptions report ECC.
fn ecc(check: &mut TreeCheck<'_>, system: &Name) {
    let folder = check.tree.nodes(system);
    for file in layout::files(&folder) {
        let path = folder.join(&file);
        match error::read_json::<describe::Node>(&path) {
            Err(error) => check.say(SYSTEM_ECC, &path, error.to_string()),
            Ok(node) => {
                for what in node.without_ecc() {
                    check.say(SYSTEM_ECC, &path, format!("{}: {what}", node.host));
                }
            }
        }
    }
}
