//! Compares the system's JSON and the nodes' descriptions with what the nodes themselves report:
//! values as values, in whatever unit and with whatever words beside them.

use std::{collections::BTreeSet, sync::OnceLock};

use machine::Node;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;
use crate::{
    build,
    describe::{file_of, form::Form, system, used::UsedNode},
};

/// How a field is compared; `words.yaml` explains each.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Compared {
    Number,
    Quantity,
    UpTo,
    Product,
    Versions,
    Layers,
    Fabric,
}

/// The content of `words.yaml`.
#[derive(Default, Deserialize)]
pub(super) struct Vocabulary {
    facts: BTreeMap<String, Compared>,
    negations: Vec<String>,
    layers: BTreeMap<String, String>,
    pub(super) layer_3: Vec<String>,
    pub(super) layer_4: Vec<String>,
    fabrics: BTreeMap<String, String>,
    buses: Vec<String>,
}

pub(super) fn vocabulary() -> &'static Vocabulary {
    static READ: OnceLock<Vocabulary> = OnceLock::new();
    READ.get_or_init(|| error::yaml(include_str!("words.yaml")).unwrap_or_default())
}

/// Relative difference of equal quantities: units of 1000 and of 1024, and the memory that the
/// firmware keeps from the kernel.
const TOLERANCE: f64 = 0.13;

/// Compares the system's JSON with the nodes' descriptions, and these with the nodes' sessions.
pub(super) fn check(check: &mut TreeCheck<'_>, system: &Name, fields: &Map<String, Value>) {
    let tree = check.tree;
    sessions(check, system);
    let (Some(machines), Some(form)) = (
        check.described(system),
        Form::named(&tree.submitter, system),
    ) else {
        return;
    };
    for machine in machines.machines() {
        links(check, system, machine);
    }
    // The network's fields are compared in every division that has them.
    let reported = system::json(check.round, Division::Network, &form, &machines);
    let text = |fields: &Map<String, Value>, field: &str| match fields.get(field) {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Number(n)) => n.to_string(),
        _ => String::new(),
    };
    // An engine that asks a server does not see the server's machines.
    let is_client = machines.sut().iter().any(|machine| machine.is_client);
    for (field, how) in &vocabulary().facts {
        let (said, mut known) = (text(fields, field), text(&reported, field));
        if said.is_empty() || ["", "0", "N/A"].contains(&known.as_str()) {
            continue;
        }
        let is_more = is_client && field == "number_of_nodes" && whole(&said) > whole(&known);
        if matches!(how, Compared::Layers) {
            // A library's field may name the protocol too.
            known += &format!(" {}", text(&reported, "network_protocol"));
        }
        if !is_more && !agree(check.round, *how, &said, &known) {
            let what = format!("{field} is {said:?}; the nodes report {known:?}");
            check.say(SYSTEM_FACTS, &tree.system_json(system), what);
        }
    }
}

/// Whether a field's text agrees with what the nodes report. Other rules judge a text that is no
/// number or no fabric.
fn agree(round: &Round, how: Compared, said: &str, known: &str) -> bool {
    if words(said)
        .iter()
        .any(|word| vocabulary().negations.contains(word))
    {
        return false;
    }
    match how {
        Compared::Number => whole(said).contains(&None) || whole(said) == whole(known),
        Compared::Quantity => same_quantities(said, known, 1.0 - TOLERANCE),
        Compared::UpTo => same_quantities(said, known, 0.2),
        Compared::Product => same_product(&words(said), &words(known)),
        Compared::Versions => same_versions(&words(said), &words(known)),
        Compared::Layers => {
            let known = layers(known);
            layers(said).iter().all(|layer| known.contains(layer))
        }
        Compared::Fabric => match [said, known].map(|text| fabrics(round, text)) {
            [Some(said), Some(known)] => said == known,
            _ => true,
        },
    }
}

