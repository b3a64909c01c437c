//! Which thread polls which NIC.
//!
//! A thread for each NIC is right where each has much to do and a core to itself. Elsewhere it is
//! dear: threads that have little to do look for work all the same, and take cores from those that
//! have much. And where one NIC has more to do than a thread can, its connections are better off on
//! several. So what a thread has is a *share*: connections of one NIC, all of them or some. Shares
//! may be together on a thread, and change to another while they are at work:
//!
//! ```text
//!   full for some windows, with two shares or more  -->  half to one with time to spare
//!   little to do, and another with time to spare    -->  all of them there; it sleeps
//! ```
//!
//! Those that may be together are a *group*: of one fabric, waiting in one way, with threads and
//! memory in one place. Nothing crosses from one group to another.
//!
//! Decisions are here, as plain functions of what threads had to do; the threads are in
//! [`nic_thread`](super).

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

/// A thread that is at work for so much of its time is full.
const FULL: f64 = 0.85;
/// One that is at work for less than this has little to do.
const LITTLE: f64 = 0.3;
/// And for less than this nothing: it sleeps, and costs nothing where it is.
const NOTHING: f64 = 0.02;
/// Two that share one thread leave it so much to spare.
const TOGETHER: f64 = 0.6;
/// How long a thread looks at what it has to do before it gives something away, ns.
pub(super) const WINDOW_NS: u64 = 5_000_000;
/// Windows in a row in which it was full. Behind a hiccup a thread is full until it has caught up,
/// which takes no second thread; a thread more takes a core from others, for a second at least.
const FULL_WINDOWS: u32 = 4;
/// The same once some of the crew were parted just now, by this thread or another: there is much to
/// do.
const MORE_WINDOWS: u32 = 2;
/// How long that is so, ns.
const JUST_NOW_NS: u64 = 10 * WINDOW_NS;
/// Windows of which the mean is taken for whether it has little to do.
const CALM_WINDOWS: f64 = 64.0;
/// How long threads stay apart after they have been parted, ns; doubles each time.
const APART_NS: (u64, u64) = (1_000_000_000, 60_000_000_000);

/// Which thread polls which share of which NIC at first, and between which threads they may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrewPlan {
    /// The NIC of each share. Every NIC has one, at least.
    pub nic_of: Vec<usize>,
    /// The thread of each share. Threads are counted from 0.
    pub thread_of: Vec<usize>,
    /// Groups: each thread's, by its number.
    pub group_of: Vec<usize>,
    /// Whether shares change threads within their group.
    pub moves: Moves,
}

/// When shares change threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moves {
    /// Never.
    #[default]
    Never,
    /// By what there is to do.
    ByNeed,
    /// All the time.
    #[cfg(all(test, not(qdl_loom)))]
    Restless,
}

/// Which share a NIC's next connection is in: each in turn.
#[derive(Clone, Debug)]
pub struct ShareOut(Vec<VecDeque<usize>>);

impl ShareOut {
    /// The share of the next connection of a NIC; of one that is not in the plan its own number.
    pub fn next(&mut self, nic: usize) -> usize {
        let Some(shares) = self.0.get_mut(nic) else {
            return nic;
        };
        shares.rotate_left(shares.len().min(1));
        shares.back().copied().unwrap_or(nic)
    }
}

impl CrewPlan {
    /// A thread for each of so many NICs.
    pub fn each(nics: usize) -> Self {
        CrewPlan {
            nic_of: (0..nics).collect(),
            thread_of: (0..nics).collect(),
            group_of: (0..nics).collect(),
            moves: Moves::Never,
        }
    }

    /// Shares.
    pub fn shares(&self) -> usize {
        self.nic_of.len()
    }

    /// NICs.
    pub fn nics(&self) -> usize {
        self.nic_of.iter().map(|nic| nic + 1).max().unwrap_or(0)
    }

