//! What the control sessions do, in short: they open the next epoch of a connection once both ends
//! have lost the last one and its slots are unread, and they tell each end of the other's loss.
//! Real sessions take the place of this file.

use std::sync::Arc;

use fabric::{
    Broken,
    testkit::{dice::Dice, sim::PathCfgs},
};
use qdl::serve::{ServeConnection, ServeConnectionCfgs};

use crate::{
    epoch::Control,
    plan::Shape,
    queue::Task,
    table::State,
    world::{Nodes, World},
};

fn serve_cfgs(shape: &Shape, nodes: &Nodes, c: usize, epoch: u32) -> ServeConnectionCfgs {
    let front = nodes.dispatcher.connection(c);
    ServeConnectionCfgs {
        session: 1,
        connection: c as u16,
        epoch,
        gpu: None,
        slots: front.slots,
        request_stride: front.request_stride,
        takes_options: false,
        response_stride: front.response_stride,
        stream: shape.stream(),
    }
}

impl World<'_> {
    /// Plans a task of a connection's sessions within so many nanoseconds.
    pub fn soon(&mut self, c: usize, within: u64, task: Task) {
        let at = self.now + 1 + self.controls[c].dice.below(within);
        self.queue.at(at, task);
    }

    /// State of a connection.
    pub fn state(&self, c: usize) -> State {
        let control = &self.controls[c];
        let look = self.nodes.dispatcher.look(c);
        match (control.front, control.back) {
            (false, false) => State::Closed,
            (true, true) if !control.is_up() || !look.up => State::Opening,
            (true, true) if look.blocked => State::Blocked,
            (true, true) if look.in_flight > 0 && look.in_flight >= look.allowance => State::Full,
            (true, true) if look.in_flight > 0 => State::Busy,
            (true, true) => State::Idle,
            _ => State::Leaving,
        }
    }

    /// Opens the next epoch of a connection, once no engine reads the slots of the last one.
    pub fn open(&mut self, c: usize) {
        let has_left = self.has_left[self.server_of(c)];
        if has_left || self.book.lock().aborted || self.is_ending {
            return;
        }
        let shape = self.plan.shape;
        if let Some(serve) = &self.controls[c].serve {
            if serve.readers() > 0 {
                self.soon(c, 200_000, Task::Purge);
                return self.soon(c, 1_000_000, Task::Open(c));
            }
            self.close_ledger(c);
        }
        let epoch = self.controls[c].epoch + 1;
        let serve = ServeConnection::new(serve_cfgs(&shape, &self.nodes, c, epoch));
        let serve = Arc::new(serve.expect("memory for the slots"));
        let near = self.nodes.dispatcher.endpoint(c);
        let far = serve.endpoint(shape.depth_back as usize);
        let path = |direction| {
            // Each direction of each epoch has its own speed.
            let names = [31, c as u64, u64::from(epoch), direction];
            let mut dice = Dice::of(self.plan.seed, &names);
            let path = PathCfgs {
                delay_ns: dice.from_to(shape.delay_ns / 4, shape.delay_ns * 3),
                jitter_ns: shape.jitter_ns,
                capacity: shape.capacity as usize,
                partial: shape.partial,
                room_by_landing: shape.landing > 0,
                linger_ns: shape.linger_us * 1_000,
            };
            (path, dice)
        };
        let (near, far, pipe) = self.sim.pair(near, far, [path(0), path(1)]);
        let control = &mut self.controls[c];
        *control = Control {
            epoch,
            serve: Some(serve),
            pipe,
            front: true,
            back: true,
            is_faulty: false,
            is_doomed: false,
            near: Some(near),
            far: Some(far),
            dice: control.dice.clone(),
        };
        self.outcome.epochs += 1;
        self.say(|| format!("connection {c} opens epoch {epoch}"));
        let dice = &mut self.controls[c].dice;
        let back = self.now + 1 + dice.below(50_000);
        let from = if dice.percent(30) { self.now } else { back };
        let front = from + 1 + dice.below(100_000);
        self.queue.at(back, Task::AttachBack(c));
        self.queue.at(front, Task::AttachFront(c));
    }

    pub fn attach_front(&mut self, c: usize) {
        let control = &mut self.controls[c];
        if let Some(link) = control.near.take() {
            self.nodes.dispatcher.attach(c, control.epoch, link);
        }
    }

    pub fn attach_back(&mut self, c: usize) {
        let control = &mut self.controls[c];
        let Some(serve) = control.serve.clone() else {
            return;
        };
        if let Some(link) = control.far.take() {
            let nic = self.nodes.dispatcher.connection(c).nic_index;
            self.nodes.servers[self.server_of(c)].attach(nic, serve, link);
            self.prepare_soon(c);
        }
    }

    /// The accelerator is gone before it has attached its link.
    pub fn lose_unattached(&mut self, c: usize) {
        let control = &mut self.controls[c];
        if control.far.take().is_some() {
            let epoch = control.epoch;
            self.lost(c, epoch, true);
        }
    }

    /// The companions of the connection's accelerator have jobs.
    fn prepare_soon(&mut self, c: usize) {
        let server = self.server_of(c);
        for share in 0..self.nodes.preparing[server].len() {
            self.soon(c, 60_000, Task::Prepare { server, share });
        }
    }

    pub fn give_up_front(&mut self, c: usize, why: &str) {
        let (epoch, cause) = (self.controls[c].epoch, Broken::GivenUp(why.to_owned()));
        self.nodes.dispatcher.give_up(c, epoch, cause);
    }

    pub fn give_up_back(&mut self, c: usize, why: &str) {
        let (epoch, cause) = (self.controls[c].epoch, Broken::GivenUp(why.to_owned()));
        let is_it = move |cfgs: &ServeConnectionCfgs| {
            usize::from(cfgs.connection) == c && cfgs.epoch == epoch
        };
        self.nodes.servers[self.server_of(c)].give_up(is_it, &cause);
        self.prepare_soon(c);
    }

    /// One end hears of the loss of an epoch by the other end.
    pub fn hear_of_loss(&mut self, c: usize, epoch: u32, back: bool) {
        let control = &self.controls[c];
        match (control.epoch == epoch, back) {
            (true, true) if control.back => self.give_up_back(c, "the frontend lost it"),
            (true, false) if control.front => self.give_up_front(c, "the accelerator lost it"),
            _ => {}
        }
    }

    /// One end has reported the loss of an epoch. Both lose it before the next one opens.
    pub fn lost(&mut self, c: usize, epoch: u32, by_back: bool) {
        let control = &mut self.controls[c];
        let (mine, other) = match by_back {
            true => (&mut control.back, &mut control.front),
            false => (&mut control.front, &mut control.back),
        };
        if !*mine || control.epoch != epoch {
            let text = format!("loss: connection {c} epoch {epoch} lost twice, at back: {by_back}");
            return self.wrong(text);
        }
        *mine = false;
        match *other {
            true => {
                let (connection, back) = (c, !by_back);
                let report = Task::LossReport {
                    connection,
                    epoch,
                    back,
                };
                self.soon(c, 400_000, report);
            }
            false => self.soon(c, 2_000_000, Task::Open(c)),
        }
        self.book.lock().mix(5 + u64::from(by_back), c as u64);
    }

    /// Accelerator of a connection.
    pub fn server_of(&self, c: usize) -> usize {
        c / self.plan.shape.each as usize
    }
}
