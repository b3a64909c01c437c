//! What the rest of the crate asks of the operating system, each thing once. It knows nothing of
//! samples, NICs or configurations, so everything above may use it.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`CpuList`] | lists of cores as the kernel writes them |
//! | [`pin()`], [`affinity()`] | which cores a thread runs on |
//! | [`Near`] | where threads and memory that belong together are |
//! | [`EventFd`] | a descriptor that another thread makes readable |
//! | [`Mapping`] | anonymous memory, and the NUMA nodes it lies on |
//! | [`numa_nodes`] | how many nodes there are |
//! | [`available_memory`] | bytes that may be had without swapping |
//! | [`Host`] | which machine this is |
//! | [`sha256_of_file`] | a file's hash |

mod affinity;
mod cpus;
mod event;
mod host;
mod memory;
mod near;
mod sha256;

pub use affinity::{affinity, pin, set_affinity};
pub use cpus::{BadCpuList, CpuList};
pub use event::EventFd;
pub use host::Host;
pub use memory::{HUGE_PAGE, Mapping, available_memory, numa_nodes};
pub use near::Near;
pub use sha256::{sha256_of, sha256_of_file};
