//! Errors across the border: a code to the caller, and a text for the caller's thread.

use std::{
    cell::RefCell,
    ffi::{CStr, CString},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::types;

/// The process that made the first handle; 0 before. A fork has another number.
static OWNER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    code: i32,
    text: String,
}

impl Failure {
    /// A wrong argument.
    pub fn usage(text: impl fmt::Display) -> Self {
        Self::new(types::QDL_E_USAGE, text)
    }

    /// A wrong configuration.
    pub fn config(text: impl fmt::Display) -> Self {
        Self::new(types::QDL_E_CONFIG, text)
    }

    /// The network, an accelerator or the system does not allow it.
    pub fn system(text: impl fmt::Display) -> Self {
        Self::new(types::QDL_E_SYSTEM, text)
    }

    /// A call before or after its time.
    pub fn state(text: impl fmt::Display) -> Self {
        Self::new(types::QDL_E_STATE, text)
    }

    fn new(code: i32, text: impl fmt::Display) -> Self {
        Failure {
            code,
            text: text.to_string(),
        }
    }
}

/// Makes this process the owner of all handles.
pub fn own() {
    // An error means that the process is the owner already: `call` has compared.
    let _ = OWNER.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Runs the body of a function of the header, which returns a number from 0 on. A failure or a
/// panic becomes a negative code, and its text that of [`text`]. In a fork of the process that
/// owns the handles nothing runs: the threads and the locks' owners are in the other process.
pub fn call(body: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    let owner = OWNER.load(Ordering::Relaxed);
    let result = if owner != 0 && owner != std::process::id() {
        Err(Failure::new(
            types::QDL_E_FORK,
            format!(
                "this process is a fork of process {owner}, which uses libqdl: NIC threads do not \
                 survive a fork. Start it with exec (Python: multiprocessing's method `spawn`)"
            ),
        ))
    } else {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = format!("libqdl panicked: {}", said.unwrap_or("without a text"));
            Err(Failure::new(types::QDL_E_PANIC, text))
        })
    };
    match result {
        Ok(n) => n,
        Err(Failure { code, text }) => {
            let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
            // An error means that the thread is ending and reads no text.
            let _ = LAST.try_with(|last| *last.borrow_mut() = text);
            i64::from(code)
        }
    }
}

/// The text of this thread's last failure, valid until the thread's next one.
pub fn text() -> *const std::ffi::c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(CStr::as_ptr(c""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        let code = call(|| panic!("seven {}", 7));
        assert_eq!(code, i64::from(types::QDL_E_PANIC));
        // SAFETY: the text is this thread's, and no call follows.
        let text = unsafe { CStr::from_ptr(text()) };
        assert_eq!(text.to_str(), Ok("libqdl panicked: seven 7"));
    }
}
