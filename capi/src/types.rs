//! Structs and numbers of the header. A test compiles the header and compares sizes and offsets.
#![allow(non_camel_case_types, reason = "the names of the header")]

use std::ffi::c_void;

macro_rules! numbers {
    ($($kind:ty: $($name:ident = $value:expr),+;)+) => {
        $($(#[doc = concat!("As in the header: `", stringify!($name), "`.")]
        pub const $name: $kind = $value;)+)+
        /// Names and values of the header's numbers.
        pub const NUMBERS: &[(&str, i64)] = &[$($((stringify!($name), $name as i64)),+),+];
    };
}

numbers! {
    i32: QDL_ABI = 1, QDL_E_USAGE = -1, QDL_E_CONFIG = -2, QDL_E_SYSTEM = -3, QDL_E_STATE = -4,
        QDL_E_FORK = -5, QDL_E_PANIC = -6, QDL_GONE = 1,
        QDL_TEXT_NAME = 1, QDL_TEXT_ADDRESS = 2, QDL_TEXT_COUNTERS = 3, QDL_TEXT_RECORD = 4,
        QDL_TEXT_NOTES = 5;
    u32: QDL_HAS_OPTIONS = 1, QDL_MAX_STOP_IDS = 32, QDL_MAX_OPTIONS = 256;
    u16: QDL_PART = 1, QDL_DONE = 2, QDL_FAILED = 3, QDL_REFUSED = 4, QDL_FIRST = 1,
        QDL_AGAIN = 2;
    u32: QDL_TOKEN_LIMIT = 1, QDL_MIN_TOKENS = 2, QDL_TEMPERATURE = 4, QDL_TOP_P = 8,
        QDL_TOP_K = 16, QDL_SEED = 32, QDL_IGNORE_EOS = 64, QDL_STOP_IDS = 128;
}

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? })+) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(#[doc = concat!("As in the header: `", stringify!($field), "`.")]
            pub $field: $type),+
        }
        impl $name {
            /// All fields zero or null.
            // SAFETY: integers, floats and raw pointers, which may all be zero.
            pub const ZERO: Self = unsafe { std::mem::zeroed() };
        })+
        /// Name and size of each struct; name and offset of each field, after its struct's name.
        pub const LAYOUT: &[(&str, &str, usize)] = &[$(
            (stringify!($name), "", size_of::<$name>()),
            $((stringify!($name), stringify!($field), std::mem::offset_of!($name, $field))),+
        ),+];
    };
}

structs! {
    /// A sample to issue.
    qdl_sample { id: u64, data: *const c_void, len: u32, flags: u32 }

    /// What came of a sample.
    qdl_event {
        id: u64, data: *const c_void, at_ns: u64, len: u32, offset: u32, connection: u32, kind: u16,
        flags: u16,
    }

    /// A sample that arrived.
    qdl_arrival {
        ticket: u64, data: *const c_void, out: *mut c_void, len: u32, room: u32, flags: u32,
        token_limit: u32,
    }

    /// An answer, a part of one, or a refusal.
    qdl_answer { ticket: u64, data: *const c_void, len: u32, kind: u16, flags: u16, status: i32,
        reserved: u32 }

    /// Options of a request.
    qdl_options {
        set: u32, token_limit: u32, min_tokens: u32, top_k: u32, temperature: f32, top_p: f32,
        seed: u64, stop_count: u32, stop_ids: [i32; QDL_MAX_STOP_IDS as usize], reserved: u32,
    }
}
