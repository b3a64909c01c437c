//! Facts about this node for its peers.

use std::{
    path::Path,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use record::NodeFacts;

use crate::{config::NicConfig, topology, wire::MAX_RAILS};
use fabric::os::{Host, sha256_of_file};

/// The facts that are constant while the program runs.
fn program() -> &'static NodeFacts {
    static FACTS: OnceLock<NodeFacts> = OnceLock::new();
    FACTS.get_or_init(|| {
        let host = Host::this();
        let (commit, dirty) = program_commit();
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        NodeFacts {
            host: host.name,
            machine: host.machine,
            boot: host.boot,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit.map(str::to_owned),
            dirty,
            program: sha256_of_file(Path::new("/proc/self/exe"))
                .ok()
                .map(|(hash, _)| hash),
            started: started.map_or(0, |d| d.as_secs()),
            links: Vec::new(),
        }
    })
}

/// Version of these programs with the commit of the build. `head` is the checkout's commit at build
/// time, used where the build did not get `QDL_COMMIT`.
pub fn version(head: Option<&str>) -> String {
    let of = match (program_commit(), head.filter(|h| is_commit(h))) {
        ((Some(commit), Some(false)), _) => format!("commit {commit}"),
        ((Some(commit), Some(true)), _) => format!("commit {commit}, with changes"),
        ((Some(commit), None), _) => format!("commit {commit}, changes unknown"),
        ((None, _), Some(head)) => format!("built in a checkout at {head}"),
        ((None, _), None) => "commit unknown: built without QDL_COMMIT".to_owned(),
    };
    format!("{} ({of})", env!("CARGO_PKG_VERSION"))
}

/// The commit in `QDL_COMMIT`, and whether the checkout had changes (`QDL_DIRTY`). A build script
/// that asks git would rebuild everything at every commit.
fn program_commit() -> (Option<&'static str>, Option<bool>) {
    let dirty = option_env!("QDL_DIRTY").map(|word| word != "0" && word != "false");
    (option_env!("QDL_COMMIT").filter(|c| is_commit(c)), dirty)
}

fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// Facts about a node with these NICs. The first call hashes the program, for some tens of ms.
pub fn node_facts(nics: &[NicConfig]) -> NodeFacts {
    NodeFacts {
        links: topology::links(&nics[..nics.len().min(MAX_RAILS)]),
        ..program().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_knows_its_program_and_its_links() {
        let nic = NicConfig::tcp("127.0.0.1:0".parse().expect("an address"));
        let any = NicConfig::tcp("0.0.0.0:0".parse().expect("an address"));
        let facts = node_facts(&[any, nic]);
        assert_eq!(facts.program.as_deref().map(str::len), Some(64));
        assert!(facts.started > 1_600_000_000 && !facts.version.is_empty());
        let links: Vec<_> = facts
            .links
            .iter()
            .map(|l| (l.nic, l.name.as_str()))
            .collect();
        assert_eq!(links, [(1, "lo")]);
        assert_eq!(
            facts.same_machine(&node_facts(&[])),
            facts.boot.as_ref().map(|_| true)
        );
    }

    #[test]
    fn a_commit_is_hexadecimal() {
        assert!(is_commit("bea8f30") && is_commit(&"0".repeat(40)));
        assert!(!is_commit("") && !is_commit("main") && !is_commit("bea8f3"));
    }
}
