//! The world: the queue of tasks decides which step of which node comes next, and each step is
//! followed by its effects and checks.

use std::{
    os::fd::RawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabric::{
    clock,
    testkit::sim::{Call, Due, Sim},
};
use qdl::{dispatch::DispatchEvent, wire::Standing};

use crate::{
    book::{Moment, Shared},
    engine::Engine,
    epoch::Control,
    load::Load,
    plan::{Concerns, Event, Kind, Plan},
    queue::{Queue, Task},
    table::Table,
    threads::Threads,
};

pub use crate::nodes::Nodes;

/// Steps after which a world does not end.
const MOST_STEPS: u64 = 1_000_000;

/// Time after the last event in which what has come twice shows.
const REST_NS: u64 = 20_000_000;

/// Time after which an accelerator gives a hanging engine up.
const HANG_NS: u64 = 50_000_000;

/// Time after the last fault in which everything ends: silence, hold times and retries are shorter.
const DEADLINE_NS: u64 = 20_000_000_000;

/// Calls of a link, as events number them.
const CALLS: [Call; 4] = [Call::Post, Call::Flush, Call::Poll, Call::Arm];

/// What came of a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of the history.
    pub hash: u64,
    /// Tasks.
    pub steps: u64,
    /// Time in the world, in nanoseconds.
    pub virtual_ns: u64,
    /// Samples issued.
    pub samples: u64,
    /// Frames that landed.
    pub frames: u64,
    /// Connections opened.
    pub epochs: u64,
    /// Samples sent again.
    pub again: u64,
    /// Events by the state of the connection that they met.
    pub table: Table,
    /// The first broken invariant.
    pub violation: Option<String>,
    /// The history in words.
    pub trace: Vec<String>,
    /// Answers and losses with their times, with the history.
    pub moments: Vec<Moment>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One world.
pub struct World<'p> {
    pub plan: &'p Plan,
    pub now: u64,
    pub queue: Queue,
    pub sim: Sim,
    pub nodes: Nodes,
    pub controls: Vec<Control>,
    pub book: Shared,
    pub outcome: Outcome,
    /// Both ends stop.
    pub is_ending: bool,
    /// Sums over all closed epochs: arrived, responded, refused and late.
    pub ledger: [u64; 4],
    threads: Threads,
    engine: Arc<Mutex<Engine>>,
    load: Arc<Mutex<Load>>,
    /// Events that wait for a call of a link.
    meanwhile: Arc<Mutex<Vec<Event>>>,
    /// Per accelerator: end of the time for which it is busy.
    busy: Vec<u64>,
    /// Per accelerator: it has stopped for good.
    pub has_left: Vec<bool>,
    /// Time of the next task for the engines.
    engine_at: u64,
    due: Vec<(u64, Due)>,
    signals: Vec<(RawFd, bool)>,
}

/// Runs a plan on this thread. With `tracing`, the history is kept in words.
pub fn run(plan: &Plan, tracing: bool) -> Outcome {
    clock::by_hand::set(Some(1_000));
    let mut world = World::new(plan, tracing);
    world.live();
    let outcome = world.outcome();
    drop(world);
    clock::by_hand::set(None);
    outcome
}

impl<'p> World<'p> {
    fn new(plan: &'p Plan, tracing: bool) -> Self {
        let (shape, book) = (plan.shape, Shared::default());
        book.lock().most = shape.answer as usize;
        book.lock().trace = tracing.then(Vec::new);
        let mut queue = Queue::default();
        let mut threads = Threads::new(shape.servers as usize + 1);
        let add = |process, thread| threads.add(process, thread, plan.seed, &mut queue);
        let nodes = Nodes::new(plan, &book, add).expect("descriptors for the NIC threads");
        let of_book = Arc::downgrade(&nodes.dispatcher);
        book.lock().in_flight = Some(Box::new(move |c| {
            let dispatcher = of_book.upgrade();
            dispatcher.map_or(usize::MAX, |d| d.look(c).in_flight)
        }));
        let load = Load {
            seed: plan.seed,
            book: book.clone(),
            longest: shape.longest,
            issued: 0,
        };
        let controls = 0..shape.connections();
        World {
            plan,
            now: 1_000,
            queue,
            sim: Sim::default(),
            nodes,
            controls: controls.map(|c| Control::new(plan.seed, c)).collect(),
            outcome: Outcome::default(),
            is_ending: false,
            ledger: [0; 4],
            threads,
            engine: Arc::new(Mutex::new(Engine::new(&shape, book.clone()))),
            load: Arc::new(Mutex::new(load)),
            meanwhile: Arc::default(),
            busy: vec![0; shape.servers as usize],
            has_left: vec![false; shape.servers as usize],
            engine_at: u64::MAX,
            due: Vec::new(),
            signals: Vec::new(),
            book,
        }
    }

