//! Work of this process so far, as one reading: [`NodeUse`].

use fabric::{
    clock::now_ns,
    os::{ThreadTime, affinity, machine_time},
};
use record::{NicUse, NodeUse, ThreadGroup};

/// Most kinds of threads counted separately; all further kinds count as one more kind.
const KINDS: usize = 32;
/// Name of the kind for all further threads.
const OTHER: &str = "other";

/// A reading of this process, from thread times that were read just now. Threads are grouped by
/// name.
pub fn usage(threads: &[ThreadTime], nics: NicUse) -> NodeUse {
    let machine = machine_time().unwrap_or_default();
    NodeUse {
        clock_us: now_ns() / 1000,
        cores: u32::try_from(affinity().as_slice().len()).unwrap_or(u32::MAX),
        machine_ticks: machine.all,
        machine_busy_ticks: machine.busy,
        threads: groups(threads),
        nics,
        ..NodeUse::default()
    }
}

fn groups(threads: &[ThreadTime]) -> Vec<ThreadGroup> {
    let mut groups: Vec<ThreadGroup> = Vec::new();
    for t in threads {
        let mut name = kind(&t.name);
        if groups.len() >= KINDS && groups.iter().all(|g| g.name != name) {
            name = OTHER;
        }
        let at = groups.iter().position(|g| g.name == name);
        let at = at.unwrap_or_else(|| {
            groups.push(ThreadGroup {
                name: name.to_owned(),
                ..ThreadGroup::default()
            });
            groups.len() - 1
        });
        if let Some(g) = groups.get_mut(at) {
            g.threads += 1;
            g.ran_us += t.ran_ns / 1000;
            g.waited_us += t.waited_ns / 1000;
        }
    }
    groups
}

/// A thread's name without its number, such as `engine` for `engine-3`.
fn kind(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((kind, number)) if !kind.is_empty() && number.parse::<u32>().is_ok() => kind,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_grouped_by_what_they_are_called() {
        let thread = |id, name: &str, ran_ns, waited_ns| ThreadTime {
            id,
            name: name.to_owned(),
            ran_ns,
            waited_ns,
        };
        let threads = [
            thread(1, "frontend", 1_000, 0),
            thread(2, "nic-0", 5_000, 2_000),
            thread(3, "nic-1", 6_000, 3_000),
            thread(5, "loadgen", 4_000, 0),
            thread(6, "-7", 0, 0),
        ];
        let groups = groups(&threads);
        let of = |name: &str| {
            let g = groups.iter().find(|g| g.name == name).expect("a group");
            (g.threads, g.ran_us, g.waited_us)
        };
        assert_eq!(of("nic"), (2, 11, 5));
        assert_eq!(of("loadgen"), (1, 4, 0));
        assert_eq!(of("-7"), (1, 0, 0));
        assert_eq!(groups.len(), 4);
    }

    #[test]
    fn no_number_of_names_makes_more_groups_than_there_is_room_for() {
        let thread = |id| ThreadTime {
            id,
            name: format!("t{id}"),
            ran_ns: 1_000,
            waited_ns: 0,
        };
        let threads: Vec<_> = (0..100).map(thread).collect();
        let groups = groups(&threads);
        assert_eq!(groups.len(), KINDS + 1);
        assert_eq!(groups.iter().map(|g| g.ran_us).sum::<u64>(), 100);
        assert_eq!(groups.last().map(|g| g.name.as_str()), Some(OTHER));
    }

    #[test]
    fn a_reading_of_this_process_has_its_threads_and_cores() {
        let used = usage(&fabric::os::thread_times(), NicUse::default());
        assert!(used.cores > 0);
        assert!(used.machine_busy_ticks <= used.machine_ticks);
        assert!(!used.threads.is_empty());
    }
}
