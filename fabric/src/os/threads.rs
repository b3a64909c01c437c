//! Threads: their cores, the NUMA nodes that belong to the cores, and their timer slack.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::CpuList;

/// Locks a mutex whose data stay valid if a thread panics while it holds the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restricts the calling thread to these cores. An empty list changes nothing.
///
/// # Errors
/// The kernel allows this process none of the cores.
pub fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    // SAFETY: a zeroed cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|c| **c < libc::CPU_SETSIZE as usize) {
        // SAFETY: `cpu` is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` lives through the call; 0 means this thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls [`set_affinity`] and logs a warning where the kernel refuses.
pub fn pin(cpus: &[usize]) {
    if let Err(error) = set_affinity(cpus) {
        let cpus: CpuList = cpus.iter().copied().collect();
        tracing::warn!("cannot pin to CPUs {cpus}: {error}; check `cpus` in the configuration");
    }
}

/// Cores that the calling thread may run on; empty where the kernel does not say.
pub fn affinity() -> CpuList {
    // SAFETY: a zeroed cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` lives through the call and has the passed size; 0 means this thread.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return CpuList::default();
    }
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: each `cpu` is below CPU_SETSIZE.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

/// Cores and NUMA nodes. An empty list leaves the choice to the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Near {
    /// Cores that threads may run on.
    pub cpus: Vec<usize>,
    /// Nodes for memory; pages alternate between several nodes.
    pub nodes: Vec<u32>,
}

impl Near {
    /// Places threads on these cores, and memory on the node of the thread that touches it first.
    pub fn cpus(cpus: &[usize]) -> Self {
        Near {
            cpus: cpus.to_vec(),
            nodes: Vec::new(),
        }
    }

    /// Pins the calling thread to the cores; logs a warning where the kernel refuses.
    pub fn pin(&self) {
        pin(&self.cpus);
    }

    /// Runs `work` on this thread, pinned to the cores. Memory that `work` touches first is local,
    /// and threads that it starts inherit the affinity. Logs a warning where the kernel refuses.
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        let _back = Back::after(&self.cpus);
        work()
    }
}

/// Restores a thread's earlier affinity when dropped.
struct Back(CpuList);

impl Back {
    fn after(cpus: &[usize]) -> Option<Self> {
        if cpus.is_empty() {
            return None;
        }
        let before = affinity();
        pin(cpus);
        Some(Back(before))
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        if let Err(e) = set_affinity(self.0.as_slice()) {
            tracing::debug!("back to CPUs {}: {e}", self.0);
        }
    }
}

/// Sets the timer slack of this thread, and of threads that it starts later, to 1 ns. The system's
/// default adds up to 50 us to every sleep. Returns false where the system refuses.
pub fn sleep_punctually() -> bool {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_pinned_thread_is_where_it_was_pinned_and_others_are_not() {
        let all = affinity();
        let last = *all.as_slice().last().expect("a core");
        let there = thread::spawn(move || {
            set_affinity(&[]).expect("nothing asked for");
            set_affinity(&[libc::CPU_SETSIZE as usize]).expect_err("no such core");
            set_affinity(&[last]).expect("its own core");
            affinity()
        });
        assert_eq!(there.join().expect("no panic").as_slice(), [last]);
        assert_eq!(affinity(), all);
    }

    #[test]
    fn work_runs_there_with_the_threads_it_starts_and_the_thread_comes_back() {
        let before = affinity();
        let last = *before.as_slice().last().expect("a core");
        let (here, started) = Near::cpus(&[last]).run(|| {
            let started = thread::spawn(affinity).join().expect("no panic");
            (affinity(), started)
        });
        assert_eq!(
            (here.as_slice(), started.as_slice()),
            (&[last][..], &[last][..])
        );
        assert_eq!(affinity(), before);
        let panics = || Near::cpus(&[last]).run(|| panic!("on purpose"));
        std::panic::catch_unwind(panics).expect_err("it panics");
        assert_eq!(affinity(), before, "also after a panic");
        assert_eq!(Near::default().run(affinity), before);
    }

    #[test]
    fn the_timer_slack_is_one_nanosecond() {
        thread::spawn(|| {
            assert!(sleep_punctually());
            // SAFETY: PR_GET_TIMERSLACK touches no memory.
            let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
            assert_eq!(slack, 1);
        })
        .join()
        .expect("no panic");
    }
}
