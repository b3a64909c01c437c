//! The controller against a model of what it controls: a way of some round trip and width, that
//! takes harm from what is in flight beyond some size.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const LEAST: usize = 16;
const SLOTS: usize = 1024;

/// A way and what is behind it.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Samples a second at the most.
    width: f64,
    /// Round trip of one alone, ns.
    trip_ns: f64,
    /// From so many in flight on, each doubling costs a share of the rate.
    cache: f64,
    cost: f64,
}

impl Way {
    /// 100,000 samples a second wide, and nothing takes harm.
    fn of_trip(trip_ns: f64) -> Self {
        Way {
            width: 1e5,
            trip_ns,
            cache: 1e9,
            cost: 0.0,
        }
    }

    fn rate(&self, in_flight: usize) -> f64 {
        let w = in_flight as f64;
        let harm = self.cost * (w / self.cache).log2().max(0.0);
        (w * 1e9 / self.trip_ns).min(self.width) * (1.0 - harm).max(0.3)
    }

    /// Smallest allowance whose rate is within `share` of the best of any.
    fn smallest(&self, share: f64) -> usize {
        let all = (0..=steps(LEAST, SLOTS)).map(|s| at_step(LEAST, SLOTS, s));
        let best = self.best();
        all.into_iter()
            .find(|w| self.rate(*w) >= share * best)
            .expect("the best is one of them")
    }

    fn best(&self) -> f64 {
        let all = (0..=steps(LEAST, SLOTS)).map(|s| at_step(LEAST, SLOTS, s));
        all.map(|w| self.rate(w)).fold(0.0, f64::max)
    }
}

/// Time, and what is answered in it.
struct World {
    controller: Controller,
    now_ns: u64,
    completed: f64,
    /// What is really in flight follows the allowance within a round trip.
    in_flight: f64,
    noise: f64,
    seed: u64,
    /// Steps and times that were in force.
    used: Vec<(u64, usize)>,
}

impl World {
    fn new(noise: f64, seed: u64) -> Self {
        World {
            controller: Controller::new(steps(LEAST, SLOTS)),
            now_ns: 1,
            completed: 0.0,
            in_flight: 0.0,
            noise,
            seed: seed | 1,
            used: Vec::new(),
        }
    }

    /// Evenly from -1 to 1.
    fn random(&mut self) -> f64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn allowed(&self) -> usize {
        at_step(LEAST, SLOTS, self.controller.step())
    }

    /// Goes on for so long; returns the mean rate.
    fn run(&mut self, way: &Way, for_ns: u64, waiting: bool) -> f64 {
        let (end, before) = (self.now_ns + for_ns, self.completed);
        while self.now_ns < end {
            let dt = LOOK_NS as f64;
            let allowed = self.allowed() as f64;
            self.in_flight += (allowed - self.in_flight) * (dt / way.trip_ns).min(1.0);
            let noise = 1.0 + self.noise * self.random();
            let rate = way.rate(self.in_flight.round().max(1.0) as usize) * noise;
            self.completed += if waiting { rate * dt / 1e9 } else { 0.0 };
            self.now_ns += LOOK_NS;
            self.controller.look(&Look {
                now_ns: self.now_ns,
                completed: self.completed as u64,
                in_flight: self.in_flight as u64,
                waiting,
            });
            self.used.push((self.now_ns, self.allowed()));
        }
        (self.completed - before) * 1e9 / for_ns as f64
    }
}

