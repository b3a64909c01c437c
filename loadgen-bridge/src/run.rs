//! A test: the SUT and the QSL as traits, and LoadGen's `StartTest` over them.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::conf_text::ConfText;
use crate::control::{CONTROL, End, ISSUE_THREADS_COME_WITHIN, Stop};
use crate::error::LoadgenError;
use crate::log_settings::{CLogSettings, LogSettings};
use crate::raw::{self, GO_ON, RawCallbacks, STOP, Said};
use crate::sample::QuerySample;
use crate::settings::TestSettings;
use crate::summary::TestOutcome;

/// The name of LoadGen's threads: the one in its `StartTest`, and those that it starts from there.
pub const THREAD: &str = "loadgen";
/// As large as the main thread's, which is where LoadGen expects to be.
const STACK_BYTES: usize = 8 << 20;

/// What LoadGen tests.
///
/// A panic in any method stops the test, and [`run_test`] reports it.
pub trait SystemUnderTest: Send + Sync + 'static {
    /// What stands in the logs. LoadGen asks at the start, when it has a performance
    /// result, and more often in find-peak, and each time the question comes here;
    /// the first answer's duration is logged. Quotation marks, backslashes and
    /// control characters become `_`: LoadGen writes them unescaped into its logs.
    fn name(&self) -> String;

    /// Takes a query. To return at once and complete elsewhere, or to complete before returning, is
    /// both fine. In Server the caller is LoadGen's clock: what is late here makes later queries
    /// late. With several issue threads they call at the same time.
    fn issue_query(&self, samples: &[QuerySample]);

    /// No more queries will come in this series: whatever waits for company is to go now.
    fn flush_queries(&self);
}

/// Where the samples come from.
pub trait QuerySampleLibrary: Send + Sync + 'static {
    /// What stands in the logs. Asked for once.
    fn name(&self) -> String;

    /// How many samples there are. Asked for once.
    fn total_sample_count(&self) -> usize;

    /// How many of them can be loaded at the same time. Asked for once.
    fn performance_sample_count(&self) -> usize;

    /// Loads samples; the clock does not run. In MultiStream the same one may come several times.
    fn load_samples(&self, indices: &[usize]);

    /// Unloads samples that [`load_samples`](Self::load_samples) loaded.
    fn unload_samples(&self, indices: &[usize]);
}

/// What the callbacks find behind their context.
struct Run {
    sut: Arc<dyn SystemUnderTest>,
    qsl: Arc<dyn QuerySampleLibrary>,
}

/// Runs a test: LoadGen's `StartTest`. Returns when LoadGen
/// is done, or soon after [`abort_test`] or a panic.
///
/// LoadGen runs on a thread of its own, `loadgen`, which inherits this one's
/// CPU affinity and timer slack. `audit` is an `audit.config`; without it
/// none is read, not even one that lies in the working directory.
///
/// A test that is stopped leaves that thread asleep, with the SUT and the QSL
/// held, until the process ends: responses that are still on their way point
/// into its memory. Such a process should end soon, best with [`exit`].
///
/// # Errors
///
/// Settings, files or threads that are not right, before anything runs; an abort or a panic, after
/// LoadGen's logs have been closed; a result that cannot be read. A result that LoadGen calls
/// INVALID is no error. A second test in one process is.
pub fn run_test(
    sut: Arc<dyn SystemUnderTest>,
    qsl: Arc<dyn QuerySampleLibrary>,
    settings: &TestSettings,
    log: &LogSettings,
    audit: Option<&Path>,
) -> Result<TestOutcome, LoadgenError> {
    let (total, performance) = (qsl.total_sample_count(), qsl.performance_sample_count());
    // LoadGen ignores an audit.config's errors, and the file if it is missing.
    let (runs, audit) = settings.audited(audit)?;
    runs.check(total, performance)?;
    let qsl_name = CString::new(clean(&qsl.name())).map_err(|_| LoadgenError::Nul {
        field: "the QSL's name",
    })?;
    let raw_log = log.to_c()?;
    CONTROL.begin()?;
    log.prepare()?;
    CONTROL.gather_issue_threads(
        settings.server_num_issue_query_threads,
        ISSUE_THREADS_COME_WITHIN,
        || raw::lg_registered_threads(),
        || raw::lg_end_issue_threads(),
    )?;

    let run = Run { sut, qsl };
    let settings = settings.clone();
    let loadgen = std::thread::Builder::new()
        .name(THREAD.to_owned())
        .stack_size(STACK_BYTES);
    let thread = loadgen
        .spawn(move || {
            let result = start_test(
                &run,
                &qsl_name,
                total,
                performance,
                &settings,
                &raw_log,
                audit.as_ref().map_or(c"", ConfText::path),
            );
            CONTROL.returned(result);
        })
        .map_err(LoadgenError::Thread)?;

    let (end, stop) = CONTROL.wait_for_end();
    match &end {
        End::Returned(result) => {
            // It has nothing left to do but to drop the SUT and the QSL, whose panics are theirs.
            let _ = thread.join();
            if result.is_err() {
                // An exception left LoadGen's logging threads
                // running, and a process cannot end with them.
                let _ = close_logs();
            }
        }
        End::Abandoned => close_logs().map_err(LoadgenError::Exception)?,
    }
    match (stop, end) {
        (Some(stop), _) => Err(stop.into()),
        (None, End::Returned(Err(what))) => Err(LoadgenError::Exception(what)),
        (None, _) => TestOutcome::read(log.files()),
    }
}

