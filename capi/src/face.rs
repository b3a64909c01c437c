//! The functions of the header, which documents them. Each checks its pointers and catches panics.
#![allow(
    clippy::missing_safety_doc,
    reason = "include/qdl.h says what each pointer has to be"
)]

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    num::NonZeroU32,
    os::fd::RawFd,
    path::Path,
    slice,
    sync::Arc,
    time::Duration,
};

use qdl::request::RequestOptions;

use crate::{
    accelerator::Accelerator,
    events::{Lease, Notes},
    failure::{self, Failure, call},
    frontend::{Frontend, Written},
    handles::{self, Object},
    types::{self, qdl_answer, qdl_arrival, qdl_event, qdl_options, qdl_sample},
};

/// Checks a pointer to `n` structs.
fn check<T>(pointer: *const T, n: usize, name: &str) -> Result<(), Failure> {
    match n == 0 || !pointer.is_null() && pointer.is_aligned() {
        true => Ok(()),
        false => Err(Failure::usage(format!("`{name}` is NULL or not aligned"))),
    }
}

/// Refuses a call that could take nothing: it would wait with its descriptor readable.
fn at_least_one(max: usize) -> Result<(), Failure> {
    match max {
        0 => Err(Failure::usage("`max` is 0")),
        _ => Ok(()),
    }
}

/// The `n` structs at a pointer.
///
/// # Safety
/// If it is not null, they are readable, and no thread writes them while the slice lives.
unsafe fn read<'a, T>(pointer: *const T, n: usize, name: &str) -> Result<&'a [T], Failure> {
    check(pointer, n, name)?;
    match n {
        0 => Ok(&[]),
        // SAFETY: the pointer is checked, and the caller promises the rest.
        _ => Ok(unsafe { slice::from_raw_parts(pointer, n) }),
    }
}

/// The `n` structs at a pointer, to write.
///
/// # Safety
/// As for [`read`], and no other thread reads or writes them.
unsafe fn write<'a, T>(pointer: *mut T, n: usize, name: &str) -> Result<&'a mut [T], Failure> {
    check(pointer, n, name)?;
    match n {
        0 => Ok(&mut []),
        // SAFETY: the pointer is checked, and the caller promises the rest.
        _ => Ok(unsafe { slice::from_raw_parts_mut(pointer, n) }),
    }
}

/// A text.
///
/// # Safety
/// If it is not null, it ends with a zero, and no thread writes it while the text lives.
unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(pointer, 1, name)?;
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Failure::usage(format!("`{name}` is not UTF-8")))
}

/// A configuration: one of the two.
///
/// # Safety
/// As for [`text`].
unsafe fn written<'a>(file: *const c_char, yaml: *const c_char) -> Result<Written<'a>, Failure> {
    match (file.is_null(), yaml.is_null()) {
        // SAFETY: the caller promises it.
        (false, true) => Ok(Written::File(Path::new(unsafe { text(file, "file") }?))),
        // SAFETY: the caller promises it.
        (true, false) => Ok(Written::Text(unsafe { text(yaml, "yaml") }?)),
        _ => Err(Failure::usage(
            "give `file` or `yaml`, and NULL for the other",
        )),
    }
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(u64::from(ms)).min(Frontend::MOST)
}

/// Copies a text with a zero behind it, if it fits; returns its length and whether it fitted.
fn put(text: &str, to: &mut [u8]) -> (i64, bool) {
    let fits = text.len() < to.len();
    if fits {
        to[..text.len()].copy_from_slice(text.as_bytes());
        to[text.len()] = 0;
    }
    (text.len() as i64, fits)
}

