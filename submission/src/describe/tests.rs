use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use ::machine::Node;
use engines::EngineConfig;
use fabric::{kinds::NicFabric, ofi::OfiKeys};
use qdl::{
    config::NicConfig,
    testkit::{assert_has, machine},
};
use record::NodeRole;
use serde_json::{Value, json};

use super::{
    form::{self, Form, Switch},
    pages::Rate,
    system::{self, DescribedSystem},
    used::{UsedNic, UsedNode},
    *,
};
use crate::{
    configs::RunConfigs,
    error,
    layout::{Division, ResultId},
    round::{Round, SystemFields, newest},
    rules::tests::sound::{ACCELERATOR, FRONTEND, name},
};

/// A machine of `qdl`'s test data, plus the files that a description reads.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    machine::expand(machine::TWO_SOCKETS, root.path()).expect("laid out");
    let files: BTreeMap<String, String> =
        error::yaml(include_str!("box.yaml")).expect("files by path");
    for (file, text) in files {
        error::write(&root.path().join(file), text).expect("written");
    }
    root
}

fn below(root: &tempfile::TempDir) -> Node {
    Node::below(root.path(), Role::Accelerator, "0.1.0").expect("a machine")
}

/// Two machines of one kind, a form, and the round.
struct Rig {
    front: Node,
    back: Node,
    form: Form,
    round: Round,
}

impl Rig {
    fn new() -> Self {
        let node = |role, name: &str| Node {
            role,
            node: name.to_owned(),
            ..below(&root())
        };
        let text = form::blank(&[("rgat", &["retraining".to_owned()])]);
        let text = text.replace("submitter: \"\"", "submitter: org");
        Rig {
            front: node(Role::Frontend, "lg"),
            back: node(Role::Accelerator, "acc-a"),
            form: form_of(&text.replace("system: \"\"", "system: sys")),
            round: Round::find(newest()).expect("built in"),
        }
    }

    fn set(&mut self, field: &str, value: &str) {
        let fields = &mut self.form.fields;
        fields.insert(field.to_owned(), value.to_owned());
    }

    fn system(&self, fabric: &str) -> DescribedSystem {
        DescribedSystem {
            frontend: used(&self.front, 0, fabric),
            accelerators: vec![used(&self.back, 2, fabric)],
            connections: 6,
            engines: Vec::new(),
        }
    }

    fn json(&self, system: &DescribedSystem) -> Value {
        system::json(&self.round, Division::Network, &self.form, system).into()
    }
}

fn form_of(text: &str) -> Form {
    error::yaml(text).expect("a form")
}

/// `tcp`, `ib`, or a provider of libfabric after `ofi `.
fn fabric_of(text: &str) -> NicFabric {
    match text.strip_prefix("ofi ") {
        Some(provider) => NicFabric::Ofi(OfiKeys {
            provider: provider.to_owned(),
            ..OfiKeys::default()
        }),
        None if text == "ib" => NicConfig::ib("mlx5_0").fabric,
        None => NicFabric::default(),
    }
}

/// A machine whose NIC `nic` carried samples.
fn used(node: &Node, nic: usize, fabric: &str) -> UsedNode {
    let fabric = fabric_of(fabric);
    let mut used = UsedNode::new(node.clone(), &[], &fabric);
    used.nics = vec![UsedNic {
        nic: node.nics[nic].clone(),
        fabric,
        is_v6: false,
    }];
    used
}

