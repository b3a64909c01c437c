//! Handles: what the program owns, by number.

use std::sync::{Arc, Mutex};

use fabric::os::lock;

use crate::{
    accelerator::Accelerator, events::Lease, failure::Failure, frontend::Frontend,
    numbered::Numbered,
};

/// What a handle names.
#[derive(Clone)]
pub enum Object {
    /// A cluster, the frontend's side.
    Frontend(Arc<Frontend>),
    /// A node, the accelerator's side.
    Accelerator(Arc<Accelerator>),
    /// Memory of polled events.
    Lease(Arc<Lease>),
}

static ALL: Mutex<Numbered<Object>> = Mutex::new(Numbered::new());

fn stale(handle: u64) -> Failure {
    Failure::state(format!(
        "handle {handle:#x} is closed, or no function has returned it"
    ))
}

/// Gives an object a handle.
pub fn add(object: Object) -> u64 {
    crate::failure::own();
    lock(&ALL).add(object)
}

/// The object of a handle.
pub fn get(handle: u64) -> Result<Object, Failure> {
    let found = lock(&ALL).get(handle).cloned();
    found.ok_or_else(|| stale(handle))
}

/// Takes an object's handle away.
pub fn take(handle: u64) -> Result<Object, Failure> {
    let found = lock(&ALL).take(handle);
    found.ok_or_else(|| stale(handle))
}

/// The cluster of a handle.
pub fn frontend(handle: u64) -> Result<Arc<Frontend>, Failure> {
    match get(handle)? {
        Object::Frontend(frontend) => Ok(frontend),
        _ => Err(Failure::usage("this function wants a handle of qdl_open")),
    }
}

/// The node of a handle.
pub fn accelerator(handle: u64) -> Result<Arc<Accelerator>, Failure> {
    match get(handle)? {
        Object::Accelerator(node) => Ok(node),
        _ => Err(Failure::usage("this function wants a handle of qdl_serve")),
    }
}
