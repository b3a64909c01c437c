//! What the measurements ask of the machine: threads on their cores, and CPU time spent.

use std::io;

/// Pins the calling thread to one CPU.
///
/// # Errors
/// The system has no such CPU for this process.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: a zeroed cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `cpu` was just checked to be below CPU_SETSIZE.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` lives through the call; 0 means this thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The first two CPUs this process may run on: the client's and
/// the server's. The same one twice where there is only one.
pub fn two_cpus() -> [usize; 2] {
    // SAFETY: a zeroed cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` lives through the call and has the size that is given.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    // SAFETY: every index is below CPU_SETSIZE.
    let mut cpus = (0..libc::CPU_SETSIZE as usize).filter(|c| unsafe { libc::CPU_ISSET(*c, &set) });
    let first = cpus.next().unwrap_or(0);
    [first, cpus.next().unwrap_or(first)]
}

/// CPU time of the whole process so far, user and system, in microseconds.
pub fn cpu_us() -> f64 {
    // SAFETY: a zeroed rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}
