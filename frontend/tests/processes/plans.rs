//! Plans for processes: the words of `world::plan`, and how a seed draws them.
//!
//! Number `on` of a connection is accelerator x (data connections + 1) + i; i = 0 is the control
//! connection. Of a path it is 2 x connection, plus 1 towards the frontend. Process 0 is the
//! frontend, process k + 1 accelerator k.
//!
//! Times below 1 s count from the frontend's start, times below 2 s from LoadGen's start and
//! [`BEGIN_US`], others from the end of the warm-up and twice that. So a plan meets the same stage
//! of a run on a slow machine.
//!
//! | word | fault |
//! | --- | --- |
//! | `burst` | no fault: an Offline run of `n` samples instead of a Server run |
//! | `cut` | connection `on` is shut down; both ends learn of it |
//! | `silent` | connection `on` is dead; a reset ends the frontend's end (n = 1) or the other (2) |
//! | `hole` | path `on` carries nothing more |
//! | `delay` | frames of cable direction `on` (2k to accelerator k, 2k + 1 from it) wait `n` us |
//! | `stray` | 64 bytes that are no frame go into path `on` |
//! | `give-up` | a reset of the sending end of path `on` |
//! | `stop` | SIGSTOP for `n` us |
//! | `away` | the link of accelerator `on` is down for `n` us |
//! | `busy` | port `on` (2k: control of accelerator k, 2k + 1: data) resets for `n` us |
//! | `leave` | accelerator `on` gets SIGKILL, or SIGTERM if `n` is even |
//! | `abort` | the frontend gets SIGINT |

use std::time::{Duration, Instant};

use fabric::testkit::dice::Dice;
use world::plan::{Event, Kind, Plan, Shape};

use crate::wires::can_make;

/// Times of a stage in a plan: handshake; `Name()` and warm-up; run and drain.
const BEGIN_US: u64 = 1_000_000;

/// Duration of a Server run.
const RUN_US: u64 = 2_000_000;

/// The time of an event, once its stage has begun.
pub fn time_of(e: &Event, begins: &[Option<Instant>; 3]) -> Option<Instant> {
    let stage = (e.at_us / BEGIN_US).min(2);
    let begin = begins[stage as usize]?;
    Some(begin + Duration::from_micros(e.at_us - stage * BEGIN_US))
}

/// Connections of a plan's shape.
pub trait Connections {
    /// Data connections to each accelerator.
    fn data(&self) -> u64;
    /// Connections to each accelerator, with the control connection.
    fn all(&self) -> u64 {
        self.data() + 1
    }
}

impl Connections for Shape {
    fn data(&self) -> u64 {
        self.each * self.nics
    }
}

/// Draws a plan.
pub fn draw(seed: u64) -> Plan {
    let d = &mut Dice::of(seed, &[1]);
    let shape = Shape {
        servers: d.one(&[1, 1, 2, 2, 2, 3]),
        each: d.from_to(1, 3),
        nics: d.one(&[1, 1, 2]),
        slots: d.one(&[4, 64]),
        longest: d.one(&[64, 1_000, 20_000]),
        staged: u64::from(d.percent(25)),
        one_by_one: u64::from(d.percent(15)),
        policy: d.one(&[0, 0, 0, 1, 2, 3, 4]),
        service_ns: d.one(&[200_000, 2_000_000, 20_000_000]),
        ..Shape::default()
    };
    let mut events = Vec::new();
    if d.percent(33) {
        events.push(event(0, Kind::Burst, 0, d.from_to(400, 3_000)));
    }
    // Faults close to each other meet connections that are being made again.
    let center = draw_time(d);
    let is_close = d.percent(40);
    for _ in 0..d.skewed(6) {
        let at_us = match is_close {
            true => center + d.below(600_000),
            false => draw_time(d),
        };
        let mut fault = draw_fault(d, &shape, at_us);
        while !can_make(&fault, &shape) {
            fault = draw_fault(d, &shape, at_us);
        }
        events.push(fault);
    }
    events.sort_by_key(|e| e.at_us);
    Plan {
        seed,
        shape,
        events,
    }
}

fn event(at_us: u64, kind: Kind, on: u64, n: u64) -> Event {
    Event { at_us, kind, on, n }
}

fn draw_time(d: &mut Dice) -> u64 {
    match d.below(100) {
        0..10 => d.below(150_000),
        10..26 => BEGIN_US + d.below(150_000),
        26..85 => 2 * BEGIN_US + d.below(RUN_US),
        _ => 2 * BEGIN_US + RUN_US - 50_000 + d.below(200_000),
    }
}

fn draw_fault(d: &mut Dice, shape: &Shape, at_us: u64) -> Event {
    let (servers, connections) = (shape.servers, shape.servers * shape.all());
    let time_us = d.one(&[20_000, 300_000, 700_000, 1_500_000, 4_000_000]);
    match d.below(100) {
        0..16 => event(at_us, Kind::Cut, d.below(connections), 1),
        16..25 => event(at_us, Kind::Silent, d.below(connections), d.from_to(1, 3)),
        25..35 => event(at_us, Kind::Hole, d.below(2 * connections), 1),
        35..45 => event(at_us, Kind::Delay, d.below(2 * servers), time_us),
        45..55 => event(at_us, Kind::Stray, d.below(2 * connections), 1),
        55..65 => event(at_us, Kind::GiveUp, d.below(2 * connections), 1),
        65..77 => event(at_us, Kind::Stop, d.below(servers + 1), time_us),
        77..84 => event(at_us, Kind::Away, d.below(servers), time_us),
        84..91 => event(at_us, Kind::Busy, d.below(2 * servers), time_us),
        91..98 => event(at_us, Kind::Leave, d.below(servers), d.from_to(1, 2)),
        _ => event(at_us, Kind::Abort, 0, 1),
    }
}

#[test]
fn a_drawn_plan_is_its_text_and_its_faults_hit_what_exists() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..2_000 {
        let plan = draw(seed);
        assert_eq!(Plan::parse(&plan.to_string()), Ok(plan.clone()));
        for e in &plan.events {
            kinds.insert(e.kind);
            let connections = plan.shape.servers * plan.shape.all();
            let most = match e.kind {
                Kind::Cut | Kind::Silent => connections,
                Kind::Hole | Kind::Stray | Kind::GiveUp => 2 * connections,
                Kind::Delay | Kind::Busy => 2 * plan.shape.servers,
                Kind::Away | Kind::Leave => plan.shape.servers,
                Kind::Stop => plan.shape.servers + 1,
                _ => 1,
            };
            assert!(e.on < most, "{plan}");
        }
    }
    assert_eq!(kinds.len(), 12, "{kinds:?}");
}
