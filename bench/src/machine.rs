//! Pins threads to CPUs, and measures CPU time.

use std::io;

use fabric::os::{affinity, set_affinity};

pub fn pin(cpu: usize) -> io::Result<()> {
    set_affinity(&[cpu])
}

/// The first two CPUs that this process may run on, for client and server. A single CPU is returned
/// twice.
pub fn two_cpus() -> [usize; 2] {
    match affinity().as_slice() {
        [] => [0, 0],
        [only] => [*only, *only],
        [first, second, ..] => [*first, *second],
    }
}

/// CPU time of the whole process so far, user and system, in microseconds.
pub fn cpu_us() -> f64 {
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}
