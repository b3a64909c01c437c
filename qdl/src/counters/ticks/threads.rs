//! Time on a core and time waiting for a core, of a process's threads, tick by tick.

use std::{cmp::Reverse, collections::BTreeMap};

use super::Grown;
use fabric::os::ThreadTime;
use record::timeline::ThreadSide;

/// Maximum number of threads tracked; later threads are ignored.
const MOST_SEEN: usize = 128;
/// Maximum number of threads reported: the busiest ones.
const MOST_TOLD: usize = 32;

/// Times of all threads by tick.
#[derive(Clone, Debug, Default)]
pub struct ThreadTicks {
    begin_ns: u64,
    threads: BTreeMap<u64, (String, Grown)>,
}

impl ThreadTicks {
    /// Starts the first tick at `begin_ns`.
    pub fn new(begin_ns: u64) -> Self {
        ThreadTicks {
            begin_ns,
            threads: BTreeMap::new(),
        }
    }

    /// Adds a reading of all threads at `now_ns`. A thread's times count from its first reading.
    pub fn read(&mut self, now_ns: u64, threads: &[ThreadTime]) {
        for t in threads {
            let row = [t.ran_ns, t.waited_ns];
            if self.threads.len() < MOST_SEEN || self.threads.contains_key(&t.id) {
                let begin_ns = self.begin_ns;
                let new = || (t.name.clone(), Grown::new(begin_ns, &row, 2));
                self.threads
                    .entry(t.id)
                    .or_insert_with(new)
                    .1
                    .read(now_ns, &row);
            }
        }
    }

    /// Returns the busiest threads of a run of `lasted_ns`, in `n` ticks of `tick_ns`. Leaves out
    /// threads that neither ran nor waited.
    pub fn sides(&self, tick_ns: u64, n: usize, lasted_ns: u64) -> Vec<ThreadSide> {
        let mut sides: Vec<(u64, ThreadSide)> = Vec::new();
        for (name, grown) in self.threads.values() {
            let ticks = grown.ticks(tick_ns, n);
            let used: u64 = ticks.iter().flatten().sum();
            let permille = |column: usize| {
                let of = |(k, row): (usize, &Vec<u64>)| {
                    let left = lasted_ns.saturating_sub(k as u64 * tick_ns);
                    let long = left.clamp(1, tick_ns.max(1));
                    let ns = row.get(column).copied().unwrap_or(0);
                    (u128::from(ns) * 1000 / u128::from(long)).min(1000) as u16
                };
                ticks.iter().enumerate().map(of).collect()
            };
            let side = ThreadSide {
                name: name.clone(),
                on_core: permille(0),
                waited: permille(1),
            };
            sides.push((used, side));
        }
        sides.retain(|(used, _)| *used > 0);
        sides.sort_by_key(|(used, _)| Reverse(*used));
        sides.truncate(MOST_TOLD);
        sides.into_iter().map(|(_, side)| side).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = super::super::FIRST_TICK_NS;

    #[test]
    fn threads_are_told_the_busiest_first_in_permille_of_each_tick() {
        let mut all = ThreadTicks::new(0);
        let reading = |id, name: &str, ran_ns, waited_ns| ThreadTime {
            id,
            name: name.to_owned(),
            ran_ns,
            waited_ns,
        };
        let at = |all: &mut ThreadTicks, now, ran: [u64; 2]| {
            let two = [
                reading(1, "idle", 7, 7),
                reading(2, "nic-0", ran[0], ran[1]),
            ];
            all.read(now, &two);
        };
        at(&mut all, 0, [50, 0]);
        at(&mut all, T, [50 + T / 2, T / 4]);
        all.read(T, &[reading(9, "late", 5 * T, 0)]);
        // The last tick is half as long.
        at(&mut all, T + T / 2, [50 + T, T / 4]);
        all.read(T + T / 2, &[reading(9, "late", 5 * T + T / 10, 0)]);
        let sides = all.sides(T, 2, T + T / 2);
        let names: Vec<_> = sides.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["nic-0", "late"]);
        assert_eq!(
            (&sides[0].on_core[..], &sides[0].waited[..]),
            (&[500, 1000][..], &[250, 0][..])
        );
        assert_eq!(sides[1].on_core, [0, 200]);
    }

    #[test]
    fn no_number_of_threads_takes_more_room() {
        let mut all = ThreadTicks::new(0);
        for id in 0..1_000 {
            let one = |ran_ns| ThreadTime {
                id,
                ran_ns,
                ..ThreadTime::default()
            };
            all.read(0, &[one(0)]);
            all.read(T, &[one(id)]);
        }
        assert_eq!(
            (all.threads.len(), all.sides(T, 1, T).len()),
            (MOST_SEEN, MOST_TOLD)
        );
    }
}
