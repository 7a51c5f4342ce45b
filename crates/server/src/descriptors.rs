//! The last file descriptors, which clients do not get. A health check, a reload and a DNS query require a descriptor,
//! too. A supervisor soon kills a server that does not respond, and with it the calls that it serves.
//!
//! The kernel assigns the lowest number that is free. So a socket with a number near the limit says by itself that the
//! last ones have been reached; nothing is counted.

use std::os::fd::{AsFd, AsRawFd};

/// This number of descriptors is kept, or this share if there are few.
const KEPT_DESCRIPTORS: u64 = 32;
const KEPT_PART: u64 = 16;

/// The numbers that clients' sockets may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForClients {
    below: u64,
}

impl ForClients {
    /// By the limit of this process.
    pub(crate) fn new() -> ForClients {
        // Without a limit that can be read there is none to keep from.
        let limit = io::rlimit::open_files().map_or(u64::MAX, |limit| limit.soft);
        ForClients::within(limit)
    }

    fn within(limit: u64) -> ForClients {
        ForClients {
            below: limit - KEPT_DESCRIPTORS.min(limit / KEPT_PART),
        }
    }

    /// Whether a client may have this socket, which has just been opened.
    pub(crate) fn may_have(&mut self, socket: &impl AsFd) -> bool {
        let number = u64::try_from(socket.as_fd().as_raw_fd()).unwrap_or(0);
        if number >= self.below {
            // The limit may have been raised since (`prlimit`).
            *self = ForClients::new();
        }
        number < self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_not_for_clients() {
        assert_eq!(ForClients::within(20_000).below, 19_968);
        assert_eq!(ForClients::within(160).below, 150);
        assert_eq!(
            ForClients::within(u64::MAX).below,
            u64::MAX - KEPT_DESCRIPTORS
        );
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(ForClients::new().may_have(&socket));
        // A number beyond a limit that has been raised since is looked at once more.
        assert!(ForClients { below: 0 }.may_have(&socket));
    }
}