#[test]
fn a_machine_is_described_from_its_files_as_far_as_it_goes() {
    let node = below(&root());
    assert_eq!((&*node.host, &*node.kernel), ("box", "6.8.0"));
    assert_eq!(node.operating_system, "Ubuntu 24.04");
    let cpu = &node.processors;
    assert_eq!((cpu.sockets, cpu.cores_per_socket, cpu.threads), (2, 2, 8));
    assert_eq!(node.memory.ecc, Some(true));
    assert_eq!(node.memory.modules, ["1 x 65536 MB DDR5"]);
    assert_eq!(node.disks.len(), 1, "a loop device is no disk");
    assert_eq!(node.disks[0].bytes, 1_875_385_008 * 512);
    assert_eq!(node.nics.iter().filter(|n| n.rdma).count(), 5);
    assert_eq!(node.tcp, ["net.ipv4.tcp_rmem = 4096 131072 6291456"]);
    // No source reports ECC of the two GPUs.
    assert_eq!((node.gpus.len(), node.without_ecc().len()), (2, 1));
    // A round trip through JSON changes nothing.
    let text = serde_json::to_string(&node).expect("JSON");
    assert_eq!(serde_json::from_str::<Node>(&text).expect("read"), node);

    let bare = tempfile::tempdir().expect("a folder");
    machine::expand(machine::LAPTOP, bare.path()).expect("laid out");
    let node = below(&bare);
    assert_eq!((node.processors.sockets, node.memory.ecc), (0, None));
    assert!(Node::below(&bare.path().join("nowhere"), Role::Frontend, "").is_err());
    let node = Node::of_this_machine(Role::Frontend, "0.1.0").expect("Linux");
    assert!(node.processors.threads > 0 && node.memory.bytes > 0);
}

