use std::collections::BTreeSet;

use qdl::testkit::{assert_has, machine};
use serde_json::Value;

use super::{
    form::{self, Form, Switch},
    system::{self, DescribedSystem},
    used::{UsedNic, UsedNode},
    *,
};
use crate::{layout::Division, round::Round};

/// A machine of `qdl`'s test data, plus the files that a description reads.
fn node(role: Role, name: &str) -> (Node, tempfile::TempDir) {
    let root = tempfile::tempdir().expect("a folder");
    machine::expand(machine::TWO_SOCKETS, root.path()).expect("laid out");
    let put = |file: &str, text: &str| {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    };
    put("proc/sys/kernel/hostname", "box\n");
    put("proc/sys/kernel/osrelease", "6.8.0\n");
    put("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
    put("etc/os-release", "NAME=x\nPRETTY_NAME=\"Ubuntu 24.04\"\n");
    let core = |n: u32, socket: u32| {
        format!(
            "processor\t: {n}\nmodel name\t: Xeon 8480\nphysical id\t: {socket}\ncpu cores\t: 2\n\n"
        )
    };
    let cores: String = (0..8).map(|n| core(n, n / 4)).collect();
    put("proc/cpuinfo", &cores);
    put(
        "proc/meminfo",
        "MemTotal:       1056690000 kB\nMemFree: 1 kB\n",
    );
    for dimm in ["dimm0", "dimm1"] {
        let base = format!("sys/devices/system/edac/mc/mc0/{dimm}");
        put(&format!("{base}/size"), "65536\n");
        put(&format!("{base}/dimm_mem_type"), "Registered-DDR5\n");
        put(&format!("{base}/dimm_edac_mode"), "S8ECD8ED\n");
    }
    put("sys/block/nvme0n1/size", "1875385008\n");
    put("sys/block/nvme0n1/device/model", "A DISK\n");
    put("sys/block/loop0/size", "8\n");
    let mut node = Node::below(root.path(), role, "0.1.0").expect("a machine");
    node.node = name.to_owned();
    (node, root)
}

fn frontend() -> Node {
    node(Role::Frontend, "lg").0
}

fn accelerator() -> Node {
    node(Role::Accelerator, "acc-a").0
}

#[test]
fn a_machine_is_described_from_its_files() {
    let node = accelerator();
    assert_eq!((node.host.as_str(), node.kernel.as_str()), ("box", "6.8.0"));
    assert_eq!(node.operating_system, "Ubuntu 24.04");
    let cpu = &node.processors;
    assert_eq!((cpu.sockets, cpu.cores_per_socket, cpu.threads), (2, 2, 8));
    assert_eq!(
        (node.memory.ecc, &node.memory.modules[..]),
        (Some(true), &["2 x 65536 MB Registered-DDR5".to_owned()][..])
    );
    assert_eq!(node.disks.len(), 1, "a loop device is no disk");
    assert_eq!(node.disks[0].bytes, 1_875_385_008 * 512);
    assert_eq!(node.nics.iter().filter(|n| n.rdma).count(), 5);
    assert_eq!(node.gpus.len(), 2);
    assert_eq!(node.tcp, ["net.ipv4.tcp_rmem = 4096 131072 6291456"]);
    // A round trip through JSON changes nothing.
    let text = serde_json::to_string(&node).expect("JSON");
    assert_eq!(serde_json::from_str::<Node>(&text).expect("read"), node);
    // No source reports ECC of the GPUs.
    assert_eq!(node.without_ecc().len(), 1);
}

#[test]
fn a_machine_without_the_files_is_described_as_far_as_it_goes() {
    let root = tempfile::tempdir().expect("a folder");
    machine::expand(machine::LAPTOP, root.path()).expect("laid out");
    let node = Node::below(root.path(), Role::Frontend, "0.1.0").expect("a machine");
    assert_eq!((node.processors.sockets, node.memory.ecc), (0, None));
    assert!(Node::below(&root.path().join("nowhere"), Role::Frontend, "").is_err());
}

#[test]
fn this_machine_can_be_described() {
    let node = Node::of_this_machine(Role::Frontend, "0.1.0").expect("Linux");
    assert!(node.processors.threads > 0 && node.memory.bytes > 0);
}

fn filled() -> Form {
    let text = form::blank(&[("rgat", &["retraining".to_owned()])]);
    let text = text.replace("submitter: \"\"", "submitter: org");
    let text = text.replace("system: \"\"", "system: sys");
    crate::error::yaml(&text).expect("a form")
}

#[test]
fn the_form_names_each_empty_field_and_what_it_means() {
    let form = filled();
    let empty: Vec<_> = form.empty().into_iter().map(|(name, _)| name).collect();
    let all = [
        "system_name",
        "framework",
        "cooling",
        "host_networking_topology",
        "accelerator_interconnect",
        "accelerator_memory_configuration",
    ];
    assert_eq!(empty, all);
    assert!(form.empty().iter().all(|(_, meaning)| !meaning.is_empty()));
    assert!(form.models.contains_key("rgat"));
}

#[test]
fn a_form_that_cannot_be_meant_is_refused_with_the_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("form.yaml");
    let error = |text: &str| {
        fs::write(&path, text).expect("written");
        Form::read(&path).expect_err("wrong").to_string()
    };
    let cases = [
        (
            "submitter: a/b\nsystem: s\n",
            "\"a/b\" is no name for a file",
        ),
        ("submitter: org\nsystem: \"\"\n", "line 2"),
        (
            "submitter: org\nsystem: s\nhost_memory_ecc: maybe\n",
            "host_memory_ecc",
        ),
        ("submiter: org\n", "submiter"),
        ("submitter: org\nsystem: ../s\n", "../s"),
        (
            "submitter: org\nsystem: s\nsystems: {a/b: {accelerators: [c]}}\n",
            "a/b",
        ),
    ];
    for (text, part) in cases {
        let error = error(text);
        assert_has(&error, &[part, "form.yaml"]);
    }
}

