//! Random histories of both ends of a session, joined by pipes that keep their order. The random
//! numbers decide the order of messages.

use std::{
    collections::{HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Weak},
    time::Duration,
};

use fabric::tcp::ConnectionSecret;
use proptest::prelude::*;

use super::{
    Life, LifeError,
    accelerator_ends::AcceleratorEnds,
    frontend_end::{EndActions, FrontendEnd, OpenAnswer, RetryPauses},
};

const CONNECTIONS: u16 = 3;
const NONE: [u32; 0] = [];
const SECRET: ConnectionSecret = ConnectionSecret {
    key: [7; 32],
    address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1),
};

type Which = (u16, u32);

#[derive(Clone, Copy, Debug)]
enum Frame {
    Lost(Which),
    Reset(Which),
}

#[derive(Clone, Debug)]
enum ToFront {
    Frame(Frame),
    Opened(Vec<(Which, bool)>),
    Refused(Vec<Which>),
}

#[derive(Clone, Debug)]
enum ToAccelerator {
    Frame(Frame),
    Open(Vec<Which>),
}

#[derive(Debug)]
struct Slots(Which);

#[derive(Default)]
struct Served {
    granted: AcceleratorEnds<Arc<Slots>>,
    /// Everything that was ever requested; the control plane lets only that through.
    asked: HashSet<Which>,
    queue: VecDeque<Vec<Which>>,
    working: Option<Vec<Which>>,
    /// Slots whose data connection is being welcomed, is on a NIC thread, or is read by a batch.
    doors: Vec<Arc<Slots>>,
    nic: Vec<Arc<Slots>>,
    readers: Vec<Arc<Slots>>,
    orders: Vec<Which>,
    made: Vec<Weak<Slots>>,
    over: bool,
}

impl Served {
    fn alive(&self, number: u16) -> Vec<u32> {
        let alive = self.made.iter().filter_map(Weak::upgrade);
        alive.filter(|s| s.0.0 == number).map(|s| s.0.1).collect()
    }

    fn hear(&mut self, frame: Frame) -> Vec<Frame> {
        match frame {
            Frame::Lost((number, epoch)) => {
                let todo = self.granted.lost_there(number, epoch);
                if todo.give_up {
                    self.orders.push((number, epoch));
                }
                let reset = todo.tell_reset.then_some(Frame::Reset((number, epoch)));
                reset.into_iter().collect()
            }
            Frame::Reset((number, epoch)) => {
                self.granted.reset_there(number, epoch);
                vec![]
            }
        }
    }

    fn work(&mut self, succeed: bool) -> Option<ToFront> {
        let Some(wanted) = self.working.take() else {
            let wanted = self.queue.pop_front()?;
            return match self.granted.ask(&wanted) {
                Ok(()) => {
                    self.working = Some(wanted);
                    None
                }
                Err(_) => Some(ToFront::Refused(wanted)),
            };
        };
        if !succeed {
            self.granted.refuse(&wanted);
            return Some(ToFront::Refused(wanted));
        }
        let mut grants = Vec::new();
        for which in wanted {
            let slots = Arc::new(Slots(which));
            assert_eq!(self.alive(which.0), NONE, "one user of the memory");
            self.made.push(Arc::downgrade(&slots));
            // The accelerator connects the even ones itself, like queue pairs.
            let proves = which.0 % 2 == 1;
            let secret = proves.then_some(SECRET);
            let wanted = self.granted.grant(which, slots.clone(), 0, secret);
            if wanted && !proves {
                assert!(self.granted.up(which.0, which.1));
                self.nic.push(slots);
            }
            grants.push((which, proves));
        }
        Some(ToFront::Opened(grants))
    }

    /// A NIC thread loses a connection, or must take it down.
    fn lose(&mut self, i: usize) -> Option<Frame> {
        let slots = self.nic.swap_remove(i);
        let which = slots.0;
        drop(slots);
        let news = self.granted.lost_here(which.0, which.1);
        news.then_some(Frame::Lost(which))
    }

