//! Tests of a NIC's keys, over TCP and over queue pairs.

use super::*;
use fabric::os::Congestion;

#[test]
fn an_ib_nic_takes_every_key_and_no_tcp_key() {
    let nic = "  - device: mlx5_0
    port: 2
    gid_index: 3
    mtu: 4096
    numa: 1
    gpu: 0
    queue_pairs: 8
    slots: 2048
    inline_bytes: 128
    signal_every: 32
    send_depth: 4096
    receive_depth: 2112
    solicited: false
    completion: {mode: poll}
    adaptive_routing: {split_above: 8192}
    service_level: 3
    traffic_class: 106
    timeout: 15
    retry_count: 5
    rnr_retry: 4
    min_rnr_timer: 11
    cpus: [2, 3]
";
    let head = format!("{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n");
    let c = good(frontend(&format!("{head}{nic}")));
    let keys = IbKeys {
        device: "mlx5_0".to_owned(),
        port: 2,
        gid_index: Auto::Fixed(3),
        mtu: Auto::Fixed(4096),
        queue_pairs: 8,
        signal_every: 32,
        send_depth: Auto::Fixed(4096),
        receive_depth: Auto::Fixed(2112),
        solicited: false,
        adaptive_routing: AdaptiveRouting {
            split_above: Some(8192),
        },
        service_level: 3,
        traffic_class: 106,
        timeout: 15,
        retry_count: 5,
        rnr_retry: 4,
        min_rnr_timer: 11,
        gpudirect: false,
    };
    let expected = NicConfig {
        slots: Auto::Fixed(2048),
        inline_bytes: Some(128),
        completion: Completion {
            mode: CompletionMode::Poll,
            ..Completion::default()
        },
        numa: Auto::Fixed(1),
        gpu: Some(0),
        cpus: Some(vec![2, 3]),
        ..NicFabric::Ib(keys).into()
    };
    assert_eq!(c.nics[0], expected);
    let plain = good(frontend(&format!("{head}  - device: mlx5_0\n")));
    assert_eq!(plain.nics, [NicConfig::ib("mlx5_0")]);

    let bad = |line: &str| problems(frontend(&format!("{head}  - device: mlx5_0\n    {line}\n")));
    assert_eq!(bad("retry_count: 7"), ["10:18 retry_count is 7"]);
    assert_eq!(bad("timeout: 0"), ["10:14 timeout is 0"]);
    assert_eq!(bad("mtu: 1500"), ["10:10 mtu is 1500"]);
    assert_eq!(bad("cpus: [1, 1]"), ["10:5 cpus is no list of cores"]);
    assert_eq!(
        bad("connections: 2"),
        ["10:18 `connections` is a key of the fabric `tcp`, and this NIC is `ib`"]
    );
    assert_eq!(
        bad("send_depth: 100"),
        ["9:5 one write in 64 is signaled, in a send queue of 100"]
    );
    assert_eq!(
        bad("gpudirect: true"),
        ["10:16 a frontend has no slots for a GPU to read"]
    );
    let ours = |keys: &str| {
        let (head, _) = ACCELERATOR.split_once("nics:").expect("it has NICs");
        accelerator(&format!("{head}nics: [{{device: mlx5_0{keys}}}]\n"))
    };
    let direct = good(ours(", gpu: 3, gpudirect: true"));
    assert!(direct.nics[0].as_ib().expect("a device").gpudirect);
    assert_eq!(
        problems(ours(", gpudirect: true")),
        ["5:36 `gpudirect` places slots in the memory of a GPU, and none is named"]
    );
    let tcp = problems(frontend(&format!(
        "{head}  - address: 127.0.0.1\n    mtu: 1024\n"
    )));
    assert_eq!(
        tcp,
        ["10:10 `mtu` is a key of the fabric `ib`, and this NIC is `tcp`"]
    );
}

