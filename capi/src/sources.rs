//! The caller's memory that samples are sent from, found by address.

use std::{ffi::c_void, num::NonZeroUsize, ptr::NonNull, sync::Arc};

use fabric::Region;

use crate::failure::Failure;

/// Registered regions. A sample's `source` is an index in the order of registration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The regions, in the order of registration.
    pub regions: Vec<Arc<Region>>,
    /// First address and index of each region, by address.
    by_address: Vec<(usize, usize)>,
}

impl Sources {
    /// Adds memory.
    ///
    /// # Safety
    /// The memory stays mapped until the cluster is closed.
    ///
    /// # Errors
    /// The memory is empty or overlaps an earlier region.
    pub unsafe fn add(&mut self, base: *mut c_void, len: usize) -> Result<usize, Failure> {
        let pair = NonNull::new(base.cast()).zip(NonZeroUsize::new(len));
        let Some((base, bytes)) = pair else {
            return Err(Failure::usage("memory to register is not NULL or empty"));
        };
        let start = base.as_ptr() as usize;
        if start.checked_add(len).is_none() {
            return Err(Failure::usage(format!(
                "no memory has {len} bytes at {start:#x}"
            )));
        }
        let at = self.by_address.partition_point(|(first, _)| *first < start);
        let ends_before = |i: &usize| {
            let (first, index) = self.by_address[*i];
            first + self.regions[index].len() <= start
        };
        let begins_behind = |(first, _): &(usize, usize)| start + len <= *first;
        let is_free = at.checked_sub(1).as_ref().is_none_or(ends_before)
            && self.by_address.get(at).is_none_or(begins_behind);
        if !is_free {
            return Err(Failure::usage(format!(
                "{len} bytes at {start:#x} overlap memory that is registered: register it once"
            )));
        }
        let index = self.regions.len();
        if index > usize::from(u16::MAX) {
            return Err(Failure::usage(
                "65,536 regions are registered: register larger ones",
            ));
        }
        // SAFETY: the caller promises the memory's life, so it has no owner to drop. The program
        // writes no sample in flight, as the header says.
        let region = unsafe { Region::of_host(base, bytes, Box::new(())) };
        self.regions.push(Arc::new(region));
        self.by_address.insert(at, (start, index));
        Ok(index)
    }

    /// Index of the region of these bytes, and their offset.
    pub fn find(&self, data: *const c_void, len: u32) -> Option<(usize, usize)> {
        let address = data as usize;
        let at = self
            .by_address
            .partition_point(|(first, _)| *first <= address);
        let (first, index) = *self.by_address.get(at.checked_sub(1)?)?;
        let offset = address - first;
        self.regions[index].at(offset, len as usize).ok()?;
        Some((index, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_the_region_that_holds_all_of_them() {
        let mut memory = [0u8; 300];
        let base = memory.as_mut_ptr();
        let at = |offset: usize| -> *mut c_void { base.wrapping_add(offset).cast() };
        let mut sources = Sources::default();
        for (offset, len) in [(200, 100), (0, 100)] {
            // SAFETY: `memory` outlives `sources`.
            unsafe { sources.add(at(offset), len) }.expect("free");
        }
        for (offset, len) in [(50, 60), (199, 1), (150, 51), (0, 1), (299, 1)] {
            // SAFETY: as above.
            let added = unsafe { sources.clone().add(at(offset), len) };
            assert_eq!(added.is_ok(), offset == 199, "{offset}");
        }
        assert_eq!(sources.find(at(210), 90), Some((0, 10)));
        assert_eq!(sources.find(at(99), 1), Some((1, 99)));
        for (offset, len) in [(99, 2), (100, 1), (150, 10), (210, 91)] {
            assert_eq!(sources.find(at(offset), len), None, "{offset}");
        }
    }
}