    fn obey(&mut self) -> Option<Frame> {
        let order = self.orders.pop()?;
        let i = self.nic.iter().position(|s| s.0 == order)?;
        self.lose(i)
    }

    fn welcome(&mut self) {
        if let Some(slots) = self.doors.pop()
            && self.granted.up(slots.0.0, slots.0.1)
        {
            self.nic.push(slots);
        }
    }

    fn collect(&mut self) -> Vec<Frame> {
        let tell = self.granted.collect(|s| Arc::strong_count(s) == 1, drop);
        for (number, _) in &tell {
            assert_eq!(self.alive(*number), NONE, "who has let go has nothing");
        }
        tell.into_iter().map(Frame::Reset).collect()
    }

    fn end(&mut self) {
        self.over = true;
        self.queue.clear();
        self.orders.extend(self.nic.iter().map(|s| s.0));
        self.granted.end();
    }

    fn run_out(&mut self) {
        self.work(true);
        while self.obey().is_some() || !self.orders.is_empty() {}
        while !self.doors.is_empty() {
            self.welcome();
        }
        self.readers.clear();
        self.collect();
    }
}

struct World {
    now: Duration,
    front: Vec<FrontendEnd>,
    /// Requests in flight: the connections waited for, if the frontend still waits.
    asking: Option<Vec<Which>>,
    connecting: Vec<(Which, bool)>,
    nic: Vec<Which>,
    orders: Vec<Which>,
    memory: Vec<Vec<u32>>,
    /// Request times of each connection since it was last up.
    attempts: Vec<Vec<Duration>>,
    asked: HashSet<Which>,
    here: Served,
    past: Vec<Served>,
    to_accelerator: VecDeque<ToAccelerator>,
    to_front: VecDeque<ToFront>,
}

impl World {
    fn new() -> World {
        let n = usize::from(CONNECTIONS);
        World {
            now: Duration::ZERO,
            front: vec![FrontendEnd::new(RetryPauses::default()); n],
            asking: None,
            connecting: vec![],
            nic: vec![],
            orders: vec![],
            memory: vec![vec![]; n],
            attempts: vec![vec![]; n],
            asked: HashSet::new(),
            here: Served::default(),
            past: vec![],
            to_accelerator: VecDeque::new(),
            to_front: VecDeque::new(),
        }
    }

    fn ask(&mut self) {
        if self.asking.is_some() {
            return;
        }
        let mut wanted = vec![];
        for i in 0..CONNECTIONS {
            let at = usize::from(i);
            let Some(epoch) = self.front[at].ask(self.now) else {
                continue;
            };
            assert!(self.asked.insert((i, epoch)), "an epoch never comes twice");
            assert_eq!(self.memory[at], NONE, "one user of the memory");
            assert_eq!(self.here.alive(i), NONE, "asked for before both let go");
            if let Some(last) = self.attempts[at].last() {
                let pauses = RetryPauses::default();
                let doubled = pauses.first * (1 << self.attempts[at].len().min(10));
                assert!(self.now - *last >= doubled.min(pauses.last), "paced");
            }
            self.attempts[at].push(self.now);
            self.memory[at].push(epoch);
            wanted.push((i, epoch));
        }
        if !wanted.is_empty() {
            self.asking = Some(wanted.clone());
            self.to_accelerator.push_back(ToAccelerator::Open(wanted));
        }
    }

    fn drop_half(&mut self, (number, epoch): Which) {
        self.memory[usize::from(number)].retain(|e| *e != epoch);
    }

    /// Executes the actions; true where the caller continues.
    fn obey_todo(&mut self, which: Which, todo: EndActions) -> bool {
        if todo.give_up {
            self.orders.push(which);
        }
        if todo.tell_lost {
            let lost = ToAccelerator::Frame(Frame::Lost(which));
            self.to_accelerator.push_back(lost);
        }
        if todo.tell_reset {
            let at = usize::from(which.0);
            assert_eq!(self.memory[at], NONE, "who has let go has nothing");
            let reset = ToAccelerator::Frame(Frame::Reset(which));
            self.to_accelerator.push_back(reset);
        }
        todo.go_on
    }