    /// Notes a violation, which ends the world.
    pub fn wrong(&self, what: String) {
        self.book.lock().wrong(what);
    }

    /// Adds a line to the history.
    pub fn say(&self, what: impl FnOnce() -> String) {
        self.book.lock().say(what);
    }

    /// Whether an invariant is broken.
    pub fn is_wrong(&self) -> bool {
        !self.book.lock().violations.is_empty()
    }

    /// The engines of all accelerators.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        lock(&self.engine)
    }

    /// Samples issued so far.
    pub fn issued(&self) -> u64 {
        lock(&self.load).issued
    }

    fn outcome(&mut self) -> Outcome {
        let mut book = self.book.lock();
        let now = self.now;
        book.mix(99, now);
        book.arrivals.clear();
        Outcome {
            hash: book.hash,
            steps: self.queue.planned,
            virtual_ns: now,
            samples: lock(&self.load).issued,
            frames: self.sim.carried().0,
            again: self.nodes.dispatcher.counts().again,
            violation: book.violations.first().cloned(),
            trace: book.trace.take().unwrap_or_default(),
            moments: std::mem::take(&mut book.moments),
            ..std::mem::take(&mut self.outcome)
        }
    }

    fn live(&mut self) {
        for c in 0..self.controls.len() {
            // Some connections come up late.
            let within = self.controls[c].dice.one(&[1_000, 100_000, 3_000_000]);
            self.soon(c, within, Task::Open(c));
        }
        for (i, event) in self.plan.events.iter().enumerate() {
            // Not all at whole microseconds, which the engine's batches prefer.
            let at = 1_000 + event.at_us * 1_000 + i as u64 % 1_000;
            self.queue.at(at, Task::Event(i));
        }
        self.set_meanwhile();
        self.until_rest();
        self.sim.set_meanwhile(None);
        if !self.is_wrong() {
            self.check_rest();
        }
        if !self.is_wrong() {
            self.stop();
        }
        self.engine().clear();
    }

    /// Lets second threads issue, and engines answer, within calls of a link.
    fn set_meanwhile(&self) {
        if self.plan.has_none(&[Kind::Meanwhile, Kind::Answers]) {
            return;
        }
        let (waiting, load, engine) = (
            self.meanwhile.clone(),
            self.load.clone(),
            self.engine.clone(),
        );
        let (dispatcher, book) = (Arc::downgrade(&self.nodes.dispatcher), self.book.clone());
        self.sim.set_meanwhile(Some(Box::new(move |call| {
            let next = {
                let mut waiting = lock(&waiting);
                let at = waiting
                    .iter()
                    .position(|e| CALLS[e.on as usize % 4] == call);
                at.map(|at| waiting.remove(at))
            };
            let Some(event) = next else { return };
            book.lock().say(|| format!("within {call:?}: {event:?}"));
            if event.kind == Kind::Answers {
                let now = clock::now_ns();
                if let Ok(mut engine) = engine.try_lock() {
                    engine.run(now, now + event.n * 1_000);
                }
                return;
            }
            let samples = lock(&load).samples(name_of(&event), event.n);
            if let Some(to) = dispatcher.upgrade() {
                to.issue(&samples);
            }
        })));
    }

    /// Takes steps until everything has ended and nothing more can come.
    fn until_rest(&mut self) {
        let (mut rest_since, mut last, mut quiet) = (None, 0, 0);
        while !self.is_wrong() {
            let is_done = self.is_done();
            if self.queue.outside > 0 || !is_done {
                rest_since = None;
            } else if self.now > *rest_since.get_or_insert(self.now) + REST_NS {
                return;
            }
            if self.queue.outside > 0 {
                last = self.now;
            } else if self.now > last + HANG_NS && !self.engine().hung_connections().is_empty() {
                last = self.now;
                self.end_hangs();
            } else if self.plan.shape.asleep == 0 && self.now > last + DEADLINE_NS {
                self.wrong("no end: samples outlive the deadline after the last event".to_owned());
            }
            quiet += 1;
            if self.queue.work > 0 {
                quiet = 0;
            } else if self.check_idle() {
                return;
            }
            if quiet > 400_000 {
                self.wrong("no end: nothing happens, and samples are outstanding".to_owned());
            }
            if !self.step() {
                return;
            }
        }
    }

    fn is_done(&self) -> bool {
        let book = self.book.lock();
        let ended = book.answered + book.empty;
        ended >= self.issued() && self.threads.stopped.iter().all(|until| *until <= self.now)
    }

    /// Takes the earliest task; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some((at, task)) = self.queue.next() else {
            return false;
        };
        self.now = self.now.max(at);
        clock::by_hand::set(Some(self.now));
        {
            let mut book = self.book.lock();
            book.now = self.now;
            book.mix(10, self.now);
        }
        if self.queue.planned > MOST_STEPS {
            self.wrong(format!("no end: {MOST_STEPS} steps"));
        }
        self.handle(task);
        self.effects();
        true
    }

    fn handle(&mut self, task: Task) {
        match task {
            Task::Thread(i) => self.threads.step(i, self.now, &mut self.queue),
            Task::Timeout { thread, sleep } => {
                if self.threads.time_out(thread, sleep) {
                    self.check_timeout();
                    self.threads.step(thread, self.now, &mut self.queue);
                }
            }
            Task::Net(due) => self.sim.handle(due),
            Task::Prepare { server, share } => _ = self.nodes.preparing[server][share].step(),
            Task::Engine => {
                self.engine_at = u64::MAX;
                let now = self.now;
                self.engine().run(now, now);
            }
            Task::Event(i) => self.event(self.plan.events[i]),
            Task::LossReport {
                connection,
                epoch,
                back,
            } => self.hear_of_loss(connection, epoch, back),
            Task::AttachFront(c) => self.attach_front(c),
            Task::AttachBack(c) => self.attach_back(c),
            Task::Open(c) => self.open(c),
            Task::Purge => self.engine().purge(),
            Task::Heartbeat(server) => self.heartbeat(server),
            Task::Abort => self.abort(),
        }
    }

    fn abort(&mut self) {
        if !std::mem::replace(&mut self.book.lock().aborted, true) {
            self.say(|| "abort".to_owned());
            self.nodes.dispatcher.abort("the world aborts");
        }
    }

    /// Tells the frontend the standing of an accelerator.
    fn heartbeat(&self, server: usize) {
        let standing = if self.engine().away[server] > self.now {
            Standing::Away("the engine is away".to_owned())
        } else if self.busy[server] > self.now {
            Standing::Busy
        } else {
            Standing::Takes
        };
        self.nodes.dispatcher.set_standing(server, &standing);
    }

    /// Plans heartbeats around a time for which an accelerator takes no samples, and some after it:
    /// a sample that was given back before may come late.
    fn heartbeats(&mut self, server: usize, until: u64) {
        let c = server * self.plan.shape.each as usize;
        self.soon(c, 1_000_000, Task::Heartbeat(server));
        for after_ms in [0, 1, 5, 20, 100, 200] {
            self.queue
                .at(until + after_ms * 1_000_000, Task::Heartbeat(server));
        }
    }

    fn event(&mut self, event: Event) {
        let Event { kind, on, n, .. } = event;
        self.count(&event);
        self.say(|| format!("event: {} {on} {n}", kind.word()));
        let until = self.now + n * 1_000;
        match kind {
            Kind::Burst => {
                let samples = lock(&self.load).samples(name_of(&event), n);
                self.nodes.dispatcher.issue(&samples);
                self.check_away();
            }
            Kind::Meanwhile | Kind::Answers => lock(&self.meanwhile).push(event),
            Kind::Cut | Kind::Silent => self.cut(on as usize, kind, n),
            Kind::Hole | Kind::Delay | Kind::Fail | Kind::Stray | Kind::GiveUp => {
                self.fault(&event);
            }
            Kind::Stop => {
                let process = on as usize;
                // A second stop does not shorten the first.
                let until = until.max(self.threads.stopped[process]);
                self.threads.stopped[process] = until;
                if process > 0 {
                    self.engine().stopped[process - 1] = until;
                }
            }
            Kind::Works => self.nodes.dispatcher.engine_works_on(on as usize, n),
            Kind::Away => {
                self.engine().away[on as usize] = until;
                self.heartbeats(on as usize, until);
            }
            Kind::Busy => {
                self.busy[on as usize] = until;
                self.heartbeats(on as usize, until);
            }
            Kind::Leave => self.leave(on as usize, n % 2 == 0),
            Kind::Abort => self.abort(),
        }
    }

    /// Counts an event by the states of the connections that it meets.
    fn count(&mut self, event: &Event) {
        let (on, each) = (event.on as usize, self.plan.shape.each as usize);
        let of_server = |server: usize| server * each..(server + 1) * each;
        let met = match event.kind.concerns() {
            Concerns::Connection => on..on + 1,
            Concerns::Path => on / 2..on / 2 + 1,
            Concerns::Server => of_server(on),
            Concerns::Process if on > 0 => of_server(on - 1),
            Concerns::Process | Concerns::Call | Concerns::All => 0..self.controls.len(),
        };
        for c in met {
            let state = self.state(c);
            self.outcome.table.count(event.kind, state);
        }
    }

    fn cut(&mut self, c: usize, kind: Kind, who: u64) {
        let control = &mut self.controls[c];
        if control.epoch == 0 {
            return;
        }
        // The receiver of the first pipe is the accelerator.
        let silent = match (kind, who) {
            (Kind::Cut, _) => [false, false],
            (_, 1) => [true, false],
            (_, 2) => [false, true],
            _ => [true, true],
        };
        control.is_faulty |= kind == Kind::Silent;
        self.sim.cut(control.pipe, 300_000, silent);
    }

    /// A fault of one direction.
    fn fault(&mut self, event: &Event) {
        let (c, direction) = (event.on as usize / 2, event.on as usize % 2);
        let control = &mut self.controls[c];
        if control.epoch == 0 {
            return;
        }
        let pipe = control.pipe + direction;
        match event.kind {
            Kind::Hole => {
                control.is_faulty = true;
                self.sim.black_hole(pipe);
            }
            Kind::Delay => self.sim.delay(pipe, event.n * 1_000),
            Kind::Fail => self.sim.fail(pipe),
            Kind::Stray => self.sim.stray(pipe),
            _ if direction == 0 && control.is_attached_front() => {
                control.is_doomed = true;
                self.give_up_front(c, "the control session ended");
            }
            _ if direction == 1 && control.is_attached_back() => {
                control.is_doomed = true;
                self.give_up_back(c, "the control session ended");
            }
            _ => {}
        }
    }

    /// Carries out what the step has caused.
    fn effects(&mut self) {
        for violation in self.sim.take_violations() {
            self.wrong(violation);
        }
        self.reports();
        loop {
            let next = self.book.lock().arrivals.pop_front();
            let Some((server, arrival)) = next else { break };
            let at = Arc::as_ptr(arrival.origin()).cast::<()>();
            let is_it = |c: &Control| {
                let serve = c.serve.as_ref();
                serve.is_some_and(|s| Arc::as_ptr(s).cast::<()>() == at)
            };
            let connection = self.controls.iter().position(is_it);
            let (connection, now) = (connection.unwrap_or(usize::MAX), self.now);
            self.engine().take(server, connection, arrival, now);
        }
        let mut due = std::mem::take(&mut self.due);
        self.sim.take_due(&mut due);
        for (at, due) in due.drain(..) {
            self.queue.at(at, Task::Net(due));
        }
        self.due = due;
        let mut signals = std::mem::take(&mut self.signals);
        self.sim.take_signals(&mut signals);
        signals.drain(..).for_each(|edge| self.threads.signal(edge));
        self.signals = signals;
        self.threads.wake(self.now, &mut self.queue);
        let due = self.engine().due();
        if let Some(at) = due.filter(|at| *at < self.engine_at) {
            self.engine_at = at;
            self.queue.at(at, Task::Engine);
        }
    }

    /// Handles the reports of both ends.
    fn reports(&mut self) {
        let (events, lost) = {
            let mut book = self.book.lock();
            if book.events.is_empty() && book.lost.is_empty() {
                return;
            }
            (
                std::mem::take(&mut book.events),
                std::mem::take(&mut book.lost),
            )
        };
        for event in events {
            self.say(|| format!("frontend: {event:?}"));
            match event {
                DispatchEvent::ConnectionLost {
                    connection,
                    epoch,
                    cause,
                    ..
                } => {
                    self.check_cause(connection, &cause);
                    let (at_ns, server) = (self.now, self.server_of(connection));
                    let loss = Moment::Loss { at_ns, server };
                    self.book.lock().moments.push(loss);
                    self.lost(connection, epoch, false);
                }
                DispatchEvent::Refused(r) if r.tries.refusals >= 3 => {
                    self.soon(r.connection, 1_000_000, Task::Abort);
                }
                _ => {}
            }
        }
        for lost in lost {
            let c = usize::from(lost.connection);
            self.say(|| format!("accelerator {}: {lost:?}", self.server_of(c)));
            self.soon(c, 1_000_000, Task::Purge);
            self.lost(c, lost.epoch, true);
        }
    }

    /// Engines hang: their accelerators give the connections up.
    pub fn end_hangs(&mut self) {
        let hung = self.engine().hung_connections();
        for c in hung {
            if self.controls.get(c).is_some_and(Control::is_attached_back) {
                self.give_up_back(c, "the engine hangs");
            } else {
                self.queue.at(self.now + 1_000, Task::Purge);
            }
        }
    }

    /// An accelerator stops for good. Its companions end their jobs before the NIC threads stop, or
    /// behind it: a stop waits for a job, but not for ever.
    fn leave(&mut self, server: usize, is_late: bool) {
        if std::mem::replace(&mut self.has_left[server], true) {
            return;
        }
        if !is_late {
            self.prepare_all(server);
        }
        self.nodes.servers[server].stop();
        if is_late {
            self.prepare_all(server);
        }
        for c in 0..self.controls.len() {
            if self.server_of(c) == server {
                self.lose_unattached(c);
            }
        }
        if self.has_left.iter().all(|has| *has) {
            self.soon(0, 1_000_000, Task::Abort);
        }
    }

    /// Both ends stop, the frontend first.
    fn stop(&mut self) {
        self.is_ending = true;
        self.nodes.dispatcher.stop();
        self.effects();
        self.until_ended(true);
        for server in 0..self.nodes.servers.len() {
            self.prepare_all(server);
            self.nodes.servers[server].stop();
        }
        self.effects();
        self.until_ended(false);
        self.effects();
        self.engine().clear();
        if !self.is_wrong() {
            self.check_stopped();
        }
    }

    fn prepare_all(&self, server: usize) {
        for companion in &self.nodes.preparing[server] {
            while companion.step() {}
        }
    }

    fn until_ended(&mut self, of_frontend: bool) {
        let before = self.queue.planned;
        while !self.threads.have_ended(of_frontend) && !self.is_wrong() {
            if self.queue.planned > before + 200_000 || !self.step() {
                self.wrong("no end: a NIC thread does not stop".to_owned());
            }
        }
    }
}

/// Name of an event's dice.
fn name_of(event: &Event) -> u64 {
    event.at_us << 8 | event.on << 4 | event.kind as u64
}
