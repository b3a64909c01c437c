//! Plan of the NIC threads, from the configuration and the machine's cores.
//!
//! TCP NICs with the same placement and wait mode form a group and share threads. With
//! `nic_threads: auto` a group has half as many threads as its placement has cores, at least one
//! and at most as many as it needs. Each NIC uses min(4, threads of the group / NICs, connections)
//! threads, at least one. An `ib` or `ofi` NIC has its own thread, which is pinned before it opens
//! the device. A NIC with `mode: poll` also has its own thread, which occupies a core.

use std::thread::available_parallelism;

use crate::{
    config::{AcceleratorConfig, Auto, CompletionMode, FrontendConfig, NicConfig},
    connection::CrewPlan,
    topology::Topology,
};
use fabric::os::Near;

/// Cores per NIC thread: the second core is left to LoadGen or the engine, and to the kernel.
const CORES: usize = 2;

/// Most threads of one NIC with `nic_threads: auto`. Several threads carry 1.8 to 2.2 times the
/// images of one; each occupies a core while it spins.
const MOST: usize = 4;

/// Most threads of one NIC, whatever the value of `nic_threads`.
const MAX_SHARES: usize = 64;

/// Cores that this process may use: the smaller of its affinity and its cgroup's CPU quota.
fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Plans the NIC threads of a frontend on this machine.
pub fn frontend_crew(config: &FrontendConfig) -> CrewPlan {
    let (nics, accelerators) = (&config.nics, config.accelerators.len());
    crew(
        nics,
        &near(nics),
        config.nic_threads,
        cores(),
        Some(accelerators),
    )
}

/// Plans the NIC threads of an accelerator on this machine.
pub fn accelerator_crew(config: &AcceleratorConfig) -> CrewPlan {
    let nics = &config.nics;
    crew(nics, &near(nics), config.nic_threads, cores(), None)
}

/// Resolves `connections: auto` of a frontend's NICs to the number of their threads, divided among
/// the accelerators, with at least one to each.
pub fn settle_connections(config: &mut FrontendConfig) {
    let near = near(&config.nics);
    connections(config, &near, cores());
}

fn connections(config: &mut FrontendConfig, near: &[Near], cores: usize) {
    let FrontendConfig {
        nics, nic_threads, ..
    } = config;
    let plan = crew(nics, near, *nic_threads, cores, None);
    let accelerators = config.accelerators.len().max(1);
    for (i, nic) in nics.iter_mut().enumerate() {
        if let Some(connections @ Auto::Auto) = nic.fabric.connections_mut() {
            let threads = plan.shares_of(i).count();
            *connections = Auto::Fixed(threads.div_ceil(accelerators));
        }
    }
}

/// Placement of each NIC on this machine. A NIC without placement in sysfs is not bound.
pub(super) fn near(nics: &[NicConfig]) -> Vec<Near> {
    let topology = Topology::of_this_machine().unwrap_or_default();
    nics.iter().map(|n| topology.near_nic(n)).collect()
}

/// Plans the threads of these NICs, placed by `near`, on a machine with `cores` cores. `wanted` is
/// `nic_threads`: a number, limited by the connections, or `auto` for the rule of this module. A
/// frontend's NICs have their `connections` to each of the `accelerators`. Without that number the
/// node is an accelerator: its NICs have as many connections as frontends request.
pub(super) fn crew(
    nics: &[NicConfig],
    near: &[Near],
    wanted: Auto<usize>,
    cores: usize,
    accelerators: Option<usize>,
) -> CrewPlan {
    let groups = groups(nics, near);
    let together = groups.iter().filter(|g| g.shares).map(|g| g.nics.len());
    let together = together.sum::<usize>().max(1);
    let own = |group: &Group| match group.cpus {
        0 => cores / CORES,
        pinned => pinned.min(cores) / CORES,
    };
    // Shares of each NIC of a group, at most its number of threads.
    let shares_of = |group: &Group, nic: usize| {
        let most = match wanted {
            _ if !group.shares => 1,
            Auto::Fixed(wanted) => wanted.div_ceil(together),
            Auto::Auto => (own(group) / group.nics.len()).min(MOST),
        };
        let connections = accelerators.map_or(usize::MAX, |n| n * nics[nic].facts().connections);
        most.clamp(1, connections.clamp(1, MAX_SHARES))
    };
    let shares = |group: &Group| -> usize {
        let all = group.nics.iter().map(|nic| shares_of(group, *nic));
        all.sum()
    };
    let mut threads: Vec<usize> = match wanted {
        Auto::Auto => groups.iter().map(|g| own(g).clamp(1, shares(g))).collect(),
        Auto::Fixed(_) => vec![1; groups.len()],
    };
    if let Auto::Fixed(wanted) = wanted {
        // Add threads one by one where most shares use one thread.
        while threads.iter().sum::<usize>() < wanted {
            let more = (0..groups.len()).filter(|g| threads[*g] < shares(&groups[*g]));
            let each = |g: &usize| shares(&groups[*g]) * 1024 / threads[*g];
            let Some(g) = more.max_by_key(each) else {
                break;
            };
            threads[g] += 1;
        }
    }
    let mut plan = CrewPlan::default();
    let (mut of_nic, mut first) = (vec![Vec::new(); nics.len()], 0);
    for (group, threads) in groups.iter().zip(threads) {
        let mut turn = (0..threads).cycle();
        for nic in &group.nics {
            let of_share = turn.by_ref().take(shares_of(group, *nic).min(threads));
            of_nic[*nic].extend(of_share.map(|thread| first + thread));
        }
        first += threads;
    }
    for (nic, threads) in of_nic.into_iter().enumerate() {
        plan.nic_of.extend(vec![nic; threads.len()]);
        plan.thread_of.extend(threads);
    }
    plan
}