    fn answered(&mut self, which: Which, answer: OpenAnswer) -> bool {
        if answer != OpenAnswer::Granted {
            self.drop_half(which);
        }
        let front = &mut self.front[usize::from(which.0)];
        let todo = front.on_answer(which.1, answer, self.now);
        // Unwanted parts are dropped before the peer learns of it.
        if answer == OpenAnswer::Granted && !todo.go_on {
            self.drop_half(which);
        }
        self.obey_todo(which, todo)
    }

    fn lose(&mut self, i: usize) {
        let which = self.nic.swap_remove(i);
        self.lost(which);
    }

    fn lost(&mut self, which: Which) {
        self.drop_half(which);
        let todo = self.front[usize::from(which.0)].lost_here(which.1, self.now);
        self.obey_todo(which, todo);
    }

    fn time_out(&mut self) {
        for which in self.asking.take().into_iter().flatten() {
            self.answered(which, OpenAnswer::Missing);
        }
    }

    fn hear(&mut self) {
        match self.to_front.pop_front() {
            Some(ToFront::Frame(Frame::Lost(which))) => {
                let todo = self.front[usize::from(which.0)].lost_there(which.1);
                self.obey_todo(which, todo);
            }
            Some(ToFront::Frame(Frame::Reset(which))) => {
                self.front[usize::from(which.0)].reset_there(which.1);
            }
            Some(ToFront::Opened(grants)) => {
                let of: Vec<_> = grants.iter().map(|(w, _)| *w).collect();
                // An answer that comes too late is ignored.
                if self.asking.take_if(|a| *a == of).is_some() {
                    for (which, proves) in grants {
                        if self.answered(which, OpenAnswer::Granted) {
                            self.connecting.push((which, proves));
                        }
                    }
                }
            }
            Some(ToFront::Refused(of)) => {
                for which in self.asking.take_if(|a| *a == of).into_iter().flatten() {
                    self.answered(which, OpenAnswer::Refused);
                }
            }
            None => {}
        }
    }

    fn accelerator_hears(&mut self) {
        match self.to_accelerator.pop_front() {
            Some(ToAccelerator::Open(wanted)) => {
                self.here.asked.extend(&wanted);
                self.here.queue.push_back(wanted);
            }
            Some(ToAccelerator::Frame(frame)) => {
                let (Frame::Lost(which) | Frame::Reset(which)) = frame;
                let known = self.here.asked.contains(&which);
                assert!(known, "{which:?} was not asked for in this session");
                let say = self.here.hear(frame);
                self.say(say);
            }
            None => {}
        }
    }

    fn say(&mut self, frames: impl IntoIterator<Item = Frame>) {
        let frames = frames.into_iter().map(ToFront::Frame);
        self.to_front.extend(frames);
    }

    fn connect(&mut self, i: usize, succeed: bool) {
        let (which, proves) = self.connecting.swap_remove(i);
        let shown = match proves {
            _ if !succeed => false,
            false => true,
            true => match self.here.granted.take_proved(which.0, which.1) {
                Some((slots, _)) => {
                    self.here.doors.push(slots);
                    true
                }
                None => false,
            },
        };
        if !shown {
            return self.lost(which);
        }
        let front = &mut self.front[usize::from(which.0)];
        let todo = front.on_connected(which.1);
        if !todo.go_on {
            self.drop_half(which);
        }
        if self.obey_todo(which, todo) {
            self.attempts[usize::from(which.0)].clear();
            self.nic.push(which);
        }
    }

    fn obey(&mut self) {
        if let Some(order) = self.orders.pop()
            && let Some(i) = self.nic.iter().position(|w| *w == order)
        {
            self.lose(i);
        }
    }

    fn end_session(&mut self) {
        let asking = self.asking.take().into_iter().flatten();
        let tasks = asking.chain(self.connecting.drain(..).map(|(w, _)| w));
        for which in tasks.collect::<Vec<_>>() {
            self.drop_half(which);
        }
        self.to_accelerator.clear();
        self.to_front.clear();
        for i in 0..CONNECTIONS {
            let front = &mut self.front[usize::from(i)];
            let (todo, epoch) = (front.session_over(), front.epoch());
            assert!(!todo.tell_lost && !todo.tell_reset, "nobody is there");
            self.obey_todo((i, epoch), todo);
        }
        self.here.end();
        let past = std::mem::take(&mut self.here);
        self.past.push(past);
        self.attempts.iter_mut().for_each(Vec::clear);
    }

