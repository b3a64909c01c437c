//! Where threads run and memory lies that belong together.

use super::{CpuList, affinity, pin, set_affinity};

/// Cores and NUMA nodes. Empty ones leave it to the system, as on a machine with one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Near {
    /// Cores that threads may run on.
    pub cpus: Vec<usize>,
    /// Nodes that memory lies on: of several, pages are on each in turn.
    pub nodes: Vec<u32>,
}

impl Near {
    /// These cores, and memory where the threads on them touch it first.
    pub fn cpus(cpus: &[usize]) -> Self {
        Near {
            cpus: cpus.to_vec(),
            nodes: Vec::new(),
        }
    }

    /// Keeps the calling thread there, best effort.
    pub fn pin(&self) {
        pin(&self.cpus);
    }

    /// Runs `work` there, on this thread: what it touches first lies near, and threads that it
    /// starts stay. Best effort.
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        let _back = Back::after(&self.cpus);
        work()
    }
}

/// Lets a thread run again where it might run before.
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
