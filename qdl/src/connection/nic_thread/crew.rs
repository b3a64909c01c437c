//! The plan that assigns connections to NIC threads.
//!
//! A *share* is a set of connections of one NIC, all or some, that one thread polls. NICs of the
//! same fabric, wait mode and placement may share threads. A NIC with more work than one thread can
//! do has several shares on different threads. The plan is made at the start and does not change.

use std::collections::VecDeque;

/// NIC and thread of each share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrewPlan {
    /// NIC of each share. Every NIC has at least one share.
    pub nic_of: Vec<usize>,
    /// Thread of each share. Threads are numbered from 0, and each has at least one share.
    pub thread_of: Vec<usize>,
}

/// Deals the connections of each NIC to the NIC's shares in turn.
#[derive(Clone, Debug)]
pub(crate) struct ShareOut(Vec<VecDeque<usize>>);

impl ShareOut {
    /// Share of the next connection of `nic`; for a NIC outside the plan, `nic` itself.
    pub(crate) fn next(&mut self, nic: usize) -> usize {
        let Some(shares) = self.0.get_mut(nic) else {
            return nic;
        };
        shares.rotate_left(shares.len().min(1));
        shares.back().copied().unwrap_or(nic)
    }
}

impl CrewPlan {
    pub(crate) fn each(nics: usize) -> Self {
        CrewPlan {
            nic_of: (0..nics).collect(),
            thread_of: (0..nics).collect(),
        }
    }

    pub(crate) fn shares(&self) -> usize {
        self.nic_of.len()
    }

    pub(crate) fn nics(&self) -> usize {
        count(&self.nic_of)
    }

    pub(crate) fn shares_of(&self, nic: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.shares()).filter(move |share| self.nic_of[*share] == nic)
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        count(&self.thread_of)
    }

    pub(crate) fn share_out(&self) -> ShareOut {
        let of_nic = (0..self.nics()).map(|nic| self.shares_of(nic).collect());
        ShareOut(of_nic.collect())
    }

    /// Whether every share has a thread, every NIC a share, and every thread a share.
    pub(crate) fn is_sound(&self) -> bool {
        let all = |of: &[usize]| (0..count(of)).all(|i| of.contains(&i));
        self.thread_of.len() == self.shares() && all(&self.nic_of) && all(&self.thread_of)
    }
}

/// The largest number plus 1; 0 for an empty list.
fn count(of: &[usize]) -> usize {
    of.iter().map(|i| i + 1).max().unwrap_or(0)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_sound_plan_has_a_share_for_each_nic_and_each_thread() {
        let plan = |nic_of: &[usize], thread_of: &[usize]| CrewPlan {
            nic_of: nic_of.to_vec(),
            thread_of: thread_of.to_vec(),
        };
        assert!(CrewPlan::each(3).is_sound());
        assert!(plan(&[0, 1, 2], &[0, 1, 0]).is_sound());
        assert!(plan(&[0, 0, 1], &[0, 1, 1]).is_sound());
        assert!(
            !plan(&[0, 1, 2], &[0, 2, 0]).is_sound(),
            "thread 1 has no share"
        );
        assert!(
            !plan(&[0, 0, 2], &[0, 1, 0]).is_sound(),
            "NIC 1 has no share"
        );
        assert!(!plan(&[0, 1], &[0]).is_sound(), "share 1 has no thread");
    }

    #[test]
    fn connections_are_dealt_out_to_their_nics_shares_in_turn() {
        let plan = CrewPlan {
            nic_of: vec![0, 1, 1, 0, 0],
            ..CrewPlan::default()
        };
        let mut out = plan.share_out();
        let dealt: Vec<_> = [0, 0, 1, 0, 0, 1, 1, 7].map(|nic| out.next(nic)).into();
        assert_eq!(dealt, [0, 3, 1, 4, 0, 2, 1, 7]);
    }
}