fn put_notes(notes: &Notes, to: &mut [u8]) -> i64 {
    let mut len = 0;
    notes.read(|text| {
        let (bytes, fits) = put(text, to);
        len = bytes;
        fits
    });
    len
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C" fn qdl_abi() -> u32 {
    types::QDL_ABI as u32
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C" fn qdl_error() -> *const c_char {
    failure::text()
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_open(
    file: *const c_char,
    yaml: *const c_char,
    handle: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for it.
        let (to, written) = unsafe { (write(handle, 1, "handle")?, written(file, yaml)?) };
        to[0] = handles::add(Object::Frontend(Arc::new(Frontend::open(written)?)));
        Ok(0)
    }) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_register(handle: u64, memory: *mut c_void, len: usize) -> c_int {
    // SAFETY: the header asks for it.
    call(|| unsafe { handles::frontend(handle)?.register(memory, len) }.map(|_| 0)) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_connect(handle: u64, warm_up: *const qdl_sample, n: usize) -> c_int {
    call(|| {
        // SAFETY: the header asks for it.
        let warm_up = unsafe { read(warm_up, n, "warm_up") }?;
        handles::frontend(handle)?.connect(warm_up).map(|()| 0)
    }) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_issue(handle: u64, samples: *const qdl_sample, n: usize) -> c_int {
    call(|| {
        // SAFETY: the header asks for it.
        let samples = unsafe { read(samples, n, "samples") }?;
        handles::frontend(handle)?.issue(samples).map(|()| 0)
    }) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_poll(
    handle: u64,
    events: *mut qdl_event,
    max: usize,
    timeout_ms: u32,
    lease: *mut u64,
) -> i64 {
    call(|| {
        // SAFETY: the header asks for it.
        let (out, to) = unsafe { (write(events, max, "events")?, write(lease, 1, "lease")?) };
        at_least_one(max)?;
        let frontend = handles::frontend(handle)?;
        let (n, kept) = frontend.events.poll(out, millis(timeout_ms));
        to[0] = kept.map_or(0, |lease| handles::add(Object::Lease(Arc::new(lease))));
        Ok(n as i64)
    })
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C" fn qdl_release(lease: u64) -> c_int {
    call(|| {
        if !matches!(handles::get(lease)?, Object::Lease(_)) {
            return Err(Failure::usage("qdl_release wants a lease of qdl_poll"));
        }
        if let Object::Lease(own) = handles::take(lease)? {
            // Without effect if a second thread looks at the handle just now: the drop frees, too.
            Arc::into_inner(own).into_iter().for_each(Lease::release);
        }
        Ok(0)
    }) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C" fn qdl_fd(handle: u64) -> RawFd {
    call(|| {
        Ok(i64::from(match handles::get(handle)? {
            Object::Frontend(frontend) => frontend.events.bell().fd(),
            Object::Accelerator(node) => node.bell().fd(),
            Object::Lease(_) => return Err(Failure::usage("a lease has no descriptor")),
        }))
    }) as RawFd
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_text(handle: u64, which: c_int, to: *mut c_char, room: usize) -> i64 {
    call(|| {
        // SAFETY: the header asks for it.
        let to = unsafe { write(to.cast::<u8>(), room, "to") }?;
        let unknown = || Failure::usage(format!("{which} is no text of this handle"));
        let text = match (handles::get(handle)?, which) {
            (Object::Frontend(f), types::QDL_TEXT_NOTES) => {
                return Ok(put_notes(&f.events.notes, to));
            }
            (Object::Accelerator(n), types::QDL_TEXT_NOTES) => return Ok(put_notes(&n.notes, to)),
            (Object::Frontend(f), types::QDL_TEXT_NAME) => f.name()?,
            (Object::Frontend(f), types::QDL_TEXT_COUNTERS) => f.counters()?,
            (Object::Frontend(f), types::QDL_TEXT_RECORD) => f.record()?,
            (Object::Accelerator(n), types::QDL_TEXT_NAME) => n.name(),
            (Object::Accelerator(n), types::QDL_TEXT_ADDRESS) => n.address().to_owned(),
            (Object::Accelerator(n), types::QDL_TEXT_COUNTERS) => n.counters(),
            _ => return Err(unknown()),
        };
        Ok(put(&text, to).0)
    })
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_cancel(handle: u64, ids: *const u64, n: usize) -> c_int {
    call(|| {
        // SAFETY: the header asks for it.
        let ids = unsafe { read(ids, n, "ids") }?;
        handles::frontend(handle)?.cancel(ids).map(|()| 0)
    }) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_abort(handle: u64, why: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header asks for it.
        let why = unsafe { text(why, "why") }?;
        handles::frontend(handle)?.abort(why).map(|()| 0)
    }) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C" fn qdl_finish(handle: u64) -> c_int {
    call(|| finish(&handles::get(handle)?)) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C" fn qdl_close(handle: u64) -> c_int {
    call(|| match handles::get(handle)? {
        Object::Lease(_) => Err(Failure::usage("qdl_release ends a lease")),
        _ => finish(&handles::take(handle)?),
    }) as c_int
}

fn finish(object: &Object) -> Result<i64, Failure> {
    match object {
        Object::Frontend(frontend) => frontend.finish().map(|()| 0),
        Object::Accelerator(node) => {
            node.finish();
            Ok(0)
        }
        Object::Lease(_) => Err(Failure::usage("a lease has no run to finish")),
    }
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_serve(
    file: *const c_char,
    yaml: *const c_char,
    engine: *const c_char,
    options: u32,
    handle: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for it.
        let (to, written) = unsafe { (write(handle, 1, "handle")?, written(file, yaml)?) };
        // SAFETY: the header asks for it.
        let engine = unsafe { text(engine, "engine") }?;
        let node = Accelerator::serve(written, engine, options)?;
        to[0] = handles::add(Object::Accelerator(Arc::new(node)));
        Ok(0)
    }) as c_int
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_arrivals(
    handle: u64,
    arrivals: *mut qdl_arrival,
    max: usize,
    timeout_ms: u32,
) -> i64 {
    call(|| {
        at_least_one(max)?;
        // SAFETY: the header asks for it.
        let out = unsafe { write(arrivals, max, "arrivals") }?;
        Ok(handles::accelerator(handle)?.arrivals(out, millis(timeout_ms)) as i64)
    })
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_respond(handle: u64, answers: *mut qdl_answer, n: usize) -> i64 {
    call(|| {
        // SAFETY: the header asks for it.
        let answers = unsafe { write(answers, n, "answers") }?;
        let node = handles::accelerator(handle)?;
        // SAFETY: the header asks for it.
        Ok(unsafe { node.respond(answers) } as i64)
    })
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_options_write(
    options: *const qdl_options,
    to: *mut c_void,
    room: usize,
) -> i64 {
    call(|| {
        // SAFETY: the header asks for it.
        let (own, to) = unsafe {
            (
                read(options, 1, "options")?,
                write(to.cast::<u8>(), room, "to")?,
            )
        };
        let mut block = Vec::new();
        let encoded = from_face(&own[0])?.encode(&mut block);
        encoded.map_err(Failure::usage)?;
        let to = to.get_mut(..block.len()).ok_or_else(|| {
            Failure::usage(format!(
                "a block of {} bytes, and room for {room}",
                block.len()
            ))
        })?;
        to.copy_from_slice(&block);
        Ok(block.len() as i64)
    })
}

/// As in the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qdl_options_read(
    handle: u64,
    ticket: u64,
    options: *mut qdl_options,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for it.
        let to = unsafe { write(options, 1, "options") }?;
        to[0] = to_face(&handles::accelerator(handle)?.options_of(ticket)?);
        Ok(0)
    }) as c_int
}

fn from_face(own: &qdl_options) -> Result<RequestOptions, Failure> {
    let has = |bit: u32| own.set & bit != 0;
    let ids = own.stop_ids.get(..own.stop_count as usize);
    let ids = ids.ok_or_else(|| Failure::usage("`stop_count` is above QDL_MAX_STOP_IDS"))?;
    let limit = NonZeroU32::new(own.token_limit).filter(|_| has(types::QDL_TOKEN_LIMIT));
    Ok(RequestOptions {
        token_limit: limit,
        min_tokens: has(types::QDL_MIN_TOKENS).then_some(own.min_tokens),
        temperature: has(types::QDL_TEMPERATURE).then_some(own.temperature),
        top_p: has(types::QDL_TOP_P).then_some(own.top_p),
        top_k: has(types::QDL_TOP_K).then_some(own.top_k),
        seed: has(types::QDL_SEED).then_some(own.seed),
        ignore_eos: has(types::QDL_IGNORE_EOS),
        stop_ids: if has(types::QDL_STOP_IDS) {
            ids.to_vec()
        } else {
            Vec::new()
        },
        handle: Vec::new(),
    })
}

fn to_face(options: &RequestOptions) -> qdl_options {
    let mut stop_ids = [0; types::QDL_MAX_STOP_IDS as usize];
    for (to, id) in stop_ids.iter_mut().zip(&options.stop_ids) {
        *to = *id;
    }
    let set = [
        (options.token_limit.is_some(), types::QDL_TOKEN_LIMIT),
        (options.min_tokens.is_some(), types::QDL_MIN_TOKENS),
        (options.temperature.is_some(), types::QDL_TEMPERATURE),
        (options.top_p.is_some(), types::QDL_TOP_P),
        (options.top_k.is_some(), types::QDL_TOP_K),
        (options.seed.is_some(), types::QDL_SEED),
        (options.ignore_eos, types::QDL_IGNORE_EOS),
        (!options.stop_ids.is_empty(), types::QDL_STOP_IDS),
    ];
    qdl_options {
        set: set
            .into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, bit)| bit)
            .sum(),
        token_limit: options.token_limit.map_or(0, NonZeroU32::get),
        min_tokens: options.min_tokens.unwrap_or_default(),
        top_k: options.top_k.unwrap_or_default(),
        temperature: options.temperature.unwrap_or_default(),
        top_p: options.top_p.unwrap_or_default(),
        seed: options.seed.unwrap_or_default(),
        stop_count: options.stop_ids.len() as u32,
        stop_ids,
        reserved: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_face() {
        let all = RequestOptions {
            token_limit: NonZeroU32::new(9),
            min_tokens: Some(2),
            temperature: Some(0.5),
            top_p: Some(0.25),
            top_k: Some(3),
            seed: Some(4),
            ignore_eos: true,
            stop_ids: vec![5, 6],
            handle: Vec::new(),
        };
        for options in [all, RequestOptions::NONE] {
            let face = to_face(&options);
            assert_eq!(from_face(&face).expect("in range"), options);
        }
        let mut wrong = to_face(&RequestOptions::NONE);
        wrong.stop_count = types::QDL_MAX_STOP_IDS + 1;
        assert!(from_face(&wrong).is_err());
        assert!(qdl::request::MAX_ENCODED_OPTIONS <= types::QDL_MAX_OPTIONS as usize);
    }
}
