//! What the rest of the crate asks of the operating system, each thing once. It knows nothing of
//! samples, NICs or configurations, so everything above may use it.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`Congestion`], [`set_congestion`] | which congestion control sockets have |
//! | [`CpuList`] | lists of cores as the kernel writes them |
//! | [`pin()`], [`affinity()`] | which cores a thread runs on |
//! | [`Near`] | where threads and memory that belong together are |
//! | [`EventFd`] | a descriptor that another thread makes readable |
//! | [`Mapping`] | anonymous memory, and the NUMA nodes it lies on |
//! | [`numa_nodes`] | how many nodes there are |
//! | [`available_memory`] | bytes that may be had without swapping |
//! | [`open_files`], [`set_open_files`], [`more_open_files`] | the limit of open files |
//! | [`listen()`] | sockets that listen |
//! | [`Host`] | which machine this is |
//! | [`sha256_of_file`] | a file's hash |
//! | [`sleep_punctually`] | sleeps that last as long as they were asked to |
//! | [`thread_times`], [`machine_time`] | what threads and cores did, and how long threads waited |

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
pub use event::EventFd;
pub use files::{more_open_files, open_files, set_open_files};
pub use host::Host;
pub use listen::listen;
pub use memory::{HUGE_PAGE, Mapping, available_memory, numa_nodes};
pub use near::Near;
pub use sha256::{sha256_of, sha256_of_file};
pub use timer::sleep_punctually;
pub use usage::{MachineTime, ThreadTime, machine_time, thread_id, thread_times};
