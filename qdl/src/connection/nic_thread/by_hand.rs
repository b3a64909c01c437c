//! NIC threads without threads: a test takes the steps of each, in an order of its own.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use super::{
    NicThread, NicThreadHandle, Wait,
    handle::WAKING,
    turning::{Next, Turning},
};

/// A NIC thread whose steps the caller takes.
pub struct HandTurned {
    turning: Turning,
    handle: NicThreadHandle,
}

/// The next step of a [`HandTurned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Turn again.
    Turn,
    /// Nothing to do: [`HandTurned::arm`]. Other threads take the thread for asleep from here on.
    Arm,
    /// The thread has ended.
    End,
}

impl HandTurned {
    /// Makes the works of `thread` on the caller's thread.
    pub fn new(thread: NicThread) -> Self {
        let (turning, handle, _) = thread.make();
        HandTurned { turning, handle }
    }

    /// Takes one turn, and announces the sleep after it. Passes new descriptors to `register`.
    pub fn turn(&mut self, register: &mut dyn FnMut(RawFd)) -> Step {
        let step = self.turn_only(register);
        if step == Step::Arm {
            self.announce();
        }
        step
    }

    /// Tells other threads that this one sleeps, before [`HandTurned::arm`].
    pub fn announce(&mut self) {
        Turning::announce(&self.handle.0);
    }

    /// Takes one turn.
    pub fn turn_only(&mut self, register: &mut dyn FnMut(RawFd)) -> Step {
        self.turning.yielded();
        match self.turning.turn(&self.handle.0, register) {
            Next::Wait(Wait::Sleep) => Step::Arm,
            Next::Turn | Next::Wait(_) => Step::Turn,
            Next::End => Step::End,
        }
    }

    /// Arms. Returns the limit of the sleep in nanoseconds; `None` if the thread must not sleep.
    pub fn arm(&mut self) -> Option<u64> {
        let limit = self.turning.arm(&self.handle.0)?;
        Some(limit.as_nanos() as u64)
    }

    /// Ends a sleep or the attempt; `readable` are the descriptors with events.
    pub fn wake(&mut self, is_event: bool, readable: &[RawFd]) {
        let readable = readable.iter().copied();
        self.turning.wake(&self.handle.0, is_event, readable);
    }

    /// Whether a second thread has woken this one since its announcement.
    pub fn is_woken(&self) -> bool {
        self.handle.0.state.load(Ordering::SeqCst) == WAKING
    }
}
