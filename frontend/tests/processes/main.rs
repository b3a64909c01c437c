//! Schedules of timed faults, with real programs over TCP in network namespaces of their own. A
//! seed gives the faults; plans have the words and the format of the simulated world.
//!
//! `cargo xtask world --processes N` runs N schedules. `QDL_SCHEDULES` is their number,
//! `QDL_SCHEDULE_SEED` the first seed, `QDL_SCHEDULES_AT_ONCE` how many run at a time, and
//! `QDL_PLAN` a plan to run instead, with the programs' debug lines. Needs root and iproute2.
//! With `QDL_RDMA_DEVICES`, as in the guest of `cargo xtask soft-roce`, the programs use queue
//! pairs, and plans have the faults of processes and sessions.
//!
//! * `plans` - plans from seeds, and what a plan's words do to processes
//! * `strike` - makes and ends faults
//! * `schedule` - one schedule: programs, faults, the next frontend
//! * `verdict` - what must hold
//! * `wires` - cables between namespaces, or RDMA devices
//! * `tally` - counts over all schedules

#[path = "../common/mod.rs"]
mod common;
mod plans;
mod schedule;
mod strike;
mod tally;
mod verdict;
mod wires;

use std::{
    env,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use common::number_of_environment;
use tally::Tally;
use world::plan::Plan;

#[test]
#[ignore = "by hand: cargo xtask world --processes N"]
fn schedules_of_faults_keep_each_run_whole() {
    let (count, first, at_once) = (
        number_of_environment("QDL_SCHEDULES", 20),
        number_of_environment("QDL_SCHEDULE_SEED", 1),
        number_of_environment("QDL_SCHEDULES_AT_ONCE", 8),
    );
    let given = env::var("QDL_PLAN").ok();
    let given = given.map(|text| Plan::parse(&text).expect("QDL_PLAN is a plan"));
    let (next, tally) = (AtomicU64::new(0), Mutex::new(Tally::default()));
    let began = Instant::now();
    let work = || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= count {
                return;
            }
            let plan = given.clone();
            let plan = plan.unwrap_or_else(|| plans::draw(first.wrapping_add(nth)));
            let result = schedule::run(&plan);
            if let Err(failure) = &result {
                println!("\nFAILED: {plan}\n{failure}\n");
            }
            tally.lock().expect("no panic").add(&plan, &result);
            if nth % 50 == 49 {
                let minutes = began.elapsed().as_secs_f64() / 60.0;
                println!("{} schedules begun, {minutes:.1} minutes", nth + 1);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once.min(count) {
            scope.spawn(work);
        }
    });
    let tally = tally.into_inner().expect("no panic");
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    println!("\nseeds from {first}: {tally}");
    println!("{:.0} schedules a minute", count as f64 / minutes);
    assert_eq!(tally.failed(), &[""; 0], "these plans failed");
}
