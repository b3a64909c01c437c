//! The highest rate that holds, found by trying: up in doublings, then halving the gap.

/// How near the lowest rate that failed must be to the highest that held.
const NEAR: f64 = 1.03;
/// Tries of one rate before it counts as failed: a machine
/// that does something else for a moment fails any.
const TRIES: u32 = 3;

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    next: f64,
    tried: u32,
    held: Option<f64>,
    failed: Option<f64>,
    least: f64,
}

impl Search {
    /// Begins at `first`, and gives up below `least`.
    pub fn new(first: f64, least: f64) -> Self {
        Search {
            next: first,
            tried: 0,
            held: None,
            failed: None,
            least,
        }
    }

    /// The rate to try, until the search is over.
    pub fn next(&self) -> Option<f64> {
        let near = match (self.held, self.failed) {
            (Some(held), Some(failed)) => failed <= held * NEAR,
            _ => false,
        };
        (!near && self.next >= self.least).then_some(self.next)
    }

    /// Whether [`Search::next`] held.
    pub fn tell(&mut self, held: bool) {
        self.tried += 1;
        if held {
            self.held = Some(self.next);
        } else if self.tried < TRIES {
            return;
        } else {
            self.failed = Some(self.next);
        }
        self.tried = 0;
        self.next = match (self.held, self.failed) {
            (Some(held), Some(failed)) => (held * failed).sqrt(),
            (Some(held), None) => held * 2.0,
            (None, _) => self.next / 2.0,
        };
    }

    /// The highest rate that held.
    pub fn found(&self) -> Option<f64> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_near_from_either_side_and_forgives_some_failures() {
        for first in [10.0, 900.0, 1_000_000.0] {
            let mut search = Search::new(first, 1.0);
            let mut unlucky = true;
            let mut tries = 0;
            while let Some(rate) = search.next() {
                tries += 1;
                assert!(tries < 60, "no end from {first}");
                search.tell(rate <= 1000.0 && !unlucky);
                unlucky = !unlucky;
            }
            let found = search.found().expect("there is one");
            assert!((1000.0 / NEAR..=1000.0).contains(&found), "{found}");
        }
    }

    #[test]
    fn it_gives_up_where_nothing_holds() {
        let mut search = Search::new(100.0, 10.0);
        while search.next().is_some() {
            search.tell(false);
        }
        assert_eq!(search.found(), None);
    }
}
