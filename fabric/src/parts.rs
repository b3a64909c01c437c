//! How far each slot of a window has been written, where writes may come in parts.
//!
//! ```text
//!   slot   [ part 0, more | part 1, more |  ...  | last part |  not written  ]
//!           ^ 0            ^ where the part before it ended
//! ```
//!
//! Every receiving half has one: a NIC does not say where in a slot a write landed, and a frame
//! that says so must agree with what came before.

use super::{Broken, Event, FabricCounts, Imm, Window};

/// One slot: how much of which use has landed. A use that is not the grant's says nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Landed {
    use_count: u16,
    bytes: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Parts {
    window: Window,
    /// One for each slot; none where the window takes each write in one piece.
    landed: Box<[Landed]>,
}

/// Where a write lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// Offset within the slot.
    pub at: u32,
    /// Offset within the window's region.
    pub offset: usize,
}

impl Parts {
    /// Of a connection that has just been made: nothing has landed.
    pub fn new(window: Window) -> Self {
        let slots = match window.takes_parts() {
            true => window.slots(),
            false => 0,
        };
        Parts {
            landed: vec![Landed::default(); slots].into(),
            window,
        }
    }

    /// The window it is of.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Where in its slot the next write with this immediate begins.
    fn next(&self, imm: Imm) -> u32 {
        match self.landed.get(usize::from(imm.slot())) {
            Some(l) if l.use_count == imm.use_count() => l.bytes,
            _ => 0,
        }
    }

    /// Checks a write of `len` bytes against its slot, the parts before it and the grant. `at` is
    /// the offset that its frame names, where there is one.
    ///
    /// # Errors
    /// [`Broken`] names what is wrong with it: nothing of it may be stored.
    pub fn landing(&self, imm: Imm, at: Option<u32>, len: u32) -> Result<Landing, Broken> {
        let next = self.next(imm);
        let offset = self.window.landing(imm, at.unwrap_or(next), len)?;
        let bad = |what, value| Err(Broken::BadFrame { what, value });
        if let Some(at) = at.filter(|at| *at != next) {
            return bad("offset within the slot", u64::from(at));
        }
        if imm.more() && self.landed.is_empty() {
            return bad("part of what comes in one piece", u64::from(imm.bits()));
        }
        if len == 0 && (imm.more() || next > 0) {
            return bad("length of a part", 0);
        }
        self.window.grants().permits(imm)?;
        Ok(Landing { at: next, offset })
    }

    /// All bytes of a write that [`Parts::landing`] has checked are in the slot. The last part
    /// closes the grant.
    ///
    /// # Errors
    /// [`Broken::Grant`] where the grant was withdrawn meanwhile.
    pub fn landed(
        &mut self,
        imm: Imm,
        at: u32,
        len: u32,
        counts: &mut FabricCounts,
    ) -> Result<Event, Broken> {
        if imm.more() {
            if let Some(l) = self.landed.get_mut(usize::from(imm.slot())) {
                *l = Landed {
                    use_count: imm.use_count(),
                    bytes: at + len,
                };
            }
            counts.parts += 1;
        } else {
            self.window.grants().take(imm)?;
            // Use counts come round again.
            if at > 0
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

#[cfg(all(test, not(qdl_loom)))]
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
        p.landed(part, 0, 10, &mut counts).expect("granted");
        assert!(grants.revoke(0));
        let again = Imm::new(0, grants.open(0).expect("closed"));
        let landing = p.landing(again, None, 10).expect("granted");
        assert_eq!(landing, Landing { at: 0, offset: 0 });
    }

    proptest! {
        /// Against a model: a map from slot to what has come. What follows on is taken and begins
        /// where the last ended; anything else is refused and changes nothing.
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
            let (mut whole, mut first_or_middle) = (0, 0);
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
                let event = p.landed(imm, at, len, &mut counts);
                prop_assert_eq!(event, Ok(Event::Arrived { imm, at, len }));
                prop_assert_eq!(grants.is_open(slot), more);
                came[i] = if more { at + len } else { 0 };
                whole += u64::from(!more);
                first_or_middle += u64::from(more);
            }
            let writes = whole + first_or_middle;
            prop_assert_eq!((counts.parts, counts.writes), (first_or_middle, writes));
        }

        #[test]
        fn a_window_without_parts_takes_none(len in 1u32..=STRIDE) {
            let p = parts(1, Stream::None);
            p.window().grants().open(0).expect("closed");
            let imm = Imm::new(0, 1);
            prop_assert!(p.landing(imm, Some(0), len).is_ok());
            let part = p.landing(imm.with_more(), Some(0), len);
            prop_assert!(matches!(part, Err(Broken::BadFrame { .. })), "{:?}", part);
        }
    }
}
