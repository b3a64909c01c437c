//! CPU time of threads and cores, from `/proc/self/task` and `/proc/stat`.

use std::fs;

/// CPU time of one thread of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Thread id, equal to [`thread_id`] in that thread.
    pub id: u64,
    /// Name, of which the kernel keeps 15 bytes. A thread without a name has its creator's name.
    pub name: String,
    /// Nanoseconds on a core.
    pub ran_ns: u64,
    /// Nanoseconds runnable without a free core: the run-queue delay.
    pub waited_ns: u64,
}

/// Time of all cores of the machine since boot, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTime {
    /// Total time.
    pub all: u64,
    /// Total time without idle time and I/O wait.
    pub busy: u64,
}

/// CPU time of this process so far, user and system, in microseconds.
pub fn process_cpu_us() -> f64 {
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Kernel id of the calling thread.
pub fn thread_id() -> u64 {
    // SAFETY: `gettid` takes no arguments and cannot fail.
    let id = unsafe { libc::gettid() };
    u64::from(id.unsigned_abs())
}

/// CPU times of all threads of this process; empty where the system does not say (some sandboxes).
/// Costs two small reads per thread.
pub fn thread_times() -> Vec<ThreadTime> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let one = |task: fs::DirEntry| {
        let path = task.path();
        // The files of a thread that has ended are gone.
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

/// CPU time of all cores; `None` where the system does not say.
pub fn machine_time() -> Option<MachineTime> {
    cores(&fs::read_to_string("/proc/stat").ok()?)
}

/// Parses `RAN WAITED SLICES`, the first two in nanoseconds.
fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Parses `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL ..`; `USER` includes guest time.
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