#[test]
fn a_form_that_cannot_be_meant_is_refused_with_the_key() {
    let rig = Rig::new();
    let empty: Vec<_> = rig.form.empty().into_iter().map(|(name, _)| name).collect();
    let asked = "system_name framework cooling host_networking_topology accelerator_interconnect \
                 accelerator_memory_configuration";
    assert_eq!(empty.join(" "), asked);
    assert!(rig.form.models.contains_key("rgat"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("form.yaml");
    for (text, part) in [
        (&b"submitter: a/b\nsystem: s\n"[..], "\"a/b\" is no name"),
        (b"submitter: org\nsystem: \"\"\n", "line 2"),
        (
            b"submitter: o\nsystem: s\nhost_memory_ecc: maybe\n",
            "host_memory_ecc",
        ),
        (b"submiter: org\n", "submiter"),
        (b"submitter: org\nsystem: ../s\n", "../s"),
        (
            b"submitter: o\nsystem: s\nsystems: {a/b: {accelerators: [c]}}\n",
            "a/b",
        ),
        (b"submitter: org\nsystem: caf\xe9\n", "line 2 is not UTF-8"),
    ] {
        fs::write(&path, text).expect("written");
        let error = Form::read(&path).expect_err(part).to_string();
        assert_has(&error, &[part, "form.yaml"]);
    }
    for (more, part) in [
        (
            "fields: {colling: air}",
            "fields.colling: there is no such name; like it: cooling",
        ),
        (
            "systems: {t: {fields: {colling: air}}}",
            "systems.t.fields.colling",
        ),
        ("fields: {status: preview}", "fields.status"),
        ("models: {rgat: {retrainig: \"no\"}}", "like it: retraining"),
        ("models: {llama3-8b: {}}", "like it: llama3.1-8b"),
        ("accuracy_scripts: {gpt-oss: a}", "like it: gpt-oss-120b"),
    ] {
        let form = form_of(&format!("submitter: org\nsystem: s\n{more}\n"));
        assert_has(&form.of_round(&rig.round).expect_err(part), &[part]);
    }
}

#[test]
fn a_bond_and_a_vlan_over_ethernet_are_ethernet_and_a_pair_is_not() {
    let root = root();
    let class = root.path().join("sys/class/net");
    let hardware = crate::layout::folders(&class).into_iter();
    let mut hardware = { hardware }.filter(|n| class.join(n).join("device").exists());
    let hardware = &hardware.next().expect("a NIC");
    let mut addresses = fs::read_to_string(root.path().join("addresses")).expect("a list");
    let write = |file: &str, text: &str| error::write(&class.join(file), text).expect("written");
    write(&format!("{hardware}/type"), "1\n");
    write(&format!("{hardware}/device/device"), "0x1021\n");
    for (name, lower) in [
        ("bond0", Some(hardware.as_str())),
        ("bond0.7", Some("bond0")),
        ("veth0", None),
    ] {
        write(&format!("{name}/type"), "1\n");
        addresses += &format!("{name} 10.9.0.1\n");
        if let Some(lower) = lower {
            fs::create_dir_all(class.join(name).join(format!("lower_{lower}"))).expect("made");
        }
    }
    fs::write(root.path().join("addresses"), addresses).expect("written");
    let node = below(&root);
    let nic = |name: &str| node.nics.iter().find(|n| n.name == name).expect(name);
    for name in ["bond0", "bond0.7"] {
        assert_eq!(nic(name).link_layer, "Ethernet");
        let ports: Vec<_> = nic(name).ports().iter().map(|port| &port.name).collect();
        assert_eq!(ports, [hardware], "{name}");
    }
    assert!(nic("veth0").members.is_empty());
    assert_ne!(nic("veth0").link_layer, "Ethernet");
    assert!(nic("bond0.7").model.starts_with("PCI "));
    assert_eq!(nic("veth0").model, "");
}

#[test]
fn each_set_of_accelerators_is_a_system_of_its_own() {
    let form = form_of(
        "submitter: org\nsystem: one\nfields: {cooling: air, system_name: One}\n\
         systems: {two: {accelerators: [b, a], fields: {system_name: Two}}}\n",
    );
    let [a, b] = ["a", "b"].map(name);
    assert_eq!(&**form.system_of(&BTreeSet::from([&a])), "one");
    let two = form.system_of(&BTreeSet::from([&a, &b]));
    assert_eq!(&**two, "two");
    let two = form.of_system(two);
    let expected = ("Two", "air");
    assert_eq!((two.field("system_name"), two.field("cooling")), expected);
}

#[test]
fn the_systems_json_has_every_field_and_tells_loadgens_side_from_the_suts() {
    let mut rig = Rig::new();
    rig.set("cooling", "liquid");
    let tcp = rig.system("tcp");
    let json = rig.json(&tcp);
    let SystemFields {
        fields, network, ..
    } = &rig.round.system;
    assert!(fields.iter().chain(network).all(|f| !json[f].is_null()));
    let direct = "LoadGen system connected point to point to 1 SUT node";
    let expected = json!({
        "is_network": "True", "number_of_nodes": 1, "accelerators_per_node": 2,
        "number_connections": 6, "number_nic_loadgen": 1, "number_nic_sut": 1,
        "cooling": "liquid", "host_storage_capacity": "960 GB", "network_topology": direct,
    });
    for (field, value) in expected.as_object().expect("fields") {
        assert_eq!(json[field], *value, "{field}");
    }
    let closed = system::json(&rig.round, Division::Closed, &rig.form, &tcp);
    assert!(network.iter().all(|f| !closed.contains_key(f)));
    assert_eq!(closed["division"], "closed");
    rig.form.switches.push(Switch {
        name: "leaf-1".to_owned(),
        model: "SN5600".to_owned(),
        ..Switch::default()
    });
    let json = rig.json(&tcp);
    assert_has(&json["network_topology"].to_string(), &["leaf-1 (SN5600)"]);
    // What no machine knows.
    for (field, value) in [
        ("accelerators_per_node", "8"),
        ("nic_sut", "an X1"),
        ("number_of_nodes", "0"),
    ] {
        rig.set(field, value);
    }
    rig.form.of_round(&rig.round).expect("fields of the round");
    let json = rig.json(&tcp);
    assert_eq!(json["accelerators_per_node"], 8);
    assert_eq!(json["nic_sut"], "an X1");
    // The checker calls the number 0 empty.
    assert_eq!(json["number_of_nodes"], "0");
    // GPUs that only the bus reports have no name.
    let mut rig = Rig::new();
    rig.back.gpus[0].name = "GPU of PCI vendor 1002".to_owned();
    rig.back.gpus.truncate(1);
    let json = rig.json(&rig.system("tcp"));
    assert_eq!(json["accelerators_per_node"], 1);
    assert_eq!(json["accelerator_model_name"], "");
}

#[test]
fn the_diagram_has_a_line_for_each_cable() {
    let mut rig = Rig::new();
    let cables = |rig: &Rig| {
        let svg = diagram::svg(&rig.form, &rig.system("tcp"));
        svg.matches("<line ").count()
    };
    assert_eq!(cables(&rig), 1, "one to one");
    rig.form.switches.push(Switch {
        name: "leaf-1".to_owned(),
        ..Switch::default()
    });
    assert_eq!(cables(&rig), 2, "both to the switch");
    // A named cable excludes all others.
    rig.form.switches[0].connects = vec![format!("lg:{}", rig.front.nics[0].name)];
    assert_eq!(cables(&rig), 1);
}

#[test]
fn layers_and_library_are_those_of_each_fabric() {
    let mut rig = Rig::new();
    let libraries = &mut rig.back.libraries;
    libraries.insert("libfabric".to_owned(), "1.22".to_owned());
    // Fabric, link layer, network layer, transport, all in one, library.
    for row in [
        "tcp | Ethernet | IPv4 | TCP | TCP/IPv4 over Ethernet | kernel TCP",
        "ib | InfiniBand | InfiniBand | reliable connections (RC) | InfiniBand reliable connection \
         (RC) over InfiniBand | libibverbs",
        "ofi verbs;ofi_rxm | Ethernet | UDP and IPv4, as RoCE v2 | reliable connections (RC) | \
         RoCE v2 (RC over UDP/IPv4) over Ethernet | libfabric 1.22 (verbs;ofi_rxm)",
        "ofi efa | Ethernet | EFA | SRD | SRD/EFA over Ethernet | libfabric 1.22 (efa)",
        "ofi tcp;ofi_rxm | Ethernet | IPv4 | TCP | TCP/IPv4 over Ethernet | libfabric 1.22",
        "ofi new | Ethernet | a layer that only its vendor names | new | new over Ethernet | \
         libfabric 1.22 (new)",
    ] {
        let row: Vec<_> = row.split(" | ").collect();
        let [fabric, link, network, transport, protocol, library] = row[..] else {
            panic!("{row:?}");
        };
        rig.set("network_type", link);
        let system = rig.system(fabric);
        let page = pages::network(&rig.form, &system);
        for part in [
            format!("| 2, data link | {link} |"),
            format!("| 3, network | {network} |"),
            format!("| 4, transport | {transport} |"),
        ] {
            assert_has(&page, &[&part]);
        }
        let json = rig.json(&system);
        assert_eq!(json["network_protocol"], protocol);
        assert_has(&json["net_software_stack_sut"].to_string(), &[library]);
    }
    // A run over two fabrics states both.
    let mut both = rig.system("tcp");
    let mut second = both.accelerators[0].nics[0].clone();
    second.fabric = fabric_of("ofi efa");
    both.accelerators[0].nics.push(second);
    let page = pages::network(&rig.form, &both);
    assert_has(&page, &["| 4, transport | TCP; SRD |"]);
}

/// The entry of `nics` in a node's configuration.
fn nics(entry: &str) -> Vec<NicConfig> {
    let (mut configs, own) = (RunConfigs::default(), name("acc-a"));
    let listen = "{listen: \"10.0.0.2:7410\"}";
    let read = match entry.contains("listen") {
        true => configs.read(Some(&own), &ACCELERATOR.replace(listen, entry)),
        false => configs.read(None, &FRONTEND.replace("{address: 10.0.0.1}", entry)),
    };
    read.expect(entry);
    match configs.frontend {
        Some(config) => config.cluster.nics,
        None => configs.accelerators.remove("acc-a").expect("it").nics,
    }
}

#[test]
fn the_configuration_selects_nics_by_address_device_domain_and_pattern() {
    let mut node = below(&root());
    node.nics[0].addresses = vec!["fd00::1".to_owned()];
    node.nics[1].up = true;
    let (first, name) = (&node.nics[0].name, &node.nics[1].name);
    for (entry, found, fabric) in [
        ("{address: \"fd00:0::1\"}".to_owned(), first, "tcp"),
        ("{listen: \"[fd00::1]:7410\"}".to_owned(), first, "tcp"),
        (format!("{{device: {name}}}"), name, "ib"),
        (format!("{{ofi: efa, domain: {name}-rdm}}"), name, "ofi efa"),
        (format!("{{ofi: efa, match: \"{name}\"}}"), name, "ofi efa"),
    ] {
        let used = UsedNode::new(node.clone(), &nics(&entry), &NicFabric::default());
        let own = |used: &UsedNic| {
            let facts = used.fabric.facts();
            let words = [Some(facts.fabric), facts.provider];
            words
                .iter()
                .flatten()
                .copied()
                .collect::<Vec<_>>()
                .join(" ")
        };
        let all = used.nics.iter().map(|u| (&u.nic.name, own(u)));
        assert_eq!(
            all.collect::<Vec<_>>(),
            [(found, fabric.to_owned())],
            "{entry}"
        );
        assert!(used.missing.is_empty(), "{entry}");
    }
    let used = UsedNode::new(node, &nics("{address: 192.0.2.7}"), &NicFabric::default());
    assert!(used.nics.len() > 1, "all that are up: {used:?}");
    assert_eq!(used.missing, ["192.0.2.7"]);
}

#[test]
fn two_nodes_of_one_machine_are_one_machine_with_the_nics_of_both() {
    let rig = Rig::new();
    let mut both = rig.system("tcp");
    let mut other = rig.back.clone();
    other.node = "acc-b".to_owned();
    both.accelerators[0].join(used(&other, 2, "tcp"));
    both.accelerators[0].join(used(&other, 1, "tcp"));
    let json = rig.json(&both);
    let counts = ["number_of_nodes", "number_nic_sut", "accelerators_per_node"];
    assert_eq!(
        counts.map(|field| json[field].as_u64()),
        [Some(1), Some(2), Some(2)]
    );
    let page = pages::network(&rig.form, &both);
    assert_has(&page, &["| acc-a, acc-b, acc-b | SUT |"]);
    assert!(!page.contains("prefill"), "{page}");

    let engine = |(node, role)| {
        let engine = EngineConfig {
            role,
            ..EngineConfig::default()
        };
        (name(node), engine)
    };
    both.engines = [("acc-a", NodeRole::Prefill), ("acc-b", NodeRole::Decode)]
        .map(engine)
        .to_vec();
    let page = pages::network(&rig.form, &both);
    let counts = [
        "prefill node, of which it has 1",
        "decode node, of which it has 1",
    ];
    let named = "acc-a (prefill), acc-b (decode)";
    assert_has(&page, &counts);
    assert_has(
        &page,
        &["The connector of the engines", &format!("| {named}")],
    );
    let title = format!("SUT: {named}");
    assert_has(&diagram::svg(&rig.form, &both), &[&title]);
}

#[test]
fn what_a_machine_says_stands_as_text_in_each_document() {
    let mut rig = Rig::new();
    rig.back.nics[2].name = "<script>|".to_owned();
    rig.back.nics[2].model = "`<img>`".to_owned();
    let system = rig.system("tcp");
    let data_path = pages::data_path(&rig.form, &system, &[]);
    for text in [
        &pages::network(&rig.form, &system),
        &data_path,
        &diagram::svg(&rig.form, &system),
    ] {
        let is_raw = text.contains("<script>") || text.contains("<img>");
        assert!(!is_raw && text.contains("&lt;script&gt;"), "{text}");
    }
    let row = data_path.lines().find(|line| line.contains("script"));
    let row = row.expect("a row").replace("\\|", "");
    assert_eq!(row.matches('|').count(), 5, "{row}");
}

#[test]
fn bandwidths_are_the_rules_formula_and_the_way_has_the_rate_of_each_link() {
    let mut rig = Rig::new();
    rig.back.gpus[0].pcie = Some("Gen5 x16".to_owned());
    rig.back.nics[2].pcie = Some("16.0 GT/s PCIe x16".to_owned());
    let rate = |model: &str, per_second: f64| Rate {
        id: ResultId {
            system: name("sys"),
            model: name(model),
            scenario: name("Offline"),
        },
        model: &rig.round.models[model],
        per_second: Some(per_second),
        input_bytes: 4,
        output_bytes: 1,
    };
    let unet = |per_second| rate("3d-unet-99", per_second);
    let rates = [unet(10.0), rate("rgat", 100.0), unet(1e6)];
    let system = rig.system("tcp");
    let page = pages::bandwidth(&system, &rates);
    let rows: Vec<_> = page.lines().filter(|l| l.starts_with("| sys |")).collect();
    // 10 samples/s, 32,944,795 elements of 4 bytes each.
    assert_has(rows[0], &["| 1317.792 |", "| 329.448 |", "| yes |"]);
    assert_has(rows[1], &["negligible | > 0", "| yes |"]);
    assert_has(rows[2], &["| NO |"]);
    let page = pages::data_path(&rig.form, &system, &rates[..1]);
    let links = ["| Gen5 x16 | 63015 |", "| 16.0 GT/s PCIe x16 | 31508 |"];
    assert_has(&page, &links);
}
