//! How many NIC threads there are, and which NICs may share one: from the configuration and the
//! cores that there are.
//!
//! The kernel's sockets are polled by whoever comes, so TCP NICs that wait alike and belong to one
//! place share threads. A queue pair's or an endpoint's thread never leaves its NIC: it was pinned
//! before its device was opened, and its looks cost next to nothing. Nor does one that never sleeps
//! (`mode: poll`): it was given a core.

use std::thread::available_parallelism;

use crate::{
    config::{Auto, CompletionMode, NicAt, NicConfig},
    connection::{CrewPlan, Moves},
    os::Near,
    topology::Topology,
};

/// Cores for one NIC thread: as many again are left to LoadGen or the engine, and to the kernel.
const CORES: usize = 2;

/// Cores that this process may use: its affinity and its cgroup's share of the time, whichever is
/// less.
pub fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// How many NIC threads a node with these NICs starts on this machine. `wanted` is `nic_threads`.
pub fn nic_threads(nics: &[NicConfig], wanted: Auto<usize>) -> usize {
    let topology = Topology::of_this_machine().unwrap_or_default();
    let near: Vec<_> = nics.iter().map(|n| topology.near_nic(n)).collect();
    crew(nics, &near, wanted, cores()).threads()
}

/// NIC threads for these NICs, each where `near` says, on a machine with so many cores. `wanted` is
/// `nic_threads`: so many, as far as NICs can share, or by the cores and by what there is to do.
pub fn crew(nics: &[NicConfig], near: &[Near], wanted: Auto<usize>, cores: usize) -> CrewPlan {
    let groups = groups(nics, near);
    let most = |group: &Group| match wanted {
        Auto::Fixed(_) => group.nics.len(),
        Auto::Auto => {
            let cores = match group.cpus {
                0 => cores,
                pinned => pinned.min(cores),
            };
            (cores / CORES).clamp(1, group.nics.len())
        }
    };
    let mut threads: Vec<usize> = match wanted {
        Auto::Auto => groups.iter().map(most).collect(),
        Auto::Fixed(_) => vec![1; groups.len()],
    };
    if let Auto::Fixed(wanted) = wanted {
        // One more where most NICs share one, until there are enough.
        while threads.iter().sum::<usize>() < wanted {
            let more = (0..groups.len()).filter(|g| threads[*g] < most(&groups[*g]));
            let share = |g: &usize| groups[*g].nics.len() * 1024 / threads[*g];
            let Some(g) = more.max_by_key(share) else {
                break;
            };
            threads[g] += 1;
        }
    }
    let mut plan = CrewPlan {
        thread_of: vec![0; nics.len()],
        group_of: Vec::new(),
        moves: match wanted {
            Auto::Auto => Moves::ByNeed,
            Auto::Fixed(_) => Moves::Never,
        },
    };
    for (g, (group, threads)) in groups.iter().zip(threads).enumerate() {
        let first = plan.group_of.len();
        for (i, nic) in group.nics.iter().enumerate() {
            plan.thread_of[*nic] = first + i % threads;
        }
        plan.group_of.extend(vec![g; threads]);
    }
    plan
}

struct Group {
    nics: Vec<usize>,
    /// Cores that their threads are kept on; 0: any.
    cpus: usize,
}

