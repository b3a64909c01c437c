//! Compares `docs/configuration.md` with the parser: both of its files are valid, their defaults
//! are the real ones, no key is missing, and none in a comment is unknown.

use qdl::{
    config::{
        AcceleratorAddress, AcceleratorModel, AdaptiveRouting, Completion, ControlConfig,
        DatasetConfig, Deadlines, HealthConfig, IbKeys, LoadgenConfig, NicConfig, NicFabric,
        OfiKeys, TcpKeys, WarmUpConfig, keys_of,
    },
    model::{ModelSpec, TensorSpec},
};

use super::*;

const TEXT: &str = include_str!("../../../../docs/configuration.md");

fn blocks() -> Vec<String> {
    let parts: Vec<&str> = TEXT.split("```yaml\n").skip(1).collect();
    let ended = parts.iter().filter_map(|p| p.split("```").next());
    ended.map(str::to_owned).collect()
}

#[test]
fn its_files_are_good_and_their_defaults_are_the_defaults() {
    let blocks = blocks();
    let [front, acc] = &blocks[..] else {
        panic!("{} files", blocks.len())
    };
    let ((f, _), (a, engine)) = (good(frontend(front)), good(node(acc)));
    assert_eq!((f.qsl, f.arbiter, f.verify), Default::default());
    assert_eq!((f.one_by_one, f.nic_threads), Default::default());
    assert_eq!((f.health, f.warm_up), Default::default());
    let (plain, _) = good(node(ACCELERATOR));
    assert_eq!(
        (a.nic_threads, a.memory_mib),
        (plain.nic_threads, plain.memory_mib)
    );
    assert_eq!(engine, EngineConfig::default());
    // `connect_ms` has one default for waiting and one for a step.
    let default = Deadlines::default();
    assert_eq!(f.deadlines.connect(), default.connect());
    assert_eq!(a.deadlines.step(), default.step());
    for mut deadlines in [f.deadlines, a.deadlines] {
        deadlines.connect_ms = None;
        assert_eq!(deadlines, default);
    }
    let writes = |n: &NicConfig| n.matching.is_some() || n.inline_bytes.is_some();
    assert!(f.nics.iter().all(writes));
    for mut nic in f.nics.into_iter().chain(a.nics) {
        // The default of this key depends on the fabric.
        let written = nic.inline_bytes.take();
        assert!(written.is_none_or(|bytes| bytes == nic.inline_bytes()));
        // The address or device of a NIC has no default.
        let fabric = match nic.fabric.clone() {
            NicFabric::Tcp(TcpKeys {
                address, listen, ..
            }) => NicFabric::Tcp(TcpKeys {
                address,
                listen,
                ..TcpKeys::default()
            }),
            NicFabric::Ib(IbKeys { device, .. }) => NicFabric::Ib(IbKeys {
                device,
                ..IbKeys::default()
            }),
            NicFabric::Ofi(OfiKeys {
                provider, domain, ..
            }) => NicFabric::Ofi(OfiKeys {
                provider,
                domain,
                ..OfiKeys::default()
            }),
        };
        let bare = NicConfig {
            matching: nic.matching.clone(),
            group_by: nic.group_by,
            ..fabric.into()
        };
        assert_eq!(nic, bare);
    }
}

/// The key of a line such as `  # key: value`; farther to the right, a comment is a remark.
fn commented_key(line: &str) -> Option<&str> {
    let blank = line.len() - line.trim_start().len();
    let rest = line[blank..].strip_prefix("# ").filter(|_| blank < 10)?;
    let (key, _) = rest.trim_start().split_once(':')?;
    let word = |c: char| c.is_ascii_lowercase() || c == '_';
    key.chars().all(word).then_some(key)
}

#[test]
fn no_key_is_missing_from_it_and_none_is_unknown() {
    let keys = [
        keys_of::<FrontendConfig>(),
        keys_of::<AcceleratorConfig>(),
        keys_of::<ModelSpec>(),
        keys_of::<TensorSpec>(),
        keys_of::<AcceleratorModel>(),
        keys_of::<AcceleratorAddress>(),
        keys_of::<ControlConfig>(),
        keys_of::<DatasetConfig>(),
        keys_of::<NicConfig>(),
        keys_of::<TcpKeys>(),
        keys_of::<IbKeys>(),
        keys_of::<OfiKeys>(),
        keys_of::<Completion>(),
        keys_of::<AdaptiveRouting>(),
        keys_of::<HealthConfig>(),
        keys_of::<WarmUpConfig>(),
        keys_of::<Deadlines>(),
        keys_of::<LoadgenConfig>(),
        keys_of::<EngineConfig>(),
        keys_of::<TokensConfig>(),
        keys_of::<HttpConfig>(),
        keys_of::<VllmConfig>(),
        keys_of::<LlmConfig>(),
    ]
    .concat();
    assert!(keys.len() > 150, "{} keys", keys.len());
    let blocks = blocks().concat();
    let commented = blocks.lines().filter_map(commented_key);
    let unknown: Vec<_> = commented.filter(|key| !keys.contains(key)).collect();
    assert_eq!(unknown, [""; 0], "keys that no file has");
    let is_told = |key: &&str| {
        let own_line = |line: &str| {
            let line = line.trim_start_matches([' ', '#', '-']);
            line.strip_prefix(*key)
                .is_some_and(|rest| rest.starts_with(':'))
        };
        let within = |before: &str| TEXT.contains(&format!("{before}{key}:"));
        TEXT.lines().any(own_line) || within("{") || within(", ")
    };
    let missing: Vec<_> = keys.into_iter().filter(|key| !is_told(key)).collect();
    assert_eq!(missing, [""; 0], "keys that the document lacks");
}
