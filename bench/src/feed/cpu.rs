//! CPU time of a thread, and cores to run on.

use anyhow::{Context, Result, ensure};
use qdl::os::{affinity, set_affinity};

/// CPU time that the calling thread has had, in nanoseconds. A system call.
pub fn thread_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writable through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Keeps this thread, and those that it starts, on the first so many cores it may run on.
pub fn keep_to(cores: usize) -> Result<()> {
    let list = affinity();
    let all = list.as_slice();
    ensure!(
        (1..=all.len()).contains(&cores),
        "--cores {cores}: this program may run on {} core(s)",
        all.len()
    );
    set_affinity(&all[..cores]).with_context(|| format!("run on {cores} core(s)"))
}

/// How many cores this program may run on.
pub fn cores() -> usize {
    affinity().as_slice().len().max(1)
}

/// 1, 2, 4 and so on, and all of them.
pub fn steps(all: usize) -> Vec<usize> {
    let mut steps: Vec<usize> = std::iter::successors(Some(1), |c| Some(c * 2))
        .take_while(|c| *c < all)
        .collect();
    steps.push(all);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_all_of_them() {
        assert_eq!(steps(1), [1]);
        assert_eq!(steps(2), [1, 2]);
        assert_eq!(steps(6), [1, 2, 4, 6]);
        assert_eq!(steps(16), [1, 2, 4, 8, 16]);
    }
}
