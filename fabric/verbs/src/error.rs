//! Errors of libibverbs: each names the verb, its object and the remedy.

use std::ffi::c_int;
use std::io;

/// An error of the control path: opening, creating, registering, connecting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum Error {
    #[error(
        "no libibverbs on this machine ({detail}): install it (Debian: libibverbs1 and \
         ibverbs-providers) or configure an address instead of a device"
    )]
    NoLibrary { detail: String },
    #[error(
        "libibverbs is installed but finds no RDMA device{}: load the NIC's RDMA driver \
         (see `ls /sys/class/infiniband`) or configure an address instead of a device",
        detail_of(*errno)
    )]
    NoDevice { errno: i32 },
    #[error("{verb}: {} while {doing}{}", text_of(*errno), hint(verb, *errno))]
    Verb {
        verb: &'static str,
        errno: i32,
        doing: String,
    },
    /// A device, a function or a value that this machine does not have or allow. The text names the
    /// refused thing, the limit and the remedy.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Makes the error of `verb` from its result. `doing` runs after `errno` is read.
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

    /// Makes the error of a verb that reports in `errno`. `doing` runs after `errno` is read.
    pub(crate) fn verb_errno(verb: &'static str, doing: impl FnOnce() -> String) -> Self {
        Self::verb(verb, -1, doing)
    }
}

/// The error of a post, or of polling or arming a completion queue. The error holds numbers only,
/// for the hot path; `Display` formats them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{verb}: {}{}", text_of(*errno), post_hint(verb, *errno))]
pub struct OpError {
    /// The verb by its libibverbs name.
    pub verb: &'static str,
    /// The errno that the verb returned.
    pub errno: i32,
}

impl OpError {
    /// Whether the queue was full. Then retire completions and post the chain again.
    pub fn is_full(&self) -> bool {
        self.errno == libc::ENOMEM || self.errno == libc::EAGAIN
    }
}

/// Displays an errno as its text and number: the text of std ends in "(os error N)".
fn text_of(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The errno of a verb's result. Some providers return -errno, some errno, some -1 with `errno`
/// set.
pub(crate) fn errno_of(returned: c_int) -> i32 {
    if returned == -1 {
        last_errno()
    } else {
        returned.abs()
    }
}

pub(crate) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn detail_of(errno: i32) -> String {
    if errno == 0 {
        String::new()
    } else {
        format!(" ({})", text_of(errno))
    }
}

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

fn post_hint(verb: &str, errno: i32) -> &'static str {
    match errno {
        _ if !verb.starts_with("ibv_post_") => "",
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
}
