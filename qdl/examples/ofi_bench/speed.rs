//! Our fabric beside libfabric's own way of measuring (`xtask/ofi/rma.c`, a process of its own) and
//! beside our TCP fabric, in turns: each turn runs all of them once, and what counts is the median
//! of the turns' ratios.

use std::process::Command;

use qdl::config::NicConfig;

use super::{
    Lane, ROUND, Round, SLOTS, Way, exchange, fail,
    one_way::{self, Idle},
};

const SIZE: usize = 150_528;
const TURNS: usize = 15;

/// Posted in batches, pinned: the way that the library posts when there is much to send.
const BEST: Way = Way {
    name: "",
    nics: 1,
    warm: true,
    pinned: true,
    batch: 8,
    look_every: 8,
    yields: false,
};

/// Who takes part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    OursOneWay(Idle),
    TcpOneWay(Idle),
    OursExchange,
    TcpExchange,
    /// The C program: its KIND and WAIT.
    Tool(&'static str, &'static str),
}

/// Each beside the one that it is measured by; `None` for those others are measured by.
const ROWS: &[(&str, Who, Option<usize>)] = &[
    ("fi_write", Who::Tool("write", "spin"), None),
    ("fi_writedata", Who::Tool("data", "spin"), Some(0)),
    ("our ofi fabric", Who::OursOneWay(Idle::Spin), Some(0)),
    ("our TCP fabric", Who::TcpOneWay(Idle::Spin), Some(0)),
    ("fi_write, sleeping", Who::Tool("write", "sleep"), None),
    (
        "our ofi fabric, sleeping",
        Who::OursOneWay(Idle::Sleep),
        Some(4),
    ),
    (
        "our TCP fabric, sleeping",
        Who::TcpOneWay(Idle::Sleep),
        Some(4),
    ),
    (
        "fi_writedata, 8 bytes back",
        Who::Tool("answer", "spin"),
        None,
    ),
    ("our ofi fabric, 8 bytes back", Who::OursExchange, Some(7)),
    ("our TCP fabric, 8 bytes back", Who::TcpExchange, Some(7)),
];

fn tool(program: &str, nic: &NicConfig, kind: &str, wait: &str) -> Round {
    let address = nic.address.map(|a| a.to_string()).unwrap_or_default();
    let (size, slots) = (SIZE.to_string(), SLOTS.to_string());
    let ms = ROUND.as_millis().to_string();
    let output = Command::new(program)
        .args([nic.ofi(), &address, &size, &slots, &ms, kind, wait])
        .output()
        .unwrap_or_else(|e| fail(&format!("{program}: {e}")));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace().map(str::parse::<f64>);
    match (words.next(), words.next()) {
        (Some(Ok(rate)), Some(Ok(cpu_us))) => Round {
            exchanges: (rate * 1000.0) as u64,
            seconds: 1000.0,
            cpu_us: cpu_us * rate * 1000.0,
            ..Round::default()
        },
        _ => fail(&format!(
            "{program} says {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn one(who: Who, program: &str, nic: &NicConfig) -> Round {
    match who {
        Who::Tool(kind, wait) => tool(program, nic, kind, wait),
        Who::OursOneWay(idle) => one_way::run(Lane::over_libfabric(nic, SIZE), SIZE, idle),
        Who::TcpOneWay(idle) => one_way::run(Lane::over_tcp(SIZE), SIZE, idle),
        Who::OursExchange => exchange(vec![Lane::over_libfabric(nic, SIZE)], &BEST, SIZE),
        Who::TcpExchange => exchange(vec![Lane::over_tcp(SIZE)], &BEST, SIZE),
    }
}

fn quantiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |q: usize| values[(values.len() - 1) * q / 4];
    [at(2), at(1), at(3)]
}

/// Runs it over one NIC, with this C program.
pub fn run(nic: &NicConfig, program: &str) {
    let mut turns: Vec<Vec<Round>> = Vec::new();
    for turn in 0..TURNS {
        let mut rounds = vec![Round::default(); ROWS.len()];
        // Nobody is always the one that comes after the same other.
        for i in 0..ROWS.len() {
            let row = if turn % 2 == 0 { i } else { ROWS.len() - 1 - i };
            rounds[row] = one(ROWS[row].1, program, nic);
        }
        turns.push(rounds);
    }
    let rate = |r: &Round| r.exchanges as f64 / r.seconds;
    let cpu = |r: &Round| r.cpu_us / r.exchanges.max(1) as f64;
    let each = |r: &Round, n: u64| n as f64 / r.exchanges.max(1) as f64;
    for (i, (name, _, beside)) in ROWS.iter().enumerate() {
        let of = |f: &dyn Fn(&[Round]) -> f64| quantiles(turns.iter().map(|t| f(t)).collect());
        let by = beside.unwrap_or(i);
        println!(
            "{{\"name\": \"{name}\", \"per_second\": {:.0}, \"cpu_us\": {:.2}, \"beside\": \"{}\", \
             \"ratio\": {:?}, \"cpu_ratio\": {:?}, \"posts\": {:.2}, \"looks\": {:.2}}}",
            of(&|t| rate(&t[i]))[0],
            of(&|t| cpu(&t[i]))[0],
            ROWS[by].0,
            of(&|t| rate(&t[i]) / rate(&t[by])),
            of(&|t| cpu(&t[i]) / cpu(&t[by])),
            of(&|t| each(&t[i], t[i].posts))[0],
            of(&|t| each(&t[i], t[i].looks))[0],
        );
    }
}
