//! Pins threads to CPUs.

use std::io;

use fabric::os::{affinity, set_affinity};

pub fn pin(cpu: usize) -> io::Result<()> {
    set_affinity(&[cpu])
}

/// The first two CPUs that this process may run on, for client and server. If the process has a
/// single CPU, both are that CPU.
pub fn two_cpus() -> [usize; 2] {
    match affinity().as_slice() {
        [] => [0, 0],
        [only] => [*only, *only],
        [first, second, ..] => [*first, *second],
    }
}
