//! The exchanges that are measured, and the memory both contenders lay them out in.

/// One exchange: requests of one size answered by responses of another.
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

/// Samples that requests are sent from: more than fit the cache for images, as in a query sample
/// library.
pub const SAMPLES: usize = 128;

impl Shape {
    /// Slots of each connection.
    pub fn slots(&self) -> usize {
        self.in_flight.div_ceil(self.connections)
    }

    /// The one of so many samples that request number `n` carries. Neighbours in time are not
    /// neighbours in memory, as in a real run, where LoadGen chooses.
    pub fn sample(n: u64, of: usize) -> usize {
        (n.wrapping_mul(37) % of.max(1) as u64) as usize
    }

    /// The connection that takes the next request after one on `connection` was answered: the same,
    /// unless there are fewer requests than connections, which then take turns.
    pub fn next(&self, connection: usize) -> usize {
        if self.in_flight < self.connections {
            (connection + 1) % self.connections
        } else {
            connection
        }
    }
}
