//! A plan: the shape of a world, and a list of timed events. A seed draws it; its text keeps it.
//!
//! Each thing in a world draws its numbers from dice of its own ([`Dice::of`]), and a burst's dice
//! are named after its time. So the world without an event resembles the world with it.

use std::{fmt, time::Duration};

use fabric::{testkit::dice::Dice, wire::Stream};
use qdl::rails::{Policy, Score};
use record::NodeRole;

macro_rules! shape {
    ($($(#[$doc:meta])* $name:ident = $plain:expr;)*) => {
        /// Numbers that hold for a whole world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Shape {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Default for Shape {
            /// The plainest world: shrinking goes towards it.
            fn default() -> Self {
                Shape { $($name: $plain,)* }
            }
        }

        impl Shape {
            /// All numbers with their names.
            pub fn fields(&mut self) -> Vec<(&'static str, &mut u64)> {
                vec![$((stringify!($name), &mut self.$name)),*]
            }
        }
    };
}

shape! {
    /// Accelerators.
    servers = 1;
    /// Connections to each accelerator.
    each = 1;
    /// NICs of each node.
    nics = 1;
    /// 0: a thread for each NIC; 1: one thread for all; 2: two shares of each NIC.
    crew = 0;
    /// Slots of each connection.
    slots = 4;
    /// Longest sample in bytes.
    longest = 64;
    /// Longest answer in bytes.
    answer = 8;
    /// 0: answers in one piece; 1: the first part alone; 2: all parts.
    stream = 0;
    /// 1: samples are copied before they are sent.
    staged = 0;
    /// Largest burst that the issuing thread posts, in bytes.
    up_to = 16 << 10;
    /// Time that an issuing thread stays with a connection.
    stay_us = 0;
    /// 1: a doorbell for each sample.
    one_by_one = 0;
    /// 0: least outstanding; 1: round robin; by health, 2: best, 3: best fit, 4 and 5: spray.
    policy = 0;
    /// 1: slots in use follow the engine's work.
    limits = 0;
    /// Writes that the frontend's connections queue.
    depth_front = 64;
    /// Writes that the accelerators' connections queue.
    depth_back = 64;
    /// Time that an idle NIC thread polls.
    spin_us = 0;
    /// 1: no ticks and no echoes, so that a lost wake-up stays lost.
    asleep = 0;
    /// Interval of ticks.
    tick_us = 1_000;
    /// Interval of echoes.
    echo_us = 3_000;
    /// Silence after which a connection is lost.
    silence_us = 20_000;
    /// Longest time of a sample, or of a part, in the engine.
    service_ns = 5_000;
    /// Answers leave the engine together at multiples of this time; 0: one by one.
    batch_us = 0;
    /// Mean time of a frame on its way.
    delay_ns = 5_000;
    /// Most time that chance adds to it.
    jitter_ns = 0;
    /// Frames under way in one direction.
    capacity = 1_000;
    /// Of 100 frames, those that end a flush early.
    partial = 0;
    /// 1: a queue has room when writes have landed, not when they were flushed.
    landing = 0;
    /// Time that a goodbye waits.
    linger_us = 20;
    /// Of 100 samples, those that the engine refuses.
    refused = 0;
    /// Most refusals of one sample; the third one ends the run.
    refusals = 2;
    /// Of 100 samples, those whose first attempt is never answered.
    never = 0;
    /// 1: the times of samples are recorded.
    records = 0;
    /// 0: the times of events begin when the cluster is up; 1: when it starts.
    early = 0;
    /// Mean time of bytes of a control stream on their way.
    control_ns = 20_000;
    /// Interval of heartbeats; four of them are a silence.
    beat_ms = 50;
    /// Time limit of each step of a session.
    step_ms = 500;
    /// Time of calls that open connections.
    slow_ms = 0;
    /// First pause before a retry; the longest one is 20 times as long.
    retry_ms = 2;
    /// Time without a connection after which the run is aborted.
    lost_ms = 2_000;
    /// Time limit of a drain.
    drain_ms = 300;
    /// Memory budget of each accelerator.
    memory_mib = 4_096;
    /// Time budget of the warm-up; 0: connections begin cold.
    warm_ms = 0;
    /// 1: connections are warmed up again before the end.
    warm_again = 0;
    /// 1: connections come over data ports, as on TCP; 2: one of 33 is shown out there.
    ports = 0;
    /// 1: the nodes share a token.
    token = 0;
    /// Prefill nodes, the first accelerators; the others are decode nodes. 0: no node has a role.
    prefill = 0;
}

/// So many milliseconds.
pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Shape {
    /// Connections of the frontend.
    pub fn connections(&self) -> usize {
        (self.servers * self.each) as usize
    }

    /// Number of the things that an event may concern.
    pub fn count(&self, of: Concerns) -> u64 {
        match of {
            Concerns::Connection => self.servers * self.each,
            Concerns::Path => 2 * self.servers * self.each,
            Concerns::Server => self.servers,
            Concerns::Way => 2 * self.servers,
            Concerns::Nic => self.nics,
            Concerns::Process => self.servers + 1,
            Concerns::Call => 4,
            Concerns::All => 1,
        }
    }

    /// Phase of an answer that accelerator `server` computes.
    pub fn role(&self, server: usize) -> NodeRole {
        match (self.prefill, (server as u64) < self.prefill) {
            (0, _) => NodeRole::Both,
            (_, true) => NodeRole::Prefill,
            (_, false) => NodeRole::Decode,
        }
    }

    /// Whether, and how, answers come in parts.
    pub fn stream(&self) -> Stream {
        match self.stream {
            0 => Stream::None,
            1 => Stream::First,
            _ => Stream::All,
        }
    }

    /// The policy that chooses connections.
    pub fn policy(&self) -> Policy {
        match self.policy {
            0 => Policy::LeastOutstanding,
            1 => Policy::RoundRobin,
            2 => Policy::Best,
            3 => Policy::HealthBestFit,
            above => Policy::HealthSpray {
                delta: Score::from_steps(8_192),
                above_only: above > 4,
            },
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// What happens in an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$name),*];

            /// The kind's word in a plan's text.
            pub fn word(self) -> &'static str {
                match self {
                    $(Kind::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    /// `n` samples are issued.
    Burst = "burst";
    /// `n` samples are issued by a second thread within the next call number `on` of a link.
    Meanwhile = "meanwhile";
    /// Engines answer, `n` us early, within the next call number `on` of a link.
    Answers = "answers";
    /// Connection `on` is cut; both ends learn of it.
    Cut = "cut";
    /// Connection `on` is cut; the frontend learns of it if `n` is 1, the accelerator if it is 2.
    Silent = "silent";
    /// Frames of path `on` vanish. Path 2c leads from the frontend, path 2c + 1 to it.
    Hole = "hole";
    /// Frames of path `on` are `n` us late.
    Delay = "delay";
    /// The sending half of path `on` fails.
    Fail = "fail";
    /// A faulty peer writes into path `on` without a grant.
    Stray = "stray";
    /// The sending end of path `on` gives the connection up.
    GiveUp = "give-up";
    /// Process `on` stops for `n` us: the frontend (0) or an accelerator.
    Stop = "stop";
    /// The engine of accelerator `on` works on `n` samples at once.
    Works = "works";
    /// The engine of accelerator `on` gives samples back for `n` us.
    Away = "away";
    /// The server of accelerator `on` is busy for `n` us.
    Busy = "busy";
    /// Accelerator `on` stops for good; if `n` is even, a companion's job outlasts the stop.
    Leave = "leave";
    /// The control stream of accelerator `on` is reset; if `n` is 2, writes fail first.
    Reset = "reset";
    /// The control stream of accelerator `on` falls silent: from the frontend (1), to it (2), both.
    Mute = "mute";
    /// The next bytes of the control stream of accelerator `on` come one by one.
    Tear = "tear";
    /// A bit of the next bytes of the control stream of path `on` is flipped.
    Spoil = "spoil";
    /// The sending node of path `on` sends frame `n` of those that a sound node never sends.
    Lie = "lie";
    /// The control stream of path `on` is stuck for `n` us; paths as for connections.
    Stick = "stick";
    /// Accelerator `on` stops, and starts again after `n` us.
    Restart = "restart";
    /// As restart, with another engine, model, token, name, heartbeat or wrong texts, by `n`.
    Change = "change";
    /// The link of the frontend's NIC `on` is down for `n` us.
    Down = "down";
    /// The frontend asks all accelerators for their names, or descriptions if `n` is 2.
    Name = "name";
    /// The frontend ends the run, whatever is outstanding.
    Finish = "finish";
    /// The run is aborted.
    Abort = "abort";
    /// A sample is cancelled: one of the last `n`, ended or not; if `n` is above 4, one that has
    /// not ended. If `n` is a multiple of 3, within the next call number `on` of a link.
    Cancel = "cancel";
}

/// To what an event happens: `on` is a number below [`Shape::count`] of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// A connection.
    Connection,
    /// One direction of a connection.
    Path,
    /// An accelerator.
    Server,
    /// One direction of an accelerator's control stream.
    Way,
    /// A NIC of the frontend.
    Nic,
    /// A node.
    Process,
    /// A call of any link.
    Call,
    /// Everything.
    All,
}

impl Kind {
    /// To what events of this kind happen.
    pub fn concerns(self) -> Concerns {
        match self {
            Kind::Cut | Kind::Silent => Concerns::Connection,
            Kind::Hole | Kind::Delay | Kind::Fail | Kind::Stray | Kind::GiveUp => Concerns::Path,
            Kind::Works
            | Kind::Away
            | Kind::Busy
            | Kind::Leave
            | Kind::Reset
            | Kind::Mute
            | Kind::Tear
            | Kind::Restart
            | Kind::Change => Concerns::Server,
            Kind::Stick | Kind::Spoil | Kind::Lie => Concerns::Way,
            Kind::Down => Concerns::Nic,
            Kind::Stop => Concerns::Process,
            Kind::Meanwhile | Kind::Answers | Kind::Cancel => Concerns::Call,
            Kind::Burst | Kind::Abort | Kind::Name | Kind::Finish => Concerns::All,
        }
    }
}

/// One event of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Microseconds since the beginning.
    pub at_us: u64,
    /// What happens.
    pub kind: Kind,
    /// To what it happens.
    pub on: u64,
    /// How much.
    pub n: u64,
}

impl Event {
    /// Dice that choose the sample of a cancel.
    pub fn dice(&self) -> Dice {
        Dice::of(self.at_us, &[self.on, self.n])
    }
}

/// One world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of the dice of everything in the world.
    pub seed: u64,
    /// Numbers of the world.
    pub shape: Shape,
    /// Events in the order of their times.
    pub events: Vec<Event>,
}

impl Plan {
    /// Draws a plan.
    pub fn of(seed: u64) -> Self {
        let shape = draw_shape(&mut Dice::of(seed, &[1]));
        let mut events = draw_events(seed, &shape);
        events.sort_by_key(|e| e.at_us);
        Plan {
            seed,
            shape,
            events,
        }
    }

    /// Whether no event of these kinds is in the plan.
    pub fn has_none(&self, kinds: &[Kind]) -> bool {
        !self.events.iter().any(|e| kinds.contains(&e.kind))
    }

    /// Reads a plan's text.
    ///
    /// # Errors
    /// The word that is none of a plan's.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |word: &str| {
            word.parse::<u64>()
                .map_err(|_| format!("{word}: no number"))
        };
        let mut plan = Plan {
            seed: 0,
            shape: Shape::default(),
            events: Vec::new(),
        };
        let mut parts = text.split(';').map(str::trim);
        for word in parts.next().unwrap_or_default().split_whitespace() {
            let (name, value) = word.split_once('=').ok_or(format!("{word}: no `=`"))?;
            let value = number(value)?;
            if name == "seed" {
                plan.seed = value;
                continue;
            }
            let mut fields = plan.shape.fields().into_iter();
            let field = fields.find(|(known, _)| *known == name);
            *field.ok_or(format!("{name}: unknown"))?.1 = value;
        }
        for event in parts.filter(|p| !p.is_empty()) {
            let words: Vec<_> = event.split_whitespace().collect();
            let [at_us, word, on, n] = words[..] else {
                return Err(format!("{event}: not a time, a word and two numbers"));
            };
            let mut kinds = Kind::ALL.iter();
            let kind = kinds.find(|k| k.word() == word);
            plan.events.push(Event {
                at_us: number(at_us)?,
                kind: *kind.ok_or(format!("{word}: unknown"))?,
                on: number(on)?,
                n: number(n)?,
            });
        }
        Ok(plan)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        let (mut shape, mut plain) = (self.shape, Shape::default());
        for ((name, value), (_, plain)) in shape.fields().into_iter().zip(plain.fields()) {
            if value != plain {
                write!(f, " {name}={value}")?;
            }
        }
        for e in &self.events {
            write!(f, "; {} {} {} {}", e.at_us, e.kind.word(), e.on, e.n)?;
        }
        Ok(())
    }
}

