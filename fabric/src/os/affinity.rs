//! CPU affinity of threads.

use std::io;

use super::CpuList;

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
}
