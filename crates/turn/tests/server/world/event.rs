//! The outputs of the server, as values that own their bytes.

use std::net::SocketAddr;

use hairpin_turn as turn;
use turn::server::credentials::OwnedKeyQuery;
use turn::server::{
    AuthFailure, CloseReason, OffloadedChannel, Output, RelayRequest, RelayedAddresses, Traffic,
};
use turn::{
    AllocationKey, ClientPath, ConnectionKey, FiveTuple, LookupKey, Mono, RelayKey, RequestKey,
};

/// An [`Output`] with its own copy of all bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Sent {
        path: ClientPath,
        bytes: Vec<u8>,
    },
    OpenRelays {
        request: RequestKey,
        relays: Vec<RelayRequest>,
        message: Option<Vec<u8>>,
    },
    Claim {
        request: RequestKey,
        token: [u8; 8],
        user: String,
        five_tuple: FiveTuple,
        key: RelayKey,
    },
    Moved {
        to: u16,
        path: ClientPath,
        message: Vec<u8>,
    },
    MovedClient {
        to: u16,
        path: ClientPath,
        message: Vec<u8>,
    },
    MovedConnection {
        to: u16,
        path: ClientPath,
        message: Vec<u8>,
    },
    FindKeys(LookupKey, OwnedKeyQuery),
    Pause(ClientPath),
    Resume(ClientPath),
    AuthFailed(String, AuthFailure, u64),
    /// An output that only reports, in words.
    Reported(String),
    CloseRelay(RelayKey),
    Connect(ConnectionKey, RelayKey, SocketAddr),
    BindConnection(ConnectionKey, ClientPath),
    CloseConnection(ConnectionKey),
    Offload(Offloaded),
    StopOffload(Offloaded),
    Opened {
        user: String,
        path: ClientPath,
        relayed: RelayedAddresses,
        lifetime_s: u32,
    },
    Closed {
        user: String,
        relayed: RelayedAddresses,
        to_peers: Traffic,
        to_client: Traffic,
        seconds: u64,
        reason: CloseReason,
    },
}

/// A channel that the kernel relays.
#[derive(Clone, Debug, PartialEq)]
pub struct Offloaded {
    pub allocation: AllocationKey,
    pub path: ClientPath,
    pub relayed: SocketAddr,
    pub peer: SocketAddr,
    pub channel: u16,
    /// In [`Event::StopOffload`], the value of the last [`Event::Offload`].
    pub own_relay: bool,
    pub deadline: Mono,
}

pub(super) fn own(output: Output<'_>) -> Event {
    match output {
        Output::Send { path, bytes } => Event::Sent {
            path,
            bytes: bytes.to_vec(),
        },
        Output::OpenRelays {
            request,
            relays,
            message,
            ..
        } => Event::OpenRelays {
            request,
            relays: relays.to_vec(),
            message: message.map(<[u8]>::to_vec),
        },
        Output::ClaimReservation {
            request,
            token,
            client,
            key,
        } => Event::Claim {
            request,
            token,
            user: client.user.to_owned(),
            five_tuple: client.five_tuple,
            key,
        },
        Output::MoveRequest {
            to, path, message, ..
        } => Event::Moved {
            to,
            path,
            message: message.to_vec(),
        },
        Output::CloseRelay { relay } => Event::CloseRelay(relay),
        Output::AllocationOpened {
            user,
            path,
            relayed,
            lifetime_s,
            ..
        } => Event::Opened {
            user: user.to_owned(),
            path,
            relayed,
            lifetime_s,
        },
        Output::AllocationClosed {
            user,
            relayed,
            to_peers,
            to_client,
            duration,
            reason,
            ..
        } => Event::Closed {
            user: user.to_owned(),
            relayed,
            to_peers,
            to_client,
            seconds: duration.as_secs(),
            reason,
        },
        other => own_auth(other),
    }
}

fn own_auth(output: Output<'_>) -> Event {
    match output {
        Output::FindKeys { lookup, query, .. } => Event::FindKeys(lookup, query.to_owned()),
        Output::PauseReading { path } => Event::Pause(path),
        Output::ResumeReading { path } => Event::Resume(path),
        Output::AuthenticationFailed {
            user,
            reason,
            omitted,
            ..
        } => Event::AuthFailed(user.to_owned(), reason, omitted),
        other => own_connection(other),
    }
}

fn own_connection(output: Output<'_>) -> Event {
    match output {
        Output::Connect {
            connection,
            relay,
            peer,
        } => Event::Connect(connection, relay, peer),
        Output::MoveClient {
            to, path, message, ..
        } => Event::MovedClient {
            to,
            path,
            message: message.to_vec(),
        },
        Output::MoveConnection { to, path, message } => Event::MovedConnection {
            to,
            path,
            message: message.to_vec(),
        },
        Output::BindConnection { connection, path } => Event::BindConnection(connection, path),
        Output::CloseConnection { connection } => Event::CloseConnection(connection),
        other => own_offload(other),
    }
}

fn own_offload(output: Output<'_>) -> Event {
    let described = |channel: OffloadedChannel, own_relay, deadline| Offloaded {
        allocation: channel.allocation,
        path: channel.path,
        relayed: channel.relayed,
        peer: channel.peer,
        channel: channel.number.get(),
        own_relay,
        deadline,
    };
    match output {
        Output::Offload {
            channel,
            own_relay,
            deadline,
        } => Event::Offload(described(channel, own_relay, deadline)),
        Output::StopOffload { channel } => Event::StopOffload(described(channel, false, Mono(0))),
        other => Event::Reported(reported(other)),
    }
}

fn reported(output: Output<'_>) -> String {
    match output {
        Output::Authenticated { client, method } => format!("{} proven: {method:?}", client.user),
        Output::AllocationRefreshed { lifetime_s, .. } => format!("refreshed for {lifetime_s}"),
        Output::PermissionInstalled { peer, .. } => format!("permission {peer}"),
        Output::PermissionEnded { peer, .. } => format!("permission {peer} ended"),
        Output::ChannelBound { number, peer, .. } => format!("channel {:#x} {peer}", number.get()),
        Output::ChannelEnded { number, peer, .. } => {
            format!("channel {:#x} {peer} ended", number.get())
        }
        Output::PathAdded { path } => format!("also at {}", path.five_tuple.remote),
        Output::PathRemoved { path } => format!("no longer also at {}", path.five_tuple.remote),
        Output::ClientMoved { client, from } => {
            let (from, to) = (from.five_tuple.remote, client.five_tuple.remote);
            format!("{} moved from {from} to {to}", client.user)
        }
        other => panic!("an output that the tests do not know: {other:?}"),
    }
}
