//! Runs a test: the SUT and the QSL as traits, and LoadGen's `StartTest` over them.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::conf_text::ConfText;
use crate::control::{CONTROL, Stop, TestEnd};
use crate::error::LoadgenError;
use crate::log_settings::LogSettings;
use crate::raw::{self, GO_ON, RawCallbacks, STOP, Said};
use crate::sample::QuerySample;
use crate::settings::TestSettings;
use crate::summary::TestOutcome;

/// Name of LoadGen's threads: the thread in `StartTest`, and the threads that LoadGen starts.
pub const THREAD: &str = "loadgen";
/// Stack of LoadGen's thread: as large as the main thread's, where LoadGen usually runs.
const STACK_BYTES: usize = 8 << 20;

/// Maximum time until LoadGen has all issue threads; LoadGen waits as long.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);

/// The system under test.
///
/// A panic in any method stops the test, and [`run_test`] reports it.
pub trait SystemUnderTest: Send + Sync + 'static {
    /// The SUT's name in the logs. LoadGen calls this method at the start and with each performance
    /// result, of which find-peak has several, and logs how long the first call takes. Quotation
    /// marks, backslashes and control characters become `_`: LoadGen writes them unescaped.
    fn name(&self) -> String;

    /// Takes a query. The SUT may complete the query before or after this method returns. In Server
    /// the caller is LoadGen's clock: a slow call delays later queries. With several issue threads,
    /// calls are concurrent.
    fn issue_query(&self, samples: &[QuerySample]);

    /// Ends a series of queries: the SUT must now send samples that wait for a batch.
    fn flush_queries(&self);
}

/// The source of samples.
pub trait QuerySampleLibrary: Send + Sync + 'static {
    /// The QSL's name in the logs. Called once.
    fn name(&self) -> String;

    /// Number of samples. Called once.
    fn total_sample_count(&self) -> usize;

    /// Number of samples that can be loaded at the same time. Called once.
    fn performance_sample_count(&self) -> usize;

    /// Loads samples, outside measured time. In MultiStream an index may occur several times.
    fn load_samples(&self, indices: &[usize]);

    /// Unloads samples that [`load_samples`](Self::load_samples) loaded.
    fn unload_samples(&self, indices: &[usize]);
}

/// The context that LoadGen passes to the callbacks.
struct TestContext {
    sut: Arc<dyn SystemUnderTest>,
    qsl: Arc<dyn QuerySampleLibrary>,
}

/// Runs a test (LoadGen's `StartTest`). Returns when LoadGen is done, or soon after [`abort_test`]
/// or a panic.
///
/// LoadGen runs on a thread of its own, [`THREAD`]; this thread and the issue threads inherit the
/// caller's CPU affinity and timer slack. `audit` is the path of an `audit.config`; with `None`
/// LoadGen reads no such file, not even from the working directory.
///
/// After a stopped test that thread sleeps until the process ends and keeps the SUT and the QSL,
/// because outstanding responses point into its memory. End the process soon, best by [`exit`].
///
/// # Errors
///
/// Before the run: settings, files or issue threads are wrong, or the process has run a test. After
/// LoadGen's logs are closed: the test was aborted or panicked. After the run: the result cannot be
/// read. A result that LoadGen calls INVALID is no error.
pub fn run_test(
    sut: Arc<dyn SystemUnderTest>,
    qsl: Arc<dyn QuerySampleLibrary>,
    settings: &TestSettings,
    log: &LogSettings,
    audit: Option<&Path>,
) -> Result<TestOutcome, LoadgenError> {
    let (total, performance) = (qsl.total_sample_count(), qsl.performance_sample_count());
    // Unlike LoadGen, report a missing or invalid audit.config.
    let (runs, audit) = settings.audited(audit)?;
    runs.check(total, performance)?;
    let qsl_name = CString::new(clean(&qsl.name())).map_err(|_| LoadgenError::Nul {
        field: "the QSL's name",
    })?;
    let outdir = CString::new(log.outdir.as_os_str().as_bytes())
        .map_err(|_| LoadgenError::Nul { field: "outdir" })?;
    let enable_trace = log.enable_trace;
    CONTROL.begin()?;
    log.prepare()?;
    start_issue_threads(settings.server_num_issue_query_threads)?;

    let run = TestContext { sut, qsl };
    let settings = settings.clone();
    let loadgen = thread::Builder::new()
        .name(THREAD.to_owned())
        .stack_size(STACK_BYTES);
    let thread = loadgen
        .spawn(move || {
            let result = start_test(
                &run,
                &qsl_name,
                [total, performance],
                &settings,
                &outdir,
                enable_trace,
                audit.as_ref().map_or(c"", ConfText::path),
            );
            CONTROL.returned(result);
        })
        .map_err(LoadgenError::Thread)?;

    let (end, stop) = CONTROL.wait_for_end();
    match &end {
        TestEnd::Returned(result) => {
            // The result is in; ignore a panic while the thread drops the SUT and the QSL.
            let _ = thread.join();
            if result.is_err() {
                // LoadGen's logging threads outlive an exception and would keep the process alive.
                let _ = close_logs();
            }
        }
        TestEnd::Abandoned => close_logs().map_err(LoadgenError::Exception)?,
    }
    match (stop, end) {
        (Some(stop), _) => Err(stop.into()),
        (None, TestEnd::Returned(Err(what))) => Err(LoadgenError::Exception(what)),
        (None, _) => TestOutcome::read(log.files()),
    }
}