/// NICs that may share threads.
fn groups(nics: &[NicConfig], near: &[Near]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (i, nic) in nics.iter().enumerate() {
        let shares =
            matches!(nic.at(), NicAt::Tcp(_)) && nic.completion.mode != CompletionMode::Poll;
        let alike = |g: &&mut Group| {
            let other = g.nics[0];
            matches!(nics[other].at(), NicAt::Tcp(_))
                && nics[other].completion == nic.completion
                && near[other] == near[i]
        };
        match groups.iter_mut().find(alike).filter(|_| shares) {
            Some(group) => group.nics.push(i),
            None => groups.push(Group {
                nics: vec![i],
                cpus: near[i].cpus.len(),
            }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Completion;

    fn tcp(n: usize) -> Vec<NicConfig> {
        (0..n)
            .map(|_| NicConfig::tcp(([127, 0, 0, 1], 0).into()))
            .collect()
    }

    fn threads(nics: usize, wanted: Auto<usize>, cores: usize) -> usize {
        crew(&tcp(nics), &vec![Near::default(); nics], wanted, cores).threads()
    }

    #[test]
    fn a_laptop_and_a_big_box_take_the_same_file() {
        assert_eq!(threads(8, Auto::Auto, 2), 1);
        assert_eq!(threads(8, Auto::Auto, 1), 1);
        assert_eq!(threads(8, Auto::Auto, 4), 2);
        assert_eq!(threads(8, Auto::Auto, 16), 8);
        assert_eq!(threads(8, Auto::Auto, 128), 8);
        assert_eq!(threads(1, Auto::Auto, 128), 1);
    }

    #[test]
    fn so_many_are_so_many_as_far_as_nics_can_share() {
        assert_eq!(threads(8, Auto::Fixed(3), 2), 3);
        assert_eq!(threads(8, Auto::Fixed(64), 2), 8, "one each");
        let plan = crew(&tcp(5), &vec![Near::default(); 5], Auto::Fixed(2), 16);
        assert_eq!(plan.thread_of, [0, 1, 0, 1, 0]);
        assert_eq!(plan.moves, Moves::Never);
        let mut mixed = tcp(3);
        mixed.push(NicConfig::ib("mlx5_0"));
        mixed.push(NicConfig::ofi_domain("efa", "rdmap0s6-rdm"));
        let plan = crew(&mixed, &vec![Near::default(); 5], Auto::Fixed(1), 16);
        assert_eq!(plan.threads(), 3, "each of those over a device has its own");
    }

    #[test]
    fn nics_of_two_nodes_or_that_wait_in_two_ways_never_share() {
        let near = |node: u32| Near {
            cpus: (0..4).map(|c| c + 4 * node as usize).collect(),
            nodes: vec![node],
        };
        let two = [near(0), near(1), near(0), near(1)];
        let plan = crew(&tcp(4), &two, Auto::Auto, 8);
        assert_eq!(plan.thread_of, [0, 2, 1, 3], "two of four cores each");
        assert_eq!(plan.group_of, [0, 0, 1, 1]);
        let plan = crew(&tcp(4), &two, Auto::Auto, 2);
        assert_eq!(plan.thread_of, [0, 1, 0, 1]);
        let mut nics = tcp(4);
        nics[1].completion.spin_us = 7;
        for nic in [2, 3] {
            nics[nic].completion = Completion {
                mode: CompletionMode::Poll,
                ..Completion::default()
            };
        }
        let plan = crew(&nics, &vec![Near::default(); 4], Auto::Auto, 2);
        assert_eq!(plan.thread_of, [0, 1, 2, 3]);
        let pinned = vec![Near::cpus(&[3]); 4];
        assert_eq!(crew(&tcp(4), &pinned, Auto::Auto, 64).threads(), 1);
    }

    proptest! {
        #[test]
        fn every_plan_fits_and_keeps_to_its_groups(
            kinds in prop::collection::vec((0u8..4, 0u32..3), 1..20),
            wanted in prop_oneof![Just(Auto::Auto), (1usize..40).prop_map(Auto::Fixed)],
            cores in 1usize..200,
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
            let plan = crew(&nics, &near, wanted, cores);
            prop_assert!(plan.fits(nics.len()), "{:?}", plan);
            for a in 0..nics.len() {
                for b in 0..a {
                    let group = |n: usize| plan.group_of[plan.thread_of[n]];
                    if group(a) == group(b) {
                        prop_assert_eq!(&near[a], &near[b]);
                        prop_assert!(kinds[a].0 > 1 && kinds[b].0 > 1);
                    }
                }
            }
        }
    }
}
