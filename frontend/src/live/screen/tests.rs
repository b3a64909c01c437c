use qdl::stats::{
    Figures,
    timeline::{ConnectionReading, Event, NodeSide, Timeline, latency_bucket},
};
use ratatui::{Terminal, backend::TestBackend};
use report::State;

use super::*;

fn run(limits: Vec<LimitRecord>) -> SoFar {
    let tick = |k: u64| Tick {
        issued: 50,
        completed: 40 + k % 20,
        in_flight: 3,
        latency: vec![
            (latency_bucket(2_000_000), 40 + k % 20),
            (latency_bucket(40_000_000), 1),
        ],
        connections: Vec::new(),
    };
    let thread = |name: &str, ran: u16, waited: u16| ThreadSide {
        name: name.to_owned(),
        on_core: vec![ran; 600],
        waited: vec![waited; 600],
    };
    SoFar {
        node: "front".to_owned(),
        title: "Server".to_owned(),
        fabric: "tcp".to_owned(),
        state: State::Running,
        elapsed_s: 60.0,
        issued: 30_010,
        completed: 30_000,
        rate: 498.0,
        target_qps: Some(500.0),
        limits,
        timeline: Timeline {
            tick_ms: 100,
            ticks: (0..600).map(tick).collect(),
            events: vec![Event {
                at_s: 12.5,
                kind: "sent_again".to_owned(),
                text: format!("4 samples of acc-a {}", "x".repeat(200)),
            }],
            nodes: vec![NodeSide {
                threads: vec![thread("nic-0", 900, 50), thread("start-test", 100, 0)],
                ..NodeSide::default()
            }],
            ..Timeline::default()
        },
        connections: (0..12)
            .map(|i| (format!("acc-a/{i}"), ConnectionReading::default()))
            .collect(),
        nics: vec![("127.0.0.1".to_owned(), Figures::default())],
        ..SoFar::default()
    }
}

fn bound(was: f64) -> LimitRecord {
    LimitRecord {
        name: "p99 latency".to_owned(),
        unit: LimitUnit::Us,
        limit: 10_000.0,
        was: Some(was),
        at_most: true,
        met: was <= 10_000.0,
        ..LimitRecord::default()
    }
}

fn drawn(of: &SoFar, width: u16, height: u16) -> (Vec<String>, Terminal<TestBackend>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(of, frame)).expect("drawn");
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
    ((0..height).map(row).collect(), terminal)
}

#[test]
fn eighty_by_twenty_four_cells_hold_it_all() {
    let (rows, terminal) = drawn(&run(vec![bound(45_000.0)]), 80, 24);
    let all = rows.join("\n");
    for words in [
        "Server   front over tcp   60 s   GOING ON",
        "Over LoadGen's bound so far: p99 latency.",
        "498/s now, 500/s on the whole, 500/s asked for",
        "30,000 done, 10 in flight",
        "45.0 ms at most 10.0 ms",
        "latency over time",
        "samples/s over time, to 564",
        "acc-a/0",
        "and 9 more",
        "nic-0          90%   5%",
        "12.5 s  sent again: 4 samples of acc-a",
        "q leaves this picture, Ctrl-C ends the run",
    ] {
        assert!(all.contains(words), "{words} is not in\n{all}");
    }
    // The heat map: both latencies over all of its width, and the bound between them.
    let buffer = terminal.backend().buffer();
    let shaded = |y: u16| {
        let cells = (0..80).filter(|x| SHADES.contains(&buffer[(*x, y)].bg));
        cells.count()
    };
    let full: Vec<u16> = (0..24).filter(|y| shaded(*y) > 50).collect();
    assert_eq!(full.len(), 2, "{full:?} in\n{all}");
    let at = rows.iter().position(|r| r.starts_with(">10.0 ms"));
    let at = at.expect("the bound") as u16;
    assert!(full[0] < at && at < full[1], "{full:?}, {at}\n{all}");
}

#[test]
fn any_size_and_any_moment_can_be_drawn() {
    let moments = [
        SoFar::default(),
        run(Vec::new()),
        run(vec![bound(1.0), bound(2.0), bound(3.0), bound(4.0)]),
        SoFar {
            timeline: Timeline::default(),
            ..run(Vec::new())
        },
    ];
    for of in &moments {
        for (width, height) in [(80, 24), (1, 1), (10, 3), (40, 10), (300, 100), (3, 50)] {
            let (rows, _) = drawn(of, width, height);
            assert_eq!(rows.len(), usize::from(height));
        }
    }
    let (rows, _) = drawn(&SoFar::default(), 80, 24);
    assert!(rows.join(" ").contains("no tick of the run is over yet"));
}
