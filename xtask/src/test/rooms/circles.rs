//! Circles among arrows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An import: from one room or folder to another, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    pub from: String,
    pub to: String,
    /// File and line.
    pub place: String,
}

/// A line for each circle: the shortest through each arrow that is in one.
pub fn circles(arrows: &[Arrow], prefix: &str) -> Vec<String> {
    // One arrow for each pair, the first that was found.
    let mut next: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for arrow in arrows {
        let to = next.entry(&arrow.from).or_default();
        to.entry(&arrow.to).or_insert(&arrow.place);
    }
    let mut seen = BTreeSet::new();
    let mut complaints = Vec::new();
    for (from, to) in &next {
        for to in to.keys() {
            let Some(mut circle) = way(&next, to, from) else {
                continue;
            };
            circle.insert(0, from);
            let members: BTreeSet<&str> = circle.iter().copied().collect();
            if !seen.insert(members) {
                continue;
            }
            let mut line = format!("circle: {prefix}{from}");
            for pair in circle.windows(2) {
                line += &format!(" -> {prefix}{} ({})", pair[1], next[pair[0]][pair[1]]);
            }
            complaints.push(line);
        }
    }
    complaints
}

/// The shortest way along arrows, both ends included.
fn way<'a>(
    next: &BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>,
    from: &'a str,
    to: &'a str,
) -> Option<Vec<&'a str>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = VecDeque::from([from]);
    while let Some(here) = waiting.pop_front() {
        if here == to {
            let mut way = vec![here];
            let mut at = here;
            while at != from {
                at = before[at];
                way.insert(0, at);
            }
            return Some(way);
        }
        for there in next.get(here).into_iter().flat_map(BTreeMap::keys) {
            if *there != from && !before.contains_key(there) {
                before.insert(there, here);
                waiting.push_back(there);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(pairs: &[(&str, &str)]) -> Vec<Arrow> {
        let arrow = |(from, to): &(&str, &str)| Arrow {
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            place: format!("{from}.rs:1"),
        };
        pairs.iter().map(arrow).collect()
    }

    #[test]
    fn a_circle_is_said_once_with_its_places() {
        let found = circles(
            &arrows(&[("a", "b"), ("b", "c"), ("c", "a"), ("a", "d")]),
            "x::",
        );
        assert_eq!(
            found,
            ["circle: x::a -> x::b (a.rs:1) -> x::c (b.rs:1) -> x::a (c.rs:1)"]
        );
    }

    #[test]
    fn every_small_circle_is_found_and_no_ordinary_diamond() {
        let diamond = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")];
        assert_eq!(circles(&arrows(&diamond), ""), [""; 0]);
        let two = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")];
        assert_eq!(circles(&arrows(&two), "").len(), 2);
    }
}
