//! Tests with sysfs trees of many kinds of machines.

use std::path::Path;

use super::*;
use crate::{
    config::{Auto, NicConfig, NicFabric, NicPlace, parse_accelerator, parse_frontend},
    testkit::{assert_has, machine},
};

fn read(machine: &str) -> Topology {
    let root = tempfile::tempdir().expect("a folder");
    let addresses = machine::expand(machine, root.path()).expect("a good description");
    Topology::read(root.path(), &addresses).expect("a tree")
}

fn machines() -> [(&'static str, &'static str); 4] {
    [
        ("dgx-a100", machine::DGX_A100),
        ("p5", machine::P5),
        ("two-sockets", machine::TWO_SOCKETS),
        ("laptop", machine::LAPTOP),
    ]
}

fn groups(t: &Topology) -> Vec<Vec<&str>> {
    let name = |n: &usize| t.nics[*n].name.as_str();
    t.nic_groups()
        .iter()
        .map(|g| g.nics.iter().map(name).collect())
        .collect()
}

#[test]
fn a_dgx_has_a_nic_for_each_gpu() {
    let t = read(machine::DGX_A100);
    assert_eq!((t.gpus.len(), t.nodes.len()), (8, 8));
    let expected: Vec<Vec<String>> = (0..8).map(|i| vec![format!("mlx5_{i}")]).collect();
    assert_eq!(groups(&t), expected);
    let near = |g: usize, n: usize| t.gpus[g].place.nearness(&t.nics[n].place);
    assert_eq!(near(0, 0), Nearness::Pix);
    assert_eq!(near(0, 1), Nearness::Pix);
    assert_eq!(near(0, 2), Nearness::Sys);
    assert_eq!(t.gpus[0].place.numa, Some(3));
    assert_eq!(t.nics[0].place.cpus.to_string(), "48-63,176-191");
    assert_eq!(t.nics[0].speed_mbps, Some(200_000));
    assert_eq!(t.nics[0].netdev.as_deref(), Some("ib0"));
    assert_eq!(t.nics.len(), 9, "and one for everything else");
}

#[test]
fn a_p5_has_four_nics_for_each_gpu() {
    let t = read(machine::P5);
    assert_eq!((t.gpus.len(), t.usable_nics().len()), (8, 32));
    for (gpu, group) in t.nic_groups().iter().enumerate() {
        assert_eq!(group.nics.len(), 4);
        assert_eq!(group.nearness, Some(Nearness::Pix));
        for nic in &group.nics {
            assert_eq!(
                t.nics[*nic].place.path[1], t.gpus[gpu].place.path[1],
                "its own switch"
            );
            assert_eq!(t.gpu_of(*nic), Some(gpu));
        }
    }
}

#[test]
fn sockets_need_not_be_alike() {
    let t = read(machine::TWO_SOCKETS);
    // mlx5_3 shares the first GPU's host bridge, but its path crosses the CPU as the others' do.
    assert_eq!(
        groups(&t),
        [vec!["mlx5_0", "mlx5_2", "mlx5_3"], vec!["mlx5_4"]]
    );
    let names: Vec<_> = t
        .usable_nics()
        .iter()
        .map(|n| t.nics[*n].name.as_str())
        .collect();
    assert_eq!(
        names,
        ["mlx5_0", "mlx5_2", "mlx5_3", "mlx5_4"],
        "mlx5_1 has no cable"
    );
    assert_eq!(
        t.nics[0].place.nearness(&t.nics[1].place),
        Nearness::Same,
        "two ports"
    );

    let mut without = t.clone();
    without.gpus.clear();
    let expected = [vec!["mlx5_0", "mlx5_2", "mlx5_3"], vec!["mlx5_4"]];
    assert_eq!(groups(&without), expected, "by node where there is no GPU");

    let pinned = |entry: &str| t.is_pinned_far(&nics(entry)[0]);
    assert_eq!(pinned("{device: mlx5_4, cpus: [20, 61]}"), None);
    let warning = pinned("{device: mlx5_4, cpus: [20, 3]}").expect("core 3 is far");
    assert_has(&warning, &["NUMA node 1", "core 3"]);
}

#[test]
fn a_laptop_has_one_nic_and_no_gpu() {
    let t = read(machine::LAPTOP);
    assert!(t.gpus.is_empty());
    assert_eq!(groups(&t), [["wlp0s20f3"]]);
    assert_eq!(t.nics[0].place.numa, Some(0), "there is but one node");
    assert_eq!(t.nics[0].addresses[0].to_string(), "192.168.178.23");
}