    /// The shares of a NIC.
    pub fn shares_of(&self, nic: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.shares()).filter(move |share| self.nic_of[*share] == nic)
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.group_of.len()
    }

    /// Deals a NIC's connections out to its shares.
    pub fn share_out(&self) -> ShareOut {
        let of_nic = (0..self.nics()).map(|nic| self.shares_of(nic).collect());
        ShareOut(of_nic.collect())
    }

    /// The share that says how a thread waits and where it runs: its first, or the first of its
    /// group where it has none yet.
    pub fn first_share(&self, thread: usize) -> Option<usize> {
        let mut all = self.thread_of.iter();
        let of_group = |t: &usize| self.group_of.get(*t) == self.group_of.get(thread);
        all.clone()
            .position(|t| *t == thread)
            .or_else(|| all.position(of_group))
    }

    /// It is one for so many NICs: each has a share, every share a thread, and every thread a share
    /// in its group.
    pub fn fits(&self, nics: usize) -> bool {
        self.thread_of.len() == self.shares()
            && self.nics() == nics
            && (0..nics).all(|nic| self.shares_of(nic).next().is_some())
            && self.thread_of.iter().all(|t| *t < self.threads())
            && (0..self.threads()).all(|t| self.first_share(t).is_some())
    }
}

/// What a thread has to do, as the others see it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    /// Shares of NICs that it has, with a connection in them.
    pub shares: usize,
    /// Part of its time that it was at work lately.
    pub busy: f64,
}

/// Written by its thread, read by those that have something to give away.
#[derive(Debug, Default)]
pub(super) struct SharedLoad(AtomicU64);

impl SharedLoad {
    pub fn set(&self, load: Load) {
        let busy = (load.busy.clamp(0.0, 1.0) * 1e6) as u64;
        self.0
            .store((load.shares as u64) << 32 | busy, Ordering::Relaxed);
    }

    pub fn get(&self) -> Load {
        let bits = self.0.load(Ordering::Relaxed);
        Load {
            shares: (bits >> 32) as usize,
            busy: (bits & 0xffff_ffff) as f64 / 1e6,
        }
    }
}

/// What a thread does about what it has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Give {
    /// Half of its shares to this thread.
    Half(usize),
    /// All of them.
    All(usize),
}

/// One thread's looks at what it has to do.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    /// Windows in a row in which it was full.
    full: u32,
    /// Mean over the windows before.
    calm: f64,
}

impl Balance {
    pub fn new() -> Self {
        Balance { full: 0, calm: 0.5 }
    }

    /// After a window in which thread `me` was at work for `busy` of its time, and waited for a
    /// core for `waited` of it. `loads` are those of all threads.
    pub fn look(
        &mut self,
        me: usize,
        (busy, waited): (f64, f64),
        loads: &[Load],
        group_of: &[usize],
        parting: Parting,
    ) -> Option<Give> {
        self.calm += (busy - self.calm) / CALM_WINDOWS;
        // Where cores are short, one thread more makes nothing quicker.
        let full = busy - waited >= FULL;
        self.full = if full { self.full + 1 } else { 0 };
        let shares = loads[me].shares;
        let others = || {
            let group = group_of[me];
            (0..loads.len()).filter(move |t| *t != me && group_of[*t] == group)
        };
        let least = |threads: &mut dyn Iterator<Item = usize>| {
            threads.min_by(|a, b| loads[*a].busy.total_cmp(&loads[*b].busy))
        };
        if self.full >= parting.full_windows && shares >= 2 {
            self.full = 0;
            let half = busy * (shares / 2) as f64 / shares as f64;
            let to = least(&mut others())?;
            // One that is free is there to be used. Which of several shares has how much to do is
            // not known: between threads that have some they move now and then alone.
            let may = loads[to].shares == 0 || parting.may_move;
            return (may && loads[to].busy + half <= FULL).then_some(Give::Half(to));
        }
        let little = NOTHING..LITTLE;
        if parting.may_move && shares > 0 && little.contains(&busy) && little.contains(&self.calm) {
            // Of two with little to do one gives, the one that comes later.
            let busier = |t: &usize| {
                loads[*t].shares > 0
                    && (loads[*t].busy >= LITTLE || *t < me)
                    && loads[*t].busy + self.calm.max(busy) <= TOGETHER
            };
            let to = least(&mut others().filter(busier))?;
            self.calm = 0.5;
            return Some(Give::All(to));
        }
        None
    }
}

/// What partings of the last while say about the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parting {
    /// None was lately.
    may_move: bool,
    /// Windows in a row after which a thread that was full in each parts with something.
    full_windows: u32,
}

/// Until when threads that were parted stay apart.
#[derive(Debug)]
pub(super) struct Apart {
    /// When they were parted last; `u64::MAX` before.
    parted_ns: AtomicU64,
    until_ns: AtomicU64,
    next_ns: AtomicU64,
}

