//! The body of a NIC thread, the same at both ends of a connection, and the threads of an end.
//!
//! ```text
//!   turn:  commands --> poll connections --> deliver --> take down the lost --> post --> record
//! ```
//!
//! A [`Share`] runs the turn. Its [`NicEnd`] is the frontend's or the accelerator's part of it. All
//! of its functions run on the NIC thread. Other threads reach the share through [`Inbox::send`].

use std::{
    io,
    os::fd::RawFd,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use crossbeam_queue::SegQueue;
use record::{NicUse, NicWaits};

use super::{
    CrewPlan, ENDING, NicThread, NicThreadCfgs, NicThreadHandle, NicWork, Placed, PollOrder,
    ReceiveHalf, SendHalf, Turn, arm_all, join_all, make_crew, start,
};
use fabric::os::lock;
use fabric::{Armed, Broken, Link};

/// A request to the NIC thread of a share about connections `C`.
pub(crate) enum NicCommand<C> {
    /// Brings a connection up over a fresh link.
    Attach(C, Link),
    /// Takes down the connections that the function selects, as if the fabric had reported the
    /// cause.
    GiveUp(Arc<Selects<C>>, Broken),
    /// Takes every connection down and ends the share.
    Stop,
}

/// Whether a command is about a connection.
pub(crate) type Selects<C> = dyn Fn(&C) -> bool + Send + Sync;

/// Commands of a share, and the thread that executes them.
#[derive(Clone)]
pub(crate) struct Inbox<C> {
    commands: Arc<SegQueue<NicCommand<C>>>,
    pub thread: NicThreadHandle,
}

impl<C> Inbox<C> {
    /// Queues a command and wakes the thread. Commands of one thread keep their order.
    pub(crate) fn send(&self, command: NicCommand<C>) {
        self.commands.push(command);
        self.thread.wake();
    }
}

/// A connection `C` that is up, with an end's state `S`. Only its NIC thread uses it.
pub(crate) struct LiveConnection<C, S> {
    pub connection: C,
    pub half: ReceiveHalf,
    pub state: S,
}

pub(crate) type LiveConnectionOf<E> =
    LiveConnection<<E as NicEnd>::Connection, <E as NicEnd>::State>;

/// What frontend and accelerator do differently in a turn of a [`Share`].
pub(crate) trait NicEnd: Sized + 'static {
    /// A connection, as commands name it.
    type Connection: Send;
    /// State of a connection that is up.
    type State;

    /// Attaches the link; `None` if the connection must not come up, whose link is dropped.
    fn attach(
        &mut self,
        connection: Self::Connection,
        link: Link,
    ) -> Option<LiveConnectionOf<Self>>;

    /// The sending half of a connection.
    fn send<'a>(&'a self, connection: &'a Self::Connection) -> &'a SendHalf;

    /// Polls connection `index`, keeps its arrivals for [`Self::deliver`], and returns the number
    /// of events.
    fn poll(&mut self, index: usize, up: &mut LiveConnectionOf<Self>, now_ns: u64) -> usize;

    /// Passes the turn's arrivals on; without `has_events`, no poll found one.
    fn deliver(&mut self, links: &mut [LiveConnectionOf<Self>], has_events: bool, now_ns: u64);

    /// Whether writes wait that the connection can post now.
    fn has_writes(&self, connection: &Self::Connection) -> bool;

    /// Posts waiting writes, or leaves them to the owner of the send token. Returns whether this
    /// call did any work.
    fn post_waiting(&self, connection: &Self::Connection) -> bool;

    /// Records the times of what [`Self::deliver`] passed on, once. Not urgent: the peers work
    /// meanwhile.
    fn record(&mut self, links: &mut [LiveConnectionOf<Self>]) {
        let _ = links;
    }

    /// Stops sending. Returns true once the link has said goodbye; called again until then.
    fn detach(&self, connection: &Self::Connection) -> bool;

    /// Destroys the local side of a connection that has said goodbye: no write lands afterwards.
    /// [`ReceiveHalf::broken`] is `None` where the share stops.
    fn lose(&mut self, up: LiveConnectionOf<Self>);

    /// Checks liveness and publishes figures, about every [`NicThreadCfgs::tick_ns`].
    fn tick(&mut self, links: &mut [LiveConnectionOf<Self>], now_ns: u64) {
        let _ = (links, now_ns);
    }
}