    /// Old and impossible messages change nothing.
    fn old_words(&mut self, a: usize) {
        let at = a % self.front.len();
        let front = &mut self.front[at];
        let old = (a as u32 / 3) % front.epoch().max(1);
        if old == front.epoch() {
            return;
        }
        let before = front.clone();
        let all = [
            front.lost_there(old),
            front.lost_here(old, self.now),
            front.on_connected(old),
            front.on_answer(old, OpenAnswer::Granted, self.now),
            front.on_answer(old, OpenAnswer::Missing, self.now),
        ];
        front.reset_there(old);
        assert_eq!(all, [EndActions::default(); 5]);
        assert_eq!(*front, before);
        let number = at as u16;
        let current = self.here.asked.iter().filter(|w| w.0 == number);
        if current.map(|w| w.1).max().is_some_and(|last| old < last)
            && self.here.working.is_none()
            && self.here.queue.is_empty()
        {
            let before = format!("{:?}", self.here.granted);
            self.here.granted.reset_there(number, old);
            assert!(!self.here.granted.lost_here(number, old));
            assert!(!self.here.granted.up(number, old));
            assert_eq!(format!("{:?}", self.here.granted), before);
        }
    }

    fn step(&mut self, kind: u8, a: usize) {
        let pick = |len: usize| (len > 0).then(|| a % len.max(1));
        match kind {
            0..=2 => self.ask(),
            3..=6 => self.accelerator_hears(),
            7..=10 => self.hear(),
            11..=14 => {
                let answer = self.here.work(!a.is_multiple_of(5));
                self.to_front.extend(answer);
            }
            15 => self.time_out(),
            16..=18 => {
                if let Some(i) = pick(self.connecting.len()) {
                    self.connect(i, !a.is_multiple_of(7));
                }
            }
            19 => {
                if let Some(i) = pick(self.nic.len()) {
                    self.lose(i);
                }
            }
            20 => {
                if let Some(i) = pick(self.here.nic.len()) {
                    let lost = self.here.lose(i);
                    self.say(lost);
                }
            }
            21..=22 => self.obey(),
            23..=24 => {
                let lost = self.here.obey();
                self.say(lost);
            }
            25 => {
                if let Some(i) = pick(self.here.nic.len()) {
                    self.here.readers.push(self.here.nic[i].clone());
                }
            }
            26 => drop(self.here.readers.pop()),
            27..=28 => {
                let reset = self.here.collect();
                self.say(reset);
            }
            29 => self.here.welcome(),
            30 if a.is_multiple_of(4) => self.end_session(),
            31 => self.old_words(a),
            _ => self.now += Duration::from_millis(a as u64),
        }
    }

    /// Without further faults every connection comes up, whatever happened before.
    fn comes_up(&mut self) {
        for _ in 0..200 {
            while !self.to_accelerator.is_empty() {
                self.accelerator_hears();
            }
            while self.here.working.is_some() || !self.here.queue.is_empty() {
                let answer = self.here.work(true);
                self.to_front.extend(answer);
            }
            while !self.orders.is_empty() {
                self.obey();
            }
            while !self.here.orders.is_empty() {
                let lost = self.here.obey();
                self.say(lost);
            }
            while !self.here.doors.is_empty() {
                self.here.welcome();
            }
            self.here.readers.clear();
            let reset = self.here.collect();
            self.say(reset);
            while !self.to_front.is_empty() {
                self.hear();
            }
            while !self.connecting.is_empty() {
                self.connect(0, true);
            }
            // One end may be up alone until an echo is missed.
            let alone = |w: &Which| !self.here.nic.iter().any(|s| s.0 == *w);
            if let Some(i) = self.nic.iter().position(alone)
                && self.here.doors.is_empty()
            {
                self.lose(i);
            }
            let alone = |s: &Arc<Slots>| !self.nic.contains(&s.0);
            if self.connecting.is_empty()
                && self.to_front.is_empty()
                && let Some(i) = self.here.nic.iter().position(alone)
            {
                let lost = self.here.lose(i);
                self.say(lost);
            }
            self.now += RetryPauses::default().last;
            self.ask();
            let all = usize::from(CONNECTIONS);
            if (self.nic.len(), self.here.nic.len()) == (all, all) && self.asking.is_none() {
                return;
            }
        }
        panic!("{:?}\n{:?}", self.front, self.here.granted);
    }

