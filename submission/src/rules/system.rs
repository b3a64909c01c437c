//! Checks the system's JSON and the descriptions of its nodes.

use fabric::kinds::FabricLayers;
use serde_json::{Map, Value};

use super::{files::is_empty, *};
use crate::error;

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
    let is_network = fields.get("is_network").and_then(Value::as_str);
    // The checker asks for the fields of a network where is_network says something.
    let network = match is_network.is_some_and(|text| !text.is_empty()) {
        true => &round.system.network[..],
        false => round.system.network_of(check.tree.division),
    };
    let all = round.system.fields.iter().chain(network);
    let must_say: Vec<_> = round.system.filled.iter().chain(network).collect();
    for field in all {
        let Some(value) = fields.get(field) else {
            check.say(SYSTEM_FIELD, &path, format!("{field} is missing"));
            continue;
        };
        // The checker calls the number 0 empty, but not the text "0".
        if is_empty(value) && must_say.contains(&field) {
            check.say(SYSTEM_EMPTY, &path, format!("{field} is empty"));
        } else if let Some(wanted) = wanted(check, field, value) {
            check.say(
                SYSTEM_FIELD,
                &path,
                format!("{field} is {value}, not {wanted}"),
            );
        }
    }
    if check.tree.division == Division::Closed
        && let Some(said) = fields.get("is_network")
        && is_network.is_none_or(|text| text.eq_ignore_ascii_case("true"))
    {
        let what = format!("is_network is {said}, which has no place in the Closed division");
        check.say(SYSTEM_FIELD, &path, what);
    }
    let text = |field: &str| {
        let value = fields.get(field).and_then(Value::as_str);
        value.map_or("", str::trim)
    };
    let fabric = text("network_type");
    if !fabric.is_empty() && facts::fabrics(round, fabric).is_none() {
        let all = round.fabrics.join(", ");
        let what = format!("network_type is {fabric:?}, which does not begin with one of {all}");
        check.say(SYSTEM_FABRIC, &path, what);
    }
    let protocol = text("network_protocol");
    let words = facts::words(protocol);
    let machines = check.described(system);
    let nics = machines.iter().flat_map(|machines| machines.nics());
    let own: Vec<_> = nics.map(|used| used.layers(&used.nic.link_layer)).collect();
    let names = |known: &[String], of: fn(&FabricLayers) -> &String| {
        let mut own = own.iter().map(|layers| facts::words(of(layers)));
        words.iter().any(|word| known.contains(word))
            || own.any(|own| !own.is_empty() && own.iter().all(|word| words.contains(word)))
    };
    let known = facts::vocabulary();
    let has_both = names(&known.layer_3, |l| &l.network) && names(&known.layer_4, |l| &l.transport);
    if !protocol.is_empty() && !has_both {
        let what = format!(
            "network_protocol is {protocol:?}: name layers 3 and 4, as TCP/IPv4 over Ethernet"
        );
        check.say(SYSTEM_LAYERS, &path, what);
    }
    facts::check(check, system, &fields);
    ecc(check, system);
}

/// What a field must be, if it is not. The checker ignores case in some.
fn wanted(check: &TreeCheck<'_>, field: &str, value: &Value) -> Option<String> {
    let (tree, round) = (check.tree, check.round);
    let text = value.as_str().unwrap_or_default().trim();
    let same = |wanted: &str| text.to_lowercase() == wanted.to_lowercase();
    let is_whole = || value.is_u64() || text.parse::<u64>().is_ok();
    let (is_right, wanted) = match field {
        "division" => (same(tree.division.name()), tree.division.name().to_owned()),
        "submitter" => (same(&tree.submitter), tree.submitter.to_string()),
        "system_type" => (text == round.system_type, round.system_type.clone()),
        "status" => {
            let is_one = round.statuses.iter().any(|status| same(status));
            (is_one, format!("one of {}", round.statuses.join(", ")))
        }
        // The checker calls lower() on the value.
        "is_network" => {
            let is_said = tree.division != Division::Network && value.is_string();
            (is_said || value == "True", "the string \"True\"".to_owned())
        }
        _ if round.system.numbers.iter().any(|number| number == field) => {
            (is_whole(), "a whole number".to_owned())
        }
        _ => return None,
    };
    (!is_right).then_some(wanted)
}

/// Checks that the nodes' descriptions report ECC.
fn ecc(check: &mut TreeCheck<'_>, system: &Name) {
    let folder = check.tree.nodes(system);
    for file in layout::files(&folder) {
        let path = folder.join(&file);
        match error::read_json::<machine::Node>(&path) {
            Err(error) => check.say(SYSTEM_ECC, &path, error.to_string()),
            Ok(node) => {
                for what in node.without_ecc() {
                    check.say(SYSTEM_ECC, &path, format!("{}: {what}", node.host));
                }
            }
        }
    }
}
