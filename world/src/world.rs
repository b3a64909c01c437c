//! The world: the queue of tasks decides which step of which node comes next, and each step is
//! followed by its effects and checks.

use std::{
    collections::BTreeSet,
    os::fd::RawFd,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

use fabric::{
    Which, clock,
    os::lock,
    testkit::{
        sim::{Call, Due, Sim},
        sim_nic::{Guest, SimNics},
    },
};
use qdl::run::{Answers, NodeHandle};
use tokio::{
    runtime::Builder,
    task::{JoinHandle, yield_now},
};

use crate::{
    accelerator::{Accelerator, Leaving, Program, check_memory},
    book::{Moment, Shared},
    engine::Engine,
    epoch::{Seen, path},
    frontend::Frontend,
    load::Load,
    plan::{Concerns, Event, Kind, Plan, ms},
    queue::{Queue, Task},
    stream::{Arrives, Streams},
    table::Table,
    threads::Threads,
};

/// Steps after which a world does not end.
const MOST_STEPS: u64 = 1_000_000;

/// Time after the last event in which what has come twice shows.
const REST_NS: u64 = 20_000_000;

/// Time after which an accelerator gives a hanging engine up.
const HANG_NS: u64 = 50_000_000;

/// Time after the last fault in which everything ends: silence, hold times and retries are shorter.
const DEADLINE_NS: u64 = 20_000_000_000;

/// Steps after which a stop does not end.
const MOST_ENDING: u64 = 200_000;

/// Time until samples that the cluster is not up for are issued.
const BEFORE_NS: u64 = 100_000;

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

/// One world.
pub struct World<'p> {
    pub plan: &'p Plan,
    pub now: u64,
    pub queue: Queue,
    pub sim: Sim,
    pub front: Frontend,
    pub back: Vec<Accelerator>,
    pub seen: Vec<Seen>,
    /// Losses so far: connection, epoch, session, and whether the accelerator has reported it.
    pub losses: BTreeSet<(usize, u32, u64, bool)>,
    pub book: Shared,
    pub outcome: Outcome,
    /// Both ends stop.
    pub is_ending: bool,
    /// The last request for descriptions.
    asking: Option<JoinHandle<()>>,
    /// Handles of all nodes that have run.
    pub handles: Vec<NodeHandle>,
    pub streams: Streams,
    pub nics: SimNics,
    pub threads: Threads,
    pub engine: Arc<Mutex<Engine>>,
    load: Arc<Mutex<Load>>,
    /// Events that wait for a call of a link.
    meanwhile: Arc<Mutex<Vec<Event>>>,
    /// Per accelerator: how it goes on, once it has stopped.
    pub leaving: Vec<Option<Leaving>>,
    /// Requests for names under way.
    names: Vec<JoinHandle<Answers<String>>>,
    /// Samples of warm-ups, by the record of the run.
    pub warmed: u64,
    /// Time of the next task for the engines.
    engine_at: u64,
    /// Time of the control tasks.
    settled: u64,
    /// Connections that have come over data ports and wait for their admission.
    pub guests: Vec<Guest>,
    due: Vec<(u64, Due)>,
    arrives: Vec<(u64, Arrives)>,
    signals: Vec<(RawFd, bool)>,
}

/// Runs a plan on this thread. With `tracing`, the history is kept in words.
pub fn run(plan: &Plan, tracing: bool) -> Outcome {
    clock::by_hand::set(Some(1_000));
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        // All woken tasks run before the world's next step.
        .event_interval(1 << 20)
        .build();
    let runtime = runtime.expect("no driver for sockets");
    let (book, handles, mut outcome) = runtime.block_on(async {
        let mut world = World::new(plan, tracing);
        world.live().await;
        let outcome = world.outcome();
        (
            world.book.clone(),
            std::mem::take(&mut world.handles),
            outcome,
        )
    });
    // Drops the tasks.
    drop(runtime);
    if outcome.violation.is_none() {
        outcome.violation = check_memory(&handles);
    }
    drop(book);
    clock::by_hand::set(None);
    outcome
}