fn draw_shape(d: &mut Dice) -> Shape {
    let longest = d.one(&[64, 1_000, 1_000, 1_000, 8_192, 8_192, 8_192, 150_000]);
    let few = longest > 100_000;
    let most = if longest > 1_000 { 100 } else { 700 };
    let many = d.one(&[24, 24, 24, 24, 24, 24, 100, most]);
    let asleep = u64::from(d.percent(50));
    let quiet = d.percent(25);
    let share = |d: &mut Dice, p, most| match !quiet && d.percent(p) {
        true => d.skewed(most),
        false => 0,
    };
    let mut shape = Shape {
        servers: d.one(&[1, 1, 1, 2, 2, 3]),
        each: d.from_to(1, 4),
        nics: d.from_to(1, 2),
        crew: d.below(3),
        slots: if few { d.from_to(1, 6) } else { d.skewed(many) },
        longest,
        answer: d.one(&[8, 8, 64, 400]),
        stream: d.one(&[0, 0, 1, 2, 2]),
        staged: u64::from(d.percent(25)),
        up_to: d.one(&[0, 16 << 10, 1 << 20]),
        stay_us: d.one(&[0, 50]),
        one_by_one: u64::from(d.percent(15)),
        policy: match asleep {
            1 => d.below(2),
            _ => d.one(&[0, 0, 0, 0, 0, 1, 2, 2, 3, 4, 5]),
        },
        limits: u64::from(d.percent(30)),
        depth_front: d.skewed(64),
        depth_back: d.skewed(64),
        spin_us: d.one(&[0, 0, 3, 10]),
        asleep,
        tick_us: d.from_to(1, 3) * 1_000,
        echo_us: d.from_to(2, 6) * 1_000,
        silence_us: d.from_to(12, 40) * 1_000,
        service_ns: d.one(&[100, 5_000, 100_000, 2_000_000]),
        batch_us: d.one(&[0, 0, 20]),
        delay_ns: d.one(&[200, 5_000, 50_000, 500_000]),
        jitter_ns: d.one(&[0, 2_000, 100_000]),
        capacity: d.one(&[1, 4, 16, 1_000, 1_000]),
        partial: d.one(&[0, 0, 5, 40]),
        landing: u64::from(d.percent(40)),
        linger_us: d.one(&[0, 20, 20]),
        refused: share(d, 30, 30),
        refusals: if !quiet && d.percent(10) { 3 } else { 2 },
        never: share(d, 15, 5),
        records: u64::from(d.percent(12)),
        early: u64::from(d.percent(25)),
        control_ns: d.one(&[2_000, 20_000, 200_000]),
        beat_ms: d.one(&[20, 50, 100]),
        step_ms: d.one(&[200, 500]),
        slow_ms: d.one(&[0, 0, 1, 5]),
        retry_ms: d.one(&[1, 1, 5, 50]),
        lost_ms: d.one(&[600, 2_000, 2_000]),
        drain_ms: d.one(&[100, 300]),
        memory_mib: d.one(&[4_096, 4_096, 4_096, 1]),
        warm_ms: d.one(&[0, 0, 1, 30]),
        warm_again: d.below(2),
        ports: d.below(3),
        token: d.below(2),
        prefill: 0,
    };
    if shape.servers > 1 && !shape.policy().is_by_health() && d.percent(60) {
        shape.prefill = d.from_to(1, shape.servers - 1);
    }
    shape
}

