//! `world`: tries seeds, replays one plan, or draws a picture. `cargo xtask world` runs it.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use clap::Parser;
use world::{
    picture,
    plan::Plan,
    run,
    search::{Search, search},
};

/// Time after which a world does not end: a step loops for ever.
const STUCK: Duration = Duration::from_secs(60);

static PROGRESS: AtomicU64 = AtomicU64::new(0);

#[derive(Parser)]
#[command(about = "Both ends of the data plane in one thread, by seed")]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Most seeds.
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// Most seconds.
    #[arg(long, default_value_t = 86_400)]
    seconds: u64,
    /// Print the history of this plan, or of this seed.
    #[arg(long)]
    replay: Option<String>,
    /// Write the picture of docs/failover.md to this file.
    #[arg(long)]
    picture: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    std::thread::spawn(watch);
    if let Some(file) = arguments.picture {
        return draw(&file);
    }
    if let Some(text) = arguments.replay {
        return replay(&text);
    }
    let cfgs = Search {
        seed: arguments.seed,
        schedules: arguments.schedules,
        most: Duration::from_secs(arguments.seconds),
    };
    println!("seeds from {}", cfgs.seed);
    let (tally, found) = search(&cfgs, &PROGRESS);
    println!("{tally}");
    match found {
        None => ExitCode::SUCCESS,
        Some(found) => {
            println!("\n{found}");
            ExitCode::FAILURE
        }
    }
}

fn draw(file: &Path) -> ExitCode {
    let plan = picture::plan();
    let outcome = run(&plan, true);
    match (
        std::fs::write(file, picture::draw(&plan, &outcome)),
        outcome.violation,
    ) {
        (Ok(()), None) => ExitCode::SUCCESS,
        (written, violation) => {
            eprintln!("world: {}: {written:?}, {violation:?}", file.display());
            ExitCode::FAILURE
        }
    }
}

fn replay(text: &str) -> ExitCode {
    let plan = match text.parse() {
        Ok(seed) => Plan::of(seed),
        Err(_) => match Plan::parse(text) {
            Ok(plan) => plan,
            Err(e) => {
                eprintln!("world: {e}");
                return ExitCode::from(2);
            }
        },
    };
    println!("{plan}");
    let outcome = run(&plan, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

/// Ends the program when no world has ended for [`STUCK`].
fn watch() {
    let mut before = 0;
    loop {
        std::thread::sleep(STUCK);
        let now = PROGRESS.load(Ordering::Relaxed);
        if now == before {
            eprintln!("world: a step has not ended for {STUCK:?}, after {now} seeds");
            std::process::exit(3);
        }
        before = now;
    }
}