#[test]
fn a_name_in_the_form_that_the_round_does_not_have_is_refused_with_one_like_it() {
    let round = Round::find(crate::round::newest()).expect("built in");
    let refused = |more: &str| {
        let text = format!("submitter: org\nsystem: s\n{more}\n");
        let form: Form = crate::error::yaml(&text).expect("a form");
        form.of_round(&round).expect_err("misspelt")
    };
    for (key, more) in [
        ("fields", "fields: {colling: air}"),
        ("systems.t.fields", "systems: {t: {fields: {colling: air}}}"),
    ] {
        let named = format!("{key}.colling: there is no such name; like it: cooling");
        assert_has(&refused(more), &[&named]);
    }
    assert_has(&refused("fields: {status: preview}"), &["fields.status"]);
    let field = refused("models: {rgat: {retrainig: \"no\"}}");
    assert!(field.contains("like it: retraining"), "{field}");
    let model = refused("models: {llama3-8b: {}}");
    assert!(model.contains("like it: llama3.1-8b"), "{model}");
    let script = refused("accuracy_scripts: {gpt-oss: a}");
    assert!(script.contains("like it: gpt-oss-120b"), "{script}");
}

#[test]
fn a_form_that_is_not_utf_8_is_refused_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("form.yaml");
    fs::write(&path, b"submitter: org\nsystem: caf\xe9\n").expect("written");
    let error = Form::read(&path).expect_err("Latin-1").to_string();
    assert_has(&error, &["form.yaml: line 2", "UTF-8"]);
}

#[test]
fn a_bond_and_a_vlan_over_ethernet_are_ethernet_and_a_pair_is_not() {
    let (_node, root) = node(Role::Accelerator, "acc-a");
    let class = root.path().join("sys/class/net");
    let hardware = crate::layout::folders(&class);
    let mut hardware = hardware.iter();
    let hardware = hardware.find(|n| class.join(n).join("device").exists());
    let hardware = hardware.expect("a NIC");
    let mut addresses = fs::read_to_string(root.path().join("addresses")).expect("a list");
    fs::write(class.join(hardware).join("type"), "1\n").expect("written");
    fs::write(class.join(hardware).join("device/device"), "0x1021\n").expect("written");
    for (name, lower) in [
        ("bond0", Some(hardware.as_str())),
        ("bond0.7", Some("bond0")),
        ("veth0", None),
    ] {
        fs::create_dir_all(class.join(name)).expect("made");
        fs::write(class.join(name).join("type"), "1\n").expect("written");
        addresses += &format!("{name} 10.9.0.1\n");
        if let Some(lower) = lower {
            fs::create_dir_all(class.join(name).join(format!("lower_{lower}"))).expect("made");
        }
    }
    fs::write(root.path().join("addresses"), addresses).expect("written");
    let node = Node::below(root.path(), Role::Accelerator, "0.1.0").expect("a machine");
    let nic = |name: &str| node.nics.iter().find(|n| n.name == name).expect(name);
    for (name, port) in [("bond0", hardware), ("bond0.7", hardware)] {
        assert_eq!(nic(name).link_layer, "Ethernet");
        let ports: Vec<_> = nic(name).ports().iter().map(|port| &port.name).collect();
        assert_eq!(ports, [port], "{name}");
    }
    assert!(nic("veth0").members.is_empty());
    assert_ne!(nic("veth0").link_layer, "Ethernet");
    assert!(nic("bond0.7").model.starts_with("PCI "));
    assert_eq!(nic("veth0").model, "");
}

