//! Every pretended system, 200 sessions each: `docs/tune.md` has the table that this prints.
//!
//! `cargo run --release -p tune --example pretended [SESSIONS [PART OF A NAME]]`

use tune::{
    Plan, Session, others,
    pretended::{ALL, CAPACITY, Kind, Pretended},
    random::{Random, seed},
    search::Goal,
};

/// Trials that a session may cost.
const BUDGET: f64 = 400.0;

fn main() {
    let mut words = std::env::args().skip(1);
    let sessions: u64 = words.next().and_then(|w| w.parse().ok()).unwrap_or(200);
    let part = words.next().unwrap_or_default();
    let head = [
        "system",
        "right",
        "above",
        "too low",
        "nothing",
        "trials",
        "begun again",
        "bisection right",
        "its trials",
        "find-peak right",
        "its trials",
    ];
    println!("| {} |\n|{}", head.join(" | "), " --- |".repeat(head.len()));
    let kinds: Vec<Kind> = ALL.into_iter().filter(|k| k.name.contains(&part)).collect();
    // Each on a thread of its own, and their rows in their order.
    let rows: Vec<_> = kinds
        .into_iter()
        .map(|kind| std::thread::spawn(move || row(kind, sessions)))
        .collect();
    for row in rows {
        println!("{}", row.join().expect("a row"));
    }
}

fn row(kind: Kind, sessions: u64) -> String {
    let [mut right, mut above, mut low, mut nothing] = [0_u64; 4];
    let (mut trials, mut again) = (0, 0);
    let mut plain = [(0_u64, 0_usize); 2];
    for i in 0..sessions {
        // From a thirtieth of the capacity to three times it.
        let first = CAPACITY * 10_f64.powf(2.0 * Random(seed(8, i)).unit() - 1.5);
        let mut system = Pretended::new(kind, seed(7, i));
        let mut session = Session::new(Plan {
            goal: Goal::from(first),
            seconds: 1.0,
            full_seconds: None,
            budget_s: BUDGET,
            seed: i,
            knobs: Vec::new(),
            unit: "queries/s".to_owned(),
        });
        session.go(&mut system, &mut ());
        let found = session.search.certified;
        let truth = system.truths().last().copied();
        match (system.is_right(found), found, truth) {
            (true, ..) => right += 1,
            (_, Some(rate), Some(truth)) if rate <= truth => low += 1,
            (_, Some(_), _) => above += 1,
            _ => nothing += 1,
        }
        trials += session.trials.len();
        again += session.search.epoch;
        let searches = [others::bisection, others::find_peak];
        for (search, (right, trials)) in searches.into_iter().zip(&mut plain) {
            let mut system = Pretended::new(kind, seed(9, i));
            // Find-peak wants to begin at a rate that is VALID.
            let found = search(&mut system, first.min(CAPACITY * 0.3)).unwrap_or(None);
            *right += u64::from(system.is_right(found));
            *trials += system.runs;
        }
    }
    let all = sessions as f64;
    let percent = |n: u64| format!("{:.1} %", n as f64 / all * 100.0);
    let mean = |n: usize| format!("{:.0}", n as f64 / all);
    let [bisection, peak] = plain;
    let cells = [
        kind.name.to_owned(),
        percent(right),
        percent(above),
        percent(low),
        percent(nothing),
        mean(trials),
        format!("{:.2}", again as f64 / all),
        percent(bisection.0),
        mean(bisection.1),
        percent(peak.0),
        mean(peak.1),
    ];
    format!("| {} |", cells.join(" | "))
}