fn draw_events(seed: u64, shape: &Shape) -> Vec<Event> {
    let mut events = Vec::new();
    let few = shape.longest > 100_000;
    let mut d = Dice::of(seed, &[2]);
    let (gap_us, bursts, most) = match (few, d.percent(15)) {
        // A trickle: each sample may stay with the last one's connection.
        (false, true) => (10, d.skewed(60), 2),
        (false, false) => (d.one(&[1, 20, 200, 2_000]), d.skewed(14), d.skewed(300)),
        (true, _) => (d.one(&[1, 20, 200, 2_000]), d.skewed(4), d.skewed(24)),
    };
    // In most worlds the first connections are up by then.
    let first_us = d.one(&[0, 300, 300, 300, 4_000]);
    let mut at_us = first_us + d.below(20);
    let mut burst = |at_us, n| {
        events.push(Event {
            at_us,
            kind: Kind::Burst,
            on: 0,
            n,
        });
    };
    for _ in 0..bursts {
        burst(at_us, d.skewed(most));
        at_us += 1 + d.below(2 * gap_us);
    }
    if shape.slots > 100 {
        burst(at_us, 2 * shape.slots);
    }
    if shape.asleep == 0 && d.percent(10) {
        // After a silence that only echoes end.
        burst(at_us + 100_000, d.skewed(most));
    }
    let from_us = first_us / 2;
    let span_us = 200 + at_us - from_us + shape.service_ns / 500;
    let is_awake = shape.asleep == 0;
    let is_quiet = Dice::of(seed, &[3]).percent(25);
    // Of the worlds, half have faults of their sessions.
    let is_troubled = u64::from(Dice::of(seed, &[5]).percent(50));
    let stop_us = if is_awake { 60_000 } else { 5_000 };
    // Percent of the worlds with such events, the most of them, and the most of `n`.
    let table = [
        (Kind::Meanwhile, 50, 20, most.min(20)),
        (Kind::Answers, 40, 20, 100),
        (Kind::Cut, 45, 6, 1),
        // Without echoes, one end has to learn of it and tell the other one.
        (Kind::Silent, 25, 2, if is_awake { 3 } else { 2 }),
        (Kind::Hole, 30 * u64::from(is_awake), 2, 1),
        (Kind::Delay, 25, 6, 2_000),
        (Kind::Fail, 20, 4, 1),
        (Kind::Stray, 15, 2, 1),
        (Kind::GiveUp, 25, 3, 1),
        (Kind::Stop, 30, 4, stop_us),
        (Kind::Works, 60 * shape.limits, 4, 64),
        (Kind::Away, 20, 3, 3_000),
        (Kind::Busy, 12, 3, 3_000),
        (Kind::Leave, 8, 2, 2),
        (Kind::Abort, 8, 1, 1),
        (Kind::Reset, 20 * is_troubled, 3, 2),
        (Kind::Mute, 15 * is_troubled, 2, 3),
        (Kind::Tear, 30 * is_troubled, 3, 1),
        (Kind::Stick, 20 * is_troubled, 3, 300_000),
        (Kind::Spoil, 10 * is_troubled, 2, 1),
        (Kind::Lie, 12 * is_troubled, 2, 8),
        (Kind::Restart, 15 * is_troubled, 2, 20_000),
        (Kind::Change, 6 * is_troubled, 1, 20_000),
        (Kind::Down, 15 * is_troubled, 2, 60_000),
        (Kind::Name, 10, 2, 2),
        (Kind::Finish, 5, 1, 1),
        (Kind::Cancel, 40, 20, 30),
    ];
    for (kind, percent, most, n) in table {
        let mut d = Dice::of(seed, &[4, kind as u64]);
        let is_fault = !matches!(
            kind,
            Kind::Meanwhile | Kind::Answers | Kind::Works | Kind::Cancel
        );
        if (is_fault && is_quiet) || !d.percent(percent) {
            continue;
        }
        for _ in 0..d.skewed(most) {
            events.push(Event {
                at_us: from_us + d.below(span_us),
                kind,
                on: d.below(shape.count(kind.concerns())),
                n: d.skewed(n),
            });
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_back_from_its_text() {
        for seed in 0..200 {
            let plan = Plan::of(seed);
            assert_eq!(Plan::parse(&plan.to_string()), Ok(plan));
        }
        assert!(Plan::parse("seed=1 slot=4").is_err());
        assert!(Plan::parse("seed=1; 5 burst 1").is_err());
    }
}