#[test]
fn soft_roce_and_virtio_sit_where_their_hardware_sits() {
    let t = read(
        "node 0 cpus=0-1\nnode 1 cpus=2-3\n\
         pci pci0000:80/0000:80:03.0 vendor=0x1af4 numa=1\n  net virtio2/eth0 addr=10.0.0.2\n\
         virtual ib rxe0 rate=2.5 parent=eth0\n",
    );
    let [rxe] = &t.nics[..] else {
        panic!("eth0 is rxe0's: {:?}", t.nics);
    };
    assert_eq!((rxe.name.as_str(), rxe.speed_mbps), ("rxe0", Some(2500)));
    assert_eq!(rxe.place.address(), PciAddress::parse("0000:80:03.0"));
    assert_eq!(rxe.place.numa, Some(1));
    assert_eq!(rxe.place.cpus.to_string(), "2-3");
    assert_eq!(rxe.addresses.len(), 1);
}

#[test]
fn near_a_nic_are_the_cores_and_the_memory_of_its_node() {
    const CARDS: &str = "\
        pci pci0000:10/0000:10:01.0 vendor=0x15b3 numa=0\n  net eth0 addr=10.0.0.2\n\
        pci pci0000:80/0000:80:03.0 vendor=0x15b3 numa=1\n  ib mlx5_0 rate=200\n  net ib0 addr=10.0.1.2\n\
        pci pci0000:90/0000:90:03.0 vendor=0x15b3 numa=-1\n  net eth1 addr=10.0.2.2\n\
        virtual net veth0 addr=10.0.3.2\n";
    let two = read(&format!("node 0 cpus=0-3\nnode 1 cpus=4-7\n{CARDS}"));
    let of = |t: &Topology, entry: &str| t.node_of_nic(&nics(entry)[0]);
    let at = |t: &Topology, address: &str| of(t, &format!("{{address: {address}}}"));
    assert_eq!(at(&two, "10.0.0.2"), Some(0));
    assert_eq!(
        at(&two, "10.0.1.2"),
        Some(1),
        "the interface of an RDMA device"
    );
    assert_eq!(of(&two, "{device: mlx5_0}"), Some(1));
    for unknown in ["10.0.2.2", "10.0.3.2", "127.0.0.1", "0.0.0.0", "192.0.2.1"] {
        assert_eq!(at(&two, unknown), None, "{unknown}");
    }
    assert_eq!(of(&two, "{device: mlx5_7}"), None);

    let near = |t: &Topology, nodes: &[u32], allowed: std::ops::Range<usize>| {
        let near = t.near_within(nodes, &allowed.collect());
        (near.nodes, near.cpus)
    };
    assert_eq!(near(&two, &[1], 0..8), (vec![1], vec![4, 5, 6, 7]));
    assert_eq!(near(&two, &[1, 0, 1], 0..8), (vec![0, 1], (0..8).collect()));
    assert_eq!(near(&two, &[], 0..8), (vec![], vec![]));
    assert_eq!(near(&two, &[9], 0..8), (vec![], vec![]), "no such node");
    // A process started with an affinity keeps it.
    assert_eq!(near(&two, &[1], 3..5), (vec![1], vec![4]));
    assert_eq!(near(&two, &[1], 0..4), (vec![1], vec![]));

    let one = read(&format!("node 0 cpus=0-7\n{CARDS}"));
    assert_eq!(at(&one, "10.0.0.2"), None, "there is nothing to choose");
    assert_eq!(near(&one, &[0], 0..8), (vec![], vec![]));
    assert_eq!(near(&Topology::default(), &[0], 0..8), (vec![], vec![]));
}

#[test]
fn a_nic_is_on_its_own_node_unless_its_entry_names_another() {
    let t = read(
        "node 0 cpus=0-3\nnode 1 cpus=4-7\n\
         pci pci0000:10/0000:10:01.0 vendor=0x15b3 numa=0\n  net eth0 addr=10.0.0.2\n\
         pci pci0000:80/0000:80:03.0 vendor=0x15b3 numa=1\n  ib mlx5_0 rate=200\n",
    );
    let nodes =
        |entries: &str| -> Vec<_> { nics(entries).iter().map(|n| t.node_of_nic(n)).collect() };
    assert_eq!(
        nodes("{address: 10.0.0.2}, {device: mlx5_0}, {address: 127.0.0.1}"),
        [Some(0), Some(1), None]
    );
    assert_eq!(
        nodes(
            "{address: 10.0.0.2, numa: 1}, {device: mlx5_0, numa: 0}, {address: 127.0.0.1, numa: 1}"
        ),
        [Some(1), Some(0), Some(1)]
    );
    // `cpus` applies only to the thread.
    let with_cpus = t.near_nic(&nics("{device: mlx5_0, cpus: [3, 2]}")[0]);
    assert_eq!((with_cpus.nodes, with_cpus.cpus), (vec![1], vec![3, 2]));
    // Shared memory is on all nodes of its NICs; a NIC of unknown node is ignored.
    let both = nics("{device: mlx5_0, cpus: [2]}, {address: 127.0.0.1}, {address: 10.0.0.2}");
    assert_eq!(t.near_nics(&both).nodes, [0, 1]);
    assert_eq!(t.near_nics(&both[..2]).nodes, [1]);
    assert_eq!(t.near_nics(&both[1..2]), Default::default());
}

