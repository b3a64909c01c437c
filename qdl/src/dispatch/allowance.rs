//! How much is kept in flight: as much as the way and the engines need, and no more.
//!
//! Memory is granted for many slots. To use all of them is right where the way is long, and wrong
//! where it is short: what is in flight beyond the need waits in queues, and its memory is in no
//! cache any more when its turn comes. So each connection has an *allowance*, its first so many
//! slots ([`Tracker::allow`](crate::connection::tracker::Tracker::allow)):
//!
//! ```text
//!   least: some batches' worth, as the engine says, and what fits into a core's cache anyway
//!     |         a step: x sqrt(2)
//!     v
//!   [ step 0 | step 1 | step 2 | ...                                   | granted ]
//!              <---- the controller looks for the lowest step that costs nothing ---->
//! ```
//!
//! The [`Controller`] moves all connections together, by their answers a second, and only while
//! samples wait for a slot: else nothing is held up. It *climbs* where that has just begun or the
//! rate has changed, two steps at a time for as long as each brings a tenth, in turns with the one
//! below until that is beyond doubt, or does not look like it any more: a start gets quicker by
//! itself, and a machine does at times. Each is measured for some round trips: milliseconds.
//! Later, and ever more rarely, it *tries* the next lower and the next higher steps beside the one
//! it is at, in turns, so that what else happens on the machine happens to both, and takes the
//! lower one where the higher one brings nothing. Round trips need no clock of their own: one is
//! over when as many samples were answered as were in flight.
//!
//! It is a plain data structure: what it sees is handed in, the time with it.

/// Batches that an engine's threads have each at least: one computed, one complete, one on its way.
pub const BATCHES: u64 = 3;
/// Fewest slots of a connection in use: one that is written, one that is read, and one behind each.
const LEAST_SLOTS: usize = 4;
/// Slots that take no more memory than a core has cache for itself are in use anyway; within these
/// bounds, as machines that are pretended say of their caches what they like,
const CACHE_BYTES: (usize, usize) = (512 << 10, 2 << 20);
/// and so much where the system does not say.
const CACHE_UNKNOWN: usize = 1 << 20;

/// Looks are so far apart at least, ns.
pub const LOOK_NS: u64 = 500_000;
/// A rate is measured over so many round trips while it climbs,
const CLIMB_TRIPS: u64 = 2;
/// and over so many else,
const TRIPS: u64 = 4;
/// for so long at least, ns,
const CLIMB_NS: u64 = 2_000_000;
const TRY_NS: u64 = 4_000_000;
/// and over so many samples.
const SAMPLES: u64 = 64;
/// A climb goes on for as long as it brings this factor.
const CLIMB_GAIN: f64 = 1.1;
/// The rate has changed where it is out of this range of what it was.
const CHANGED: (f64, f64) = (0.75, 1.5);
/// No two climbs that bring nothing are closer together than this, ns; doubles with each.
const HOLD_NS: (u64, u64) = (20_000_000, 1_000_000_000);
/// The same of tries that change nothing.
const REST_NS: (u64, u64) = (50_000_000, 10_000_000_000);
/// What was begun so long ago, ns, does not go on after a pause.
const PAUSE_NS: u64 = 1_000_000_000;
/// A try is followed by so many times as long without one.
const REST: u64 = 8;
/// Most pairs of measurements in a try, and fewest before it takes more: what else happens on the
/// machine makes one pair look like a gain easily, and the way back takes a second and more,
const PAIRS: u32 = 12;
const PAIRS_FOR_MORE: u32 = 3;
/// and in a step of a climb, which one pair alone does not make: it may be another thread's doing.
const CLIMB_PAIRS: (u32, u32) = (2, 12);
/// What is tried, in turns. More and less may cancel each other out where twice as much is too
/// much.
const TRIES: [i8; 4] = [2, -1, 1, -1];
/// Two measurements of one rate differ by so much where nothing is known of it yet,
const NOISE: f64 = 0.05;
/// and short ones by more,
const CLIMB_NOISE: f64 = 0.15;
/// which counts as much as so many pairs.
const NOISE_PAIRS: f64 = 2.0;

