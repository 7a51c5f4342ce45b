//! What can go wrong when a server starts or takes new settings. Every text says what to do.

use crate::inherited::InheritedError;
use crate::ports::PortRangeError;
use crate::state_dir::StateError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use stun::AddressFamily;
use turn::server::ConfigError;
use turn::server::credentials::UserError;

/// Why a server did not start. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No address to listen on was given.
    #[error("no address to listen on: add one, such as 0.0.0.0:3478")]
    NoListener,
    /// Clients cannot be taken over from a running server.
    #[error("cannot take over: {0}")]
    Handover(#[from] crate::handover::HandoverError),
    /// A listener could not be bound.
    #[error("cannot listen on {address}: {source}: {}", bind_hint(source))]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Relay ports can be shared if they are few, and each worker has one.
    #[error(
        "{ports} relay ports cannot be shared by {workers} workers: 256 ports are the most, and each worker requires one; change the range of relay ports"
    )]
    SharedPorts {
        /// The relay ports.
        ports: usize,
        /// The workers.
        workers: usize,
    },
    /// A socket that was given open cannot be a listener.
    #[error("a listener's open sockets cannot be used: {0}")]
    OpenSocket(#[from] OpenSocketError),
    /// Sockets that the program that started this process has bound cannot be used.
    #[error(transparent)]
    Inherited(#[from] InheritedError),
    /// There is a TLS or DTLS listener, but no certificate for it.
    #[error("the TLS or DTLS listener {0} needs a certificate: give one, or remove the listener")]
    NoCertificate(SocketAddr),
    /// An address was given twice to listen on.
    #[error("the listener {0} is configured twice: remove one of them")]
    DuplicateListener(SocketAddr),
    /// The addresses and ports of NAT behaviour discovery are not usable.
    #[error("NAT behaviour discovery: {0}")]
    NatDiscovery(#[from] NatDiscoveryError),
    /// This machine has no address that relays could use.
    #[error(
        "no relay address: this machine has neither a default route nor a loopback address; name a relay address"
    )]
    NoRelayAddress,
    /// Relay sockets cannot be bound to this address.
    #[error("cannot relay from {address}: {source}: {}", bind_hint(source))]
    RelayAddress {
        /// The address.
        address: IpAddr,
        /// What the system said.
        source: io::Error,
    },
    /// An address was given twice to relay from.
    #[error("{0} is a relay address twice: remove one of them")]
    DuplicateRelayAddress(IpAddr),
    /// More relay addresses than are supported.
    #[error("{0} relay addresses are more than 64: remove some")]
    TooManyRelayAddresses(usize),
    /// Clients cannot use an unspecified or multicast address.
    #[error("{0} cannot be a relay address: name the address of an interface")]
    UnusableRelayAddress(IpAddr),
    /// The external address has no relay address behind it.
    #[error(
        "external address {public} has no {family:?} relay address behind it: add a relay address of that family"
    )]
    ExternalAddress {
        /// The public address.
        public: IpAddr,
        /// Its family.
        family: AddressFamily,
    },
    /// Both sides of a mapping must be of one family.
    #[error("external address {public} and relay address {private} are of different families")]
    MixedFamilies {
        /// The public address.
        public: IpAddr,
        /// The private one.
        private: IpAddr,
    },
    /// The relay port range is unusable.
    #[error(transparent)]
    Ports(#[from] PortRangeError),
    /// Zero workers, or more than reservation tokens can name.
    #[error("{0} workers are not possible: use 1 to 255")]
    Workers(usize),
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Allocations cannot be placed on workers as was asked.
    #[error(
        "cannot steer clients to workers: {0}; steering \"auto\" or \"hash\" would start without"
    )]
    Steering(#[source] bpf::BpfError),
    /// The kernel cannot relay as was asked.
    #[error(
        "the kernel cannot relay on {interface} in this mode: {reason}: choose another offload mode; \"auto\" selects the best one"
    )]
    Offload {
        /// The interface.
        interface: String,
        /// What is in the way.
        reason: String,
    },
    /// The system refused something that every worker needs.
    #[error(
        "cannot set up a worker: {0}: raise the limit on open files (ulimit -n) or use fewer workers"
    )]
    Worker(#[source] io::Error),
    /// The system refused to start a thread.
    #[error(
        "cannot start a worker's thread: {0}: raise the limit on processes (ulimit -u) or use fewer workers"
    )]
    Thread(#[source] io::Error),
    /// The kernel has no randomness.
    #[error("the kernel has no random bytes: {0}")]
    Randomness(#[source] io::Error),
    /// What survives a restart cannot be read or kept.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why NAT behaviour discovery cannot be served as was asked. RFC 5780 §6 requires two IP addresses and two ports on
/// each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NatDiscoveryError {
    /// There is no listener that it could be the other address of.
    #[error("{0} has no listener of its transport and address family beside it: add one")]
    NoListener(SocketAddr),
    /// Only one pair of addresses per transport and family is served.
    #[error("{0} is the second other address of its transport and address family: remove one")]
    TwoOfOneFamily(SocketAddr),
    /// A response has to leave from one address and port.
    #[error("{0} does not name one address and port: write both, like 192.0.2.1:3478")]
    Unspecific(SocketAddr),
    /// Both the address and the port have to differ.
    #[error("{other} must have another address and another port than the listener {first}")]
    NotOther {
        /// The first listener of the family.
        first: SocketAddr,
        /// What was to be its other address and port.
        other: SocketAddr,
    },
    /// RFC 5780 §6: TCP and TLS use different ports.
    #[error("port {0} is for both TCP and TLS: RFC 5780 requires different ports")]
    SharedPort(u16),
}

/// Why open sockets cannot be a listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenSocketError {
    /// Each worker has one socket of each listener.
    #[error(
        "{sockets} sockets for {workers} workers: give one per worker, or set the number of workers"
    )]
    Count {
        /// How many were given for one listener.
        sockets: usize,
        /// How many workers the server has.
        workers: usize,
    },
    /// The sockets of one listener share an address.
    #[error("one is bound to {0} and another one to {1}: make them two listeners")]
    Addresses(SocketAddr, SocketAddr),
    /// Two descriptors are of one socket: two workers would read from it.
    #[error("two of those bound to {0} are one socket: open one per worker")]
    Duplicate(SocketAddr),
    /// The kernel gives all datagrams to one of the sockets.
    #[error("{0} is shared without SO_REUSEPORT: set it on each socket before bind")]
    NoReusePort(SocketAddr),
    /// The socket serves IPv6 and IPv4.
    #[error(
        "{0} serves IPv4, too: set IPV6_V6ONLY before bind (systemd: BindIPv6Only=ipv6-only), and give IPv4 a socket of its own"
    )]
    BothFamilies(SocketAddr),
    /// The socket is not a bound, unconnected UDP socket, or the system refused an option.
    #[error("{0}: give bound, unconnected UDP sockets")]
    System(#[source] io::Error),
}

