//! Checks the Remote Rail Theorem on random rails, against every path.
//!
//! At the near end, a rail is the sample's *own* if its NIC is local to the sample's memory. At the
//! far end, a rail is the GPU's own. Over any other rail, the bytes cross the node's interior,
//! whose health is `H(d)`. The score of a path is the product of the healths that it uses:
//!
//! ```text
//!   direct   out on s, in on s                     H(s)                   s is own at both ends
//!   rd       out on s, across the far interior     H(s) * H(far)          s is own at the near end
//!   dr       across the near interior, in on t     H(near) * H(t)         t is own at the far end
//!   drd      across both, over any rail x          H(near) * H(x) * H(far)
//! ```
//!
//! A frontend's NICs are equally near to every sample. So for `qdl::rails`, `H(near)` is 1 and
//! every rail is own at the near end.

use proptest::prelude::*;
use qdl::rails::Score;

/// The score 1 in steps.
const ONE: u64 = 1 << 16;

/// Scores in steps of 1 / [`ONE`], clustered so that ties and near misses are frequent.
fn score() -> impl Strategy<Value = u64> {
    let steps = prop_oneof![
        (1u32..=12).prop_map(|n| n << 12),
        1u32..=65536,
        65530u32..=65536
    ];
    steps.prop_map(|n| u64::from(Score::from_steps(n).steps()))
}

/// Health of all rails and of both interiors, and the indices of the source's and the destination's
/// own rails.
#[derive(Clone, Debug)]
struct Ends {
    rails: Vec<u64>,
    source: usize,
    destination: usize,
    near: u64,
    far: u64,
}

impl Ends {
    fn rd(&self) -> u64 {
        self.rails[self.source] * self.far * ONE
    }

    fn dr(&self) -> u64 {
        self.near * self.rails[self.destination] * ONE
    }

    fn drd(&self, rail: u64) -> u64 {
        self.near * rail * self.far
    }

    /// Score of the best path over own rails.
    fn own(&self) -> u64 {
        let direct = if self.source == self.destination {
            self.rails[self.source] * ONE * ONE
        } else {
            0
        };
        self.rd().max(self.dr()).max(direct)
    }
}

fn ends() -> impl Strategy<Value = Ends> {
    let rails = prop::collection::vec(score(), 1..24);
    let all = rails.prop_flat_map(|rails| {
        let end = 0..rails.len();
        (Just(rails), end.clone(), end, score(), score())
    });
    all.prop_map(|(rails, source, destination, near, far)| Ends {
        rails,
        source,
        destination,
        near,
        far,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// rd beats dr exactly when gamma(source) = H(s) / H(near) exceeds gamma(destination) = H(t) /
    /// H(far).
    #[test]
    fn the_greater_ratio_names_the_better_two_hop_path(e in ends()) {
        let (s, t) = (e.rails[e.source], e.rails[e.destination]);
        prop_assert_eq!(e.rd().cmp(&e.dr()), (s * e.far).cmp(&(t * e.near)));
    }

    /// The theorem: drd over x beats every path over an own rail exactly when H(x) > m. If s and t
    /// differ, m is the greater ratio; if they are one rail, m is H(s) / (H(near) * H(far)).
    #[test]
    fn a_remote_rail_wins_exactly_above_m(e in ends()) {
        let (s, t) = (e.rails[e.source], e.rails[e.destination]);
        // m as a fraction makes the comparison exact.
        let (numerator, denominator) = match e.source == e.destination {
            true => (s * ONE * ONE, e.near * e.far),
            false if s * e.far > t * e.near => (s * ONE, e.near),
            false => (t * ONE, e.far),
        };
        for x in &e.rails {
            prop_assert_eq!(e.drd(*x) > e.own(), x * denominator > numerator);
        }
    }

    /// The corollary: if either ratio exceeds 1, no remote rail wins.
    #[test]
    fn no_detour_with_a_ratio_above_one(e in ends()) {
        if e.rails[e.source] > e.near || e.rails[e.destination] > e.far {
            prop_assert!(e.rails.iter().all(|x| e.drd(*x) <= e.own()));
        }
    }
}
