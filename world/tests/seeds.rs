//! Seeds that `cargo xtask test` tries for some seconds: new ones each time, but for CI.

use std::{
    env,
    sync::atomic::AtomicU64,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use world::search::{Search, search};

#[test]
#[ignore = "takes 30 s; a step of `cargo xtask test` runs it"]
fn new_seeds_keep_all_invariants() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = since.expect("a clock after 1970").as_nanos() as u64 % 1_000_000_000_000;
    // In CI the seeds are the same for each change, which so fails for itself alone.
    let (seed, schedules, seconds) = match env::var_os("CI") {
        Some(_) => (1, 10_000, 300),
        None => (seed, u64::MAX, 30),
    };
    let cfgs = Search {
        seed,
        schedules,
        most: Duration::from_secs(seconds),
    };
    println!("seeds from {}", cfgs.seed);
    let (tally, found) = search(&cfgs, &AtomicU64::new(0));
    println!("{tally}");
    if let Some(found) = found {
        panic!("{found}");
    }
}