/// Stops the test, from any thread. [`run_test`] then returns [`LoadgenError::Aborted`] with the
/// first reason given.
///
/// [`run_test`] first closes LoadGen's logs (`AbortTest`). Samples need not be completed, and
/// LoadGen issues no more, except a query that is being issued. A call before the test prevents
/// the test.
pub fn abort_test(reason: &str) {
    CONTROL.stop(Stop::Aborted(reason.to_owned()));
}

/// Starts LoadGen's issue threads (`RegisterIssueQueryThread`), which end with the test. Waits
/// until LoadGen has all of them: its own wait misses registrations.
fn start_issue_threads(wanted: u64) -> Result<(), LoadgenError> {
    for _ in 0..wanted {
        let thread = thread::Builder::new().name("issue".to_owned());
        let started = thread.spawn(|| {
            let mut said = Said::new();
            // SAFETY: `said` has the given size. LoadGen's callbacks outlive the test.
            unsafe { raw::lg_register_issue_query_thread(said.pointer(), said.size()) }
        });
        if let Err(error) = started {
            raw::lg_end_issue_threads();
            return Err(LoadgenError::Thread(error));
        }
    }
    let until = Instant::now() + REGISTERED_WITHIN;
    loop {
        let came = raw::lg_registered_threads() as u64;
        if came >= wanted {
            return Ok(());
        }
        if Instant::now() > until {
            raw::lg_end_issue_threads();
            return Err(LoadgenError::IssueThreads { wanted, came });
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Flushes standard output and error, and ends the process at once, without destructors. LoadGen's
/// destructors would free logs of threads that may still complete samples.
pub fn exit(code: i32) -> ! {
    // There is no remedy for a failed flush.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: _exit takes any number and touches no memory.
    unsafe { libc::_exit(code) }
}

fn close_logs() -> Result<(), String> {
    let mut said = Said::new();
    // SAFETY: `said` has the given size; `StartTest` has returned or never will (see `control`).
    match unsafe { raw::lg_abort_test(said.pointer(), said.size()) } {
        0 => Ok(()),
        _ => Err(said.text()),
    }
}

fn start_test(
    run: &TestContext,
    qsl_name: &CString,
    [total_sample_count, performance_sample_count]: [usize; 2],
    settings: &TestSettings,
    outdir: &CStr,
    enable_trace: bool,
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
    // SAFETY: this function borrows everything pointed to, and returns only when LoadGen is done
    // with it: a stopped test's thread never returns from here. The layouts are the shim's.
    let threw = unsafe {
        raw::lg_start_test(
            &callbacks,
            std::ptr::from_ref(settings).cast(),
            outdir.as_ptr(),
            enable_trace,
            audit_config.as_ptr(),
            said.pointer(),
            said.size(),
        )
    };
    if threw == 0 { Ok(()) } else { Err(said.text()) }
}

/// # Safety
///
/// `context` is that of a [`start_test`] that has not returned.
unsafe fn run<'a>(context: *mut c_void) -> &'a TestContext {
    // SAFETY: `context` comes from a shared reference that lives until `start_test` returns.
    unsafe { &*context.cast::<TestContext>() }
}

/// # Safety
///
/// `first` points to `count` values that live and stay unchanged while the slice lives, or `count`
/// is 0.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // An empty C++ vector has no address.
    if count == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Calls the SUT or the QSL, and turns a panic into a stop of the test. False after a panic.
fn guarded(place: &'static str, call: impl FnOnce()) -> bool {
    // Unwind safety: after a panic no callback enters the SUT or the QSL again.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(()) => true,
        Err(payload) => {
            stop_after_panic(place, payload.as_ref());
            false
        }
    }
}

fn stop_after_panic(place: &'static str, payload: &(dyn Any + Send)) {
    CONTROL.stop(Stop::Panicked {
        place,
        message: message(payload),
    });
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}

/// Runs a callback that `StartTest` waits for.
fn slow(place: &'static str, loads: bool, unloads: bool, call: impl FnOnce()) -> i32 {
    // `leave` also notices a stop by `guarded`.
    let go_on = CONTROL.enter(loads) && {
        guarded(place, call);
        CONTROL.leave(unloads)
    };
    if go_on { GO_ON } else { STOP }
}

/// Replaces characters that LoadGen cannot write into its logs.
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
    /// The last name given to the shim on this thread; the shim copies it at once.
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
    // Does the same as `guarded`, without another stack frame on the path of a sample.
    let issued = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: LoadGen calls this inside `start_test`, with a vector that it does not change
        // meanwhile.
        let (run, samples) = unsafe { (run(context), slice(samples.cast::<QuerySample>(), count)) };
        run.sut.issue_query(samples);
    }));
    match issued {
        Ok(()) => GO_ON,
        Err(payload) => {
            stop_after_panic("SystemUnderTest::issue_query", payload.as_ref());
            STOP
        }
    }
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
    #[test]
    fn a_registered_thread_is_let_go() {
        let registered = thread::spawn(|| {
            let mut said = Said::new();
            // SAFETY: `said` has the given size; no test runs or begins.
            unsafe { raw::lg_register_issue_query_thread(said.pointer(), said.size()) }
        });
        while raw::lg_registered_threads() == 0 {
            thread::yield_now();
        }
        raw::lg_end_issue_threads();
        assert_eq!(registered.join().unwrap(), 0);
    }
}