impl<'p> World<'p> {
    fn new(plan: &'p Plan, tracing: bool) -> Self {
        let (shape, book) = (plan.shape, Shared::default());
        book.lock().most = shape.answer as usize;
        book.lock().trace = tracing.then(Vec::new);
        let servers = shape.servers as usize;
        let mut queue = Queue::default();
        let mut threads = Threads::new(servers + 1);
        let sim = Sim::default();
        let seed = plan.seed;
        let paths = move |server: usize, which: Which| {
            let names = [server as u64, which.connection.into(), which.epoch.into()];
            [0, 1].map(|direction| path(seed, &shape, names, direction))
        };
        let nics = SimNics::new(sim.clone(), Arc::new(paths), shape.ports > 0);
        let streams = Streams::new(plan.seed, servers, shape.control_ns);
        let engine = Arc::new(Mutex::new(Engine::new(&shape, book.clone())));
        let add = |thread| threads.add(0, thread, plan.seed, &mut queue);
        let mut load = Load {
            seed: plan.seed,
            book: book.clone(),
            longest: shape.longest,
            issued: 0,
        };
        let warm_up = match shape.warm_ms {
            0 => Vec::new(),
            _ => load.warm_up(),
        };
        let front = Frontend::new(plan, &book, &streams, &nics, warm_up, add);
        let back: Vec<_> = (0..servers)
            .map(|server| {
                let add = |thread| threads.add(server + 1, thread, plan.seed, &mut queue);
                let world = (&book, &streams, &nics, &engine);
                Accelerator::new(plan, (server, Program::Same), world, add)
            })
            .collect();
        let of_book = Arc::downgrade(&front.dispatcher);
        book.lock().in_flight = Some(Box::new(move |c| {
            let dispatcher = of_book.upgrade();
            dispatcher.map_or(usize::MAX, |d| d.look(c).in_flight)
        }));
        let connections = 0..shape.connections();
        World {
            plan,
            now: 1_000,
            queue,
            sim,
            front,
            handles: back.iter().map(|b| b.handle.clone()).collect(),
            back,
            seen: connections.map(|c| Seen::new(plan.seed, c)).collect(),
            losses: BTreeSet::new(),
            outcome: Outcome::default(),
            is_ending: false,
            asking: None,
            streams,
            nics,
            threads,
            engine,
            load: Arc::new(Mutex::new(load)),
            meanwhile: Arc::default(),
            leaving: vec![None; servers],
            names: Vec::new(),
            warmed: 0,
            engine_at: u64::MAX,
            settled: 1_000,
            guests: Vec::new(),
            due: Vec::new(),
            arrives: Vec::new(),
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
            again: self.front.dispatcher.counts().redispatched,
            violation: book.violations.first().cloned(),
            trace: book.trace.take().unwrap_or_default(),
            moments: std::mem::take(&mut book.moments),
            ..std::mem::take(&mut self.outcome)
        }
    }

    async fn live(&mut self) {
        self.queue.at(1_000, Task::Tick);
        self.set_meanwhile();
        if self.plan.shape.early == 0 {
            let is_ready = |w: &Self| w.book.lock().ready.is_some();
            self.until("the start", is_ready).await;
        }
        for (i, event) in self.plan.events.iter().enumerate() {
            // Not all at whole microseconds, which the engine's batches prefer.
            let at = self.now + event.at_us * 1_000 + i as u64 % 1_000;
            self.queue.at(at, Task::Event(i));
        }
        self.until_rest().await;
        self.sim.set_meanwhile(None);
        // A run that did not begin leaves samples of its warm-up where they are.
        let has_begun = self.book.lock().ready == Some(true);
        let is_at_rest = has_begun && !self.is_wrong() && !self.is_ending;
        if is_at_rest && self.plan.shape.warm_again > 0 {
            let samples = lock(&self.load).warm_up();
            let cluster = self.front.cluster.clone();
            let warming = async move { cluster.warm_again(samples, Duration::ZERO).await };
            self.await_task("a warm-up", warming).await;
            self.until_rest().await;
        }
        if is_at_rest && !self.is_wrong() {
            self.check_rest();
        }
        if !self.is_wrong() {
            self.stop().await;
        }
        self.engine().clear();
        self.book.lock().arrivals.clear();
    }