/// The work of a NIC thread for one share of a NIC's connections.
struct Share<E: NicEnd> {
    end: E,
    commands: Arc<SegQueue<NicCommand<E::Connection>>>,
    links: Vec<LiveConnectionOf<E>>,
    order: PollOrder,
    /// Connections during their goodbye: no thread posts on them, and their arrivals are ignored.
    leaving: Vec<LiveConnectionOf<E>>,
    new_fds: Vec<RawFd>,
    stopping: bool,
}

impl<E: NicEnd> Share<E> {
    fn execute(&mut self, command: NicCommand<E::Connection>) {
        match command {
            NicCommand::Attach(connection, link) => {
                if let Some(up) = self.end.attach(connection, link) {
                    self.new_fds.push(up.half.rx.fd());
                    self.links.push(up);
                }
            }
            NicCommand::GiveUp(selects, cause) => {
                let all = self.links.iter_mut();
                for up in all.filter(|up| selects(&up.connection)) {
                    up.half.broken = Some(cause.clone());
                }
            }
            NicCommand::Stop => self.stopping = true,
        }
    }

    fn is_whole(&self) -> bool {
        let is_broken = |up: &LiveConnectionOf<E>| up.half.broken.is_some();
        !self.stopping && self.leaving.is_empty() && !self.links.iter().any(is_broken)
    }

    /// Takes broken connections down, or all when the share stops.
    fn take_down(&mut self) {
        let is_down = |up: &mut LiveConnectionOf<E>| self.stopping || up.half.broken.is_some();
        self.leaving.extend(self.links.extract_if(.., is_down));
        let mut i = 0;
        while i < self.leaving.len() {
            if !self.end.detach(&self.leaving[i].connection) {
                i += 1;
                continue;
            }
            let up = self.leaving.swap_remove(i);
            self.new_fds.retain(|fd| *fd != up.half.rx.fd());
            self.end.lose(up);
        }
    }

    fn post_each(&mut self) -> bool {
        let mut busy = false;
        for up in &self.links {
            let c = &up.connection;
            if self.end.send(c).is_held_up() || self.end.has_writes(c) {
                busy |= self.end.post_waiting(c);
            }
        }
        busy
    }
}

impl<E: NicEnd> NicWork for Share<E> {
    fn turn(&mut self, now_ns: u64) -> Turn {
        while let Some(command) = self.commands.pop() {
            self.execute(command);
        }
        let (mut has_events, mut busy) = (false, false);
        if !self.stopping {
            let Share {
                end, links, order, ..
            } = self;
            order.turn(links.len(), |i| {
                let up = &mut links[i];
                let events = end.poll(i, up, now_ns);
                if up.half.owes_reply {
                    end.post_waiting(&up.connection);
                }
                has_events |= events > 0;
                busy |= up.half.is_busy;
                events > 0
            });
            end.deliver(links, has_events, now_ns);
        }
        if !self.is_whole() {
            // Before a connection leaves `links`, by whose indices the end records.
            self.end.record(&mut self.links);
            self.take_down();
        }
        busy |= self.post_each();
        self.end.record(&mut self.links);
        match (self.stopping && self.leaving.is_empty(), busy) {
            (true, _) => Turn::Stop,
            (false, true) => Turn::Busy,
            (false, false) => Turn::Idle,
        }
    }

    fn tick(&mut self, now_ns: u64) {
        self.end.tick(&mut self.links, now_ns);
    }