/// Least slots of a connection, of `slots` of `stride` bytes, that are in use: those of its share
/// of what the engine works on at once (`None` where it does not say: then all), and those that fit
/// into so many bytes of a core's cache (`None` where nobody knows).
pub fn least(
    slots: usize,
    stride: usize,
    engine_share: Option<u64>,
    cache: Option<usize>,
) -> usize {
    let Some(share) = engine_share else {
        return slots;
    };
    let batches = usize::try_from(share.saturating_mul(BATCHES)).unwrap_or(usize::MAX);
    let cache = cache.unwrap_or(CACHE_UNKNOWN);
    (cache.clamp(CACHE_BYTES.0, CACHE_BYTES.1) / stride.max(1))
        .max(LEAST_SLOTS)
        .max(batches)
        .min(slots)
}

/// The allowance of a connection at a step: sqrt(2) times as much with each.
pub fn at_step(least: usize, slots: usize, step: u8) -> usize {
    let most = slots as f64;
    ((least as f64 * 2f64.powf(f64::from(step) / 2.0)).round())
        .min(most)
        .max(1.0) as usize
}

/// The step from which on a connection has all its slots.
pub fn steps(least: usize, slots: usize) -> u8 {
    (0..u8::MAX)
        .find(|s| at_step(least, slots, *s) >= slots)
        .unwrap_or(u8::MAX)
}

/// What is seen at a look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// The time.
    pub now_ns: u64,
    /// Samples answered so far.
    pub completed: u64,
    /// Samples in flight.
    pub in_flight: u64,
    /// Samples wait that no connection takes.
    pub waiting: bool,
}

/// A measurement of a rate under way.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// What was in flight when it began is answered once so many are.
    settled_at: u64,
    /// When it began to count, with the samples answered by then.
    from: Option<(u64, u64)>,
}

impl Meter {
    fn begin(look: &Look) -> Self {
        Meter {
            settled_at: look.completed + look.in_flight,
            from: None,
        }
    }

    /// Samples a second, once that can be said.
    fn look(&mut self, look: &Look, trips: u64, least_ns: u64) -> Option<f64> {
        if look.completed < self.settled_at {
            return None;
        }
        let (from_ns, before) = *self.from.get_or_insert((look.now_ns, look.completed));
        let (ns, n) = (
            look.now_ns.saturating_sub(from_ns),
            look.completed.saturating_sub(before),
        );
        let enough = SAMPLES.max(trips * look.in_flight);
        (ns >= least_ns.max(1) && n >= enough).then(|| n as f64 * 1e9 / ns as f64)
    }
}

/// The step that it is at, beside another, in turns.
#[derive(Clone, Copy, Debug)]
struct Try {
    other: u8,
    /// Whether it is a step of a climb.
    climbs: bool,
    began_ns: u64,
    /// Measurements so far.
    measured: u32,
    /// The first of the pair under way.
    first: f64,
    /// Pairs, the mean of the logarithms of their ratios, other to own, and the sum of their
    /// squared distances from it.
    pairs: u32,
    mean: f64,
    squares: f64,
}

impl Try {
    fn new(other: u8, climbs: bool, look: &Look) -> Self {
        Try {
            other,
            climbs,
            began_ns: look.now_ns,
            measured: 0,
            first: 0.0,
            pairs: 0,
            mean: 0.0,
            squares: 0.0,
        }
    }

    /// A rate was measured, of the one whose turn it was. Whether to take the other step, once that
    /// can be said.
    fn measured(&mut self, rate: f64, own: u8) -> Option<bool> {
        let of_other = Try::is_other(self.measured);
        self.measured += 1;
        if self.measured % 2 == 1 {
            self.first = rate;
            return None;
        }
        let ratio = match of_other {
            true => rate / self.first,
            false => self.first / rate,
        };
        self.pair(ratio.clamp(1e-3, 1e3));
        self.verdict(own)
    }

    /// What is left of it where nothing waits any more: the pairs that are whole.
    fn interrupted(mut self) -> Self {
        self.measured -= self.measured % 2;
        self
    }

    /// The step whose turn it is.
    fn turn(&self, own: u8) -> u8 {
        match Try::is_other(self.measured) {
            true => self.other,
            false => own,
        }
    }

    /// Own, other, other, own: what drifts touches both alike.
    fn is_other(measured: u32) -> bool {
        matches!(measured % 4, 1 | 2)
    }

    fn pair(&mut self, ratio: f64) {
        self.pairs += 1;
        let off = ratio.ln() - self.mean;
        self.mean += off / f64::from(self.pairs);
        self.squares += off * (ratio.ln() - self.mean);
    }