struct Group {
    nics: Vec<usize>,
    /// The NICs may share a thread, and a NIC may use several.
    shares: bool,
    /// Cores of the placement; 0 for any core.
    cpus: usize,
}

fn groups(nics: &[NicConfig], near: &[Near]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (i, nic) in nics.iter().enumerate() {
        let shares_threads = |n: &NicConfig| n.facts().shares_threads;
        let shares = shares_threads(nic) && nic.completion.mode != CompletionMode::Poll;
        let alike = |g: &&mut Group| {
            let other = g.nics[0];
            shares_threads(&nics[other])
                && nics[other].completion == nic.completion
                && near[other] == near[i]
        };
        match groups.iter_mut().find(alike).filter(|_| shares) {
            Some(group) => group.nics.push(i),
            None => groups.push(Group {
                nics: vec![i],
                shares,
                cpus: near[i].cpus.len(),
            }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::config::{Completion, NicFabric, parse_frontend};

    fn tcp(n: usize) -> Vec<NicConfig> {
        (0..n)
            .map(|_| NicConfig::tcp(([127, 0, 0, 1], 0).into()))
            .collect()
    }

    fn of(nics: &[NicConfig], near: &[Near], wanted: Auto<usize>, cores: usize) -> CrewPlan {
        let mut nics = nics.to_vec();
        for connections in nics.iter_mut().filter_map(|n| n.fabric.connections_mut()) {
            *connections = Auto::Fixed(1);
        }
        crew(&nics, near, wanted, cores, Some(1))
    }

    #[test]
    fn a_nic_has_threads_as_far_as_there_are_cores_and_connections() {
        use Auto::{Auto as Free, Fixed};
        assert_eq!(tcp(1)[0].facts().connections, 2);
        // NICs, `nic_threads`, cores, accelerators; shares and threads.
        for (nics, wanted, cores, accelerators, expected) in [
            (8, Free, 1, Some(1), (8, 1)),
            (8, Free, 2, Some(1), (8, 1)),
            (8, Free, 4, Some(1), (8, 2)),
            (8, Free, 16, Some(1), (8, 8)),
            (1, Free, 2, Some(1), (1, 1)),
            (1, Free, 16, Some(1), (2, 2)),
            (1, Free, 16, Some(8), (MOST, MOST)),
            (1, Free, 16, None, (MOST, MOST)),
            (4, Free, 16, Some(1), (8, 8)),
            (1, Fixed(7), 2, Some(1), (2, 2)),
            (3, Fixed(4), 2, Some(1), (6, 4)),
            (8, Fixed(64), 2, Some(1), (16, 16)),
        ] {
            let near = vec![Near::default(); nics];
            let plan = crew(&tcp(nics), &near, wanted, cores, accelerators);
            let found = (plan.shares(), plan.threads());
            assert_eq!(
                found, expected,
                "{nics}, {wanted:?}, {cores}, {accelerators:?}"
            );
        }
        let plan = of(&tcp(5), &vec![Near::default(); 5], Fixed(2), 16);
        assert_eq!(plan.thread_of, [0, 1, 0, 1, 0]);
        let mut mixed = tcp(3);
        mixed.push(NicConfig::ib("mlx5_0"));
        mixed.push(NicFabric::Ofi(Default::default()).into());
        let plan = of(&mixed, &vec![Near::default(); 5], Fixed(1), 16);
        assert_eq!(plan.threads(), 3, "each device has its own");
    }

    #[test]
    fn nics_of_two_nodes_or_that_wait_in_two_ways_never_share() {
        let near = |node: u32| Near {
            cpus: (0..4).map(|c| c + 4 * node as usize).collect(),
            nodes: vec![node],
        };
        let two = [near(0), near(1), near(0), near(1)];
        let plan = of(&tcp(4), &two, Auto::Auto, 8);
        assert_eq!(plan.thread_of, [0, 2, 1, 3], "two of four cores each");
        let plan = of(&tcp(4), &two, Auto::Auto, 2);
        assert_eq!(plan.thread_of, [0, 1, 0, 1]);
        let mut nics = tcp(4);
        nics[1].completion.spin_us = 7;
        for nic in [2, 3] {
            nics[nic].completion = Completion {
                mode: CompletionMode::Poll,
                ..Completion::default()
            };
        }
        let plan = of(&nics, &vec![Near::default(); 4], Auto::Auto, 2);
        assert_eq!(plan.thread_of, [0, 1, 2, 3]);
        let pinned = vec![Near::cpus(&[3]); 4];
        assert_eq!(of(&tcp(4), &pinned, Auto::Auto, 64).threads(), 1);
    }

    #[test]
    fn a_nic_has_a_connection_for_each_of_its_threads_and_each_accelerator() {
        let settled = |nics: &str, accelerators: usize, cores: usize| {
            let each = (0..accelerators).map(|a| format!("{{control: 127.0.0.1:740{a}}}"));
            let each = each.collect::<Vec<_>>().join(", ");
            let text = format!(
                "node: f\nmodel: {{name: m, inputs: [{{name: i, dtype: u8, shape: [64]}}], \
                 output: {{name: o, dtype: u8, shape: [8]}}}}\ndataset: {{kind: random}}\n\
                 auth: none\naccelerators: [{each}]\nnics: [{nics}]\n"
            );
            let mut config = parse_frontend(&text, "f.yaml", Path::new("/")).expect("sound");
            let near = vec![Near::default(); config.nics.len()];
            connections(&mut config, &near, cores);
            let each = config.nics.iter().map(|n| n.facts().connections);
            each.collect::<Vec<_>>()
        };
        let tcp = "{address: 127.0.0.1}";
        let two = "{address: 127.0.0.1}, {address: 127.0.0.1, connections: 1}";
        assert_eq!(settled(tcp, 1, 2), [1]);
        assert_eq!(settled(tcp, 1, 16), [MOST]);
        assert_eq!(settled(tcp, 2, 16), [2], "four connections in all");
        assert_eq!(settled(tcp, 3, 16), [2], "six connections in all");
        assert_eq!(settled(tcp, 3, 2), [1]);
        assert_eq!(settled(two, 1, 16), [MOST, 1], "said");
        assert_eq!(settled("{device: mlx5_0}", 1, 16), [4], "queue pairs");
        let polls = "{address: 127.0.0.1, completion: {mode: poll}}";
        assert_eq!(settled(polls, 1, 16), [1], "a thread of its own");
    }

    proptest! {
        #[test]
        fn every_plan_is_sound_and_threads_are_shared_within_groups_alone(
            kinds in prop::collection::vec((0u8..4, 0u32..3), 1..20),
            wanted in prop_oneof![Just(Auto::Auto), (1usize..40).prop_map(Auto::Fixed)],
            cores in 1usize..200,
            accelerators in prop::option::of(1usize..4),
        ) {
            let nics: Vec<_> = kinds.iter().map(|(kind, _)| match kind {
                0 => NicConfig::ib("mlx5_0"),
                1 => NicConfig {
                    completion: Completion {
                        mode: CompletionMode::Poll,
                        ..Completion::default()
                    },
                    ..tcp(1).remove(0)
                },
                _ => tcp(1).remove(0),
            }).collect();
            let near: Vec<_> = kinds
                .iter()
                .map(|(_, node)| Near { cpus: vec![], nodes: vec![*node] })
                .collect();
            let plan = crew(&nics, &near, wanted, cores, accelerators);
            prop_assert!(plan.is_sound() && plan.nics() == nics.len(), "{:?}", plan);
            for a in 0..plan.shares() {
                for b in (0..a).filter(|b| plan.thread_of[a] == plan.thread_of[*b]) {
                    let (nic, other) = (plan.nic_of[a], plan.nic_of[b]);
                    prop_assert!(nic != other, "two shares of a NIC on one thread");
                    prop_assert_eq!(&near[nic], &near[other]);
                    prop_assert!(kinds[nic].0 > 1 && kinds[other].0 > 1);
                }
            }
        }
    }
}
