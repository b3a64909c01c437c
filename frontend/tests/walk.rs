//! The functions of a sample's way, as backtraces of a run over TCP show them, against the lists in
//! `docs/architecture.md`.

mod common;

use std::{
    backtrace::Backtrace,
    cell::Cell,
    collections::BTreeSet,
    ffi::c_void,
    fs,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use clap::{CommandFactory, FromArgMatches};
use common::{TestFolder, repository, two_of_digests, words};
use frontend::{cli::Args, run};

/// Functions from the outermost to the innermost, each with its file.
type Way = Vec<(String, String)>;

/// The different ways to the functions below.
static WAYS: Mutex<BTreeSet<Way>> = Mutex::new(BTreeSet::new());

/// Backtraces still to take. Each takes milliseconds.
static LEFT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_TAKING: Cell<bool> = const { Cell::new(false) };
}

/// Adds the way to the caller's caller.
fn add_way() {
    let left = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    if left.is_err() || IS_TAKING.replace(true) {
        return;
    }
    let way = own_functions(&Backtrace::force_capture().to_string());
    WAYS.lock().expect("alive").insert(way);
    IS_TAKING.set(false);
}

/// The functions of this project in a backtrace, without closures.
fn own_functions(backtrace: &str) -> Way {
    let root = format!("{}/", repository().display());
    let mut way = Way::new();
    let mut lines = backtrace.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some((_, symbol)) = line.split_once(": ") else {
            continue;
        };
        let file = lines.peek().and_then(|next| next.strip_prefix("at "));
        let file = file.and_then(|file| file.split(':').next());
        let file = file.unwrap_or_default();
        // Files below the working directory are shown relative to it.
        let file = file.replacen("./", "frontend/", usize::from(file.starts_with("./")));
        let file = file.strip_prefix(&root).unwrap_or(&file);
        let name = last_name(symbol);
        let is_own = file.ends_with(".rs") || file.ends_with(".cc");
        let is_rust_or_test = file.starts_with('/') || file.contains("tests/");
        if is_own && !is_rust_or_test && !name.contains("closure") {
            way.push((name, file.to_owned()));
        }
    }
    way.reverse();
    way
}

/// The last part of a path, without the types of a generic function and without parameters.
fn last_name(symbol: &str) -> String {
    let mut depth = 0;
    let mut plain = String::new();
    for c in symbol.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            '(' if depth == 0 && !plain.is_empty() => break,
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let mut parts = plain.rsplit("::").filter(|part| !part.is_empty());
    parts.next().unwrap_or_default().to_owned()
}

unsafe extern "C" {
    fn lg_complete(responses: *const c_void, count: usize) -> i32;
}

/// Stands in for the C library's function.
///
/// # Safety
/// As for `send(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: i32, data: *const c_void, len: usize, flags: i32) -> isize {
    add_way();
    let no_address = std::ptr::null::<c_void>();
    // SAFETY: the caller's arguments, and no address.
    let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, data, len, flags, no_address, 0) };
    sent as isize
}

/// Stands in for the C library's function.
///
/// # Safety
/// As for `sendmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> isize {
    add_way();
    // SAFETY: the caller's arguments.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) as isize }
}

/// Stands in for the shim's function.
///
/// # Safety
/// As for the shim's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lg_query_samples_complete(responses: *const c_void, count: usize) -> i32 {
    add_way();
    // SAFETY: the caller's arguments.
    unsafe { lg_complete(responses, count) }
}

/// The ways of this project's threads, for a reader.
fn table(ways: &BTreeSet<Way>) -> String {
    let mut text = String::new();
    for way in ways {
        for (name, file) in way {
            text += &format!("{name} {file}\n");
        }
        text += "\n";
    }
    text
}

/// The lists of the page, by heading.
fn lists() -> Vec<(String, Way)> {
    let page = fs::read_to_string(repository().join("docs/architecture.md")).expect("the page");
    let heading = |section: &str| section.lines().next().unwrap_or_default().to_owned();
    let functions = |section: &str| -> Way {
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let cell = |row: &str, n| {
            let cell = row.split('|').nth(n).unwrap_or_default();
            cell.trim().trim_matches('`').to_owned()
        };
        rows.map(|row| (cell(row, 1), cell(row, 2))).collect()
    };
    let sections = page.split("\n### ").filter(|s| s.starts_with("Functions"));
    sections.map(|s| (heading(s), functions(s))).collect()
}

#[test]
fn samples_go_the_ways_that_the_page_lists() {
    let place = TestFolder::new();
    let (config, _accelerators) = two_of_digests(&place, "", "");
    let out = place.path("out");
    let mut arguments = vec!["frontend", "--config", config.to_str().expect("a path")];
    arguments.extend(["--output", out.to_str().expect("a path")]);
    arguments.extend(words(
        "--scenario server --target-qps 300 --samples 600 --set min_duration=0 \
         --set target_latency=20000 --quiet",
    ));
    let matches = Args::command().get_matches_from(arguments);
    let args = Args::from_arg_matches(&matches).expect("arguments");
    LEFT.store(500, Ordering::Relaxed);
    run(&args).expect("a run");
    LEFT.store(0, Ordering::Relaxed);
    let ways = WAYS.lock().expect("alive");
    let lists = lists();
    assert_eq!(lists.len(), 3, "the page has three lists of functions");
    for (heading, list) in &lists {
        let is_found = ways.iter().any(|way| way.ends_with(list));
        assert!(
            is_found,
            "{heading}: {list:?} ends none of\n{}",
            table(&ways)
        );
    }
}