/// Stops the test, from any thread; [`run_test`] then returns
/// [`LoadgenError::Aborted`] with the first reason given.
///
/// LoadGen's logs are closed first (LoadGen's `AbortTest`). Samples need not
/// be completed, and no more are issued, but for a query that is being issued
/// at this moment. Before a test it keeps the next one from beginning.
pub fn abort_test(reason: &str) {
    CONTROL.stop(Stop::Aborted(reason.to_owned()));
}

/// Makes this thread one of those that issue queries: LoadGen's
/// `RegisterIssueQueryThread`. Returns when the test ends.
///
/// Call it on exactly `server_num_issue_query_threads` threads, in Server, at about the time of
/// [`run_test`], which waits 10 s for them.
///
/// # Errors
///
/// There is no test that wants it, or it was stopped before it began.
pub fn register_issue_query_thread() -> Result<(), LoadgenError> {
    CONTROL.join_as_issue_thread()?;
    let mut said = Said::new();
    // SAFETY: `said` has the size that is given. The callbacks behind it outlive the test.
    match unsafe { raw::lg_register_issue_query_thread(said.pointer(), said.size()) } {
        0 => Ok(()),
        _ => Err(LoadgenError::Exception(said.text())),
    }
}

/// Ends the process at once, with standard output and error flushed and
/// no destructor run: LoadGen's own, at the ordinary end of a process,
/// take logs away from threads that may still be completing samples.
pub fn exit(code: i32) -> ! {
    // Nothing is left to do about an output that cannot be written.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: _exit takes any number and touches no memory.
    unsafe { libc::_exit(code) }
}

/// LoadGen's `AbortTest`.
fn close_logs() -> Result<(), String> {
    let mut said = Said::new();
    // SAFETY: `said` has the size that is given; `StartTest`
    // is gone or will never come to its end (see `control`).
    match unsafe { raw::lg_abort_test(said.pointer(), said.size()) } {
        0 => Ok(()),
        _ => Err(said.text()),
    }
}

fn start_test(
    run: &Run,
    qsl_name: &CString,
    total_sample_count: usize,
    performance_sample_count: usize,
    settings: &TestSettings,
    log: &CLogSettings,
    audit_config: &CStr,
) -> Result<(), String> {
    let callbacks = RawCallbacks {
        context: std::ptr::from_ref(run).cast_mut().cast(),
        get_name,
        issue_query,
        flush_queries,
        load_samples,
        unload_samples,
        qsl_name: qsl_name.as_ptr(),
        total_sample_count,
        performance_sample_count,
    };
    let mut said = Said::new();
    // SAFETY: everything pointed to is borrowed by this function, which
    // returns only when LoadGen is done with it: a stopped test's
    // thread never comes back from here. The layouts are the shim's.
    let threw = unsafe {
        raw::lg_start_test(
            &callbacks,
            std::ptr::from_ref(settings).cast(),
            &log.raw,
            audit_config.as_ptr(),
            said.pointer(),
            said.size(),
        )
    };
    if threw == 0 { Ok(()) } else { Err(said.text()) }
}