/// Why settings were refused. A running server keeps the ones it has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A value that the engine cannot work with.
    #[error(transparent)]
    Value(#[from] ConfigError),
    /// A user cannot be added.
    #[error("user {name:?}: {source}")]
    User {
        /// The user's name.
        name: String,
        /// What is wrong.
        source: UserError,
    },
    /// A shared secret is empty: anybody could make credentials.
    #[error("a shared secret is empty: use at least 16 random characters")]
    EmptySecret,
    /// A rate of [`RateLimits`](crate::RateLimits) or of a realm is out of range.
    #[error(
        "a rate limit of a user, a source, a realm or all is not from 1,000 to 10,000,000,000 bytes per second"
    )]
    GroupRate,
    /// The domains of SIP cannot be served.
    #[error("SIP domains: {0}")]
    SipDomains(#[from] crate::sip::DomainError),
    /// The times of SIP registrations contradict each other.
    #[error("SIP registrations: {0}")]
    SipRegistrar(#[from] crate::sip::RegistrarError),
    /// The SIP routes and trunks contradict each other.
    #[error("SIP routes: {0}")]
    SipRoutes(#[from] crate::sip::routes::TableError),
    /// The credentials of a domain cannot be used.
    #[error(transparent)]
    SipCredentials(#[from] crate::sip::CredentialsError),
    /// Both would answer REGISTER.
    #[error("SIP domains cannot be served beside the user agent server for tests")]
    SipTestUas,
}

/// Why a running server did not take new settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The settings are wrong; the old ones stay.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The keys of clients that are connected depend on the realm.
    #[error("the realm cannot change while the server runs: restart it")]
    Realm,
    /// A relay address cannot be advertised by this address.
    #[error(
        "relay address {local} cannot be advertised as {advertised}: {local} is no relay address, or {advertised} has another address family, belongs to another relay address or is no unicast address"
    )]
    ExternalAddress {
        /// What the relay sockets are bound to.
        local: IpAddr,
        /// The address that clients and peers were to get.
        advertised: IpAddr,
    },
    /// The server was started without any rate limit of users, sources, realms or all allocations, so it has no room
    /// for them.
    #[error(
        "rate limits of users, sources, realms or the whole server begin at a start only: restart it"
    )]
    GroupRates,
    /// The kernel has no randomness.
    #[error("the kernel has no random bytes")]
    Randomness,
    /// A worker has ended; nothing has changed.
    #[error("worker {0} is not running any more: restart the server")]
    WorkerGone(usize),
    /// A worker did not read its mailbox in time.
    #[error("worker {0} is overloaded and did not get the message: try again")]
    WorkerBusy(usize),
}

/// A worker has ended by a failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerFailure {
    /// The system refused what the worker cannot do without.
    #[error("worker {worker} stopped: {source}")]
    System {
        /// Its number.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A bug: the thread panicked.
    #[error("worker {worker} panicked: {message}; this is a bug, please report it")]
    Panicked {
        /// Its number.
        worker: usize,
        /// What the panic said.
        message: String,
    },
}

fn bind_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the other process or choose another port",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine (see `ip address`)",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher port"
        }
        io::ErrorKind::Unsupported => "this system has no such address family",
        _ => "check the address and the limits of this process",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_say_what_to_do() {
        let address = SocketAddr::from(([127, 0, 0, 1], 3478));
        let error = StartError::Bind {
            address,
            source: io::ErrorKind::AddrInUse.into(),
        };
        let text = error.to_string();
        assert!(
            text.contains("127.0.0.1:3478") && text.contains("choose another port"),
            "{text}"
        );
    }
}
