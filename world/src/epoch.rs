//! State of one connection between two nodes: its current epoch.

use std::sync::Arc;

use fabric::{Link, testkit::dice::Dice};
use qdl::serve::ServeConnection;

/// One connection, as the sessions of both ends know it.
pub struct Control {
    pub epoch: u32,
    pub serve: Option<Arc<ServeConnection>>,
    /// The frontend's outgoing pipe of the fabric.
    pub pipe: usize,
    /// Whether the frontend, and the accelerator, have the epoch: it is not reported lost.
    pub front: bool,
    pub back: bool,
    /// Frames vanish, and not both ends learn of it.
    pub is_faulty: bool,
    /// One end was asked to give the epoch up.
    pub is_doomed: bool,
    /// Links that wait to be attached.
    pub near: Option<Link>,
    pub far: Option<Link>,
    pub dice: Dice,
}

impl Control {
    /// A connection without an epoch.
    pub fn new(seed: u64, connection: usize) -> Self {
        Control {
            epoch: 0,
            serve: None,
            pipe: 0,
            front: false,
            back: false,
            is_faulty: false,
            is_doomed: false,
            near: None,
            far: None,
            dice: Dice::of(seed, &[30, connection as u64]),
        }
    }

    /// Whether both ends have attached their links and lost none.
    pub fn is_up(&self) -> bool {
        self.front && self.back && self.near.is_none() && self.far.is_none()
    }

    /// Whether the frontend has attached its link and not reported its loss.
    pub fn is_attached_front(&self) -> bool {
        self.front && self.near.is_none()
    }

    /// Whether the accelerator has attached its link and not reported its loss.
    pub fn is_attached_back(&self) -> bool {
        self.back && self.far.is_none()
    }

    /// Forgets links that were never attached.
    pub fn drop_links(&mut self) {
        (self.near, self.far) = (None, None);
    }
}
