//! Access to the operating system, one module for each facility. The room knows no samples, NICs or
//! configurations, so every room may use it.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`Congestion`], [`set_congestion`] | congestion control of sockets |
//! | [`CpuList`] | lists of cores as the kernel writes them |
//! | [`pin()`], [`affinity()`] | CPU affinity of threads |
//! | [`Near`] | cores and NUMA nodes that belong together |
//! | [`EventFd`] | a descriptor that a second thread makes readable |
//! | [`Mapping`] | anonymous memory, and the NUMA nodes it lies on |
//! | [`numa_nodes`] | number of NUMA nodes |
//! | [`available_memory`] | bytes available without swapping |
//! | [`open_files`], [`set_open_files`], [`more_open_files`] | the limit of open files |
//! | [`listen()`] | listening sockets |
//! | [`Host`] | identity of the machine |
//! | [`sha256_of_file`] | hash of a file |
//! | [`sleep_punctually`] | sleeps without timer slack |
//! | [`thread_times`], [`machine_time`] | CPU time of threads and cores, and run-queue delay |

mod affinity;
mod congestion;
mod cpus;
mod event;
mod files;
mod host;
mod listen;
mod memory;
mod near;
mod sha256;
mod timer;
mod usage;

pub use affinity::{affinity, pin, set_affinity};
pub use congestion::{Congestion, set_congestion};
pub use cpus::{BadCpuList, CpuList};
pub(crate) use event::EventFd;
pub use files::{more_open_files, open_files, set_open_files};
pub use host::Host;
pub use listen::listen;
pub(crate) use memory::{HUGE_PAGE, Mapping};
pub use memory::{available_memory, numa_nodes};
pub use near::Near;
pub use sha256::{sha256_of, sha256_of_file};
pub use timer::sleep_punctually;
pub use usage::{MachineTime, ThreadTime, machine_time, thread_id, thread_times};