/// # Safety
///
/// `context` is the one of [`start_test`], which has not returned.
unsafe fn run<'a>(context: *mut c_void) -> &'a Run {
    // SAFETY: it was made from a reference that lives
    // until `start_test` returns; it is only ever shared.
    unsafe { &*context.cast::<Run>() }
}

/// # Safety
///
/// `first` points to `count` values that live and stay unchanged
/// for as long as the caller holds the slice, or `count` is 0.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // An empty C++ vector has no address.
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Calls the SUT or the QSL where a panic must not get out; the panic stops the test.
fn guarded(place: &'static str, call: impl FnOnce()) -> bool {
    // What a panic leaves half done is not looked at again:
    // no callback enters the SUT or the QSL afterwards.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(()) => true,
        Err(payload) => {
            CONTROL.stop(Stop::Panicked {
                place,
                message: message(payload.as_ref()),
            });
            false
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}

/// A callback that `StartTest` waits for.
fn slow(place: &'static str, loads: bool, unloads: bool, call: impl FnOnce()) -> i32 {
    // `leave` sees a stop that `guarded` caused, too.
    let go_on = CONTROL.enter(loads) && {
        guarded(place, call);
        CONTROL.leave(unloads)
    };
    if go_on { GO_ON } else { STOP }
}

/// What LoadGen can write into a line of its logs as it stands.
fn clean(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_control() || matches!(c, '"' | '\\') {
                '_'
            } else {
                c
            }
        })
        .collect()
}

thread_local! {
    /// The last name that was given away on this thread;
    /// the shim copies it before it does anything else.
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
}

extern "C" fn get_name(context: *mut c_void, name: *mut *const c_char, length: *mut usize) -> i32 {
    slow("SystemUnderTest::name", false, false, || {
        // SAFETY: LoadGen calls this inside `start_test`.
        let text = clean(&unsafe { run(context) }.sut.name());
        NAME.with_borrow_mut(|kept| {
            *kept = text;
            // SAFETY: the shim passes the addresses of two variables of its own.
            unsafe {
                *name = kept.as_ptr().cast();
                *length = kept.len();
            }
        });
    })
}

extern "C" fn issue_query(context: *mut c_void, samples: *const c_void, count: usize) -> i32 {
    if CONTROL.stopping() {
        return STOP;
    }
    let went_well = guarded("SystemUnderTest::issue_query", || {
        // SAFETY: LoadGen calls this inside `start_test`, with
        // a vector that it leaves alone until this returns.
        let (run, samples) = unsafe { (run(context), slice(samples.cast::<QuerySample>(), count)) };
        run.sut.issue_query(samples);
    });
    if went_well { GO_ON } else { STOP }
}

extern "C" fn flush_queries(context: *mut c_void) -> i32 {
    slow("SystemUnderTest::flush_queries", false, false, || {
        // SAFETY: LoadGen calls this inside `start_test`.
        unsafe { run(context) }.sut.flush_queries();
    })
}

extern "C" fn load_samples(context: *mut c_void, indices: *const usize, count: usize) -> i32 {
    slow("QuerySampleLibrary::load_samples", true, false, || {
        // SAFETY: as in `issue_query`.
        let (run, indices) = unsafe { (run(context), slice(indices, count)) };
        run.qsl.load_samples(indices);
    })
}

extern "C" fn unload_samples(context: *mut c_void, indices: *const usize, count: usize) -> i32 {
    slow("QuerySampleLibrary::unload_samples", false, true, || {
        // SAFETY: as in `issue_query`.
        let (run, indices) = unsafe { (run(context), slice(indices, count)) };
        run.qsl.unload_samples(indices);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_logs() {
        assert_eq!(clean("Network SUT: a, \"b\"\n\\"), "Network SUT: a, _b___");
    }

    #[test]
    fn panics_of_every_kind_have_a_message() {
        let caught = |f: fn()| message(catch_unwind(f).unwrap_err().as_ref());
        assert_eq!(caught(|| panic!("plain")), "plain");
        assert_eq!(caught(|| panic!("with {}", 1)), "with 1");
        assert_eq!(caught(|| std::panic::panic_any(3)), "(no message)");
    }
}
