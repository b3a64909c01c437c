//! The exported functions as a table, and the calls that the C header defines inline.
//!
//! Two traps of the ABI are handled here. `dlsym` without a version returns a symbol's default
//! version, which for libibverbs is the current ABI (`IBVERBS_1.1` and later), never the 1.0
//! compatibility one. And some names of the header are macros or inline functions over other
//! symbols: `ibv_query_port` writes a shorter structure than the header's (see
//! [`Api::query_port`]), `ibv_reg_mr` ignores optional access flags (see [`Api::reg_mr`]),
//! `ibv_query_gid_ex` is exported with a leading underscore and takes the entry's size.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

use libloading::Library;

use super::types::*;
use crate::Error;

/// Defines the table: required functions, then functions that older libraries lack.
macro_rules! api {
    (
        required { $($(#[$rdoc:meta])* $rname:ident : $rty:ty = $rsym:literal;)* }
        optional { $($(#[$odoc:meta])* $oname:ident : $oty:ty = $osym:literal;)* }
    ) => {
        /// libibverbs' exported functions. A plain table: a provider inside the process can fill
        /// one as well.
        #[derive(Clone, Copy)]
        pub struct Api {
            $($(#[$rdoc])* pub $rname: $rty,)*
            $($(#[$odoc])* pub $oname: Option<$oty>,)*
        }

        impl Api {
            /// Looks every function up in `library`.
            ///
            /// # Errors
            ///
            /// [`Error::MissingSymbol`] when the library has no such required function: it is no
            /// libibverbs.
            ///
            /// # Safety
            ///
            /// `library` must be libibverbs (or speak its ABI), and must stay loaded for as long as
            /// the table is used.
            pub unsafe fn from_library(library: &Library, file: &str) -> Result<Self, Error> {
                Ok(Self {
                    $(
                        $rname: {
                            // SAFETY: the caller promises libibverbs' ABI, in which this symbol has
                            // this type.
                            let found = unsafe { library.get::<$rty>($rsym.as_bytes()) };
                            *found.map_err(|_| Error::MissingSymbol {
                                symbol: $rsym,
                                library: file.to_owned(),
                            })?
                        },
                    )*
                    $(
                        $oname: {
                            // SAFETY: as above.
                            let found = unsafe { library.get::<$oty>($osym.as_bytes()) };
                            found.ok().map(|symbol| *symbol)
                        },
                    )*
                })
            }
        }
    };
}

api! {
    required {
        get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device
            = "ibv_get_device_list";
        free_device_list: unsafe extern "C" fn(*mut *mut ibv_device) = "ibv_free_device_list";
        /// The GUID is in network byte order.
        get_device_guid: unsafe extern "C" fn(*mut ibv_device) -> u64 = "ibv_get_device_guid";
        open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context = "ibv_open_device";
        close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int = "ibv_close_device";
        get_async_event: unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int
            = "ibv_get_async_event";
        ack_async_event: unsafe extern "C" fn(*mut ibv_async_event) = "ibv_ack_async_event";
        query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int
            = "ibv_query_device";
        /// Writes the first 48 bytes of an [`ibv_port_attr`] only; use [`Api::query_port`].
        compat_query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int
            = "ibv_query_port";
        query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int
            = "ibv_query_gid";
        alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd = "ibv_alloc_pd";
        dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int = "ibv_dealloc_pd";
        /// Refuses optional access flags; use [`Api::reg_mr`].
        compat_reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr
            = "ibv_reg_mr";
        dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int = "ibv_dereg_mr";
        create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel
            = "ibv_create_comp_channel";
        destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int
            = "ibv_destroy_comp_channel";
        create_cq: unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
            -> *mut ibv_cq
            = "ibv_create_cq";
        destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int = "ibv_destroy_cq";
        get_cq_event: unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void)
            -> c_int
            = "ibv_get_cq_event";
        ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint) = "ibv_ack_cq_events";
        create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp
            = "ibv_create_qp";
        modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int
            = "ibv_modify_qp";
        destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int = "ibv_destroy_qp";
        /// A static text, never freed.
        wc_status_str: unsafe extern "C" fn(c_uint) -> *const c_char = "ibv_wc_status_str";
    }
    optional {
        /// Since rdma-core 30; takes the size of the entry.
        query_gid_ex: unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize)
            -> c_int
            = "_ibv_query_gid_ex";
        /// Since rdma-core 28; takes optional access flags and masks those that the kernel does not
        /// know.
        reg_mr_iova2: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint)
            -> *mut ibv_mr
            = "ibv_reg_mr_iova2";
        /// Since rdma-core 34; memory of another device, such as a GPU's.
        reg_dmabuf_mr: unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int)
            -> *mut ibv_mr
            = "ibv_reg_dmabuf_mr";
    }
}

/// The bits of an access mask that a provider may ignore.
const OPTIONAL_ACCESS: c_uint = 0x3ff0_0000;

impl Api {
    /// Asks for a port's attributes as the header's `ibv_query_port` does: through the extended
    /// context where there is one, through the older symbol (onto zeroed memory) where there is
    /// none. Returns 0 or an errno.
    ///
    /// # Safety
    ///
    /// `context` must be open and from this table's library; `attr` must be writable.
    pub unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: `context` is open, by this function's contract.
        if let Some(query) = unsafe { extended(context) }.and_then(|outer| {
            // SAFETY: `extended` returned a context that the library filled in at least as far as
            // `query_port`.
            unsafe { (*outer).query_port }
        }) {
            // SAFETY: the provider's own function for this context; the size says how much may be
            // written.
            return unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) };
        }
        // SAFETY: `attr` is writable, and all-zero bytes are an `ibv_port_attr`. The older symbol
        // fills in a prefix of it.
        unsafe {
            attr.write_bytes(0, 1);
            (self.compat_query_port)(context, port, attr)
        }
    }

    /// Registers `length` bytes at `addr`; `iova` is the address that peers will use. Optional
    /// access flags are left out where the library has no function that takes them. Null on
    /// failure, with `errno` set.
    ///
    /// # Safety
    ///
    /// `pd` must be live and from this table's library; the range must be mapped for as long as the
    /// region lives.
    pub unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr {
        match self.reg_mr_iova2 {
            // SAFETY: as this function's contract says.
            Some(register) => unsafe { register(pd, addr, length, addr as u64, access) },
            // SAFETY: as this function's contract says; only the flags that the older function
            // knows are passed.
            None => unsafe {
                (self.compat_reg_mr)(pd, addr, length, (access & !OPTIONAL_ACCESS) as c_int)
            },
        }
    }
}

/// The extended context around `context`, when there is one that reaches back to `query_port`.
///
/// # Safety
///
/// `context` must be open.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: `context` is open.
    if unsafe { (*context).abi_compat } as usize != usize::MAX {
        return None;
    }
    // SAFETY: all ones in `abi_compat` say that the context is the last member of a
    // `verbs_context`.
    let outer =
        unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // SAFETY: `sz` stands directly before the context in every version of the structure.
    let filled = unsafe { (&raw const (*outer).sz).read() };
    (filled >= size_of::<verbs_context>() - offset_of!(verbs_context, query_port)).then_some(outer)
}
