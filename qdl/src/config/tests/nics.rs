//! Tests of a NIC's keys, over TCP and over queue pairs.

use super::*;
use fabric::os::Congestion;

fn with_nic(entry: &str) -> Result<FrontendConfig, ConfigError> {
    let head = format!("{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n");
    frontend(&format!("{head}  - {{{entry}}}\n"))
}

fn with_accelerator_nic(entry: &str) -> Result<AcceleratorConfig, ConfigError> {
    let (head, _) = ACCELERATOR.split_once("nics:").expect("it has NICs");
    accelerator(&format!("{head}nics: [{{{entry}}}]\n"))
}

#[test]
fn an_ib_nic_takes_no_key_of_another_fabric() {
    let plain = good(with_nic("device: mlx5_0"));
    assert_eq!(plain.nics, [NicConfig::ib("mlx5_0")]);
    assert_refused(
        |keys| with_nic(&format!("device: mlx5_0, {keys}")),
        "retry_count: 7 => retry_count is 7
         timeout: 0 => timeout is 0
         mtu: 1500 => mtu is 1500
         cpus: [1, 1] => cpus is no list of cores
         connections: 2 => `connections` is a key of the fabric `tcp`, and this NIC is `ib`
         send_depth: 100 => one write in 64 is signaled, in a send queue of 100
         slots: 64, receive_depth: 80 => 80 receives do not cover 64 slots and 17 of their own
         gpudirect: true => a frontend has no slots for a GPU to read",
    );
    let direct = good(with_accelerator_nic(
        "device: mlx5_0, gpu: 3, gpudirect: true",
    ));
    let NicFabric::Ib(ib) = &direct.nics[0].fabric else {
        panic!("{direct:?}")
    };
    assert!(ib.gpudirect);
    assert_eq!(
        problems(with_accelerator_nic("device: mlx5_0, gpudirect: true")),
        ["5:36 `gpudirect` places slots in the memory of a GPU, and none is named"]
    );
    assert_eq!(
        problems(with_nic("address: 127.0.0.1, mtu: 1024")),
        ["9:26 `mtu` is a key of the fabric `ib`, and this NIC is `tcp`"]
    );
}

#[test]
fn tcp_nic_keys() {
    let c = good(with_accelerator_nic(
        "listen: 127.0.0.1:0, send_buffer_bytes: system, inline_bytes: 0, congestion: dctcp",
    ));
    let nic = &c.nics[0];
    let NicFabric::Tcp(tcp) = &nic.fabric else {
        panic!("{nic:?}")
    };
    assert_eq!(nic.facts().connections, 2);
    assert_eq!((tcp.send_buffer_bytes, tcp.inline_bytes), (None, 0));
    assert_eq!(tcp.congestion, Congestion::Named("dctcp".to_owned()));
    assert_eq!(tcp.listen, "127.0.0.1:0".parse().ok());
    assert_refused(
        with_accelerator_nic,
        "address: 127.0.0.1 => a TCP NIC of an accelerator has no `address`
         listen: '127.0.0.1:0', congestion: '' => is no congestion control
         listen: '127.0.0.1:0', congestion: a name => is no congestion control
         listen: '127.0.0.1:0', congestion: sixteen-letters- => is no congestion control
         inline_bytes: 4 => a NIC needs `listen` (TCP), `device` (InfiniBand, RoCE) or `ofi`",
    );
}

#[test]
fn keys_that_do_nothing_at_this_end_are_refused() {
    assert_refused(
        |keys| accelerator(&ACCELERATOR.replace("[{", &format!("[{{{keys}, "))),
        "slots: 4 => does nothing on an accelerator
         connections: 4 => does nothing on an accelerator
         gpus: all => does nothing on an accelerator",
    );
    assert_refused(
        with_accelerator_nic,
        "device: mlx5_0, queue_pairs: 4 => `queue_pairs` does nothing on an accelerator
         ofi: efa, domain: d, connections: 4 => `connections` does nothing on an accelerator",
    );
    let gpu = after_head(&REST.replace("nics: [{", "nics: [{gpu: 1, "));
    let what = "does nothing on a frontend: the accelerator's file says which GPU a NIC feeds";
    assert_eq!(gpu, [format!("8:9 `gpu` {what}")]);
    let lost = format!("{ACCELERATOR}deadlines: {{lost_ms: 5000, echo_interval_ms: 250}}\n");
    assert_eq!(
        problems(accelerator(&lost)),
        [
            "6:13 an accelerator has no `lost_ms`",
            "6:28 an accelerator has no `echo_interval_ms`"
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
    *four.fabric.connections_mut().expect("a TCP NIC") = Auto::Fixed(4);
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
        with_accelerator_nic(&format!("listen: 127.0.0.1:0, completion: {completion}"))
    };
    let completion = |text: &str| good(nic(text)).nics[0].completion;
    assert_eq!(completion("{}"), Completion::default());
    let alone = completion("{mode: poll, yield_after_us: never}");
    assert_eq!(
        (alone.mode, alone.yield_after_us),
        (CompletionMode::Poll, None)
    );
    assert_eq!(completion("{yield_after_us: 0}").yield_after_us, Some(0));
    assert_refused(
        nic,
        "{yield_after_us: always} => must be `never` or a number
         {yield_after_us: 1000001} => yield_after_us is 1000001",
    );
}

#[test]
fn an_ofi_nic_takes_its_keys_and_those_of_tcp_that_fit() {
    let keys = "ofi: efa, domain: rdmap0s6-rdm, connections: 3, inline_bytes: 32, slots: 7";
    let c = good(with_nic(keys));
    let fabric = NicFabric::Ofi(OfiKeys {
        provider: "efa".to_owned(),
        domain: Some("rdmap0s6-rdm".to_owned()),
        connections: Auto::Fixed(3),
        inline_bytes: 32,
        ..OfiKeys::default()
    });
    let nic = &c.nics[0];
    let expected = NicConfig {
        slots: Auto::Fixed(7),
        ..fabric.into()
    };
    assert_eq!(*nic, expected);
    assert_eq!((nic.facts().fabric, nic.facts().connections), ("ofi", 3));
    assert_eq!(nic.facts().label, "efa:rdmap0s6-rdm");
    let c = good(with_nic("ofi: \"tcp;ofi_rxm\", address: 127.0.0.5"));
    assert_eq!(c.nics[0].facts().label, "tcp;ofi_rxm:127.0.0.5");
    let ours = |keys: &str| with_accelerator_nic(&format!("ofi: efa{keys}"));
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
    assert_eq!(
        problems(with_nic("address: 127.0.0.1, domain: d")),
        ["9:26 `domain` is a key of the fabric `ofi`, and this NIC is `tcp`"]
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
    let many = |keys: &str| with_nic(&format!("match: 'mlx5_*'{keys}"));
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
         , port: 2 => `port` names one NIC
         , connections: 2 => `connections` is a key of the fabric `tcp`
         , group_by: numa => group_by",
    );
    assert_refused(
        with_nic,
        "address: 127.0.0.1, group_by: gpu => there is no `match`
         match: 'a b' => match is no pattern",
    );
    let both = text(with_accelerator_nic("match: 'a*', group_by: gpu, gpu: 1"));
    assert!(both.contains("`gpu` is one GPU"), "{both}");
}