#[test]
fn each_set_of_accelerators_is_a_system_of_its_own() {
    let text = "submitter: org\nsystem: one\nfields: {cooling: air, system_name: One}\n\
                systems: {two: {accelerators: [b, a], fields: {system_name: Two}}}\n";
    let form: Form = crate::error::yaml(text).expect("a form");
    let [a, b] = ["a", "b"].map(|n| Name::new(n).expect("a name"));
    assert_eq!(&**form.system_of(&BTreeSet::from([&a])), "one");
    let two = form.system_of(&BTreeSet::from([&a, &b]));
    assert_eq!(&**two, "two");
    let two = form.of_system(two);
    let expected = ("Two", "air");
    assert_eq!((two.field("system_name"), two.field("cooling")), expected);
}

#[test]
fn the_way_to_the_accelerators_has_the_rate_of_each_link() {
    let (front, mut back) = (frontend(), accelerator());
    back.gpus[0].pcie = Some("Gen5 x16".to_owned());
    back.nics[2].pcie = Some("16.0 GT/s PCIe x16".to_owned());
    let page = pages::data_path(&filled(), &system(&front, &back), &[]);
    assert!(page.contains("| Gen5 x16 | 63015 |"), "{page}");
    assert!(page.contains("| 16.0 GT/s PCIe x16 | 31508 |"), "{page}");
}

/// A machine whose NIC `nic` carried samples.
fn machine(node: &Node, nic: usize, fabric: &str) -> UsedNode {
    let mut used = UsedNode::new(node.clone(), "", "");
    used.nics = vec![UsedNic {
        nic: node.nics[nic].clone(),
        fabric: fabric.to_owned(),
        is_v6: false,
    }];
    used
}

fn system_of(frontend: &Node, accelerator: &Node, fabric: &str) -> DescribedSystem {
    DescribedSystem {
        frontend: machine(frontend, 0, fabric),
        accelerators: vec![machine(accelerator, 2, fabric)],
        connections: 6,
    }
}

fn system(frontend: &Node, accelerator: &Node) -> DescribedSystem {
    system_of(frontend, accelerator, "tcp")
}

#[test]
fn the_systems_json_has_every_field_and_tells_loadgens_side_from_the_suts() {
    let round = Round::find(crate::round::newest()).expect("built in");
    let (front, back) = (frontend(), accelerator());
    let mut form = filled();
    form.fields
        .insert("cooling".to_owned(), "liquid".to_owned());
    let tcp = system(&front, &back);
    let json = system::json(&round, Division::Network, &form, &tcp);
    let fields = round.system.fields.iter().chain(&round.system.network);
    assert!(fields.clone().all(|f| json.contains_key(f)));
    assert_eq!(json.len(), fields.count());
    for (field, value) in [
        ("is_network", Value::from("True")),
        ("number_of_nodes", Value::from(1)),
        ("accelerators_per_node", Value::from(2)),
        ("number_connections", Value::from(6)),
        ("number_nic_loadgen", Value::from(1)),
        ("number_nic_sut", Value::from(1)),
        ("cooling", Value::from("liquid")),
        ("host_storage_capacity", Value::from("960 GB")),
    ] {
        assert_eq!(json[field], value, "{field}");
    }
    let closed = system::json(&round, Division::Closed, &form, &tcp);
    assert!(round.system.network.iter().all(|f| !closed.contains_key(f)));
    assert_eq!(closed["division"], Value::from("closed"));
    let mut said = form.clone();
    said.fields
        .insert("network_type".to_owned(), "InfiniBand".to_owned());
    let mut local = system(&front, &back);
    local.accelerators.clear();
    let said = system::json(&round, Division::Network, &said, &local);
    assert_eq!(said["network_type"], Value::from("InfiniBand"));
    let expected = Value::from("TCP/IPv4 over InfiniBand");
    assert_eq!(said["network_protocol"], expected);
    let topology = "LoadGen system connected point to point to 1 SUT node";
    assert_eq!(said["network_topology"], Value::from(topology));
    let text = |field: &str| json[field].as_str().unwrap_or_default().to_owned();
    assert_has(&text("network_protocol"), &["TCP/IPv4 over"]);
    assert_has(&text("network_topology"), &["point to point"]);
    form.switches.push(Switch {
        name: "leaf-1".to_owned(),
        model: "SN5600".to_owned(),
        ..Switch::default()
    });
    let json = system::json(&round, Division::Network, &form, &tcp);
    let topology = json["network_topology"].as_str().unwrap_or_default();
    assert_has(topology, &["leaf-1 (SN5600)"]);
}

