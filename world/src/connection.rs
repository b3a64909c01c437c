//! Connections between the frontend and its accelerators: opened, given up, lost.

use fabric::{
    Broken,
    testkit::sim_nic::{Guest, Opened},
};
use qdl::serve::ServeConnectionCfgs;

use crate::{book::Loss, epoch::Seen, queue::Task, table::State, world::World};

impl World<'_> {
    /// Plans a task of a connection within so many nanoseconds.
    pub fn soon(&mut self, c: usize, within: u64, task: Task) {
        let at = self.now + 1 + self.seen[c].dice.below(within);
        self.queue.at(at, task);
    }

    /// State of a connection.
    pub fn state(&self, c: usize) -> State {
        let seen = &self.seen[c];
        let look = self.front.dispatcher.look(c);
        match seen.is_lost {
            _ if seen.epoch == 0 => State::Closed,
            [true, true] => State::Closed,
            [true, false] | [false, true] => State::Leaving,
            _ if !look.up => State::Opening,
            _ if look.blocked => State::Blocked,
            _ if look.in_flight > 0 && look.in_flight >= look.allowance => State::Full,
            _ if look.in_flight > 0 => State::Busy,
            _ => State::Idle,
        }
    }

    /// The accelerator of a connection has granted an epoch.
    pub fn opened(&mut self, opened: Opened) {
        let c = opened.node * self.plan.shape.each as usize + usize::from(opened.which.connection);
        self.outcome.epochs += 1;
        self.say(|| format!("connection {c} opens epoch {}", opened.which.epoch));
        let before = &self.seen[c];
        if before.epoch > 0 && self.sim.has_receiver(before.pipe + 1) {
            let text = format!("slot: connection {c} opens an epoch while the last one lives");
            return self.wrong(text);
        }
        let seen = &mut self.seen[c];
        *seen = Seen {
            epoch: opened.which.epoch,
            pipe: opened.pipe,
            is_lost: [false; 2],
            lost_at: 0,
            is_faulty: false,
            is_doomed: false,
            dice: seen.dice.clone(),
        };
        self.prepare_soon(c);
    }

    /// The companions of the connection's accelerator have jobs.
    fn prepare_soon(&mut self, c: usize) {
        let server = self.server_of(c);
        for share in 0..self.back[server].companions() {
            for within in [30_000, 200_000] {
                self.soon(c, within, Task::Prepare { server, share });
            }
        }
    }

    /// The frontend is asked to give the epoch up.
    pub fn give_up_front(&mut self, c: usize, why: &str) {
        let (epoch, cause) = (self.seen[c].epoch, Broken::GivenUp(why.to_owned()));
        self.front.dispatcher.give_up(c, epoch, cause);
    }

    /// The accelerator is asked to give the epoch up.
    pub fn give_up_back(&mut self, c: usize, why: &str) {
        let (epoch, cause) = (self.seen[c].epoch, Broken::GivenUp(why.to_owned()));
        let each = self.plan.shape.each as usize;
        let is_it = move |cfgs: &ServeConnectionCfgs| {
            usize::from(cfgs.connection) == c % each && cfgs.epoch == epoch
        };
        let server = self.back[self.server_of(c)].handle.server();
        server.give_up(is_it, &cause);
        self.prepare_soon(c);
    }

    /// One end has reported the loss of an epoch.
    pub fn lost(&mut self, loss: &Loss) {
        let Loss { epoch, server, .. } = *loss;
        let c = match server {
            Some((server, _)) => server * self.plan.shape.each as usize + loss.connection,
            None => loss.connection,
        };
        self.say(|| format!("connection {c} lost: {loss:?}"));
        let (session, end) = (server.map_or(0, |(_, session)| session), server.is_some());
        if !self.losses.insert((c, epoch, session, end)) {
            let text = format!("loss: connection {c} epoch {epoch} lost twice, at back: {end}");
            return self.wrong(text);
        }
        let now = self.now;
        let seen = &mut self.seen[c];
        if seen.epoch == epoch {
            if seen.is_lost == [false; 2] {
                seen.lost_at = now;
            }
            seen.is_lost[usize::from(end)] = true;
        }
        match end {
            true => self.soon(c, 1_000_000, Task::Purge),
            false => self.check_cause(c, &loss.cause),
        }
        self.book.lock().mix(5 + u64::from(end), c as u64);
    }

    /// Lets the accelerators admit the guests at their data ports.
    pub fn admit_guests(&mut self) {
        for guest in std::mem::take(&mut self.guests) {
            let Guest {
                node,
                which,
                key,
                link,
            } = guest;
            let is_shown_out = self.plan.shape.ports > 1 && self.seen[0].dice.percent(3);
            let linked = match is_shown_out {
                true => Err("the world shows it out".to_owned()),
                false => Ok(link),
            };
            let which = (which.connection, which.epoch);
            self.back[node].handle.admit(which, key, linked);
            for share in 0..self.back[node].companions() {
                self.soon(
                    0,
                    30_000,
                    Task::Prepare {
                        server: node,
                        share,
                    },
                );
            }
        }
        self.news();
    }

    /// Connection of a guest.
    pub fn connection_of(&self, guest: &Guest) -> usize {
        guest.node * self.plan.shape.each as usize + usize::from(guest.which.connection)
    }

    /// Accelerator of a connection.
    pub fn server_of(&self, c: usize) -> usize {
        c / self.plan.shape.each as usize
    }
}