#[test]
fn a_root_without_sysfs_is_named() {
    let root = tempfile::tempdir().expect("a folder");
    let error = Topology::read(root.path(), &Addresses::new()).expect_err("empty");
    assert!(error.to_string().contains("sys/devices"), "{error}");
}

#[test]
fn the_matrix_names_everything() {
    let text = read(machine::TWO_SOCKETS).matrix();
    let row = text.lines().nth(1).expect("a row").split_whitespace();
    let first = "GPU0 X SYS NODE NODE NODE PHB SYS NODE 0-19,40-59 0";
    assert_eq!(row.collect::<Vec<_>>().join(" "), first);
    assert!(text.contains("GPU1  NODE  mlx5_4"), "{text}");
    assert_has(&text, &["100 Gbit/s", "down"]);
    assert!(text.lines().all(|l| l == l.trim_end()));
}

/// The programs read the written file, which names every NIC.
#[test]
fn the_yaml_is_a_good_configuration() {
    for (name, machine) in machines() {
        let t = read(machine);
        let f = t.frontend_yaml(name, Fabric::Auto);
        let f = parse_frontend(&f, "f.yaml", Path::new("/"))
            .unwrap_or_else(|e| panic!("{name}: {e}\n{f}"));
        let a = t.accelerator_yaml(name, Fabric::Auto);
        let a = parse_accelerator(&a, "a.yaml", Path::new("/"))
            .unwrap_or_else(|e| panic!("{name}: {e}\n{a}"));
        assert_eq!(
            a.model.spec().as_ref(),
            Some(&f.model),
            "{name}: they fit together"
        );
        for nics in [&f.nics, &a.nics] {
            assert_eq!(nics.len(), t.usable_nics().len(), "{name}");
            for (nic, i) in nics.iter().zip(t.usable_nics()) {
                let found = &t.nics[i];
                let there = t.nic_at(nic.facts().place).expect("its own");
                assert_eq!(there.name, found.name, "{name}");
                if found.is_rdma() {
                    assert_eq!(nic.gpu, t.gpu_of(i).map(|g| g as u32), "{name}");
                }
            }
        }
        let tcp = t.frontend_yaml("x", Fabric::Tcp);
        let tcp = parse_frontend(&tcp, "t.yaml", Path::new("/")).expect("good");
        assert!(tcp.nics.iter().all(|n| n.facts().fabric == "tcp"), "{name}");
    }
}

#[test]
fn with_no_nic_at_all_the_yaml_is_for_loopback() {
    let t = Topology::default();
    let f = t.frontend_yaml("a b/c", Fabric::Auto);
    let f = parse_frontend(&f, "f.yaml", Path::new("/")).expect("good");
    assert_eq!(f.node, "a-b-c");
    assert_eq!(f.nics.len(), 1);
    let a = t.accelerator_yaml("", Fabric::Auto);
    parse_accelerator(&a, "a.yaml", Path::new("/")).expect("good");
}

fn nics(entries: &str) -> Vec<NicConfig> {
    let text = format!(
        "node: f\nmodel:\n  name: m\n  inputs: [{{name: a, dtype: u8, shape: [4]}}]\n  \
         output: {{name: o, dtype: u8, shape: [8]}}\ndataset: {{kind: random}}\n\
         accelerators: [{{control: 127.0.0.1:7400}}]\nnics: [{entries}]\n"
    );
    let config = parse_frontend(&text, "f.yaml", Path::new("/"));
    config.unwrap_or_else(|e| panic!("{e}")).nics
}

fn name_of(nic: &NicConfig) -> String {
    match &nic.fabric {
        NicFabric::Ofi(ofi) => ofi.domain.clone().expect("named"),
        NicFabric::Ib(ib) => ib.device.clone(),
        NicFabric::Tcp(_) => panic!("no device: {nic:?}"),
    }
}

