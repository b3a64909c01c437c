//! Random histories against a model of the memory of keys and values.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Content of a position of a slot: owner and index.
type CachedPosition = Option<(usize, usize)>;

struct World {
    schedule: Schedule<usize>,
    memory: Vec<Vec<CachedPosition>>,
    /// Prompt and answer of each sequence, in tokens.
    lengths: Vec<(usize, usize)>,
    unwanted: BTreeSet<usize>,
    done: BTreeMap<usize, usize>,
    order: Vec<usize>,
    joined: usize,
}

impl World {
    fn new(slots: usize, moves: bool) -> Self {
        World {
            schedule: Schedule::new(slots, moves),
            memory: vec![vec![None; 64]; slots],
            lengths: Vec::new(),
            unwanted: BTreeSet::new(),
            done: BTreeMap::new(),
            order: Vec::new(),
            joined: 0,
        }
    }

    /// One iteration of the engine's loop; false if no step is left.
    fn turn(&mut self) -> bool {
        self.schedule.retain(|owner| !self.unwanted.contains(owner));
        let memory = &mut self.memory;
        let step = self.schedule.next(|m| {
            assert!(m.from > m.to, "towards the front: {m:?}");
            let held: Vec<CachedPosition> = memory[m.from][..m.held].to_vec();
            memory[m.to][..m.held].copy_from_slice(&held);
            memory[m.from].fill(None);
        });
        match step {
            DecodeStep::Idle => {
                self.joined = 0;
                return false;
            }
            DecodeStep::Join { slot } => self.join(slot),
            DecodeStep::Decode { first, rows } => self.decode(first, rows),
        }
        true
    }

    fn join(&mut self, slot: usize) {
        let at_work = self.schedule.slots.iter().flatten().count() - 1;
        self.joined += 1;
        let most = 1 + self.memory.len() / 8;
        assert!(at_work == 0 || self.joined <= most, "the others wait");
        let row = self.schedule.row(slot).expect("it joined");
        assert_eq!((row.made, row.held()), (0, 0));
        let (owner, prompt) = (row.owner, row.prompt);
        self.order.push(owner);
        self.memory[slot].fill(None);
        for (i, cell) in self.memory[slot][..prompt].iter_mut().enumerate() {
            *cell = Some((owner, i));
        }
        self.take_token(slot);
    }

    fn decode(&mut self, first: usize, rows: usize) {
        self.joined = 0;
        let used = |s: &Schedule<usize>, slot: usize| s.slots[slot].is_some();
        for slot in (0..first).chain(first + rows..self.memory.len()) {
            assert!(!used(&self.schedule, slot), "slot {slot} is left out");
        }
        let mut any = false;
        for slot in first..first + rows {
            let Some(row) = self.schedule.row(slot) else {
                assert!(!self.schedule.moves, "a hole at {slot}");
                continue;
            };
            any = true;
            let (owner, held) = (row.owner, row.held());
            for (i, cell) in self.memory[slot][..held].iter().enumerate() {
                assert_eq!(*cell, Some((owner, i)), "slot {slot}");
            }
            self.memory[slot][held] = Some((owner, held));
            self.take_token(slot);
        }
        assert!(any, "a step without a sequence");
    }

    fn take_token(&mut self, slot: usize) {
        let row = self.schedule.row(slot).expect("at work");
        row.made += 1;
        let (owner, made) = (row.owner, row.made);
        if made == self.lengths[owner].1 {
            assert_eq!(self.schedule.take(slot), Some(owner));
            assert_eq!(self.done.insert(owner, made), None, "it ended twice");
        }
    }

    fn push(&mut self, prompt: usize, answer: usize) {
        self.schedule.push(self.lengths.len(), prompt);
        self.lengths.push((prompt, answer));
    }
}

#[derive(Clone, Debug)]
enum Op {
    Push(usize, usize),
    Turns(usize),
    /// The frontend drops the n-th sequence so far.
    Leave(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (1usize..20, 1usize..20).prop_map(|(p, a)| Op::Push(p, a)),
        4 => (1usize..9).prop_map(Op::Turns),
        1 => (0usize..64).prop_map(Op::Leave),
    ];
    prop::collection::vec(op, 1..80)
}

proptest! {
    /// Every step finds each sequence's keys and values complete and in order. Each sequence that
    /// stays wanted ends once, with all its tokens.
    #[test]
    fn each_sequence_keeps_its_own(slots in 1usize..20, moves: bool, ops in ops()) {
        let mut world = World::new(slots, moves);
        for op in &ops {
            match op {
                Op::Push(prompt, answer) => world.push(*prompt, *answer),
                Op::Turns(n) => (0..*n).for_each(|_| { world.turn(); }),
                Op::Leave(n) if *n < world.lengths.len() => {
                    world.unwanted.insert(*n);
                }
                Op::Leave(_) => {}
            }
        }
        let mut turns = 0;
        while world.turn() {
            turns += 1;
            prop_assert!(turns < 10_000, "it does not come to an end");
        }
        for (i, (_, answer)) in world.lengths.iter().enumerate() {
            if !world.unwanted.contains(&i) {
                prop_assert_eq!(world.done.get(&i), Some(answer));
            }
        }
        prop_assert!(world.order.is_sorted(), "first come, first served: {:?}", world.order);
        prop_assert_eq!(world.schedule.active, 0);
        prop_assert!(world.schedule.slots.iter().all(Option::is_none));
    }
}
