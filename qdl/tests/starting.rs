//! A dispatcher or server that starts only some of its threads leaves none running. A separate
//! program, because the limit on descriptors is the process's.
#![cfg(not(feature = "loom"))]

use std::{fs, sync::Arc};

use fabric::os::{open_files, set_open_files};
use qdl::testkit::eventually_or;
use qdl::{
    connection::{NicThreadCfgs, Spin},
    dispatch::{
        Completer, DispatchCfgs, DispatchEvent, DispatchNic, Dispatcher, Owner, Response, Sample,
    },
    serve::{Arrival, OnConnectionLost, Server, Service},
};

struct Nothing;

impl Completer for Nothing {
    fn complete(&mut self, _: &mut dyn ExactSizeIterator<Item = Response<'_>>) {}
}

impl Owner for Nothing {
    fn complete_empty(&self, _: &[Sample]) {}
    fn event(&self, _: DispatchEvent) {}
}

impl Service for Nothing {
    fn arrived(&self, _: &mut Vec<Arrival>) {}
}

fn nic_threads() -> Vec<NicThreadCfgs> {
    let cfgs = |i| NicThreadCfgs::new(format!("starts-{i}"), Spin::new(0), 1_000_000);
    (0..3).map(cfgs).collect()
}

/// Returns the number of threads that the test started.
fn running() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    tasks
        .flatten()
        .filter_map(|t| fs::read_to_string(t.path().join("comm")).ok())
        .filter(|name| name.starts_with("starts-"))
        .count()
}

fn descriptors_left(n: u64) {
    let used = fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let mut used: Vec<u64> = used
        .filter_map(|f| f.file_name().to_str()?.parse().ok())
        .collect();
    // The folder's descriptor was the lowest free one, and is free again.
    used.sort_unstable();
    let mut free = 0;
    let highest = (0..).find(|fd| {
        free += u64::from(!used.contains(fd));
        free == n
    });
    let mut limit = open_files().expect("a limit");
    limit.rlim_cur = highest.unwrap_or(0).min(limit.rlim_max);
    set_open_files(limit).expect("set");
}

fn none_is_left() {
    eventually_or(
        || format!("{} threads run for ever", running()),
        || running() == 0,
    );
}

#[test]
fn what_could_not_be_started_whole_leaves_no_thread_behind() {
    // Each thread needs two: the third thread finds one.
    descriptors_left(5);
    let rails = nic_threads()
        .into_iter()
        .map(|cfgs| DispatchNic {
            cfgs,
            completer: Box::new(Nothing),
        })
        .collect();
    let made = Dispatcher::new(DispatchCfgs::default(), rails, Arc::new(Nothing));
    assert!(made.is_err(), "there were descriptors for every thread");
    descriptors_left(64);
    none_is_left();

    descriptors_left(5);
    let service: Arc<dyn Service> = Arc::new(Nothing);
    let lost: Arc<OnConnectionLost> = Arc::new(|_| {});
    let made = Server::new(nic_threads(), &service, &lost);
    assert!(made.is_err(), "there were descriptors for every thread");
    descriptors_left(64);
    none_is_left();
}
