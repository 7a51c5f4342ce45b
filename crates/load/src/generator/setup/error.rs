//! What can go wrong before the first datagram.

use std::io;
use std::net::{IpAddr, SocketAddr};

use turn::client::{CallError, RequestError};

use crate::Via;
use crate::client::AddError;
use crate::measure::Payload;
use crate::peer::PeerError;
use crate::probe::ProbeError;

/// Why a workload could not be set up. What had been allocated until then was released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The options make no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Every client needs a socket, and the limit on open files does not allow for this many.
    #[error(
        "{needed} sockets are needed and the limit on open files is {limit}: raise it (ulimit -n), or use fewer clients"
    )]
    Descriptors {
        /// Sockets, and a few files more.
        needed: u64,
        /// The hard limit of this process.
        limit: u64,
    },
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] AddError),
    /// The system would not let this machine wait, listen or find its own address.
    #[error("cannot {what}: {source}")]
    Local {
        /// What for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The peer of this process could not start.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The server refused, did not respond, or does not exist.
    #[error("{}{source}", progress(*.ready, *.clients))]
    Server {
        /// Clients that were ready by then.
        ready: u32,
        /// How many there were to be.
        clients: u32,
        /// What happened and what to do.
        source: ProbeError,
    },
    /// The server relays, but not to this peer.
    #[error(
        "{server} does not relay to {peer} (403): servers deny peers in loopback, private and their own networks unless told \
         otherwise. Start hairpin with --dev or with --allow-peer, coturn with --allow-loopback-peers or --allowed-peer-ip, \
         or use another peer"
    )]
    PeerDenied {
        /// The server.
        server: SocketAddr,
        /// The peer.
        peer: IpAddr,
    },
    /// Peers and relayed addresses are of different families.
    #[error(
        "client and peer cannot talk: {0}. Ask for another address family, or choose other peers"
    )]
    Call(#[from] CallError),
    /// A caller stopped it.
    #[error("stopped before the run began")]
    Stopped,
}

/// What is wrong with the options of a workload.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// There are no clients.
    #[error("the number of clients is 0: use at least 1")]
    NoClients,
    /// There are no peers.
    #[error("the number of peers per client is 0: use at least 1")]
    NoPeers,
    /// A client cannot have more peers than there are.
    #[error("{wanted} peers for each client are more than the {there} there are")]
    TooFewPeers {
        /// For each client.
        wanted: u32,
        /// Peers in all.
        there: u32,
    },
    /// Client to client goes in pairs, one peer each.
    #[error(
        "clients that send to each other come in pairs of one peer each: choose an even number of clients, and one peer"
    )]
    NotPairs,
    /// A payload cannot hold a stamp, or does not fit into a datagram.
    #[error("payloads of {0} bytes cannot be measured: choose {min} to {max}", min = Payload::MIN, max = Payload::MAX)]
    Size(usize),
    /// More flows than a stamp can number.
    #[error("{0} flows are more than 16777216")]
    TooManyFlows(u64),
    /// A share is a number from 0 to 1.
    #[error("{0} is not a share: choose 0 to 1, or 0% to 100%")]
    Share(f64),
    /// A rate of media has to be more than 0.
    #[error("the rate {0} per second is invalid: use a number above 0")]
    Rate(f64),
    /// Trains have at least one datagram.
    #[error("a train must have at least 1 datagram")]
    NoTrain,
    /// Many source addresses exist on loopback only.
    #[error(
        "garbage from {0} addresses can be sent to 127.0.0.0/8 only, where every address is this machine's own: choose one source address"
    )]
    Sources(u32),
}

impl SetupError {
    /// A request of one client failed.
    pub(super) fn request(
        (server, via): (SocketAddr, &Via),
        (ready, clients): (u32, u32),
        request: &'static str,
        error: RequestError,
    ) -> SetupError {
        SetupError::Server {
            ready,
            clients,
            source: ProbeError::request(server, request, error).over(via),
        }
    }

    /// The options are to blame, not the machine or the server.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, SetupError::Options(_))
    }
}

/// What goes wrong with the first client does so with all; only after that is it worth knowing how many did well.
fn progress(ready: u32, clients: u32) -> String {
    match ready {
        0 => String::new(),
        _ => format!("with {ready} of {clients} clients ready: "),
    }
}