fn ways() -> impl Strategy<Value = Way> {
    (
        20_000f64..400_000.0,
        1f64..600.0,
        24f64..400.0,
        prop_oneof![Just(0.0), 0.02f64..0.1],
    )
        .prop_map(|(width, needs, cache, cost)| Way {
            width,
            trip_ns: needs * 1e9 / width,
            cache,
            cost,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the way: nearly the rate of the best allowance, the trying included, by little more
    /// than the smallest that gives it.
    #[test]
    fn it_finds_the_smallest_that_keeps_the_rate(
        way in ways(),
        seed in any::<u64>(),
        noise in 0f64..0.1,
    ) {
        let mut world = World::new(noise, seed);
        // Tries take round trips, and are rare.
        let long = (8_000 * MS).max((2_000.0 * way.trip_ns) as u64);
        world.run(&way, long, true);
        let from = world.used.len();
        let rate = world.run(&way, 6_000 * MS, true);
        prop_assert!(rate >= 0.95 * way.best(), "{} of {}", rate, way.best());
        let mut used: Vec<_> = world.used[from..].iter().map(|(_, w)| *w).collect();
        used.sort_unstable();
        let usual = used[used.len() / 2];
        let smallest = way.smallest(0.975);
        prop_assert!(usual <= smallest * 3, "{} where {} would do", usual, smallest);
        let all = world.used.iter().map(|(_, w)| *w);
        prop_assert!(all.clone().min() >= Some(LEAST), "a batch starves");
        prop_assert!(all.max() <= Some(SLOTS));
    }

    /// The way becomes longer, as by a slower engine, in mid-run.
    #[test]
    fn it_grows_again_within_some_round_trips(
        width in 50_000f64..200_000.0,
        needs in 20f64..40.0,
        longer in 4f64..16.0,
        seed in any::<u64>(),
        noise in 0f64..0.05,
    ) {
        let short = Way { width, trip_ns: needs * 1e9 / width, cache: 1e9, cost: 0.0 };
        let long = Way { trip_ns: short.trip_ns * longer, ..short };
        let mut world = World::new(noise, seed);
        world.run(&short, 3_000 * MS, true);
        // A try may be under way, and its end is waited for.
        let soon = (120.0 * long.trip_ns) as u64 + 40 * MS;
        world.run(&long, soon, true);
        let rate = world.run(&long, 200 * MS, true);
        prop_assert!(rate >= 0.85 * long.best(), "{} of {} after {} ms", rate, long.best(), soon / MS);
    }

    /// From a start at the least it is where it has to be after some doublings.
    #[test]
    fn it_climbs_from_the_start_in_milliseconds(
        width in 50_000f64..200_000.0,
        needs in 16f64..512.0,
    ) {
        let way = Way { width, trip_ns: needs * 1e9 / width, cache: 1e9, cost: 0.0 };
        let mut world = World::new(0.0, 7);
        world.run(&way, (90.0 * way.trip_ns) as u64 + 40 * MS, true);
        let rate = world.run(&way, 50 * MS, true);
        prop_assert!(rate >= 0.85 * way.best(), "{} of {}", rate, way.best());
    }
}

/// A machine whose rate is another every half millisecond, and which is slow at first: seldom
/// is that taken for the doing of what is in flight.
#[test]
fn a_start_that_gets_quicker_is_no_reason_to_climb() {
    let climbed = (1..=40).filter(|seed| {
        let mut world = World::new(0.9, *seed);
        for percent in (20..=100).step_by(4) {
            let way = Way {
                width: 1e3 * f64::from(percent),
                trip_ns: 8e9 / 1e5,
                cache: 24.0,
                cost: 0.1,
            };
            world.run(&way, 2 * MS, true);
        }
        world.allowed() > LEAST
    });
    let climbed = climbed.count();
    assert!(climbed <= 8, "{climbed} of 40");
}

#[test]
fn what_holds_nothing_up_is_left_alone() {
    let way = Way::of_trip(4e6);
    let mut world = World::new(0.05, 3);
    world.run(&way, 1_000 * MS, false);
    assert_eq!(world.allowed(), LEAST, "nothing waits for a slot");
    world.run(&way, 300 * MS, true);
    // Whatever was being tried is over once nothing waits.
    world.run(&way, 2 * MS, false);
    let grown = world.allowed();
    assert!(grown >= 256, "{grown} where 400 are needed");
    world.run(&way, 1_000 * MS, false);
    assert_eq!(world.allowed(), grown, "after a rest");
}

/// As with a load a little below what the way carries: the backlog comes and goes.
#[test]
fn what_holds_something_up_now_and_then_grows_too() {
    let way = Way::of_trip(1e6);
    let mut world = World::new(0.0, 3);
    for _ in 0..120 {
        // Long enough for a pair of measurements, and too short for the next.
        world.run(&way, 11 * MS, true);
        world.run(&way, 2 * MS, false);
    }
    let grown = world.allowed();
    assert!(grown >= 2 * LEAST, "{grown} where 100 are needed");
}

#[test]
fn connections_that_come_and_go_are_no_reason_to_wait_with_a_climb() {
    let mut world = World::new(0.0, 3);
    // Climbs that bring nothing are ever farther apart.
    for _ in 0..40 {
        world.run(&Way::of_trip(1e5), 100 * MS, true);
        world.run(&Way::of_trip(1e5), 2 * MS, false);
    }
    assert!(world.controller.hold_ns > 500 * MS);
    world.controller.steps_changed(steps(LEAST, SLOTS));
    world.run(&Way::of_trip(4e6), 300 * MS, true);
    let grown = world.allowed();
    assert!(grown >= 256, "{grown} where 400 are needed");
}

#[test]
fn the_least_holds_some_batches_and_no_more_than_there_is() {
    let small = Some(512 << 10);
    let least_of = |slots, stride, share| least(slots, stride, share, small);
    // Images: 4; tokens of 4 KiB: half a MiB of them; small ones: all.
    assert_eq!(least_of(445, 150_528, Some(1)), 4);
    assert_eq!(least_of(2048, 4_608, Some(1)), 113);
    assert_eq!(least_of(2048, 64, Some(1)), 2048);
    // Three batches for each thread of the engine.
    assert_eq!(least_of(445, 150_528, Some(64)), 192);
    assert_eq!(least_of(445, 150_528, Some(1536)), 445);
    assert_eq!(least_of(445, 150_528, Some(u64::MAX)), 445);
    // An engine that does not say has all.
    assert_eq!(least_of(445, 150_528, None), 445);
    assert_eq!(least_of(3, 150_528, Some(1)), 3);
    // By the cache, within bounds.
    let images = |cache| least(445, 150_528, Some(1), cache);
    assert_eq!(images(Some(2 << 20)), 13);
    assert_eq!((images(Some(1)), images(Some(1 << 40))), (4, 13));
    assert_eq!(images(None), 6);
}

#[test]
fn steps_lead_from_the_least_to_all() {
    assert_eq!(steps(16, 445), 10);
    assert_eq!(at_step(16, 445, 0), 16);
    assert_eq!(at_step(16, 445, 1), 23);
    assert_eq!(at_step(16, 445, 2), 32);
    assert_eq!(at_step(16, 445, 10), 445);
    assert_eq!(steps(445, 445), 0);
    assert_eq!(at_step(1, 1, 255), 1);
}

#[test]
fn steps_that_change_while_it_tries_end_the_try() {
    let way = Way::of_trip(4e6);
    let mut world = World::new(0.0, 3);
    world.run(&way, 200 * MS, true);
    world.controller.steps_changed(2);
    assert!(world.controller.step() <= 2);
    world.run(&way, 200 * MS, true);
    assert_eq!(world.controller.step(), 2, "all there is");
    world.controller.steps_changed(0);
    world.run(&way, 200 * MS, true);
    assert_eq!(world.controller.step(), 0);
}