fn spelled(t: &Topology, yaml: &str, feeds_gpus: bool) -> Vec<(String, Option<u32>)> {
    let all = t.spell_out(&nics(yaml), feeds_gpus).expect("some fit");
    all.into_iter().map(|(_, n)| (name_of(&n), n.gpu)).collect()
}

#[test]
fn a_line_stands_for_32_nics_four_for_each_gpu() {
    let t = read(machine::P5);
    let yaml = "{ofi: efa, match: '*', group_by: gpu, slots: 64}";
    let all = spelled(&t, yaml, true);
    assert_eq!(all.len(), 32);
    let group = t.nic_groups();
    for (i, (domain, gpu)) in all.iter().enumerate() {
        assert_eq!(*gpu, Some(i as u32 / 4), "{domain}");
        let nic = &t.nics[group[i / 4].nics[i % 4]].name;
        assert_eq!(*domain, format!("{nic}-rdm"));
    }
    // A frontend has the same order, so that NIC i of a group meets NIC i of the peer's group.
    let there = spelled(&t, yaml, false);
    assert!(there.iter().all(|(_, gpu)| gpu.is_none()));
    let names = |all: &[(String, Option<u32>)]| -> Vec<String> {
        all.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&there), names(&all));
    // All other keys are copied to each entry.
    let nics = t.spell_out(&nics(yaml), true).expect("some fit");
    assert!(
        nics.iter()
            .all(|(of, n)| *of == 0 && n.slots == Auto::Fixed(64))
    );
    assert!(
        nics.iter()
            .all(|(_, n)| n.matching.is_none() && n.group_by.is_none())
    );
}

#[test]
fn entries_beside_a_line_stay_where_they_are() {
    let t = read(machine::TWO_SOCKETS);
    let entries = nics("{device: mlx5_9}, {match: 'mlx5_?', queue_pairs: 2}, {device: mlx5_8}");
    let all = t.spell_out(&entries, true).expect("some fit");
    let names: Vec<_> = all.iter().map(|(of, n)| (*of, name_of(n))).collect();
    let names: Vec<_> = names
        .iter()
        .map(|(of, name)| (*of, name.as_str()))
        .collect();
    assert_eq!(names[0], (0, "mlx5_9"));
    assert_eq!(names[names.len() - 1], (2, "mlx5_8"));
    assert_eq!(
        names[1..names.len() - 1],
        [(1, "mlx5_0"), (1, "mlx5_2"), (1, "mlx5_3"), (1, "mlx5_4")]
    );
    assert!(all[1..5].iter().all(|(_, n)| n.facts().connections == 2));
}

#[test]
fn providers_over_sockets_have_interfaces() {
    let t = read(machine::DGX_A100);
    let all = t.spell_out(
        &nics("{ofi: tcp;ofi_rxm, match: 'ib?', group_by: gpu}"),
        true,
    );
    for (i, (_, n)) in all.expect("some fit").iter().enumerate() {
        assert_eq!(name_of(n), format!("ib{i}"));
        assert!(matches!(n.facts().place, NicPlace::Address(_)));
        assert_eq!(n.gpu, Some(i as u32));
    }
}

#[test]
fn a_pattern_that_nothing_fits_is_named_with_what_there_is() {
    let t = read(machine::DGX_A100);
    let none = t.spell_out(&nics("{ofi: efa, match: 'rdmap*'}"), true);
    let text = none.expect_err("nothing fits").to_string();
    assert!(
        text.starts_with("nics[0].match: \"rdmap*\" fits no RDMA device")
            && text.contains("mlx5_0"),
        "{text}"
    );
    let none = read(machine::LAPTOP).spell_out(&nics("{match: '*'}"), true);
    let text = none.expect_err("nothing fits").to_string();
    assert!(text.ends_with("there are none"), "{text}");
}

#[test]
fn the_nearest_gpus_are_those_below_the_nics_switch() {
    let dgx = read(machine::DGX_A100);
    let mut all = Vec::new();
    for nic in dgx.nics.iter().filter(|n| n.is_rdma()) {
        let near = dgx.nearest_gpus(&nic.name);
        assert_eq!(near.len(), 2, "two below each switch: {near:?}");
        assert!(matches!(near[0].1.letters(), "PIX" | "PXB"), "{near:?}");
        all.extend(near.iter().map(|(gpu, _)| *gpu));
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, (0..8).collect::<Vec<_>>());
    let two = read(machine::TWO_SOCKETS);
    for nic in two.nics.iter().filter(|n| n.is_rdma()) {
        assert_eq!(two.nearest_gpus(&nic.name).len(), 1, "{}", nic.name);
    }
    assert_eq!(read(machine::LAPTOP).nearest_gpus("mlx5_0"), []);
}
