//! Access to the operating system, one module for each facility. This module knows no samples, NICs
//! or configurations, so every module may use it.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`Congestion`], [`set_congestion`] | congestion control of sockets |
//! | [`CpuList`] | lists of cores as the kernel writes them |
//! | [`pin()`], [`affinity()`] | CPU affinity of threads |
//! | [`lock`] | locks of mutexes |
//! | [`Near`] | cores and NUMA nodes that belong together |
//! | [`numa_nodes`] | number of NUMA nodes |
//! | [`available_memory`] | bytes available without swapping |
//! | [`open_files`], [`set_open_files`], [`more_open_files`] | the limit of open files |
//! | [`listen()`], [`cannot_listen`] | listening sockets |
//! | [`Host`] | identity of the machine |
//! | [`sha256_of_file`] | hash of a file |
//! | [`sleep_punctually`] | sleeps without timer slack |
//! | [`thread_times`], [`machine_time`], [`process_cpu_us`] | CPU time, and run-queue delay |

mod cpus;
mod event;
mod files;
mod host;
mod memory;
mod sha256;
mod sockets;
mod threads;
mod usage;

pub use cpus::{BadCpuList, CpuList};
pub use event::EventFd;
pub use files::{more_open_files, open_files, set_open_files};
pub use host::Host;
pub(crate) use memory::{HUGE_PAGE, Mapping};
pub use memory::{available_memory, numa_nodes};
pub use sha256::{sha256_of, sha256_of_file};
pub use sockets::{Congestion, cannot_listen, listen, set_congestion};
pub use threads::{Near, affinity, lock, pin, set_affinity, sleep_punctually};
pub use usage::{MachineTime, ThreadTime, machine_time, process_cpu_us, thread_id, thread_times};
