//! Compares the system's JSON and the nodes' descriptions with what the nodes themselves report:
//! values as values, in whatever unit and with whatever words beside them.

use serde_json::{Map, Value};

use super::*;
use crate::{
    build,
    describe::{Node, form::Form, system, used::UsedNode},
    error,
};

/// How a field of the system's JSON is compared with the nodes' reports.
#[derive(Clone, Copy)]
enum Compared {
    Number,
    /// Bytes, bits/s or hertz, within [`TOLERANCE`].
    Quantity,
    /// A clock of which the nodes report the maximum.
    UpTo,
    /// A product's name, which has one of the model numbers that the nodes report.
    Product,
    /// Names with versions, each of which the nodes report.
    Versions,
    /// Layers of the network, each of which the nodes report.
    Layers,
    /// A fabric of the round.
    Fabric,
}
use Compared::{Fabric, Layers, Number, Product, Quantity, UpTo, Versions};

/// Fields that machines report. The form says all others.
const FACTS: [(&str, Compared); 26] = [
    ("number_of_nodes", Number),
    ("host_processor_model_name", Product),
    ("host_processors_per_node", Number),
    ("host_processor_core_count", Number),
    ("host_processor_frequency", UpTo),
    ("host_memory_capacity", Quantity),
    ("host_memory_configuration", Quantity),
    ("host_storage_capacity", Quantity),
    ("host_storage_type", Product),
    ("host_network_card_count", Product),
    ("accelerators_per_node", Number),
    ("accelerator_model_name", Product),
    ("accelerator_memory_capacity", Quantity),
    ("accelerator_frequency", UpTo),
    ("operating_system", Versions),
    ("network_type", Fabric),
    ("network_media", Product),
    ("network_rate", Quantity),
    ("nic_loadgen", Product),
    ("number_nic_loadgen", Number),
    ("net_software_stack_loadgen", Layers),
    ("network_protocol", Layers),
    ("number_connections", Number),
    ("nic_sut", Product),
    ("number_nic_sut", Number),
    ("net_software_stack_sut", Layers),
];
/// Relative difference between equal quantities: units of 1000 and of 1024, and the memory that the
/// firmware keeps from the kernel.
const TOLERANCE: f64 = 0.13;
const NEGATIONS: [&str; 6] = ["not", "no", "non", "without", "except", "never"];
/// Words of layers and libraries, each with the word that it is compared as.
const LAYERS: [(&str, &str); 22] = [
    ("tcp", "tcp"),
    ("udp", "udp"),
    ("rc", "rdma"),
    ("reliable", "rdma"),
    ("rdma", "rdma"),
    ("roce", "roce"),
    ("rocev2", "roce"),
    ("srd", "efa"),
    ("efa", "efa"),
    ("infiniband", "infiniband"),
    ("ethernet", "ethernet"),
    ("gbe", "ethernet"),
    ("ipv4", "ipv4"),
    ("ipv6", "ipv6"),
    ("libibverbs", "verbs"),
    ("verbs", "verbs"),
    ("libfabric", "libfabric"),
    ("nvlink", "nvlink"),
    ("pcie", "pcie"),
    ("cxl", "cxl"),
    ("portals", "portals"),
    ("psm2", "psm2"),
];

/// Compares the system's JSON with the nodes' descriptions, and these with the nodes' sessions.
pub(super) fn check(check: &mut TreeCheck<'_>, system: &Name, fields: &Map<String, Value>) {
    let tree = check.tree;
    nodes(check, system);
    let Some(known) = build::described(tree, system) else {
        return;
    };
    for machine in known.machines() {
        links(check, system, machine);
    }
    let Some(form) = Form::named(&tree.submitter, system) else {
        return;
    };
    // The network's fields are compared in every division that has them.
    let reported = system::json(check.round, Division::Network, &form, &known);
    let text = |fields: &Map<String, Value>, field: &str| match fields.get(field) {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Number(n)) => n.to_string(),
        _ => String::new(),
    };
    let layers = ["network_protocol", "net_software_stack_sut"].map(|f| text(&reported, f));
    let is_client = known.sut().iter().any(|machine| machine.is_client);
    for (field, how) in FACTS {
        let (said, mut known) = (text(fields, field), text(&reported, field));
        if said.is_empty() || ["", "0", "N/A"].contains(&known.as_str()) {
            continue;
        }
        let agrees = match how {
            // An engine that asks a server does not see the server's machines.
            Number if field == "number_of_nodes" && is_client => whole(&said) >= whole(&known),
            // `system.number` reports a text that is no number.
            Number => whole(&said).contains(&None) || whole(&said) == whole(&known),
            Quantity => quantities_agree(&said, &known, |a, b| (a / b - 1.0).abs() <= TOLERANCE),
            UpTo => quantities_agree(&said, &known, |a, b| {
                (0.2..=1.0 + TOLERANCE).contains(&(a / b))
            }),
            Product => same_product(&said, &known),
            Versions => same_versions(&said, &known),
            Layers => {
                known += &layers.join(" ");
                let (said, known) = (layer_words(&said), layer_words(&known));
                said.iter().all(|word| known.contains(word))
            }
            // `system.fabric` reports a text that names none.
            Fabric => match [&said, &known].map(|text| super::system::fabrics(check.round, text)) {
                [Some(said), Some(known)] => said == known,
                _ => true,
            },
        };
        let negated = |word: &String| NEGATIONS.contains(&word.as_str());
        if !agrees || words(&said).iter().any(negated) {
            let known = text(&reported, field);
            let what = format!("{field} is {said:?}; the nodes report {known:?}");
            let make = format!("mend or remove fields.{field} of the form; {REBUILD}");
            check.say_make(SYSTEM_FACTS, &tree.system_json(system), what, make);
        }
    }
}

