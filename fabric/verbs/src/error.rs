//! What can go wrong, said so that the reader knows which verb, on what, and what to do next.

use std::ffi::c_int;
use std::fmt;
use std::io;

/// An error of the control path: opening, creating, registering, connecting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is not on this machine.
    #[error(
        "no libibverbs on this machine ({detail}): install it (Debian: libibverbs1 and \
         ibverbs-providers) or configure an address instead of a device"
    )]
    NoLibrary {
        /// What the loader said.
        detail: String,
    },
    /// A file by the right name is not libibverbs.
    #[error(
        "{library} has no function {symbol}: this is not a libibverbs that can be used \
         (rdma-core 30 is the oldest)"
    )]
    MissingSymbol {
        /// The function that is missing.
        symbol: &'static str,
        /// The file that was opened.
        library: String,
    },
    /// The library is there, but the kernel offers no device.
    #[error(
        "libibverbs is installed but finds no RDMA device{}: load the NIC's RDMA driver \
         (see `ls /sys/class/infiniband`) or configure an address instead of a device",
        detail_of(*errno)
    )]
    NoDevice {
        /// The errno of `ibv_get_device_list`, 0 when the list was merely empty.
        errno: i32,
    },
    /// There are devices, but none of that name.
    #[error("no RDMA device is called {name:?}; this machine has {}", present.join(", "))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        present: Vec<String>,
    },
    /// A verb, or a system call beside one, failed.
    #[error("{verb}: {} while {doing}{}", Errno(*errno), hint(verb, *errno))]
    Verb {
        /// The verb by its libibverbs name.
        verb: &'static str,
        /// The errno it gave.
        errno: i32,
        /// What was being done, with names and numbers.
        doing: String,
    },
    /// A value beyond what the device can do.
    #[error("{what} of {asked} exceeds {device}'s limit of {limit} ({name})")]
    Limit {
        /// What was asked for, such as "a send queue".
        what: &'static str,
        /// How much of it.
        asked: u64,
        /// How much the device has.
        limit: u64,
        /// The limit by its libibverbs name.
        name: &'static str,
        /// The device.
        device: String,
    },
    /// A value that no device takes.
    #[error("{field} is {value}, but must be {allowed}")]
    Value {
        /// The field by its libibverbs name.
        field: &'static str,
        /// The value given.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Two objects that must be on one device are not.
    #[error(
        "{what} is on {one}, but what it is to work with is on {other}: \
         both must be of one opened device"
    )]
    Mismatch {
        /// Which object, such as "the completion queue".
        what: &'static str,
        /// The device that it is on.
        one: String,
        /// The device that it should be on.
        other: String,
    },
    /// The library or the device lacks something.
    #[error("{what} is not supported by {by}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Who lacks it.
        by: String,
    },
    /// No GID entry can be used.
    #[error("{device} port {port} has no usable GID: {why}")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Why none will do, and what to do about it.
        why: String,
    },
    /// A range outside a memory region.
    #[error(
        "bytes {offset}..{} are outside a memory region of {length} bytes",
        offset.saturating_add(*asked)
    )]
    OutOfRegion {
        /// Where the range begins.
        offset: usize,
        /// How long it is.
        asked: usize,
        /// How long the region is.
        length: usize,
    },
}

impl Error {
    /// A failed verb, with what it returned. `doing` runs after the errno has been taken.
    pub(crate) fn verb(
        verb: &'static str,
        returned: c_int,
        doing: impl FnOnce() -> String,
    ) -> Self {
        let errno = errno_of(returned);
        Self::Verb {
            verb,
            errno,
            doing: doing(),
        }
    }

    /// A failed verb that left its errno in `errno`. `doing` runs after the errno has been taken.
    pub(crate) fn verb_errno(verb: &'static str, doing: impl FnOnce() -> String) -> Self {
        let errno = last_errno();
        Self::Verb {
            verb,
            errno,
            doing: doing(),
        }
    }
}

/// The error of a post: on the hot path, so without any text of its own until it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{verb}: {} after {posted} of {} work requests{}",
    Errno(*errno), *posted + *left, post_hint(*errno)
)]
pub struct PostError {
    /// The verb by its libibverbs name.
    pub verb: &'static str,
    /// The errno it gave.
    pub errno: i32,
    /// Work requests that the device took: they will complete.
    pub posted: usize,
    /// Work requests that it did not take: they are still in the chain, in order.
    pub left: usize,
}

impl PostError {
    /// Whether the queue was full: retire completions, then post the rest of the chain again.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.errno == libc::ENOMEM || self.errno == libc::EAGAIN
    }
}

/// The error of polling or arming a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{verb}: {}", Errno(*errno))]
pub struct CqError {
    /// The verb by its libibverbs name.
    pub verb: &'static str,
    /// The errno it gave.
    pub errno: i32,
}

/// Shows an errno as its text and number.
struct Errno(i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // std's text ends in "(os error N)", which names the number too.
        write!(f, "{}", io::Error::from_raw_os_error(self.0))
    }
}

/// The errno that a verb's result stands for. Some providers return -errno, some -1 with errno set;
/// otherwise the sign carries no meaning of its own.
pub(crate) fn errno_of(returned: c_int) -> i32 {
    if returned == -1 {
        last_errno()
    } else {
        returned.abs()
    }
}

/// The calling thread's errno.
pub(crate) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn detail_of(errno: i32) -> String {
    if errno == 0 {
        String::new()
    } else {
        format!(" ({})", Errno(errno))
    }
}

/// What to do about the failures that everybody meets once.
fn hint(verb: &str, errno: i32) -> &'static str {
    match (verb, errno) {
        ("ibv_reg_mr" | "ibv_create_cq" | "ibv_create_qp", libc::ENOMEM) => {
            ": the limit on locked memory may be too low \
             (see `ulimit -l`, or the device's limits in `ibv_devinfo -v`)"
        }
        ("ibv_reg_mr", libc::EFAULT) => ": the memory is not mapped, or not for writing",
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            ": this user may not open /dev/infiniband/uverbs*"
        }
        ("ibv_modify_qp", libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT) => {
            ": the peer's GID cannot be reached from this port \
             (check addresses, routes and the link)"
        }
        _ => "",
    }
}

fn post_hint(errno: i32) -> &'static str {
    match errno {
        libc::ENOMEM | libc::EAGAIN => ": the queue is full",
        libc::EINVAL => {
            ": a work request is malformed, or the queue pair is not in a state that takes it"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_verb_names_verb_errno_work_and_remedy() {
        let text = Error::verb("ibv_reg_mr", libc::ENOMEM, || {
            "registering 4096 bytes on rxa".to_owned()
        })
        .to_string();
        for part in [
            "ibv_reg_mr",
            "Cannot allocate memory",
            "os error 12",
            "registering 4096 bytes on rxa",
            "ulimit -l",
        ] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn a_negated_errno_is_the_same_errno() {
        let Error::Verb { errno, .. } = Error::verb("ibv_modify_qp", -libc::EINVAL, String::new)
        else {
            unreachable!("verb() makes a Verb")
        };
        assert_eq!(errno, libc::EINVAL);
    }

    #[test]
    fn a_partial_post_says_how_far_it_came() {
        let error = PostError {
            verb: "ibv_post_send",
            errno: libc::ENOMEM,
            posted: 3,
            left: 5,
        };
        assert!(error.is_full());
        let text = error.to_string();
        assert!(
            text.contains("3 of 8") && text.contains("the queue is full"),
            "{text}"
        );
    }
}