/// Checks that each description is the one that the node's session brought, of the session's role.
fn sessions(check: &mut TreeCheck<'_>, system: &Name) {
    let tree = check.tree;
    let runs = build::runs_of(tree, system);
    let first = runs.first().into_iter();
    for (role, record) in first.flat_map(|(_, first)| manifest::nodes(first)) {
        let Ok(name) = Name::new(&record.node) else {
            continue;
        };
        let path = tree.nodes(system).join(file_of(role, &name));
        let Ok(node) = error::read_json::<Node>(&path) else {
            continue;
        };
        let known = format!("{role} {} on {}", record.node, record.facts.host);
        let said = format!("{} {} on {}", node.role, node.node, node.host);
        if said != known {
            let what = format!("it is of {said}, the session was with {known}: another node's?");
            check.say(RECORD_NODE, &path, what);
        }
        let copies = runs.iter();
        let copies = copies.map(|(run, _)| run.join(manifest::node_json(&name)));
        let own = copies.filter_map(|copy| error::read_json::<Node>(&copy).ok());
        let differing: Vec<_> = own.map(|own| node.differences(&own)).collect();
        if let Some(first) = differing.first()
            && !differing.iter().any(Vec::is_empty)
        {
            let first = first.join(", ");
            let what = format!("{first} differ from what the node itself reported");
            check.say(RECORD_NODE, &path, what);
        }
    }
}

/// Checks that the NICs of a machine's configuration are described, up and no software.
fn links(check: &mut TreeCheck<'_>, system: &Name, machine: &UsedNode) {
    let path = check.tree.nodes(system);
    let node = machine.names.join(", ");
    for missing in &machine.missing {
        let what = format!("{node}: no NIC of the description has {missing:?} of its `nics`");
        check.say(RECORD_NODE, &path, what);
    }
    for nic in machine.ports() {
        let what = match nic.link_layer.as_str() {
            _ if !nic.up => "is down",
            "virtual" | "loopback" => "is software, and no cable carries its bytes",
            _ => continue,
        };
        check.say(
            RECORD_LINK,
            &path,
            format!("{node}: NIC {} {what}", nic.name),
        );
    }
}

/// Whole numbers of a text such as `56; 64`, in order.
fn whole(text: &str) -> Vec<Option<u64>> {
    let mut all: Vec<_> = text.split(';').map(|n| n.trim().parse().ok()).collect();
    all.sort_unstable();
    all
}

/// Words in lower case, of letters, digits and dots, without counts such as `8 x` and `8x`.
pub(super) fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let split = text.split(|c: char| !c.is_alphanumeric() && c != '.');
    let mut all: Vec<String> = Vec::new();
    for word in split.map(|w| w.trim_matches('.')).filter(|w| !w.is_empty()) {
        let is_count = |word: &str| word.parse::<u32>().is_ok();
        match word.strip_suffix('x') {
            Some("") if all.last().is_some_and(|last| is_count(last)) => drop(all.pop()),
            Some(count) if is_count(count) => {}
            _ => all.push(word.to_owned()),
        }
    }
    all
}

/// Words with a digit that are no quantity, as `8480c`, `7`.
fn model_numbers(words: &[String]) -> Vec<&String> {
    let is_one = |w: &&String| w.contains(|c: char| c.is_ascii_digit()) && quantities(w).is_empty();
    words.iter().filter(is_one).collect()
}

fn same_product(said: &[String], known: &[String]) -> bool {
    let (numbers, of) = (model_numbers(said), model_numbers(known));
    if of.is_empty() {
        let within = |a: &[String], b: &[String]| a.iter().all(|word| b.contains(word));
        return within(said, known) || within(known, said);
    }
    // `9754` is another processor than `9654`, whatever else both names have.
    let is_other =
        |n: &String| n.len() > 3 && n.starts_with(|c: char| c.is_ascii_digit()) && !of.contains(&n);
    numbers.iter().any(|n| of.contains(n)) && !numbers.iter().any(|n| is_other(n))
}

fn same_versions(said: &[String], known: &[String]) -> bool {
    let of = model_numbers(known);
    let begins = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
    let is_named =
        |word: &String| !word.contains(|c: char| c.is_ascii_digit()) && known.contains(word);
    let mut numbers = model_numbers(said).into_iter();
    numbers.all(|n| of.iter().any(|k| begins(k, n))) && said.iter().any(is_named)
}

/// The layers and libraries that a text names, as the vocabulary compares them.
fn layers(text: &str) -> Vec<&'static String> {
    let words = words(text);
    let words = words
        .iter()
        .map(|w| w.trim_start_matches(|c: char| c.is_ascii_digit()));
    words
        .filter_map(|word| vocabulary().layers.get(word))
        .collect()
}

