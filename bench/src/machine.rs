//! What the measurements ask of the machine: threads on their cores, and CPU time spent.

use std::io;

use fabric::os::{affinity, set_affinity};

/// Pins the calling thread to one CPU.
///
/// # Errors
/// The system has no such CPU for this process.
pub fn pin(cpu: usize) -> io::Result<()> {
    set_affinity(&[cpu])
}

/// The first two CPUs this process may run on: the client's and the server's. The same one twice
/// where there is only one.
pub fn two_cpus() -> [usize; 2] {
    match affinity().as_slice() {
        [] => [0, 0],
        [only] => [*only, *only],
        [first, second, ..] => [*first, *second],
    }
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
