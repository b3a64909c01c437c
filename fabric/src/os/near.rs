//! Placement: cores for threads and NUMA nodes for memory that belong together.

use super::{CpuList, affinity, pin, set_affinity};

/// Cores and NUMA nodes. An empty list leaves the choice to the system, as on one node.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_there_with_the_threads_it_starts_and_the_thread_comes_back() {
        let before = affinity();
        let last = *before.as_slice().last().expect("a core");
        let (here, started) = Near::cpus(&[last]).run(|| {
            let started = std::thread::spawn(affinity).join().expect("no panic");
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
}