#[test]
fn the_diagram_has_a_line_for_each_cable_and_escapes_names() {
    let (front, mut back) = (frontend(), accelerator());
    back.node = "a<b".to_owned();
    let mut form = filled();
    let cables = |svg: &str| svg.matches("<line ").count();
    let svg = diagram::svg(&form, &system(&front, &back));
    assert_eq!(cables(&svg), 1, "one to one");
    assert!(svg.contains("SUT: a&lt;b") && !svg.contains("a<b"), "{svg}");
    form.switches.push(Switch {
        name: "leaf-1".to_owned(),
        ..Switch::default()
    });
    let svg = diagram::svg(&form, &system(&front, &back));
    assert_eq!(cables(&svg), 2, "both to the switch");
    // A named cable excludes all others.
    form.switches[0].connects = vec![format!("lg:{}", front.nics[0].name)];
    let svg = diagram::svg(&form, &system(&front, &back));
    assert_eq!(cables(&svg), 1);
}

#[test]
fn layers_and_library_are_those_of_each_fabric() {
    let (front, mut back) = (frontend(), accelerator());
    back.libfabric = "1.22".to_owned();
    let round = Round::find("v6.1").expect("built in");
    // Fabric, link layer, network layer, transport, all in one, library.
    for row in [
        "tcp | Ethernet | IPv4 | TCP | TCP/IPv4 over Ethernet | kernel TCP",
        "ib | InfiniBand | InfiniBand | reliable connections (RC) | InfiniBand reliable connection \
         (RC) over InfiniBand | libibverbs",
        "ofi verbs;ofi_rxm | Ethernet | UDP and IPv4, as RoCE v2 | reliable connections (RC) | \
         RoCE v2 (RC over UDP/IPv4) over Ethernet | libfabric 1.22 (verbs;ofi_rxm)",
        "ofi efa | Ethernet | EFA | SRD | SRD/EFA over Ethernet | libfabric 1.22 (efa)",
        "ofi tcp;ofi_rxm | Ethernet | IPv4 | TCP | TCP/IPv4 over Ethernet | libfabric 1.22",
    ] {
        let row: Vec<_> = row.split(" | ").collect();
        let [fabric, link, network, transport, protocol, library] = row[..] else {
            panic!("{row:?}");
        };
        let mut form = filled();
        form.fields
            .insert("network_type".to_owned(), link.to_owned());
        let system = system_of(&front, &back, fabric);
        let page = pages::network(&form, &system);
        let rows = [
            format!("| 2, data link | {link} |"),
            format!("| 3, network | {network} |"),
            format!("| 4, transport | {transport} |"),
        ];
        assert_has(&page, &rows.each_ref().map(String::as_str));
        let json = system::json(&round, Division::Network, &form, &system);
        assert_eq!(json["network_protocol"], Value::from(protocol));
        assert_has(&json["net_software_stack_sut"].to_string(), &[library]);
    }
    // A run over two fabrics states both.
    let mut both = system(&front, &back);
    let mut second = both.accelerators[0].nics[0].clone();
    second.fabric = "ofi efa".to_owned();
    both.accelerators[0].nics.push(second);
    assert_has(
        &pages::network(&filled(), &both),
        &["| 4, transport | TCP; SRD |"],
    );
}

#[test]
fn the_configuration_selects_nics_by_address_device_domain_and_pattern() {
    let mut node = accelerator();
    node.nics[0].addresses = vec!["fd00::1".to_owned()];
    node.nics[1].up = true;
    let (first, name) = (&node.nics[0].name, &node.nics[1].name);
    for (nics, found, fabric) in [
        ("{address: \"fd00:0::1\"}".to_owned(), first, "tcp"),
        ("{listen: \"[fd00::1]:7410\"}".to_owned(), first, "tcp"),
        (format!("{{device: {name}}}"), name, "ib"),
        (format!("{{ofi: efa, domain: {name}-rdm}}"), name, "ofi efa"),
        (format!("{{ofi: efa, match: \"{name}\"}}"), name, "ofi efa"),
    ] {
        let used = UsedNode::new(node.clone(), &format!("nics: [{nics}]"), "tcp");
        let all: Vec<_> = used
            .nics
            .iter()
            .map(|u| (&u.nic.name, u.fabric.as_str()))
            .collect();
        assert_eq!(
            (all, used.missing),
            (vec![(found, fabric)], Vec::new()),
            "{nics}"
        );
    }
    let used = UsedNode::new(node, "nics: [{address: 192.0.2.7}]", "tcp");
    assert!(used.nics.len() > 1, "all that are up: {used:?}");
    assert_eq!(used.missing, ["192.0.2.7"]);
}