/// The round's fabrics that a text names, in order: `RoCE v2, 400GbE`; parts stand apart by `;` or
/// `+`. `None` if a part does not begin with one, but for its speed, or names a bus.
pub(super) fn fabrics(round: &Round, text: &str) -> Option<BTreeSet<String>> {
    let of = |word: &str| {
        let plain = word.trim_matches(|c: char| c.is_ascii_digit());
        let others = &vocabulary().fabrics;
        let other = others.get(word).or_else(|| others.get(plain));
        let is_it = |own: &&String| {
            other == Some(own) || own.to_lowercase().split(' ').any(|part| part == word)
        };
        round.fabrics.iter().find(is_it).cloned()
    };
    let is_speed =
        |w: &str| w.starts_with(|c: char| c.is_ascii_digit()) || ["gb", "s", "x"].contains(&w);
    let part = |part: &str| {
        let part = part.to_lowercase();
        let split = part.split(|c: char| c.is_whitespace() || ",()/:".contains(c));
        let words: Vec<_> = split.filter(|word| !word.is_empty()).collect();
        let mut first = words
            .iter()
            .filter(|word| of(word).is_some() || !is_speed(word));
        let has_bus = vocabulary().buses.iter().any(|bus| words.contains(&&**bus));
        first.next().filter(|_| !has_bus).and_then(|word| of(word))
    };
    text.split([';', '+']).map(part).collect()
}

/// Whether both texts have the same quantities, from `least` times up to [`TOLERANCE`] above.
/// Several machines stand apart by `;`, parts of one by `+`: the parts or their sums agree.
fn same_quantities(said: &str, known: &str, least: f64) -> bool {
    let machines = |text: &str| -> Vec<Vec<f64>> {
        let all = text.split(';').map(quantities);
        let all = all.filter(|all| !all.is_empty());
        all.map(|all| [&all[..], &[all.iter().sum()]].concat())
            .collect()
    };
    let (ours, theirs) = (machines(said), machines(known));
    if ours.is_empty() {
        // Names such as NDR400.
        let mut digits = said.split(|c: char| !c.is_ascii_digit());
        let known: Vec<_> = known.split(|c: char| !c.is_ascii_digit()).collect();
        return digits.any(|run| !run.is_empty() && known.contains(&run));
    }
    let same = |a: f64, b: f64| (least..=1.0 + TOLERANCE).contains(&(a / b));
    let fits = |a: &[f64], b: &[f64]| a.iter().any(|a| b.iter().any(|b| same(*a, *b)));
    ours.iter().all(|a| theirs.iter().any(|b| fits(a, b)))
        && theirs.iter().all(|b| ours.iter().any(|a| fits(a, b)))
}

/// Quantities with a unit of bytes, bits or hertz, in units of 1, times their counts: `8 x 32 GB`.
fn quantities(text: &str) -> Vec<f64> {
    let (mut all, mut count, mut rest) = (Vec::new(), 1.0, text.to_ascii_lowercase());
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let is_inside = rest[..at].ends_with(|c: char| c.is_alphanumeric());
        let behind = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number = rest[at..rest.len() - behind.len()].parse().unwrap_or(0.0);
        let unit = behind.trim_start_matches([' ', '-']);
        let end = unit
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(unit.len());
        let (prefix, kind) = unit[..end].split_at(end.min(1));
        let power = "kmgtp".find(prefix).and_then(|n| i32::try_from(n + 1).ok());
        let scale = match (prefix, kind, power) {
            _ if is_inside => None,
            ("b", "", _) | ("h", "z", _) => Some(1.0),
            ("x", "", _) => {
                count = number;
                None
            }
            (_, "ib", Some(n)) => Some(1024_f64.powi(n)),
            ("k" | "m" | "g" | "t" | "p", "" | "b" | "be" | "hz" | "bit" | "bps", Some(n)) => {
                Some(1000_f64.powi(n))
            }
            _ => None,
        };
        if let Some(scale) = scale {
            all.push(count * number * scale);
            count = 1.0;
        }
        rest = behind.to_owned();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_as_values() {
        let round = Round::find(crate::round::newest()).expect("built in");
        assert_eq!(vocabulary().facts.len(), 26);
        let rows: Vec<(Compared, String, String, bool)> =
            error::yaml(include_str!("tests/compared.yaml")).expect("rows");
        for (how, said, known, agrees) in rows {
            assert_eq!(agree(&round, how, &said, &known), agrees, "{said}, {known}");
        }
    }
}