/// Checks that each description is the one that the node's session brought, of the session's role.
fn nodes(check: &mut TreeCheck<'_>, system: &Name) {
    let tree = check.tree;
    let folder = tree.nodes(system);
    let runs = build::runs_of(tree, system);
    let Some((_, manifest)) = runs.first() else {
        return;
    };
    for (role, record) in manifest::nodes(manifest) {
        let Ok(name) = Name::new(&record.node) else {
            continue;
        };
        let path = folder.join(role.file(&name));
        let Ok(node) = error::read_json::<Node>(&path) else {
            continue;
        };
        let named = [
            ("node", node.node.as_str(), record.node.as_str()),
            ("host", &node.host, &record.host),
            ("role", &node.role.to_string(), &role.to_string()),
        ];
        for (field, said, known) in named.into_iter().filter(|(_, said, known)| said != known) {
            let what = format!("{field} is {said:?}, the session's {known:?}: another node's?");
            check.say(RECORD_NODE, &path, what);
        }
        let copies = runs
            .iter()
            .map(|(run, _)| run.join(manifest::node_json(&name)));
        let own = copies.filter_map(|copy| error::read_json::<Node>(&copy).ok());
        let differing: Vec<_> = own.map(|own| node.differences(&own)).collect();
        if let Some(fields) = differing
            .first()
            .filter(|_| differing.iter().all(|d| !d.is_empty()))
        {
            let what = format!(
                "{} differ from what the node itself reported",
                fields.join(", ")
            );
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

/// Words in lower case, without counts such as `8 x`. A word has letters, digits and dots.
pub(super) fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let split = text.split(|c: char| !c.is_alphanumeric() && c != '.');
    let all: Vec<&str> = split
        .map(|w| w.trim_matches('.'))
        .filter(|w| !w.is_empty())
        .collect();
    let is_count = |word: &str| word.parse::<u32>().is_ok();
    let counted = |i: usize| {
        let next = all.get(i + 1).is_some_and(|next| *next == "x");
        let before = i.checked_sub(1).is_some_and(|i| is_count(all[i]));
        is_count(all[i]) && next
            || all[i] == "x" && before
            || all[i].strip_suffix('x').is_some_and(is_count)
    };
    let kept = (0..all.len()).filter(|i| !counted(*i));
    kept.map(|i| all[i].to_owned()).collect()
}

/// Words with a digit that are no quantity, as `8480c`, `7`.
fn model_numbers(words: &[String]) -> Vec<&String> {
    let has_digit = |w: &&String| w.contains(|c: char| c.is_ascii_digit());
    let all = words.iter().filter(has_digit);
    all.filter(|w| quantities(w).is_empty()).collect()
}

fn same_product(said: &str, known: &str) -> bool {
    let (said, known) = (words(said), words(known));
    let (numbers, of) = (model_numbers(&said), model_numbers(&known));
    if of.is_empty() {
        let within = |a: &[String], b: &[String]| a.iter().all(|word| b.contains(word));
        return within(&said, &known) || within(&known, &said);
    }
    // `9754` is another processor than `9654`, whatever else both names have.
    let is_other = |n: &&String| n.len() > 3 && n.starts_with(|c: char| c.is_ascii_digit());
    numbers.iter().any(|n| of.contains(n))
        && numbers
            .iter()
            .filter(|n| is_other(n))
            .all(|n| of.contains(n))
}

fn same_versions(said: &str, known: &str) -> bool {
    let (said, known) = (words(said), words(known));
    let of = model_numbers(&known);
    let fits = |n: &&String| {
        of.iter()
            .any(|k| k.starts_with(n.as_str()) || n.starts_with(k.as_str()))
    };
    let named =
        |word: &String| !word.contains(|c: char| c.is_ascii_digit()) && known.contains(word);
    model_numbers(&said).iter().all(fits) && said.iter().any(named)
}

/// The layers that a text names, and libraries, as [`LAYERS`] compares them.
fn layer_words(text: &str) -> Vec<&'static str> {
    let words = words(text);
    let of = |(word, layer): &(&str, &'static str)| {
        let is_it = |w: &String| w.trim_start_matches(|c: char| c.is_ascii_digit()) == *word;
        words.iter().any(is_it).then_some(*layer)
    };
    LAYERS.iter().filter_map(of).collect()
}

/// Whether both texts have the same quantities. Several machines stand apart by `;`, and parts of
/// one by `+`: either the parts or their sums agree.
fn quantities_agree(said: &str, known: &str, same: impl Fn(f64, f64) -> bool) -> bool {
    let parts = |text: &str| -> Vec<Vec<f64>> {
        let parts = text.split(';').map(|part| {
            let mut all = quantities(part);
            all.push(all.iter().sum());
            all
        });
        parts.filter(|all| all.len() > 1).collect()
    };
    let (said_parts, known_parts) = (parts(said), parts(known));
    if said_parts.is_empty() {
        // Names such as NDR400.
        let runs = |text: &str| -> Vec<String> {
            let runs = text.split(|c: char| !c.is_ascii_digit());
            runs.filter(|run| !run.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let known = runs(known);
        return runs(said).iter().any(|run| known.contains(run));
    }
    let fits = |a: &[f64], b: &[f64]| a.iter().any(|a| b.iter().any(|b| same(*a, *b)));
    said_parts
        .iter()
        .all(|a| known_parts.iter().any(|b| fits(a, b)))
        && known_parts
            .iter()
            .all(|b| said_parts.iter().any(|a| fits(a, b)))
}

/// Quantities with a unit of bytes, bits or hertz, in units of 1, times their counts: `8 x 32 GB`.
fn quantities(text: &str) -> Vec<f64> {
    let (mut all, mut count, mut rest) = (Vec::new(), 1.0, text);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let inside = rest[..at].ends_with(|c: char| c.is_alphanumeric());
        let number = &rest[at..];
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, behind) = number.split_at(end.unwrap_or(number.len()));
        let word = behind.trim_start_matches([' ', '-']);
        let end = word.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, _) = word.split_at(end.unwrap_or(word.len()));
        rest = behind;
        let unit = unit.to_ascii_lowercase();
        let (number, inside) = (
            number.parse().unwrap_or(0.0),
            inside || number.ends_with('.'),
        );
        let scale = match unit.as_str() {
            _ if inside => continue,
            "x" => {
                count = number;
                continue;
            }
            "hz" | "b" => 1.0,
            "k" | "kb" | "khz" => 1e3,
            "m" | "mb" | "mhz" | "mbit" | "mbps" => 1e6,
            "g" | "gb" | "ghz" | "gbe" | "gbit" | "gbps" => 1e9,
            "t" | "tb" | "tbps" => 1e12,
            "p" | "pb" => 1e15,
            "kib" => 1024.0,
            "mib" => 1_048_576.0,
            "gib" => f64::from(1 << 30),
            "tib" => f64::from(1 << 30) * 1024.0,
            _ => continue,
        };
        all.push(count * number * scale);
        count = 1.0;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_as_values() {
        let quantity =
            |said, known| quantities_agree(said, known, |a, b| (a / b - 1.0).abs() <= TOLERANCE);
        for (said, known, agrees) in [
            ("1 TB", "1007 GiB", true),
            (
                "16 x 64 GB DDR5-4800",
                "16 x 65536 MB Registered-DDR5",
                true,
            ),
            ("512 GB", "1007 GiB", false),
            ("1.92 TB", "2 x 960 GB", true),
            ("400GbE", "400G", true),
            ("NDR400", "400G", true),
            ("100 Gb/s", "400G", false),
            ("141 GB", "140 GiB", true),
            ("plenty", "140 GiB", false),
        ] {
            assert_eq!(quantity(said, known), agrees, "{said}, {known}");
        }
        for (said, known, agrees) in [
            ("NVIDIA H200-SXM-141GB", "8 x NVIDIA H200", true),
            ("NVIDIA H100", "8 x NVIDIA H200", false),
            (
                "Intel Xeon 8480C (56 cores)",
                "Intel(R) Xeon(R) Platinum 8480C",
                true,
            ),
            (
                "AMD EPYC 9754 96-Core",
                "AMD EPYC 9654 96-Core Processor",
                false,
            ),
            (
                "NVIDIA ConnectX-7",
                "Mellanox MT2910 Family [ConnectX-7]",
                true,
            ),
            ("ConnectX-6", "Mellanox MT2910 Family [ConnectX-7]", false),
            ("optical fiber", "fiber", true),
            ("copper", "fiber", false),
        ] {
            assert_eq!(same_product(said, known), agrees, "{said}, {known}");
        }
        for (said, agrees) in [
            ("Ubuntu 24.04.1 LTS", true),
            ("Ubuntu 22.04", false),
            ("Debian 24.04", false),
        ] {
            let known = "Ubuntu 24.04, Linux 6.8.0-31-generic";
            assert_eq!(same_versions(said, known), agrees, "{said}");
        }
    }
}
