//! Order in which a NIC thread polls its connections, and when the thread handles their events.
//!
//! After sparse traffic a turn ends at the first connection with events: polling more connections
//! costs one system call each over TCP and would delay the answer. Under steady traffic, until a
//! turn finds no event, a turn polls all connections before the thread handles the events.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PollOrder {
    first: usize,
    /// Whether the last turn found events.
    came_before: bool,
    /// Whether traffic is steady, so that each turn polls all connections.
    all: bool,
}

impl PollOrder {
    /// Runs one turn over connections `0..connections`. `poll` returns whether events came.
    pub(crate) fn turn(&mut self, connections: usize, mut poll: impl FnMut(usize) -> bool) {
        let mut came = false;
        let mut next = self.first;
        for _ in 0..connections {
            let i = if next < connections { next } else { 0 };
            next = i + 1;
            if poll(i) {
                came = true;
                if !self.all {
                    break;
                }
            }
        }
        self.first = next;
        self.all = came && (self.all || self.came_before);
        self.came_before = came;
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Connections polled in one turn, where those in `come` have events.
    fn polled(order: &mut PollOrder, connections: usize, come: &[usize]) -> Vec<usize> {
        let mut polled = Vec::new();
        order.turn(connections, |i| {
            polled.push(i);
            come.contains(&i)
        });
        polled
    }

    #[test]
    fn rare_events_are_handled_before_the_others_are_polled() {
        let mut order = PollOrder::default();
        assert_eq!(polled(&mut order, 4, &[]), [0, 1, 2, 3]);
        assert_eq!(polled(&mut order, 4, &[1]), [0, 1]);
        assert_eq!(
            polled(&mut order, 4, &[]),
            [2, 3, 0, 1],
            "beginning behind it"
        );
        assert_eq!(polled(&mut order, 4, &[1]), [2, 3, 0, 1]);
        assert_eq!(polled(&mut order, 4, &[]), [2, 3, 0, 1]);
    }

    #[test]
    fn events_of_several_connections_are_handled_together() {
        let mut order = PollOrder::default();
        assert_eq!(polled(&mut order, 3, &[0, 1, 2]), [0]);
        assert_eq!(polled(&mut order, 3, &[0, 1, 2]), [1]);
        assert_eq!(polled(&mut order, 3, &[0, 1, 2]), [2, 0, 1]);
        assert_eq!(polled(&mut order, 3, &[1]), [2, 0, 1]);
        assert_eq!(polled(&mut order, 3, &[]), [2, 0, 1]);
        assert_eq!(polled(&mut order, 3, &[0]), [2, 0]);
        assert_eq!(polled(&mut order, 3, &[0]), [1, 2, 0]);
        assert_eq!(polled(&mut order, 3, &[1, 2]), [1, 2, 0], "two in a row");
    }

    #[test]
    fn connections_come_and_go() {
        let mut order = PollOrder::default();
        assert!(polled(&mut order, 0, &[]).is_empty());
        assert_eq!(polled(&mut order, 4, &[3]), [0, 1, 2, 3]);
        assert_eq!(polled(&mut order, 2, &[]), [0, 1]);
        assert_eq!(polled(&mut order, 3, &[]), [2, 0, 1]);
    }
}