    /// Lets second threads issue, and engines answer, within calls of a link.
    fn set_meanwhile(&self) {
        if self
            .plan
            .has_none(&[Kind::Meanwhile, Kind::Answers, Kind::Cancel])
        {
            return;
        }
        let (waiting, load, engine) = (
            self.meanwhile.clone(),
            self.load.clone(),
            self.engine.clone(),
        );
        let (dispatcher, book) = (Arc::downgrade(&self.front.dispatcher), self.book.clone());
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
            let Some(to) = dispatcher.upgrade() else {
                return;
            };
            if event.kind == Kind::Cancel {
                let chosen = book.lock().choose_cancelled(event.n, &mut event.dice());
                if let Some(id) = chosen {
                    book.lock().cancel(id, u32::MAX);
                    to.cancel(id);
                }
                return;
            }
            let samples = lock(&load).issue(name_of(&event), event.n);
            to.issue(&samples);
        })));
    }

    /// Takes steps until everything has ended and nothing more can come.
    async fn until_rest(&mut self) {
        let (mut rest_since, mut last, mut quiet) = (None, 0, 0);
        while !self.is_wrong() && !self.is_ending {
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
            } else if self.now > last + DEADLINE_NS {
                self.wrong("no end: samples outlive the deadline after the last event".to_owned());
            }
            quiet += 1;
            // A start may take all of its deadlines.
            if self.queue.work > 0 || self.book.lock().ready.is_none() || self.prepare() {
                quiet = 0;
            } else if self.check_idle() {
                return;
            }
            if quiet > 400_000 {
                self.wrong("no end: nothing happens, and samples are outstanding".to_owned());
            }
            if !self.step().await {
                return;
            }
        }
    }

    /// Lets the companions of all processes that run do their jobs; false if they have none.
    fn prepare(&self) -> bool {
        let of = self.back.iter().zip(&self.threads.stopped[1..]);
        let runs = of.filter(|(_, until)| **until <= self.now);
        runs.fold(false, |has_worked, (back, _)| back.prepare() || has_worked)
    }

    /// Whether the cluster came up or failed, all samples have ended, those of warm-ups too, and
    /// all processes run.
    pub fn is_done(&self) -> bool {
        let book = self.book.lock();
        let ended = book.answered + book.empty;
        // A warm-up that ends early leaves samples in rings, also of a path that is silent.
        let is_owed = |c| {
            let look = self.front.dispatcher.look(c);
            book.ready == Some(true) && look.in_flight + look.ring > 0
        };
        book.ready.is_some()
            && ended >= self.issued()
            && !(0..self.seen.len()).any(is_owed)
            && self.threads.stopped.iter().all(|until| *until <= self.now)
            && self.names.iter().all(JoinHandle::is_finished)
    }

    /// Takes the earliest task; false if there is none.
    pub async fn step(&mut self) -> bool {
        let Some((at, task)) = self.queue.next() else {
            return false;
        };
        self.now = self.now.max(at);
        clock::by_hand::set(Some(self.now));
        {
            let mut book = self.book.lock();
            book.now = self.now;
            if task != Task::Tick {
                book.mix(10, at);
            }
        }
        if self.queue.planned > MOST_STEPS {
            self.wrong(format!("no end: {MOST_STEPS} steps"));
        }
        self.handle(task);
        if std::mem::take(&mut self.book.lock().is_news) {
            self.settle().await;
        }
        self.effects();
        true
    }

    /// Lets all control tasks run that are woken, or whose timers are due.
    async fn settle(&mut self) {
        let later = self.now - std::mem::replace(&mut self.settled, self.now);
        // Runs the woken tasks, then the driver of the timers.
        tokio::time::advance(Duration::from_nanos(later)).await;
        yield_now().await;
    }

    /// Control tasks may have work.
    pub fn news(&self) {
        self.book.lock().is_news = true;
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
            // Another process may run by now, with other companions.
            Task::Prepare { server, share } => _ = self.back[server].step(share),
            Task::Engine => {
                self.engine_at = u64::MAX;
                let now = self.now;
                self.engine().run(now, now);
                self.news();
            }
            Task::Event(i) => self.event_or_wait(i),
            Task::Purge => self.engine().purge(),
            Task::Stream(arrives) => {
                if self.streams.handle(arrives) {
                    self.news();
                }
            }
            Task::Visits => {
                for (reception, visitor) in self.streams.take_visits() {
                    let book = self.book.clone();
                    drop(tokio::spawn(async move {
                        if let Err(e) = reception.receive(visitor).await {
                            book.lock().say(|| format!("refused: {e}"));
                        }
                    }));
                }
                self.news();
            }
            Task::Guests => self.admit_guests(),
            Task::Tick => {
                self.queue.at(self.now + 1_000_000, Task::Tick);
                // Jobs that were passed on without a new connection.
                self.prepare();
                self.stop_servers();
                self.check_halves();
                self.news();
            }
            Task::Start(server) => self.start(server),
            Task::Up(nic) => self.front.links[nic].store(false, Ordering::Relaxed),
        }
    }

    fn abort(&mut self) {
        self.front.cluster.abort("the world aborts");
        self.news();
    }

    /// Handles an event of the plan. Samples are issued once the cluster is up.
    fn event_or_wait(&mut self, i: usize) {
        let event = self.plan.events[i];
        let is_issue = matches!(
            event.kind,
            Kind::Burst | Kind::Meanwhile | Kind::Name | Kind::Finish | Kind::Cancel
        );
        let ready = self.book.lock().ready;
        match ready {
            None if is_issue => self.queue.at(self.now + BEFORE_NS, Task::Event(i)),
            Some(false) if is_issue => {}
            // LoadGen issues nothing after its last call has returned.
            _ if is_issue && self.is_ending => {}
            _ => self.event(event),
        }
    }

    fn event(&mut self, event: Event) {
        let Event { kind, on, n, .. } = event;
        self.count(&event);
        self.say(|| format!("event: {} {on} {n}", kind.word()));
        let until = self.now + n * 1_000;
        match kind {
            Kind::Burst => {
                let samples = lock(&self.load).issue(name_of(&event), n);
                self.front.dispatcher.issue(&samples);
                self.check_away();
            }
            Kind::Cancel if n % 3 > 0 => self.cancel(&event),
            Kind::Meanwhile | Kind::Answers | Kind::Cancel => lock(&self.meanwhile).push(event),
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
                for server in 0..self.back.len() {
                    if process == 0 || process == server + 1 {
                        self.stick(server, 3, until - self.now);
                    }
                }
            }
            Kind::Works => self.front.dispatcher.engine_works_on(on as usize, n),
            Kind::Away => self.engine().away[on as usize] = until,
            Kind::Busy => self.engine().busy[on as usize] = until,
            Kind::Leave => self.leave(on as usize, n % 2 == 0, None),
            Kind::Restart => self.leave(on as usize, n % 2 == 0, Some((n * 1_000, Program::Same))),
            Kind::Change => {
                let program = Program::OTHERS[n as usize / 2 % Program::OTHERS.len()];
                self.leave(on as usize, n % 2 == 0, Some((n * 1_000, program)));
            }
            Kind::Reset | Kind::Mute | Kind::Tear => {
                if let Some(stream) = self.streams.last_of(on as usize) {
                    match kind {
                        Kind::Reset => self.streams.cut(stream, n == 2),
                        Kind::Mute => self.streams.black_hole(stream, n),
                        _ => self.streams.tear(stream),
                    }
                }
            }
            Kind::Stick => self.stick(on as usize / 2, 1 + on % 2, n * 1_000),
            Kind::Lie if on % 2 == 0 => {
                self.front.cluster.lie(on as usize / 2, n);
                self.news();
            }
            Kind::Lie => {
                self.back[on as usize / 2].handle.lie(n);
                self.news();
            }
            Kind::Spoil => {
                if let Some(stream) = self.streams.last_of(on as usize / 2) {
                    self.streams.spoil(stream, on as usize % 2);
                }
            }
            Kind::Down => {
                self.front.links[on as usize].store(true, Ordering::Relaxed);
                self.queue.at(until, Task::Up(on as usize));
            }
            Kind::Name if n == 2 => {
                // A frontend asks one at a time.
                if self.asking.as_ref().is_none_or(JoinHandle::is_finished) {
                    let cluster = self.front.cluster.clone();
                    let asking = async move { drop(cluster.ask_descriptions().await) };
                    self.asking = Some(tokio::spawn(asking));
                    self.news();
                }
            }
            Kind::Name => {
                let asked = self.front.cluster.ask_names();
                let most = ms(self.plan.shape.step_ms);
                self.names.push(tokio::spawn(asked.within(most)));
                self.news();
            }
            Kind::Abort => self.abort(),
            Kind::Finish => self.is_ending = true,
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
            Concerns::Way => of_server(on / 2),
            Concerns::Process if on > 0 => of_server(on - 1),
            Concerns::Process | Concerns::Nic | Concerns::Call | Concerns::All => {
                0..self.seen.len()
            }
        };
        for c in met {
            let state = self.state(c);
            self.outcome.table.count(event.kind, state);
        }
    }

    /// Carries out what the step has caused.
    fn effects(&mut self) {
        for violation in self.sim.take_violations() {
            self.wrong(violation);
        }
        let losses = std::mem::take(&mut self.book.lock().losses);
        for loss in &losses {
            if loss.server.is_none() {
                let (at_ns, server) = (self.now, self.server_of(loss.connection));
                self.book
                    .lock()
                    .moments
                    .push(Moment::Loss { at_ns, server });
            }
            self.lost(loss);
        }
        let opened = self.nics.take_opened();
        opened.into_iter().for_each(|opened| self.opened(opened));
        loop {
            let next = self.book.lock().arrivals.pop_front();
            let Some((server, arrival)) = next else { break };
            let of = self.back[server].handle.connection_of(&arrival);
            let of = of.map(|(number, epoch)| {
                let c = server * self.plan.shape.each as usize + usize::from(number);
                (c, epoch)
            });
            // An arrival of an epoch or a session that is over counts for no connection.
            let current = of.filter(|(c, epoch)| self.seen[*c].epoch == *epoch);
            let connection = current.map_or(usize::MAX, |(c, _)| c);
            let now = self.now;
            self.engine().take(server, connection, arrival, now);
        }
        let mut arrives = std::mem::take(&mut self.arrives);
        self.streams.take_due(&mut arrives);
        for (at, arrives) in arrives.drain(..) {
            self.queue.at(at, Task::Stream(arrives));
        }
        self.arrives = arrives;
        if self.streams.has_visits() {
            self.soon(0, self.plan.shape.control_ns, Task::Visits);
        }
        let guests = self.nics.take_guests();
        if !guests.is_empty() {
            self.guests.extend(guests);
            self.soon(0, 300_000, Task::Guests);
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

    /// Engines hang: their accelerators give the connections up.
    pub fn end_hangs(&mut self) {
        let hung = self.engine().hung_connections();
        for c in hung {
            if self.seen.get(c).is_some_and(Seen::is_at_accelerator) {
                self.give_up_back(c, "the engine hangs");
            }
            self.queue.at(self.now + 1_000, Task::Purge);
        }
    }

    /// Both ends stop in order, the frontend first.
    async fn stop(&mut self) {
        self.is_ending = true;
        let cluster = self.front.cluster.clone();
        let leaving = async move { cluster.leave().await };
        let Some(sides) = self.await_task("a drain", leaving).await else {
            return;
        };
        self.front.dispatcher.stop();
        self.effects();
        self.until("a NIC thread of the frontend", |w| {
            w.threads.have_ended(true)
        })
        .await;
        self.check_names().await;
        self.front.cluster.stop();
        self.news();
        self.until("the control task", |w| w.front.control.is_finished())
            .await;
        self.check_record(sides);
        for server in 0..self.back.len() {
            self.leave(server, false, None);
        }
        self.news();
        self.until("an accelerator", |w| {
            w.back.iter().all(|b| b.has_stopped) && w.threads.have_ended(false)
        })
        .await;
        self.effects();
        self.engine().clear();
        // A guest that comes to a data port after the stop must be let go.
        self.admit_guests();
        if !self.is_wrong() {
            self.check_stopped();
        }
    }

    /// The names that the accelerators have answered.
    async fn check_names(&mut self) {
        for asked in std::mem::take(&mut self.names) {
            let name = self.front.cluster.name_of(asked.await.expect("no panic"));
            self.say(|| format!("name: {name:?}"));
            if let (Err(e), true) = (name, self.is_untroubled()) {
                self.wrong(format!("name: {e}"));
            }
        }
    }

    /// Takes steps until a task ends; `None` if an invariant breaks first.
    async fn await_task<T: Send + 'static>(
        &mut self,
        what: &str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let task = tokio::spawn(task);
        self.news();
        self.until(what, |_| task.is_finished()).await;
        match self.is_wrong() {
            true => None,
            false => Some(task.await.expect("no panic")),
        }
    }

    /// Takes steps until `is_done`.
    async fn until(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) {
        let before = self.queue.planned;
        while !self.is_wrong() && !is_done(self) {
            if self.queue.planned > before + MOST_ENDING || !self.step().await {
                self.wrong(format!("no end: {what} does not end"));
            }
        }
    }
}

/// Name of an event's dice.
fn name_of(event: &Event) -> u64 {
    event.at_us << 8 | event.on << 4 | event.kind as u64
}
