use std::collections::BTreeSet;

use qdl::testkit::{assert_has, machine};
use serde_json::Value;

use super::{
    form::{self, Form, Switch},
    system::{self, DescribedSystem},
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
            "submitter: org\nsystem: s\nfields: {colling: air}\n",
            "fields.colling",
        ),
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
        (
            "submitter: org\nsystem: s\nsystems: {t: {fields: {colling: air}}}\n",
            "systems.t.fields.colling: there is no such name; like it: cooling",
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
    assert_eq!(nic("bond0").link_layer, "Ethernet");
    assert_eq!(nic("bond0.7").link_layer, "Ethernet");
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
    let page = pages::data_path(&filled(), &system(&front, &back, "tcp"), &[]);
    assert!(page.contains("| Gen5 x16 | 63015 |"), "{page}");
    assert!(page.contains("| 16.0 GT/s PCIe x16 | 31508 |"), "{page}");
}

fn system<'a>(frontend: &'a Node, accelerator: &'a Node, fabric: &str) -> DescribedSystem<'a> {
    DescribedSystem {
        frontend,
        frontend_nics: BTreeSet::from([frontend.nics[0].name.clone()]),
        accelerators: vec![(
            accelerator,
            BTreeSet::from([accelerator.nics[2].name.clone()]),
        )],
        fabric: fabric.to_owned(),
        connections: 6,
    }
}

#[test]
fn the_systems_json_has_every_field_and_tells_loadgens_side_from_the_suts() {
    let round = Round::find(crate::round::newest()).expect("built in");
    let (front, back) = (frontend(), accelerator());
    let mut form = filled();
    form.fields
        .insert("cooling".to_owned(), "liquid".to_owned());
    let tcp = system(&front, &back, "tcp");
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
    let mut local = system(&front, &back, "tcp");
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
    let svg = diagram::svg(&form, &system(&front, &back, "tcp"));
    assert_eq!(cables(&svg), 1, "one to one");
    assert!(svg.contains("SUT: a&lt;b") && !svg.contains("a<b"), "{svg}");
    form.switches.push(Switch {
        name: "leaf-1".to_owned(),
        ..Switch::default()
    });
    let svg = diagram::svg(&form, &system(&front, &back, "tcp"));
    assert_eq!(cables(&svg), 2, "both to the switch");
    // A named cable excludes all others.
    form.switches[0].connects = vec![format!("lg:{}", front.nics[0].name)];
    let svg = diagram::svg(&form, &system(&front, &back, "tcp"));
    assert_eq!(cables(&svg), 1);
}

#[test]
fn layers_one_to_four_are_stated_for_both_fabrics() {
    let (front, back) = (frontend(), accelerator());
    for (fabric, words) in [
        ("tcp", "| 4, transport | TCP |"),
        ("ib", "| 4, transport | reliable"),
    ] {
        let page = pages::network(&filled(), &system(&front, &back, fabric));
        for layer in [
            "| 1, physical |",
            "| 2, data link |",
            "| 3, network |",
            words,
        ] {
            assert!(page.contains(layer), "{layer} is not in {page}");
        }
    }
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
    let page = pages::bandwidth(&system(&front, &back, "tcp"), &rates);
    let rows: Vec<_> = page.lines().filter(|l| l.starts_with("| sys |")).collect();
    // 10 samples/s, 32,944,795 elements of 4 bytes each.
    assert_has(rows[0], &["| 1317.792 |", "| 329.448 |", "| yes |"]);
    assert_has(rows[1], &["negligible | > 0", "| yes |"]);
    assert_has(rows[2], &["| NO |"]);
}
