//! Declarations of `shim/shim.h`, written by hand.
//!
//! Types that have their own file, such as `TestSettings` and `QuerySample`, are pointers here.

use std::ffi::{c_char, c_void};

/// A callback's answer: continue.
pub(crate) const GO_ON: i32 = 0;
/// A callback's answer: never return to LoadGen from here.
pub(crate) const STOP: i32 = 1;

#[repr(C)]
#[cfg(test)]
pub(crate) struct RawField {
    pub name: *const c_char,
    pub offset: usize,
    pub size: usize,
}

#[repr(C)]
pub(crate) struct RawCallbacks {
    pub context: *mut c_void,
    pub get_name: extern "C" fn(*mut c_void, *mut *const c_char, *mut usize) -> i32,
    pub issue_query: extern "C" fn(*mut c_void, *const c_void, usize) -> i32,
    pub flush_queries: extern "C" fn(*mut c_void) -> i32,
    pub load_samples: extern "C" fn(*mut c_void, *const usize, usize) -> i32,
    pub unload_samples: extern "C" fn(*mut c_void, *const usize, usize) -> i32,
    pub qsl_name: *const c_char,
    pub total_sample_count: usize,
    pub performance_sample_count: usize,
}

// shim.cc asserts the C++ side.
const _: () = {
    assert!(
        size_of::<usize>() == 8,
        "LoadGen's ids and indices are 64-bit here"
    );
    assert!(size_of::<RawCallbacks>() == 72);
};

unsafe extern "C" {
    pub(crate) fn lg_default_test_settings(out: *mut c_void);
    #[cfg(test)]
    pub(crate) fn lg_test_settings_layout(fields: *mut *const RawField) -> usize;
    pub(crate) fn lg_mlperf_conf() -> *const c_char;
    pub(crate) fn lg_from_config(
        settings: *mut c_void,
        path: *const c_char,
        model: *const c_char,
        scenario: *const c_char,
        conf_type: i32,
        error: *mut c_char,
        error_size: usize,
    ) -> i32;
    pub(crate) fn lg_effective_settings(
        settings: *const c_void,
        performance_sample_count: usize,
        total_sample_count: usize,
        out: *mut c_void,
        error: *mut c_char,
        error_size: usize,
    ) -> i32;
    pub(crate) safe fn lg_arrivals(qps: f64, seed: u64, duration_ns: u64) -> u64;
    pub(crate) fn lg_start_test(
        callbacks: *const RawCallbacks,
        settings: *const c_void,
        outdir: *const c_char,
        enable_trace: bool,
        audit_config: *const c_char,
        error: *mut c_char,
        error_size: usize,
    ) -> i32;
    pub(crate) fn lg_abort_test(error: *mut c_char, error_size: usize) -> i32;
    pub(crate) fn lg_register_issue_query_thread(error: *mut c_char, error_size: usize) -> i32;
    pub(crate) safe fn lg_registered_threads() -> usize;
    pub(crate) safe fn lg_end_issue_threads();
    pub(crate) fn lg_query_samples_complete(responses: *const c_void, count: usize) -> i32;
    pub(crate) fn lg_first_token_complete(responses: *const c_void, count: usize) -> i32;
    pub(crate) safe fn lg_outgrow_log(room: usize) -> i32;
}

/// Buffer for the text of a C++ exception.
pub(crate) struct Said([u8; 512]);

impl Said {
    pub(crate) fn new() -> Self {
        Self([0; 512])
    }

    pub(crate) fn pointer(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }

    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn text(&self) -> String {
        let end = self
            .0
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}