    fn verdict(&self, own: u8) -> Option<bool> {
        let n = f64::from(self.pairs);
        let (noise, least, most) = match self.climbs {
            true => (CLIMB_NOISE, CLIMB_PAIRS.0, CLIMB_PAIRS.1),
            false if self.other > own => (NOISE, PAIRS_FOR_MORE, PAIRS),
            false => (NOISE, 1, PAIRS),
        };
        let variance = (NOISE_PAIRS * noise * noise + self.squares) / (NOISE_PAIRS + n - 1.0);
        let sure = 2.0 * (variance / n).sqrt();
        let (low, high) = (self.mean - sure, self.mean + sure);
        let (take, leave, else_from) = match self.other > own {
            true if self.climbs => (CLIMB_GAIN.ln(), CLIMB_GAIN.ln(), CLIMB_GAIN.ln()),
            // More is taken for a gain alone,
            true => (0.01, 0.02, 0.05),
            // and less unless it costs something.
            false => (-0.015, -0.005, -0.01),
        };
        // What a climb is for is seen at once. The rest is left to tries: to measure a step that
        // brings nothing costs what that step costs.
        let leaves = match self.climbs {
            true => self.mean < leave,
            false => high < leave,
        };
        if low > take && self.pairs >= least {
            Some(true)
        } else if leaves {
            Some(false)
        } else {
            (self.pairs >= most).then_some(self.mean > else_from)
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing waits for a slot. What was being tried goes on where that is over soon.
    Idle(Option<Try>),
    Watch,
    Try(Try),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    /// The highest step.
    most: u8,
    /// The one that it is at.
    own: u8,
    /// The one in force: its own, or one that is tried.
    now: u8,
    phase: Phase,
    meter: Meter,
    /// The rate at its own step.
    rate: f64,
    climbed: bool,
    /// Measurements in a row that were out of the range of its rate.
    changed: u32,
    hold_ns: u64,
    climb_after_ns: u64,
    rest_ns: u64,
    try_after_ns: u64,
    /// Place in [`TRIES`] of what is tried next.
    turn: usize,
}

impl Controller {
    /// At the lowest of the steps 0 to `most`.
    pub fn new(most: u8) -> Self {
        Controller {
            most,
            own: 0,
            now: 0,
            phase: Phase::Idle(None),
            meter: Meter::default(),
            rate: 0.0,
            climbed: false,
            changed: 0,
            hold_ns: HOLD_NS.0,
            climb_after_ns: 0,
            rest_ns: REST_NS.0,
            try_after_ns: 0,
            turn: 0,
        }
    }

    /// The steps are others from now on, as connections came or went: what was measured is of no
    /// use any more.
    pub fn steps_changed(&mut self, most: u8) {
        let own = self.own.min(most);
        *self = Controller {
            own,
            now: own,
            ..Controller::new(most)
        };
    }

    /// The step in force.
    #[cfg(all(test, not(qdl_loom)))]
    pub fn step(&self) -> u8 {
        self.now
    }

    fn idle(&mut self) {
        let paused = match self.phase {
            Phase::Try(t) => Some(t.interrupted()),
            Phase::Idle(paused) => paused,
            Phase::Watch => None,
        };
        self.phase = Phase::Idle(paused);
        self.now = self.own;
    }

    /// Something waits for a slot again.
    fn resume(&mut self, paused: Option<Try>, look: &Look) {
        let soon = |t: &Try| look.now_ns.saturating_sub(t.began_ns) < PAUSE_NS;
        match paused.filter(soon) {
            Some(t) => self.go_on(t, look),
            None if look.now_ns >= self.climb_after_ns => {
                self.climbed = false;
                self.begin_climb(look);
            }
            None => self.watch(look),
        }
    }

    /// With what is tried, by the step whose turn it is.
    fn go_on(&mut self, t: Try, look: &Look) {
        self.enter(Phase::Try(t), t.turn(self.own), look);
    }

    fn enter(&mut self, phase: Phase, step: u8, look: &Look) {
        self.phase = phase;
        self.now = step;
        self.meter = Meter::begin(look);
    }

    fn watch(&mut self, look: &Look) {
        self.enter(Phase::Watch, self.own, look);
    }

    /// Looks, and returns the step to be in force from now on.
    pub fn look(&mut self, look: &Look) -> u8 {
        if self.most == 0 || !look.waiting {
            self.idle();
            return self.now;
        }
        let (trips, least_ns) = match self.phase {
            Phase::Idle(paused) => {
                self.resume(paused, look);
                return self.now;
            }
            Phase::Try(t) if t.climbs => (CLIMB_TRIPS, CLIMB_NS),
            Phase::Watch | Phase::Try(_) => (TRIPS, TRY_NS),
        };
        if let Some(rate) = self.meter.look(look, trips, least_ns) {
            match self.phase {
                Phase::Idle(_) => {}
                Phase::Watch => self.watched(rate, look),
                Phase::Try(t) if t.climbs => self.climb(t, rate, look),
                Phase::Try(t) => self.tried(t, rate, look),
            }
        }
        self.now
    }

    /// Goes on with a climb from its own step, or ends it at the highest.
    fn begin_climb(&mut self, look: &Look) {
        let next = self.own.saturating_add(2).min(self.most);
        if next == self.own {
            return self.climb_is_over(look);
        }
        self.go_on(Try::new(next, true, look), look);
    }

    fn climb(&mut self, mut t: Try, rate: f64, look: &Look) {
        if !Try::is_other(t.measured) {
            self.rate = rate;
        }
        match t.measured(rate, self.own) {
            Some(true) => {
                self.climbed = true;
                self.own = t.other;
                self.rate *= t.mean.exp();
                self.begin_climb(look);
            }
            Some(false) => self.climb_is_over(look),
            None => self.go_on(t, look),
        }
    }

    fn climb_is_over(&mut self, look: &Look) {
        self.hold_ns = match self.climbed {
            true => HOLD_NS.0,
            false => (2 * self.hold_ns).min(HOLD_NS.1),
        };
        self.climb_after_ns = look.now_ns + self.hold_ns;
        if self.climbed || self.try_after_ns == 0 {
            self.rest_ns = REST_NS.0;
            self.try_after_ns = look.now_ns + self.rest_ns;
            // A tenth may be missing still: what is tried next is more.
            self.turn = 0;
        }
        self.watch(look);
    }

    /// Climbs where the rate at its own step is another than it was.
    fn has_changed(&mut self, rate: f64, look: &Look) -> bool {
        let changed = rate < CHANGED.0 * self.rate || rate > CHANGED.1 * self.rate;
        self.changed = if changed { self.changed + 1 } else { 0 };
        // One may be another thread's doing that had the core.
        if self.changed < 2 || look.now_ns < self.climb_after_ns {
            return false;
        }
        self.changed = 0;
        self.climbed = false;
        self.rate = rate;
        // The rest of the change may still be to come: its own step is measured first.
        self.begin_climb(look);
        true
    }

    fn watched(&mut self, rate: f64, look: &Look) {
        if self.has_changed(rate, look) {
            return;
        }
        if self.changed == 0 {
            self.rate += (rate - self.rate) / 4.0;
        }
        if look.now_ns < self.try_after_ns {
            return self.watch(look);
        }
        let other = loop {
            let step = self
                .own
                .saturating_add_signed(TRIES[self.turn % TRIES.len()]);
            if step.min(self.most) != self.own {
                break step.min(self.most);
            }
            // The highest can go down, and the lowest up: there are two at least.
            self.turn += 1;
        };
        self.go_on(Try::new(other, false, look), look);
    }

    fn tried(&mut self, mut t: Try, rate: f64, look: &Look) {
        let of_other = Try::is_other(t.measured);
        if !of_other && self.has_changed(rate, look) {
            return;
        }
        match t.measured(rate, self.own) {
            Some(take) => self.try_is_over(&t, take, look),
            None => self.go_on(t, look),
        }
    }

    fn try_is_over(&mut self, t: &Try, take: bool, look: &Look) {
        if take {
            self.rate *= t.mean.exp();
            self.own = t.other;
            self.rest_ns = REST_NS.0;
        } else {
            self.turn += 1;
            self.rest_ns = (2 * self.rest_ns).min(REST_NS.1);
        }
        let took = look.now_ns.saturating_sub(t.began_ns);
        self.try_after_ns = look.now_ns + self.rest_ns.max(REST * took);
        self.watch(look);
    }
}

#[cfg(all(test, not(qdl_loom)))]
#[path = "allowance_tests.rs"]
mod tests;
