//! The shape of an exchange, and how samples and connections are chosen.

/// An exchange: requests of one size, responses of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of a response.
    pub response: usize,
    /// Requests in flight, over all connections.
    pub in_flight: usize,
    /// Connections.
    pub connections: usize,
}

/// Number of samples that requests are sent from: as images, they exceed the cache, as in a QSL.
pub const SAMPLES: usize = 128;

impl Shape {
    /// Slots of each connection.
    pub fn slots(&self) -> usize {
        self.in_flight.div_ceil(self.connections)
    }

    /// Index of request `n`'s sample among `of` samples. Successive requests read distant memory,
    /// as in a real run, where LoadGen chooses samples.
    pub fn sample(n: u64, of: usize) -> usize {
        (n.wrapping_mul(37) % of.max(1) as u64) as usize
    }

    /// The connection of the next request after an answer on `connection`: the same one. With fewer
    /// requests than connections, the connections take turns.
    pub fn next(&self, connection: usize) -> usize {
        if self.in_flight < self.connections {
            (connection + 1) % self.connections
        } else {
            connection
        }
    }
}
