//! Handles: numbers for what the caller owns. A number is never used twice, so a stale one is an
//! error and no access to freed memory.

use std::sync::{Arc, Mutex};

use fabric::os::lock;
use slab::Slab;

use crate::{accelerator::Accelerator, events::Lease, failure::Failure, frontend::Frontend};

/// Numbered values: the number's low half is the place, its high half the place's use.
#[derive(Debug)]
pub struct Numbered<T> {
    places: Slab<(u32, T)>,
    used: u32,
}

impl<T> Numbered<T> {
    /// No value.
    pub const fn new() -> Self {
        Numbered {
            places: Slab::new(),
            used: 0,
        }
    }

    /// Adds a value and returns its number, which is not 0.
    pub fn add(&mut self, value: T) -> u64 {
        self.used = self.used.wrapping_add(1).max(1);
        let place = self.places.insert((self.used, value));
        u64::from(self.used) << 32 | place as u64
    }

    /// The value of a number.
    pub fn get(&mut self, number: u64) -> Option<&mut T> {
        let own = self.places.get_mut(number as u32 as usize);
        own.filter(|(used, _)| u64::from(*used) == number >> 32)
            .map(|(_, value)| value)
    }

    /// Takes the value of a number out.
    pub fn take(&mut self, number: u64) -> Option<T> {
        self.get(number)?;
        Some(self.places.remove(number as u32 as usize).1)
    }

    /// Takes all values out.
    pub fn take_all(&mut self) -> Vec<T> {
        self.places.drain().map(|(_, value)| value).collect()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_an_earlier_value_finds_nothing() {
        let mut all = Numbered::new();
        let first = all.add('a');
        assert_eq!(all.take(first), Some('a'));
        let second = all.add('b');
        assert_eq!(first as u32, second as u32, "the same place");
        assert_eq!(all.get(first), None);
        assert_eq!(all.take(first), None);
        assert_eq!(all.get(second), Some(&mut 'b'));
    }
}
