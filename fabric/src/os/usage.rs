//! What threads and cores did, as the kernel counts it: `/proc/self/task` and `/proc/stat`.

use std::fs;

/// One thread of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// As [`thread_id`] says.
    pub id: u64,
    /// Its name, of which the kernel keeps 15 bytes. Threads of C++ have that of who made them.
    pub name: String,
    /// Nanoseconds on a core.
    pub ran_ns: u64,
    /// Nanoseconds that it could have run and no core was free: the run queue's delay.
    pub waited_ns: u64,
}

/// Time of all cores of the machine together since it started, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTime {
    /// All of it.
    pub all: u64,
    /// Without what the cores had nothing to do.
    pub busy: u64,
}

/// The calling thread, as the kernel numbers it.
pub fn thread_id() -> u64 {
    // SAFETY: it takes nothing and cannot fail.
    let id = unsafe { libc::gettid() };
    u64::from(id.unsigned_abs())
}

/// Every thread of this process; none where the system does not say (some sandboxes). Costs two
/// small reads a thread.
pub fn thread_times() -> Vec<ThreadTime> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let one = |task: fs::DirEntry| {
        let path = task.path();
        // Of a thread that has ended meanwhile nothing is left to be read.
        let times = fs::read_to_string(path.join("schedstat")).ok()?;
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let (ran_ns, waited_ns) = schedstat(&times)?;
        Some(ThreadTime {
            id: task.file_name().to_str()?.parse().ok()?,
            name: name.trim_end().to_owned(),
            ran_ns,
            waited_ns,
        })
    };
    tasks.flatten().filter_map(one).collect()
}

/// What all cores did; `None` where the system does not say.
pub fn machine_time() -> Option<MachineTime> {
    cores(&fs::read_to_string("/proc/stat").ok()?)
}

/// `RAN WAITED SLICES`, the first two in nanoseconds.
fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL ..`; what guests used is in `USER` already.
fn cores(text: &str) -> Option<MachineTime> {
    let line = text.lines().find(|l| l.starts_with("cpu "))?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .map_while(|n| n.parse().ok())
        .collect();
    let idle = numbers.get(3)?.saturating_add(*numbers.get(4)?);
    let all = numbers.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    Some(MachineTime {
        all,
        busy: all.saturating_sub(idle),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read_and_others_are_not() {
        assert_eq!(schedstat("93096 2033751 2\n"), Some((93_096, 2_033_751)));
        assert_eq!(schedstat("93096\n"), None);
        assert_eq!(schedstat("a b c"), None);
        let stat = "cpu  10 1 20 300 40 5 6 7 0 0\ncpu0 1 2 3\n";
        let time = MachineTime { all: 389, busy: 49 };
        assert_eq!(cores(stat), Some(time));
        assert_eq!(cores("cpu0 1 2 3 4 5"), None);
        assert_eq!(cores("cpu  1 2 3"), None);
    }

    #[test]
    fn a_thread_that_works_is_found_by_its_name_and_number() {
        let worked = std::thread::Builder::new().name("hard-worker".to_owned());
        let worked = worked.spawn(|| {
            let before = Instant::now();
            let mut turns = 0u64;
            while before.elapsed().as_millis() < 20 {
                turns = std::hint::black_box(turns + 1);
            }
            let id = thread_id();
            thread_times().into_iter().find(|t| t.id == id)
        });
        let found = worked.expect("started").join().expect("no panic");
        let found = found.expect("the kernel counts threads here");
        assert_eq!(found.name, "hard-worker");
        assert!(found.ran_ns > 0);
        assert!(machine_time().is_some_and(|t| t.busy > 0 && t.busy < t.all));
    }
}