    fn nothing_is_left(mut self) {
        self.end_session();
        while !self.orders.is_empty() {
            self.obey();
        }
        for front in &self.front {
            assert!(front.due().is_some(), "{front:?}");
        }
        assert!(self.memory.iter().all(Vec::is_empty), "{:?}", self.memory);
        for past in &mut self.past {
            past.run_out();
            assert_eq!((past.granted.busy(), past.granted.awaited()), (0, 0));
            assert!(past.made.iter().all(|s| s.strong_count() == 0));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_happens_memory_has_one_user_and_all_comes_up_again(
        steps in prop::collection::vec((0u8..36, 0usize..500), 0..300),
    ) {
        let mut world = World::new();
        for (kind, a) in steps {
            world.step(kind, a);
        }
        world.comes_up();
        world.nothing_is_left();
    }

    /// Whatever a frontend sends, no slots have two users, and none are used after its session.
    #[test]
    fn no_frontend_keeps_slots(
        words in prop::collection::vec((0u8..14, 0u16..3, 0u32..6), 0..200),
    ) {
        let mut served = Served::default();
        for (kind, number, epoch) in words {
            let which = (number, epoch);
            match kind {
                0..=2 => served.queue.push_back(vec![which, (number + 1, epoch + 1)]),
                3..=6 => drop(served.work(epoch != 5)),
                7 => drop(served.hear(Frame::Lost(which))),
                8 => drop(served.hear(Frame::Reset(which))),
                9 => {
                    served.doors.extend(served.granted.take_proved(number, epoch).map(|t| t.0));
                }
                10 => served.welcome(),
                11 => drop(served.obey()),
                12 => drop(served.collect()),
                _ if epoch == 0 => served.end(),
                _ => {}
            }
        }
        if !served.over {
            served.end();
        }
        served.run_out();
        prop_assert_eq!(served.granted.busy(), 0);
        prop_assert!(served.made.iter().all(|s| s.strong_count() == 0));
    }
}

#[test]
fn slots_are_quarantined_until_both_ends_have_let_go() {
    let mut life = Life::new();
    let up = |life: &mut Life, epoch| {
        life.ask(epoch).expect("free");
        assert!(life.grant(epoch) && life.connect(epoch));
    };
    up(&mut life, 1);
    assert_eq!(life.ask(2), Err(LifeError::InUse { epoch: 1 }));
    assert!(life.lost_there(1), "a NIC thread has it");
    assert!(!life.lost_there(1), "no news");
    let missing = |life: &mut Life| match life.ask(2) {
        Err(LifeError::Quarantined { missing, .. }) => missing,
        other => panic!("{other:?}"),
    };
    assert!(!life.let_go(), "the NIC thread still has it");
    assert_eq!(missing(&mut life), "this node");
    assert!(!life.lost_here(1), "the peer knows");
    assert!(life.let_go());
    assert_eq!(missing(&mut life), "the peer");
    life.reset_there(0);
    assert_eq!(missing(&mut life), "the peer");
    life.reset_there(1);
    let old = LifeError::OldEpoch { asked: 1, last: 1 };
    assert_eq!(life.ask(1), Err(old));
    up(&mut life, 2);
    // The peer learned of the loss first.
    life.reset_there(2);
    assert!(!life.let_go(), "it was not lost yet");
    assert!(life.lost_here(2), "news");
    assert!(life.let_go() && life.is_free());
}