#[test]
fn two_nodes_of_one_machine_are_one_machine_with_the_nics_of_both() {
    let (front, back) = (frontend(), accelerator());
    let mut both = system(&front, &back);
    let mut other = back.clone();
    other.node = "acc-b".to_owned();
    both.accelerators[0].join(machine(&other, 2, "tcp"));
    both.accelerators[0].join(machine(&other, 1, "tcp"));
    let round = Round::find("v6.1").expect("built in");
    let json = system::json(&round, Division::Network, &filled(), &both);
    for (field, n) in [
        ("number_of_nodes", 1),
        ("number_nic_sut", 2),
        ("accelerators_per_node", 2),
    ] {
        assert_eq!(json[field], Value::from(n), "{field}");
    }
    let page = pages::network(&filled(), &both);
    assert_has(&page, &["| acc-a, acc-b, acc-b | SUT |"]);
}

#[test]
fn what_a_machine_says_stands_as_text_in_each_document() {
    let (front, mut back) = (frontend(), accelerator());
    back.nics[2].name = "<script>|".to_owned();
    back.nics[2].model = "`<img>`".to_owned();
    let system = system(&front, &back);
    for text in [
        pages::network(&filled(), &system),
        pages::data_path(&filled(), &system, &[]),
        diagram::svg(&filled(), &system),
    ] {
        assert!(
            !text.contains("<script>") && !text.contains("<img>"),
            "{text}"
        );
        assert_has(&text, &["&lt;script&gt;"]);
    }
    let data_path = pages::data_path(&filled(), &system, &[]);
    let row = data_path
        .lines()
        .find(|line| line.contains("script"))
        .expect("a row");
    assert_eq!(row.replace("\\|", "").matches('|').count(), 5, "{row}");
}

#[test]
fn the_form_may_say_what_no_machine_knows() {
    let round = Round::find("v6.1").expect("built in");
    let (front, mut back) = (frontend(), accelerator());
    back.gpus.clear();
    let mut form = filled();
    for (field, value) in [
        ("accelerators_per_node", "8"),
        ("nic_sut", "an X1"),
        ("number_of_nodes", "0"),
    ] {
        form.fields.insert(field.to_owned(), value.to_owned());
    }
    form.of_round(&round).expect("fields of the round");
    let json = system::json(&round, Division::Network, &form, &system(&front, &back));
    assert_eq!(json["accelerators_per_node"], Value::from(8));
    assert_eq!(json["nic_sut"], Value::from("an X1"));
    // The checker calls the number 0 empty.
    assert_eq!(json["number_of_nodes"], Value::from("0"));
    // GPUs that only the bus reports have no name.
    back.gpus = vec![Gpu {
        name: "GPU of PCI vendor 1002".to_owned(),
        ..Gpu::default()
    }];
    let json = system::json(&round, Division::Network, &filled(), &system(&front, &back));
    assert_eq!(json["accelerators_per_node"], Value::from(1));
    assert_eq!(json["accelerator_model_name"], Value::from(""));
}

#[test]
fn bandwidths_are_the_rules_formula() {
    let round = Round::find(crate::round::newest()).expect("built in");
    let (front, back) = (frontend(), accelerator());
    let place = |model: &str| crate::layout::ResultId {
        system: Name::new("sys").expect("a name"),
        model: Name::new(model).expect("a name"),
        scenario: Name::new("Offline").expect("a name"),
    };
    let (unet, rgat) = (place("3d-unet-99"), place("rgat"));
    let rate = |id, per_second| pages::Rate {
        id,
        model: &round.models[&id.model],
        per_second,
        input_bytes: 4,
        output_bytes: 1,
    };
    let rates = [rate(&unet, 10.0), rate(&rgat, 100.0), rate(&unet, 1e6)];
    let page = pages::bandwidth(&system(&front, &back), &rates);
    let rows: Vec<_> = page.lines().filter(|l| l.starts_with("| sys |")).collect();
    // 10 samples/s, 32,944,795 elements of 4 bytes each.
    assert_has(rows[0], &["| 1317.792 |", "| 329.448 |", "| yes |"]);
    assert_has(rows[1], &["negligible | > 0", "| yes |"]);
    assert_has(rows[2], &["| NO |"]);
}
