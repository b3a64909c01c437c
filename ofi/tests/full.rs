//! Queues and vectors that are full. The providers of a machine without NICs make theirs larger
//! when they are, so something stands between them and this crate that does not.
//!
//! Without libfabric each test says so and passes.
#![allow(clippy::expect_used)]

use std::{
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use libloading::Library;
use ofi::{Depths, Domain, Endpoint, Error, Memory, Ofi, Place, raw};

/// The library's own functions, and those of the objects that it opened.
struct Real {
    fabric: unsafe extern "C" fn(
        *mut raw::fi_fabric_attr,
        *mut *mut raw::fid_fabric,
        *mut c_void,
    ) -> c_int,
    domain: OnceLock<
        unsafe extern "C" fn(
            *mut raw::fid_fabric,
            *mut raw::fi_info,
            *mut *mut raw::fid_domain,
            *mut c_void,
        ) -> c_int,
    >,
    tables: OnceLock<raw::fi_ops_domain>,
}

static REAL: OnceLock<Real> = OnceLock::new();
static VECTOR_IS_FULL: AtomicBool = AtomicBool::new(false);
static QUEUE_IS_FULL: AtomicBool = AtomicBool::new(false);

/// A provider's table, of which it says itself how long it is, for this test to change.
///
/// # Safety
/// The table is one of libfabric's, which begins with its size.
unsafe fn own<T>(table: *const T) -> *mut T {
    // SAFETY: this function's contract.
    unsafe {
        let bytes = *table.cast::<usize>();
        let words = vec![0u64; bytes.max(size_of::<T>()).div_ceil(8)].leak();
        ptr::copy_nonoverlapping(table.cast::<u8>(), words.as_mut_ptr().cast(), bytes);
        words.as_mut_ptr().cast()
    }
}

unsafe extern "C" fn fabric(
    attr: *mut raw::fi_fabric_attr,
    out: *mut *mut raw::fid_fabric,
    context: *mut c_void,
) -> c_int {
    let real = REAL.get().expect("set before it is called");
    // SAFETY: passed on; the object is open when it succeeds.
    unsafe {
        let code = (real.fabric)(attr, out, context);
        if code == 0 {
            let table = own((**out).ops);
            let _ = real
                .domain
                .set((*table).domain.expect("every fabric has one"));
            (*table).domain = Some(domain);
            (**out).ops = table;
        }
        code
    }
}

unsafe extern "C" fn domain(
    fabric: *mut raw::fid_fabric,
    info: *mut raw::fi_info,
    out: *mut *mut raw::fid_domain,
    context: *mut c_void,
) -> c_int {
    let real = REAL.get().expect("set before it is called");
    // SAFETY: as above.
    unsafe {
        let code = (real.domain.get().expect("set"))(fabric, info, out, context);
        if code == 0 {
            let table = own((**out).ops);
            let _ = real.tables.set(ptr::read(table));
            (*table).av_open = Some(vector);
            (*table).cq_open = Some(queue);
            (**out).ops = table;
        }
        code
    }
}

fn tables() -> &'static raw::fi_ops_domain {
    let real = REAL.get().expect("set before it is called");
    real.tables.get().expect("a domain is open")
}

unsafe extern "C" fn vector(
    domain: *mut raw::fid_domain,
    attr: *mut raw::fi_av_attr,
    out: *mut *mut raw::fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let code = tables().av_open.expect("there")(domain, attr, out, context);
        if code == 0 && VECTOR_IS_FULL.load(Ordering::SeqCst) {
            let table = own((**out).ops);
            (*table).insert = Some(no_room);
            (**out).ops = table;
        }
        code
    }
}

/// As many as there is room for.
unsafe extern "C" fn no_room(
    _: *mut raw::fid_av,
    _: *const c_void,
    _: usize,
    _: *mut raw::fi_addr_t,
    _: u64,
    _: *mut c_void,
) -> c_int {
    0
}

