//! Faults of connections, control streams and nodes, as the events of a plan order them.

use crate::{
    accelerator::{Accelerator, Leaving, Program},
    plan::{Event, Kind},
    queue::Task,
    world::World,
};

impl World<'_> {
    /// Cuts a connection; `who` learns of it ([`Kind::Silent`]).
    pub fn cut(&mut self, c: usize, kind: Kind, who: u64) {
        let seen = &mut self.seen[c];
        if seen.epoch == 0 {
            return;
        }
        // The receiver of the first pipe is the accelerator.
        let silent = match (kind, who) {
            (Kind::Cut, _) => [false, false],
            (_, 1) => [true, false],
            (_, 2) => [false, true],
            _ => [true, true],
        };
        seen.is_faulty |= kind == Kind::Silent;
        self.sim.cut(seen.pipe, 300_000, silent);
    }

    /// A fault of one direction.
    pub fn fault(&mut self, event: &Event) {
        let (c, direction) = (event.on as usize / 2, event.on as usize % 2);
        let is_admitted = self.guests.iter().all(|g| self.connection_of(g) != c);
        let is_up = self.front.dispatcher.look(c).up;
        let seen = &mut self.seen[c];
        if seen.epoch == 0 {
            return;
        }
        let pipe = seen.pipe + direction;
        match event.kind {
            Kind::Hole => {
                seen.is_faulty = true;
                self.sim.black_hole(pipe);
            }
            Kind::Delay => self.sim.delay(pipe, event.n * 1_000),
            Kind::Fail => self.sim.fail(pipe),
            Kind::Stray => self.sim.stray(pipe),
            _ if direction == 0 && is_up && !seen.is_lost[0] => {
                seen.is_doomed = true;
                self.give_up_front(c, "the world gives it up");
            }
            _ if direction == 1 && seen.is_at_accelerator() && is_admitted => {
                seen.is_doomed = true;
                self.give_up_back(c, "the world gives it up");
            }
            _ => {}
        }
    }

    /// Keeps bytes of an accelerator's control stream back, from the frontend (1), to it (2), both.
    pub fn stick(&self, server: usize, n: u64, ns: u64) {
        if let Some(stream) = self.streams.last_of(server) {
            let ways = (0..2).filter(|way| n & (1 << way) > 0);
            ways.for_each(|way| self.streams.stick(stream, way, ns));
        }
    }

    /// An accelerator begins to stop.
    pub fn leave(&mut self, server: usize, is_late: bool, again: Option<(u64, Program)>) {
        let leaving = Leaving { is_late, again };
        if self.leaving[server].replace(leaving).is_none() {
            self.back[server].stop.stop("the world stops it");
            self.news();
        }
    }

    /// Stops the servers of nodes whose serving task has ended. Their companions end their jobs
    /// before the NIC threads stop, or behind it: a stop waits for a job, but not for ever.
    pub fn stop_servers(&mut self) {
        for server in 0..self.back.len() {
            let back = &mut self.back[server];
            if back.has_stopped || !back.serving.is_finished() {
                continue;
            }
            back.has_stopped = true;
            self.streams.set_door(server, None);
            let leaving = self.leaving[server].unwrap_or(Leaving {
                is_late: false,
                again: None,
            });
            if !leaving.is_late {
                back.prepare();
            }
            back.handle.server().stop();
            back.prepare();
            if let Some((ns, _)) = leaving.again {
                self.queue.at(self.now + ns, Task::Start(server));
            }
        }
    }

    /// An accelerator starts again: a fresh process with the name of the last one.
    pub fn start(&mut self, server: usize) {
        let Some((_, program)) = self.leaving[server].take().and_then(|l| l.again) else {
            return;
        };
        if self.is_ending {
            return;
        }
        self.say(|| format!("accelerator {server} starts again"));
        self.engine().drop_server(server);
        let Self {
            plan,
            threads,
            queue,
            book,
            streams,
            nics,
            ..
        } = self;
        let add = |thread| threads.add(server + 1, thread, plan.seed, queue);
        let world = (&*book, &*streams, &*nics, &self.engine);
        self.back[server] = Accelerator::new(plan, (server, program), world, add);
        self.handles.push(self.back[server].handle.clone());
        self.news();
    }

    /// Cancels a sample. One that is in no slot ends at once.
    pub fn cancel(&self, event: &Event) {
        let chosen = (self.book.lock()).choose_cancelled(event.n, &mut event.dice());
        let Some(id) = chosen else { return };
        let dispatcher = &self.front.dispatcher;
        let losses = dispatcher.losses_in_flight(id);
        let is_at_engine = self.engine().has(id);
        let has_ended = self.book.lock().fates[id as usize].ends > 0;
        // The writes of its own earlier attempts, whose connections were lost, may arrive too. A
        // sample that is not in flight ends at once.
        let more = losses.map_or(0, |n| u32::from(n) + u32::from(!is_at_engine));
        self.book.lock().cancel(id, more);
        dispatcher.cancel(id);
        if losses.is_none() && !has_ended && self.book.lock().fates[id as usize].ends == 0 {
            self.wrong(format!("cancel: sample {id} waits on"));
        }
        self.news();
    }
}
