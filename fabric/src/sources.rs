//! Registrations of source memory: one per region, shared by all connections of a NIC.

use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::{Region, RegionError};

/// A range of a region that is registered on its own.
pub(super) struct Part {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

macro_rules! memory {
    ($($trait:path),*) => {$(
        // SAFETY: `Part::new` checked that the range lies within the region, and the region stays
        // mapped while the part lives. References to its bytes are made under the slot protocol
        // only (see `Region`).
        unsafe impl $trait for Part {
            fn addr(&self) -> NonNull<u8> {
                let at = self.region.base().wrapping_add(self.offset);
                NonNull::new(at).unwrap_or(NonNull::dangling())
            }

            fn len(&self) -> usize {
                self.len
            }
        }
    )*};
}

memory!(verbs::Memory, ofi::Memory);

impl Part {
    pub fn new(region: &Arc<Region>, offset: usize, len: usize) -> Result<Arc<Self>, RegionError> {
        region.at(offset, len)?;
        let region = region.clone();
        Ok(Arc::new(Part {
            region,
            offset,
            len,
        }))
    }
}

/// Registrations of source regions.
#[derive(Debug)]
pub(super) struct Sources<M> {
    /// Registrations by the address of their region. A registration keeps its region alive, so the
    /// address is unique while its entry lives.
    all: Mutex<Vec<(usize, Weak<M>)>>,
    /// Registrations that outlive every connection.
    kept: Mutex<Vec<Arc<M>>>,
}

impl<M> Default for Sources<M> {
    fn default() -> Self {
        Sources {
            all: Mutex::default(),
            kept: Mutex::default(),
        }
    }
}

impl<M> Sources<M> {
    /// Registers `region` by `register`, or returns the existing registration.
    pub fn get<E: From<RegionError>>(
        &self,
        region: &Arc<Region>,
        register: impl FnOnce(Arc<Part>) -> Result<Arc<M>, E>,
    ) -> Result<Arc<M>, E> {
        let key = Arc::as_ptr(region) as usize;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, mr)| mr.strong_count() > 0);
        let mut known = all.iter().filter(|(k, _)| *k == key);
        if let Some(mr) = known.find_map(|(_, mr)| mr.upgrade()) {
            return Ok(mr);
        }
        let mr = register(Part::new(region, 0, region.len())?)?;
        all.push((key, Arc::downgrade(&mr)));
        Ok(mr)
    }

    /// Keeps a source registered while no connection is up.
    pub fn keep(&self, source: Arc<M>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(source);
    }
}
