//! Progress of writes in parts: how many bytes of each slot of a window have landed.
//!
//! ```text
//!   slot   [ part 0, more | part 1, more |  ...  | last part |  not written  ]
//!           ^ 0            ^ end of the part before
//! ```
//!
//! Every receiving half has one [`Parts`]. A NIC does not report a write's offset within its slot.
//! An offset in a TCP frame must agree with the slot's earlier parts.

use super::{Broken, Event, FabricCounts, Imm, Window};

/// Bytes landed in one slot for one use; a use count other than the grant's means 0 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Landed {
    use_count: u16,
    bytes: u32,
}

/// Landed bytes of every slot of a window.
#[derive(Debug)]
pub(crate) struct Parts {
    window: Window,
    /// One entry per slot; empty where the window takes each write in one piece.
    landed: Box<[Landed]>,
}

/// Position of a write, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// Offset within the slot.
    pub at: u32,
    /// Offset within the window's region.
    pub offset: usize,
}

impl Parts {
    /// Makes the state of a new connection, with no bytes landed.
    pub(crate) fn new(window: Window) -> Self {
        let slots = match window.takes_parts() {
            true => window.slots(),
            false => 0,
        };
        Parts {
            landed: vec![Landed::default(); slots].into(),
            window,
        }
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Offset within its slot of the next write with this immediate.
    fn next(&self, imm: Imm) -> u32 {
        match self.landed.get(usize::from(imm.slot())) {
            Some(l) if l.use_count == imm.use_count() => l.bytes,
            _ => 0,
        }
    }

    /// Checks a write of `len` bytes against its slot, the earlier parts and the grant. `at` is the
    /// offset within the slot that came with the write, if any.
    ///
    /// # Errors
    /// [`Broken`] names the invalid field; the caller must not store the write.
    pub(crate) fn landing(&self, imm: Imm, at: Option<u32>, len: u32) -> Result<Landing, Broken> {
        let next = self.next(imm);
        let offset = self.window.landing(imm, at.unwrap_or(next), len)?;
        let bad = |what, value| Err(Broken::BadFrame { what, value });
        if let Some(at) = at.filter(|at| *at != next) {
            return bad("offset within the slot", u64::from(at));
        }
        if imm.more() && self.landed.is_empty() && !self.window.takes_options() {
            return bad("part of what comes in one piece", u64::from(imm.bits()));
        }
        if len == 0 && (imm.more() || next > 0) {
            return bad("length of a part", 0);
        }
        self.window.grants().permits(imm)?;
        Ok(Landing { at: next, offset })
    }

    /// Records that all bytes of a write checked by [`Parts::landing`] are in the slot. The last
    /// part closes the grant.
    ///
    /// # Errors
    /// [`Broken::Grant`] where the grant was withdrawn meanwhile.
    pub(crate) fn land(
        &mut self,
        imm: Imm,
        at: u32,
        len: u32,
        counts: &mut FabricCounts,
    ) -> Result<Event, Broken> {
        // A window without parts has no entry: there the bit is that of a request's options.
        if imm.more()
            && let Some(l) = self.landed.get_mut(usize::from(imm.slot()))
        {
            *l = Landed {
                use_count: imm.use_count(),
                bytes: at + len,
            };
            counts.parts += 1;
        } else {
            self.window.grants().take(imm)?;
            // Use counts wrap, so a stale entry could match a later use.
            if at != 0
                && let Some(l) = self.landed.get_mut(usize::from(imm.slot()))
            {
                l.bytes = 0;
            }
        }
        counts.writes += 1;
        counts.bytes += u64::from(len);
        Ok(Event::Arrived { imm, at, len })
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{Grants, Region, wire::Stream};

    const STRIDE: u32 = 100;

    fn parts(slots: usize, stream: Stream) -> Parts {
        let stride = STRIDE as usize;
        let region = Arc::new(Region::new(slots * stride).expect("memory"));
        let window = Window::new(region, 0, stride, Arc::new(Grants::new(slots)));
        Parts::new(window.expect("fits").in_parts(stream))
    }

    #[test]
    fn a_use_that_was_left_in_the_middle_does_not_count_for_the_next() {
        let mut p = parts(1, Stream::All);
        let grants = p.window().grants().clone();
        let mut counts = FabricCounts::default();
        let first = grants.open(0).expect("closed");
        let part = Imm::new(0, first).with_more();
        p.land(part, 0, 10, &mut counts).expect("granted");
        assert!(grants.revoke(0));
        let again = Imm::new(0, grants.open(0).expect("closed"));
        let landing = p.landing(again, None, 10).expect("granted");
        assert_eq!(landing, Landing { at: 0, offset: 0 });
    }

    #[test]
    fn the_parts_of_a_use_do_not_count_for_the_use_of_the_same_count_after_a_wrap() {
        let mut p = parts(1, Stream::All);
        let grants = p.window().grants().clone();
        let mut counts = FabricCounts::default();
        let imm = Imm::new(0, grants.open(0).expect("closed"));
        let part = p.land(imm.with_more(), 0, 10, &mut counts);
        assert!(part.is_ok() && p.land(imm, 10, 10, &mut counts).is_ok());
        while grants.open(0) != Some(imm.use_count()) {
            assert!(grants.revoke(0));
        }
        let landing = p.landing(imm, None, 10);
        assert_eq!(landing, Ok(Landing { at: 0, offset: 0 }));
    }

    proptest! {
        /// Compares with a model that maps each slot to its landed bytes. A part that continues its
        /// slot is accepted and begins where the last part ended; every other part is refused
        /// without effect.
        #[test]
        fn parts_follow_on_within_their_slot(
            steps in prop::collection::vec(
                (0u16..4, 0u32..60, any::<bool>(), prop::option::weighted(0.1, 0u32..120)),
                1..200,
            ),
        ) {
            let mut p = parts(4, Stream::All);
            let grants = p.window().grants().clone();
            let mut counts = FabricCounts::default();
            let mut came = [0u32; 4];
            let mut uses = [0u16; 4];
            let (mut whole, mut first_or_middle, mut bytes) = (0, 0, 0);
            for (slot, len, more, wrong_at) in steps {
                let i = usize::from(slot);
                if !grants.is_open(slot) {
                    uses[i] = grants.open(slot).expect("closed");
                }
                let imm = Imm::new(slot, uses[i]);
                let imm = if more { imm.with_more() } else { imm };
                let at = wrong_at.unwrap_or(came[i]);
                let good = at == came[i]
                    && at + len <= STRIDE
                    && (len > 0 || (!more && came[i] == 0));
                let offset = i * STRIDE as usize + came[i] as usize;
                let landing = p.landing(imm, Some(at), len);
                prop_assert_eq!(landing.is_ok(), good, "{:?} {}..+{}", imm, at, len);
                if !good {
                    continue;
                }
                prop_assert_eq!(landing.clone(), Ok(Landing { at, offset }));
                prop_assert_eq!(p.landing(imm, None, len), landing);
                let event = p.land(imm, at, len, &mut counts);
                prop_assert_eq!(event, Ok(Event::Arrived { imm, at, len }));
                prop_assert_eq!(grants.is_open(slot), more);
                came[i] = if more { at + len } else { 0 };
                whole += u64::from(!more);
                first_or_middle += u64::from(more);
                bytes += u64::from(len);
            }
            let writes = whole + first_or_middle;
            prop_assert_eq!((counts.parts, counts.writes), (first_or_middle, writes));
            prop_assert_eq!(counts.bytes, bytes);
        }

        #[test]
        fn a_window_without_parts_takes_none(len in 1u32..=STRIDE) {
            let p = parts(1, Stream::None);
            p.window().grants().open(0).expect("closed");
            let imm = Imm::new(0, 1);
            prop_assert!(p.landing(imm, Some(0), len).is_ok());
            let part = p.landing(imm.with_more(), Some(0), len);
            prop_assert!(matches!(part, Err(Broken::BadFrame { .. })), "{:?}", part);
            // A window of requests with options takes the same bit, and each write whole.
            let mut p = Parts::new(p.window().clone().with_options(true));
            let mut counts = FabricCounts::default();
            let imm = imm.with_options(true);
            prop_assert!(p.landing(imm, Some(0), len).is_ok());
            prop_assert_eq!(
                p.land(imm, 0, len, &mut counts),
                Ok(Event::Arrived { imm, at: 0, len })
            );
            prop_assert_eq!((counts.writes, counts.parts), (1, 0));
            prop_assert!(!p.window().grants().is_open(0));
        }
    }
}
