//! The 5-tuples of all clients.

use super::Server;
use crate::ClientPath;

impl Server {
    /// The path of each client that has an allocation, or whose allocation waits for its sockets. A client that moves
    /// (RFC 8016) has two.
    pub fn client_paths(&self) -> impl Iterator<Item = ClientPath> {
        let indices = 0..self.clients.places_ever() as u32;
        let first = indices.filter_map(|index| self.clients.get(index));
        first
            .map(|client| client.path.path())
            .chain(self.mobility.second_paths())
    }
}
