//! A relayed transport address, from the request for its socket to its end.

use std::net::SocketAddr;
use std::sync::Arc;

use super::channel::Channels;
use super::output::OpenedRelay;
use super::packed::{Endpoint, PackedPath};
use super::permission::Permissions;
use super::user::User;
use crate::Mono;

/// A relayed transport address.
#[derive(Debug)]
pub(super) enum Relay {
    /// Its socket is being opened, for this client.
    Opening(u32),
    /// Reserved for the client with its token (RFC 8656 §7.2).
    Reserved(Box<Reservation>),
    /// In use.
    Live(LiveRelay),
}

/// A port held in reserve.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) user: Arc<User>,
    /// The client that the quota was charged to.
    pub(super) path: PackedPath,
    pub(super) opened: OpenedRelay,
    pub(super) expires: Mono,
}

/// A relayed transport address of an allocation. Its time-to-expiry, permissions and channels are its own
/// (RFC 8656 §6).
#[derive(Debug)]
pub(super) struct LiveRelay {
    /// The place of the client it belongs to.
    pub(super) client: u32,
    /// The address that the client got.
    pub(super) advertised: Endpoint,
    pub(super) expires: Mono,
    pub(super) permissions: Permissions,
    pub(super) channels: Channels,
}

impl LiveRelay {
    pub(super) fn new(client: u32, advertised: SocketAddr, expires: Mono) -> LiveRelay {
        LiveRelay {
            client,
            advertised: Endpoint::of(&advertised),
            expires,
            permissions: Permissions::default(),
            channels: Channels::default(),
        }
    }

    /// When the first thing about it expires.
    pub(super) fn earliest(&self) -> Mono {
        self.expires
            .min(self.permissions.earliest())
            .min(self.channels.earliest())
    }
}

impl Relay {
    /// The relay, if it is in use.
    pub(super) const fn live(&self) -> Option<&LiveRelay> {
        match self {
            Relay::Live(live) => Some(live),
            _ => None,
        }
    }

    /// The relay, if it is in use.
    pub(super) const fn live_mut(&mut self) -> Option<&mut LiveRelay> {
        match self {
            Relay::Live(live) => Some(live),
            _ => None,
        }
    }
}