unsafe extern "C" fn queue(
    domain: *mut raw::fid_domain,
    attr: *mut raw::fi_cq_attr,
    out: *mut *mut raw::fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let code = tables().cq_open.expect("there")(domain, attr, out, context);
        if code == 0 && QUEUE_IS_FULL.load(Ordering::SeqCst) {
            let table = own((**out).ops);
            (*table).read = Some(there_is_an_error);
            (*table).readerr = Some(overrun);
            (**out).ops = table;
        }
        code
    }
}

unsafe extern "C" fn there_is_an_error(_: *mut raw::fid_cq, _: *mut c_void, _: usize) -> isize {
    -(raw::FI_EAVAIL as isize)
}

unsafe extern "C" fn overrun(
    _: *mut raw::fid_cq,
    entry: *mut raw::fi_cq_err_entry,
    _: u64,
) -> isize {
    // SAFETY: the caller has room for an entry.
    unsafe { (*entry).err = raw::FI_EOVERRUN };
    1
}

/// libfabric with this test's functions in front; `None`, aloud, where there is none.
fn library() -> Option<Arc<Ofi>> {
    if let Err(Error::NoLibrary { detail }) = Ofi::load() {
        println!("skipped: no libfabric ({detail})");
        return None;
    }
    // SAFETY: it was just loaded by this name, and is never unloaded.
    let mut api = unsafe {
        let library = Box::leak(Box::new(
            Library::new("libfabric.so.1").expect("just loaded"),
        ));
        raw::Api::from_library(library, "libfabric.so.1").expect("just loaded")
    };
    REAL.get_or_init(|| Real {
        fabric: api.fabric,
        domain: OnceLock::new(),
        tables: OnceLock::new(),
    });
    api.fabric = fabric;
    // SAFETY: the library's own functions, but for those above, which call them.
    Some(unsafe { Ofi::from_api(api) }.expect("new enough"))
}

struct Bytes(NonNull<u8>);

// SAFETY: leaked memory of the heap.
unsafe impl Memory for Bytes {
    fn addr(&self) -> NonNull<u8> {
        self.0
    }
    fn len(&self) -> usize {
        64
    }
}
// SAFETY: an address.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

fn endpoint(ofi: &Arc<Ofi>) -> Option<Endpoint> {
    let place = Place {
        address: Some("127.0.0.1".to_owned()),
        ..Place::of("tcp;ofi_rxm")
    };
    let info = match ofi.find(&place) {
        Ok(info) => info,
        Err(e @ Error::NoProvider { .. }) => {
            println!("skipped: {e}");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let domain = Domain::open(&info).expect("opened");
    let depths = Depths {
        sends: 4,
        receives: 0,
        completions: 8,
    };
    let mut endpoint = Endpoint::open(&domain, Vec::new(), depths).expect("an endpoint");
    let at = vec![0u8; 64].leak().as_mut_ptr();
    let bytes = Bytes(NonNull::new(at).expect("memory"));
    endpoint.expose(Arc::new(bytes), 7).expect("a window");
    Some(endpoint)
}

#[test]
fn a_vector_and_a_queue_that_are_full_are_said_in_one_line_each() {
    let Some(ofi) = library() else { return };
    VECTOR_IS_FULL.store(true, Ordering::SeqCst);
    let Some(full) = endpoint(&ofi) else { return };
    VECTOR_IS_FULL.store(false, Ordering::SeqCst);
    let address = full.address().expect("an address");
    let line = full.introduce(&address).expect_err("no room").to_string();
    for part in ["fi_av_insert", "tcp;ofi_rxm", "127.0.0.1", "has no room"] {
        assert!(line.contains(part) && !line.contains('\n'), "{line}");
    }
    println!("{line}");

    QUEUE_IS_FULL.store(true, Ordering::SeqCst);
    let full = endpoint(&ofi).expect("as before");
    QUEUE_IS_FULL.store(false, Ordering::SeqCst);
    full.introduce(&address).expect("room again");
    let line = full.poll(&mut |_| {}).expect_err("full").to_string();
    assert!(
        line.starts_with("the completion queue is full") && !line.contains('\n'),
        "{line}"
    );
    println!("{line}");
}