#[test]
fn tcp_nic_keys() {
    let head = ACCELERATOR.replace("nics: [{listen: 127.0.0.1:7410}]\n", "nics:\n");
    let c = accelerator(&format!(
        "{head}  - listen: 127.0.0.1:0\n    send_buffer_bytes: system\n    inline_bytes: 0\n    \
         congestion: dctcp\n    numa: auto\n    completion: {{mode: event}}\n"
    ))
    .unwrap();
    let nic = &c.nics[0];
    let NicFabric::Tcp(tcp) = &nic.fabric else {
        panic!("{nic:?}")
    };
    assert_eq!(nic.connections(), 2);
    assert_eq!(nic.completion.mode, CompletionMode::Event);
    assert_eq!((tcp.send_buffer_bytes, nic.inline_bytes()), (None, 0));
    assert_eq!(tcp.congestion, Congestion::Named("dctcp".to_owned()));
    assert_eq!(tcp.at(), "127.0.0.1:0".parse().unwrap());
    let address = accelerator(&format!("{head}  - address: 127.0.0.1\n"));
    assert_eq!(
        problems(address),
        ["6:14 a TCP NIC of an accelerator has no `address`"]
    );
    for name in ["\"\"", "a name", "sixteen-letters-"] {
        let odd = format!("{head}  - listen: 127.0.0.1:0\n    congestion: {name}\n");
        let told = problems(accelerator(&odd)).join("\n");
        assert!(told.contains("is no congestion control"), "{told}");
    }
    let none = accelerator(&format!("{head}  - inline_bytes: 4\n"));
    assert_eq!(
        problems(none),
        ["6:5 a NIC needs `listen` (TCP), `device` (InfiniBand, RoCE) or `ofi` (libfabric)"]
    );
}

#[test]
fn keys_that_do_nothing_at_this_end_are_refused() {
    let nics = |keys: &str| ACCELERATOR.replace("[{", &format!("[{{{keys}, "));
    for key in ["slots: 4", "connections: 4", "gpus: all"] {
        let all = text(accelerator(&nics(key)));
        assert!(all.contains("does nothing on an accelerator"), "{all}");
    }
    let gpu = after_head(&REST.replace("nics: [{", "nics: [{gpu: 1, "));
    let what = "does nothing on a frontend: the accelerator's file says which GPU a NIC feeds";
    assert_eq!(gpu, [format!("8:14 `gpu` {what}")]);
    let lost = format!("{ACCELERATOR}deadlines: {{lost_ms: 5000, echo_interval_ms: 250}}\n");
    assert_eq!(
        problems(accelerator(&lost)),
        [
            "6:22 an accelerator has no `lost_ms`",
            "6:46 an accelerator has no `echo_interval_ms`"
        ]
    );
}

#[test]
fn automatic_slots_stay_within_memory_and_bounds() {
    let auto = NicConfig::default();
    for (stride, slots) in [
        (0, MAX_AUTO_SLOTS),
        (64, MAX_AUTO_SLOTS),
        (150_528, 445),
        (64 << 20, MIN_AUTO_SLOTS),
        (100 << 20, 10),
        (600 << 20, 2),
    ] {
        assert_eq!(auto.resolve_slots(stride), slots, "{stride}");
    }
    let mut four = auto.clone();
    *four.connections_mut().expect("a TCP NIC") = Auto::Fixed(4);
    assert_eq!(four.resolve_slots(150_528), 222, "they share what two have");
    assert_eq!(four.resolve_slots(64), MAX_AUTO_SLOTS);
    let ib = NicConfig::ib("mlx5_0");
    assert_eq!(ib.resolve_slots(150_528), 445, "four queue pairs");
    let fixed = NicConfig {
        slots: Auto::Fixed(8192),
        ..auto
    };
    assert_eq!(fixed.resolve_slots(1 << 30), 8192);
}

#[test]
fn how_a_nic_thread_spins() {
    let nic = |completion: &str| {
        let head = ACCELERATOR.replace("nics: [{listen: 127.0.0.1:7410}]\n", "nics:\n");
        accelerator(&format!(
            "{head}  - listen: 127.0.0.1:0\n    completion: {completion}\n"
        ))
    };
    let completion = |text: &str| good(nic(text)).nics[0].completion;
    assert_eq!(completion("{}"), Completion::default());
    let alone = completion("{mode: poll, yield_after_us: never}");
    assert_eq!(
        (alone.mode, alone.yield_after_us),
        (CompletionMode::Poll, None)
    );
    assert_eq!(completion("{yield_after_us: 0}").yield_after_us, Some(0));
    let error = text(nic("{yield_after_us: always}"));
    assert!(error.contains("must be `never` or a number"), "{error}");
    let error = text(nic("{yield_after_us: 1000001}"));
    assert!(error.contains("yield_after_us is 1000001"), "{error}");
}