impl Apart {
    pub fn new() -> Self {
        Apart {
            parted_ns: AtomicU64::new(u64::MAX),
            until_ns: AtomicU64::new(0),
            next_ns: AtomicU64::new(APART_NS.0),
        }
    }

    /// Shares of one thread were parted.
    pub fn parted(&self, now_ns: u64) {
        let ns = self.next_ns.load(Ordering::Relaxed);
        self.next_ns
            .store((2 * ns).min(APART_NS.1), Ordering::Relaxed);
        self.until_ns.store(now_ns + ns, Ordering::Relaxed);
        self.parted_ns.store(now_ns, Ordering::Relaxed);
    }

    pub fn at(&self, now_ns: u64) -> Parting {
        let parted_ns = self.parted_ns.load(Ordering::Relaxed);
        // Another thread's clock may be ahead by what a look at it takes.
        let just_now = parted_ns != u64::MAX && now_ns.saturating_sub(parted_ns) < JUST_NOW_NS;
        Parting {
            may_move: now_ns >= self.until_ns.load(Ordering::Relaxed),
            full_windows: if just_now { MORE_WINDOWS } else { FULL_WINDOWS },
        }
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_thread_says_of_itself_is_read_as_it_was() {
        let shared = SharedLoad::default();
        assert_eq!(shared.get(), Load::default());
        let load = Load {
            shares: 7,
            busy: 0.25,
        };
        shared.set(load);
        assert_eq!(shared.get(), load);
    }

    #[test]
    fn plans_name_a_thread_for_each_nic_and_a_nic_for_each_thread() {
        assert!(CrewPlan::each(3).fits(3));
        assert!(!CrewPlan::each(3).fits(4));
        let of = |thread_of: &[usize], threads: usize| CrewPlan {
            nic_of: vec![0, 1, 2],
            thread_of: thread_of.to_vec(),
            group_of: vec![0; threads],
            moves: Moves::ByNeed,
        };
        assert!(of(&[0, 1, 0], 2).fits(3));
        assert!(of(&[0, 0, 0], 2).fits(3), "a thread that is to have some");
        assert!(!of(&[0, 2, 0], 2).fits(3), "no such thread");
        let two = CrewPlan {
            nic_of: vec![0, 0, 2],
            ..of(&[0, 1, 0], 2)
        };
        assert!(!two.fits(3), "a NIC without a share");
        let alone = CrewPlan {
            group_of: vec![0, 1],
            ..of(&[0, 0, 0], 2)
        };
        assert!(!alone.fits(3), "a thread whose group has nothing");
    }

    #[test]
    fn connections_are_dealt_out_to_their_nics_shares_in_turn() {
        let plan = CrewPlan {
            nic_of: vec![0, 1, 1, 0, 0],
            ..CrewPlan::default()
        };
        let mut out = plan.share_out();
        let dealt: Vec<_> = [0, 0, 1, 0, 0, 1, 1, 7].map(|nic| out.next(nic)).into();
        assert_eq!(dealt, [0, 3, 1, 4, 0, 2, 1, 7]);
    }

    #[test]
    fn threads_that_were_parted_stay_apart_for_longer_each_time() {
        let apart = Apart::new();
        assert!(apart.at(0).may_move);
        let mut now = 5;
        for s in [1, 2, 4, 8, 16, 32, 60, 60] {
            apart.parted(now);
            assert!(!apart.at(now + s * 1_000_000_000 - 1).may_move);
            now += s * 1_000_000_000;
            assert!(apart.at(now).may_move);
        }
    }

    #[test]
    fn others_part_sooner_behind_the_first() {
        let apart = Apart::new();
        assert_eq!(apart.at(1).full_windows, FULL_WINDOWS);
        apart.parted(7);
        assert_eq!(apart.at(6).full_windows, MORE_WINDOWS);
        assert_eq!(apart.at(6 + JUST_NOW_NS).full_windows, MORE_WINDOWS);
        assert_eq!(apart.at(7 + JUST_NOW_NS).full_windows, FULL_WINDOWS);
    }

    #[test]
    fn neither_a_hiccup_nor_a_wait_for_cores_parts_anything() {
        let loads = [(2, 1.0), (0, 0.0)].map(|(shares, busy)| Load { shares, busy });
        let when = Apart::new().at(1);
        let looks = |parts: &[(f64, f64)]| {
            let mut balance = Balance::new();
            let all = parts.iter();
            all.filter_map(|p| balance.look(0, *p, &loads, &[0, 0], when))
                .count()
        };
        let (full, calm, waits) = ((1.0, 0.0), (0.5, 0.0), (1.0, 0.3));
        assert_eq!(looks(&[full, full, full, calm, full, full, full]), 0);
        assert_eq!(looks(&[waits; 100]), 0);
        assert_eq!(looks(&[full; 4]), 1);
    }

    /// NICs that each take some share of a thread, moved as threads decide.
    struct World {
        wants: Vec<f64>,
        of: Vec<usize>,
        balances: Vec<Balance>,
        group_of: Vec<usize>,
        apart: Apart,
        now_ns: u64,
        moves: usize,
    }

    impl World {
        fn new(wants: Vec<f64>, groups: usize, threads: usize) -> Self {
            let of = (0..wants.len()).map(|n| n % threads).collect();
            World {
                of,
                balances: vec![Balance::new(); threads],
                group_of: (0..threads).map(|t| t % groups).collect(),
                apart: Apart::new(),
                now_ns: 1,
                moves: 0,
                wants,
            }
        }

        fn load(&self, thread: usize) -> Load {
            let mine = (0..self.of.len()).filter(|n| self.of[*n] == thread);
            Load {
                shares: mine.clone().count(),
                busy: mine.map(|n| self.wants[n]).sum::<f64>().min(1.0),
            }
        }

        fn run(&mut self, windows: usize) {
            for _ in 0..windows {
                self.now_ns += WINDOW_NS;
                for t in 0..self.balances.len() {
                    let loads: Vec<_> = (0..self.balances.len()).map(|t| self.load(t)).collect();
                    let when = self.apart.at(self.now_ns);
                    let parts = (loads[t].busy, 0.0);
                    let give = self.balances[t].look(t, parts, &loads, &self.group_of, when);
                    let (to, n) = match give {
                        None => continue,
                        Some(Give::Half(to)) => {
                            self.apart.parted(self.now_ns);
                            (to, loads[t].shares / 2)
                        }
                        Some(Give::All(to)) => (to, loads[t].shares),
                    };
                    assert_eq!(self.group_of[to], self.group_of[t]);
                    self.moves += 1;
                    let mine: Vec<_> = (0..self.of.len()).filter(|n| self.of[*n] == t).collect();
                    mine.iter().take(n).for_each(|n| self.of[*n] = to);
                }
            }
        }

        fn used(&self) -> usize {
            let threads = 0..self.balances.len();
            threads.filter(|t| self.load(*t).shares > 0).count()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever NICs have to do: soon no thread is full that could give something away, and
        /// what moves settles.
        #[test]
        fn nobody_stays_full_beside_one_that_is_free(
            wants in prop::collection::vec(0f64..1.2, 1..12),
            groups in 1usize..3,
            threads in 1usize..8,
        ) {
            let threads = threads.min(wants.len()).max(groups.min(wants.len()));
            let mut world = World::new(wants, groups, threads);
            world.run(1_500);
            for t in 0..threads {
                let load = world.load(t);
                let half = load.busy * (load.shares / 2) as f64 / load.shares.max(1) as f64;
                let spare = (0..threads)
                    .filter(|o| *o != t && world.group_of[*o] == world.group_of[t])
                    .map(|o| world.load(o))
                    .filter(|o| o.shares == 0)
                    .map(|o| o.busy)
                    .fold(1.0, f64::min);
                prop_assert!(
                    load.busy < FULL || load.shares < 2 || spare + half > FULL,
                    "{:?} beside {}", load, spare
                );
            }
            let before = world.moves;
            world.run(4_000);
            prop_assert!(world.moves - before <= 8, "{} moves in 20 s", world.moves - before);
        }
    }

    #[test]
    fn nics_with_little_to_do_share_and_part_again_when_there_is_much() {
        let mut world = World::new(vec![0.1; 8], 1, 8);
        world.run(2_000);
        assert!(world.used() <= 2, "{} threads", world.used());
        world.wants = vec![0.9; 8];
        // Within a tenth of a second.
        world.run(20);
        assert_eq!(world.used(), 8);
        // Those that have nothing to do cost nothing where they are.
        let mut idle = World::new(vec![0.0; 8], 1, 8);
        idle.run(2_000);
        assert_eq!((idle.used(), idle.moves), (8, 0));
    }
}