    fn arm(&mut self) -> Armed {
        let has_work = |up: &LiveConnectionOf<E>| {
            let c = &up.connection;
            up.half.is_lost() || self.end.send(c).has_failed() || self.end.has_writes(c)
        };
        let is_idle = self.commands.is_empty() && self.leaving.is_empty();
        if !is_idle || self.links.iter().any(has_work) {
            return Armed::Ready;
        }
        arm_all(self.links.iter_mut().map(|up| up.half.rx.arm()))
    }

    fn woken_by(&mut self, fd: RawFd) {
        self.links.iter_mut().any(|up| up.half.woken_by(fd));
    }

    fn new_descriptors(&mut self, add: &mut dyn FnMut(RawFd)) {
        self.new_fds.drain(..).for_each(add);
    }
}

/// The NIC threads of an end, by share.
pub(crate) struct Crew<C> {
    pub plan: CrewPlan,
    pub inboxes: Vec<Inbox<C>>,
    pub handles: Vec<NicThreadHandle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Settings of a share's thread, and the function that makes the share's end on that thread.
pub(crate) type MakeEnd<E> = (NicThreadCfgs, Box<dyn FnOnce(&NicThreadHandle) -> E + Send>);

impl<C: Send + 'static> Crew<C> {
    /// Makes the threads by the plan; [`Self::start`] starts them.
    ///
    /// # Errors
    /// No descriptor is left, or the plan does not fit `ends`.
    pub(crate) fn assemble<E: NicEnd<Connection = C>>(
        plan: CrewPlan,
        ends: Vec<MakeEnd<E>>,
    ) -> io::Result<(Self, Vec<NicThread>)> {
        let mut queues = Vec::new();
        let mut works = Vec::new();
        for (cfgs, make) in ends {
            let commands = Arc::new(SegQueue::new());
            queues.push(commands.clone());
            let make: super::MakeWork = Box::new(move |handle| {
                Box::new(Share {
                    end: make(&handle),
                    commands,
                    links: Vec::new(),
                    order: PollOrder::default(),
                    leaving: Vec::new(),
                    new_fds: Vec::new(),
                    stopping: false,
                })
            });
            works.push((cfgs, make));
        }
        let (handles, threads) = make_crew(works, &plan)?;
        let inbox = |(commands, thread): (_, &NicThreadHandle)| Inbox {
            commands,
            thread: thread.clone(),
        };
        let crew = Crew {
            inboxes: queues.into_iter().zip(&handles).map(inbox).collect(),
            plan,
            handles,
            threads: Mutex::default(),
        };
        Ok((crew, threads))
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// No thread is left.
    pub(crate) fn start(&self, threads: Vec<NicThread>) -> io::Result<()> {
        *lock(&self.threads) = start(threads)?;
        Ok(())
    }

    /// Takes down the connections of all shares that `selects` selects.
    pub(crate) fn give_up(&self, selects: &Arc<Selects<C>>, cause: &Broken) {
        for inbox in &self.inboxes {
            inbox.send(NicCommand::GiveUp(selects.clone(), cause.clone()));
        }
    }

    /// Takes every connection down and ends the threads. Detaches a thread that does not end within
    /// [`ENDING`], because a callback does not return.
    pub(crate) fn stop(&self) {
        self.inboxes.iter().for_each(|i| i.send(NicCommand::Stop));
        let threads = std::mem::take(&mut *lock(&self.threads));
        join_all(threads, ENDING);
    }

    /// Placement of each NIC's threads and of its connections' memory.
    pub(crate) fn placed(&self) -> Vec<Placed> {
        NicThreadHandle::placed_by_nic(&self.handles, &self.plan)
    }

    /// Sleeps of the threads so far.
    pub(crate) fn waits(&self) -> NicWaits {
        NicThreadHandle::waits(&self.handles)
    }

    /// Busy time and sleeps of the threads so far.
    pub(crate) fn uses(&self) -> NicUse {
        NicThreadHandle::uses(&self.handles)
    }
}