#[test]
fn an_ofi_nic_takes_its_keys_and_those_of_tcp_that_fit() {
    let head = format!("{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n");
    let nic = "  - {ofi: efa, domain: rdmap0s6-rdm, connections: 3, inline_bytes: 32, slots: 7}\n";
    let c = good(frontend(&format!("{head}{nic}")));
    let mut expected = NicConfig {
        inline_bytes: Some(32),
        slots: Auto::Fixed(7),
        ..NicConfig::ofi_domain("efa", "rdmap0s6-rdm")
    };
    *expected.connections_mut().expect("an `ofi` NIC") = Auto::Fixed(3);
    assert_eq!(c.nics[0], expected);
    let nic = &c.nics[0];
    assert_eq!((nic.fabric.as_str(), nic.connections()), ("ofi", 3));
    assert_eq!(nic.label(), "efa:rdmap0s6-rdm");
    let by_address = "  - {ofi: \"tcp;ofi_rxm\", address: 127.0.0.5}\n";
    let c = good(frontend(&format!("{head}{by_address}")));
    assert_eq!(c.nics[0].label(), "tcp;ofi_rxm:127.0.0.5");
    let ours = |keys: &str| {
        let (head, _) = ACCELERATOR.split_once("nics:").expect("it has NICs");
        accelerator(&format!("{head}nics: [{{ofi: efa{keys}}}]\n"))
    };
    let c = good(ours(", domain: d, gpu: 2"));
    assert_eq!(c.nics[0].gpu, Some(2));
    assert_refused(
        ours,
        " => an `ofi` NIC needs `domain`, or the `address` that it has
         , domain: d, listen: 127.0.0.1:1 => `listen` is a key of the fabric `tcp`
         , domain: d, device: mlx5_0 => `device` is a key of the fabric `ib`, and this NIC is `ofi`
         , domain: d, gpudirect: true => `gpudirect` is a key of the fabric `ib`
         , domain: d, slots: 4 => `slots` does nothing on an accelerator
         , domain: d, inline_bytes: 2000 => inline_bytes is 2000
         , domain: 'a b' => domain is no domain",
    );
    let tcp = problems(frontend(&format!(
        "{head}  - {{address: 127.0.0.1, domain: d}}\n"
    )));
    assert_eq!(
        tcp,
        ["9:34 `domain` is a key of the fabric `ofi`, and this NIC is `tcp`"]
    );
}

#[test]
fn keys_of_an_entry_stand_in_any_order_and_may_come_from_an_anchor() {
    let c = good(frontend(&format!(
        "{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n  \
         - &one {{queue_pairs: 2, slots: 7, device: mlx5_0}}\n  \
         - {{<<: *one, device: mlx5_1}}\n"
    )));
    let expected = ["mlx5_0", "mlx5_1"].map(|device| NicConfig {
        slots: Auto::Fixed(7),
        ..NicFabric::Ib(IbKeys {
            device: device.to_owned(),
            queue_pairs: 2,
            ..IbKeys::default()
        })
        .into()
    });
    assert_eq!(c.nics, expected);
}

#[test]
fn an_entry_may_stand_for_several_nics() {
    let head = format!("{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n");
    let many = |keys: &str| frontend(&format!("{head}  - {{match: 'mlx5_*'{keys}}}\n"));
    let c = good(many(", ofi: efa, group_by: gpu, slots: 7"));
    let keys = OfiKeys {
        provider: "efa".to_owned(),
        ..OfiKeys::default()
    };
    let expected = NicConfig {
        matching: Some("mlx5_*".to_owned()),
        group_by: Some(GroupBy::Gpu),
        slots: Auto::Fixed(7),
        ..NicFabric::Ofi(keys).into()
    };
    assert_eq!(c.nics, [expected]);
    good(many(", queue_pairs: 2"));
    assert_refused(
        many,
        ", domain: d, ofi: efa => `domain` names one NIC
         , device: mlx5_0 => `device` names one NIC
         , cpus: [1] => `cpus` pins one NIC's thread
         , port: 2 => `port` is one NIC's
         , connections: 2 => `connections` is a key of the fabric `tcp`
         , group_by: numa => group_by",
    );
    let alone = text(frontend(&format!(
        "{head}  - {{address: 127.0.0.1, group_by: gpu}}\n"
    )));
    assert!(alone.contains("there is no `match`"), "{alone}");
    let odd = text(frontend(&format!("{head}  - {{match: 'a b'}}\n")));
    assert!(odd.contains("match is no pattern"), "{odd}");
    let (head, _) = ACCELERATOR.split_once("nics:").expect("it has NICs");
    let both = "nics: [{match: 'a*', group_by: gpu, gpu: 1}]\n";
    let both = text(accelerator(&format!("{head}{both}")));
    assert!(both.contains("`gpu` is one GPU"), "{both}");
}
