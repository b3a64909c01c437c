//! What is printed.

use super::{Row, Scenario, plan::Results, readings::Between};

/// Bits a second that the NICs of a large frontend take: 8 of 400 Gbit/s, or 32 of 100.
const WANTED: f64 = 3.2e12;

/// Prints tables and answers.
pub fn print(results: &Results) {
    println!(
        "samples of {} B, {} us from a doorbell to its answers, {} core(s)",
        results.bytes, results.round_trip_us, results.cores
    );
    println!(
        "the stub itself: {:.0} ns to post with a doorbell of its own, {:.0} in a chain of 64, {:.0} to poll an answer",
        results.stub.post_alone_ns, results.stub.post_ns, results.stub.poll_ns
    );
    for scenario in [Scenario::Offline, Scenario::Server, Scenario::Coalesced] {
        let rows: Vec<&Row> = results
            .rows
            .iter()
            .filter(|r| r.scenario == scenario)
            .collect();
        if !rows.is_empty() {
            print_scenario(scenario, &rows, results);
        }
    }
    for i in &results.instructions {
        let steps: Vec<String> = i.each.iter().map(|(s, n)| format!("{s} {n:.0}")).collect();
        println!(
            "{}, {} NIC(s), instructions a sample: {}",
            name(i.scenario),
            i.nics,
            steps.join(", ")
        );
    }
}

fn name(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Offline => "Offline",
        Scenario::Server => "Server",
        Scenario::Coalesced => "Server, coalesced",
    }
}

fn print_scenario(scenario: Scenario, rows: &[&Row], results: &Results) {
    println!(
        "\n{}\n{:>4} {:>5} {:>11} {:>7} {:>11} {:>6} {:>7} {:>6} {:>7} {:>7} {:>9} {:>8} {:>7} {:>7}",
        name(scenario),
        "NICs",
        "cores",
        "samples/s",
        "Tbit/s",
        "of a NIC/s",
        "issue",
        "ns",
        "NICs",
        "ns",
        "CPU ns",
        "doorbells",
        "requests",
        "polled",
        "allocs"
    );
    for r in rows {
        println!("{}", line(r));
    }
    if let Some(text) = slope(rows) {
        println!("{text}");
    }
    let wanted = WANTED / (8.0 * results.bytes as f64);
    let mut nics: Vec<usize> = rows
        .iter()
        .map(|r| r.nics)
        .filter(|n| [8, 32].contains(n))
        .collect();
    nics.dedup();
    for n in nics {
        let some: Vec<&Row> = rows.iter().filter(|r| r.nics == n).copied().collect();
        println!("{}", verdict(n, wanted, &some));
    }
}

/// One row. `issue` and `NICs` are cores that those threads kept busy; `ns` is their CPU time for
/// each sample.
fn line(r: &Row) -> String {
    let busy = |of: &[Between]| of.iter().map(|b| b.busy).sum::<f64>();
    format!(
        "{:>4} {:>5} {:>11.0} {:>7.3} {:>11.0} {:>6.2} {:>7.0} {:>6.2} {:>7.0} {:>7.0} {:>9.3} {:>8.3} {:>7.3} {:>7.4}",
        r.nics,
        r.cores,
        r.per_s,
        r.tbit_s,
        r.per_s / r.nics as f64,
        busy(&r.issue),
        Between::cpu_ns(&r.issue),
        busy(&r.nic),
        Between::cpu_ns(&r.nic),
        r.cpu_ns,
        r.counts.doorbells,
        r.counts.work_requests,
        r.counts.completions,
        r.counts.nic_allocations
    )
}

/// The rate with the most NICs beside that with the fewest, on all cores.
fn slope(rows: &[&Row]) -> Option<String> {
    let cores = rows.iter().map(|r| r.cores).max()?;
    let mut on_all = rows.iter().filter(|r| r.cores == cores);
    let first = on_all.next()?;
    let last = on_all.next_back()?;
    Some(format!(
        "from {} to {} NICs on {cores} core(s): {:.2} times the samples",
        first.nics,
        last.nics,
        last.per_s / first.per_s
    ))
}

/// How many cores `wanted` samples a second take, measured or by the CPU time of a sample.
fn verdict(nics: usize, wanted: f64, rows: &[&Row]) -> String {
    let gbit = WANTED / 1e9 / nics as f64;
    let head = format!("{nics} x {gbit:.0} Gbit/s, {:.2} million/s:", wanted / 1e6);
    let enough = rows
        .iter()
        .filter(|r| r.per_s >= wanted)
        .min_by_key(|r| r.cores);
    if let Some(r) = enough {
        return format!(
            "{head} {} core(s) carry {:.2} million/s",
            r.cores,
            r.per_s / 1e6
        );
    }
    let best = rows.iter().max_by(|a, b| a.per_s.total_cmp(&b.per_s));
    best.map_or(head.clone(), |r| {
        format!(
            "{head} not with {} core(s), which carry {:.2} of it; {:.1} by the CPU time of a sample, if \
             cores add up",
            r.cores,
            r.per_s / wanted,
            wanted * r.cpu_ns / 1e9
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(nics: usize, cores: usize, per_s: f64, cpu_ns: f64) -> Row {
        Row {
            scenario: Scenario::Offline,
            nics,
            connections: 4 * nics,
            cores,
            bytes: 150_528,
            samples: 1,
            per_s,
            tbit_s: 0.0,
            cpu_ns,
            issue: Vec::new(),
            nic: Vec::new(),
            counts: super::super::run::Counts::default(),
            in_flight_max: 0,
        }
    }

    #[test]
    fn cores_are_those_measured_where_there_were_enough() {
        let rows = [
            row(8, 1, 1e6, 1000.0),
            row(8, 2, 3e6, 700.0),
            row(8, 4, 4e6, 700.0),
        ];
        let all: Vec<&Row> = rows.iter().collect();
        let text = verdict(8, 2.66e6, &all);
        assert!(text.ends_with("2 core(s) carry 3.00 million/s"), "{text}");
        let text = verdict(8, 8e6, &all);
        assert!(text.contains("5.6 by the CPU time"), "{text}");
        let two = [
            row(1, 4, 2e6, 1.0),
            row(8, 2, 9e6, 1.0),
            row(8, 4, 3e6, 1.0),
        ];
        let text = slope(&two.iter().collect::<Vec<_>>()).expect("rows");
        assert!(
            text.starts_with("from 1 to 8 NICs on 4 core(s): 1.50"),
            "{text}"
        );
    }
}
