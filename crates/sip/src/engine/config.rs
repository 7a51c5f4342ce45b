//! The configuration of an engine.

use std::time::Duration;

use super::sent_by::{Hop, SentBy, Signature, SourceAddress, signature};
use crate::congestion;
use crate::flow::{ListenerKey, Transport};
use crate::message::Limits;
use crate::timer::Timers;
use crate::verdict::Rules;
use crate::{HashKey, Host};

/// The configuration of an engine. Limits are per engine, so per worker.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which worker this is: it stands in branches and tags.
    pub worker: u16,
    /// The secret of the process, the same for all its workers.
    pub key: HashKey,
    /// The timers.
    pub timers: Timers,
    /// How large messages may be.
    pub limits: Limits,
    /// What requests are refused without asking the TU.
    pub rules: Rules<'static>,
    /// When to refuse work.
    pub congestion: congestion::Config,
    /// Whether RFC 7339 is spoken, to next hops and to those that send to us.
    pub overload_control: bool,
    /// Whether next hops are offered to hold requests back by rate (RFC 7415) as well as by loss (RFC 7339). The offer
    /// then has a comma between quotes, at which Kamailio 5.6 takes the Via to end and refuses the request.
    pub offers_rate_control: bool,
    /// How requests are signed.
    pub sent_by: Vec<SentBy>,
    /// Asked for a listener on all addresses, if a request does not say which of them it leaves from. Without it such a
    /// request fails.
    pub source_address: Option<SourceAddress>,
    /// The path's MTU where it is known: larger requests, but for 200 bytes, go over TCP (RFC 3261 §18.1.1).
    pub path_mtu: Option<usize>,
    /// Whether a request too large for UDP may go over TCP from the same listener.
    pub large_over_tcp: bool,
    /// Server transactions at a time. A completed one takes about a kilobyte for 32 s, or until there is no more room.
    /// One source may have four fifths of those that are not completed.
    pub most_servers: usize,
    /// Client transactions at a time.
    pub most_clients: usize,
    /// Whether the embedder gets a response without a possible connection, as
    /// [`Output::Undelivered`](super::Output::Undelivered). RFC 3261 §18.2.2 requires it to try the DNS names of
    /// sent-by. Otherwise it is lost, and its transaction gets an event.
    pub redirects_responses: bool,
    /// Whether [`congestion::Config::peers`] alone are trusted, and senders that the TU trusts
    /// ([`NewRequest::trust`](super::NewRequest::trust)). Then the engine ignores `maddr` in the Via of others. All
    /// responses of a transaction to their datagram have at most 2.5 times its bytes together, with repetitions and IP
    /// and UDP headers. Otherwise anybody can have responses, which are longer than requests and repeated, sent to a
    /// third party (RFC 3261 §18.2.2 has no bound).
    pub trusts_peers_only: bool,
    /// How long a connection that we opened may be idle. RFC 3261 §18: at least as long as a transaction lives.
    pub connection_idle: Duration,
}

impl Config {
    /// The defaults, for this worker.
    #[must_use]
    pub fn new(worker: u16, key: HashKey) -> Config {
        Config {
            worker,
            key,
            timers: Timers::default(),
            limits: Limits::DEFAULT,
            rules: Rules::PROXY,
            congestion: congestion::Config::default(),
            overload_control: true,
            offers_rate_control: true,
            sent_by: Vec::new(),
            source_address: None,
            path_mtu: None,
            large_over_tcp: true,
            most_servers: 4_000_000,
            most_clients: 1_000_000,
            redirects_responses: false,
            trusts_peers_only: false,
            connection_idle: Duration::from_secs(300),
        }
    }

    /// What the Via of a request offers (RFC 7339 §5.1): without a value of `oc`, which is the server's to give.
    pub(super) const fn overload_offer(&self) -> &'static [u8] {
        match (self.overload_control, self.offers_rate_control) {
            (false, _) => b"",
            (true, false) => b";oc;oc-algo=\"loss\"",
            (true, true) => b";oc;oc-algo=\"loss,rate\"",
        }
    }

    /// What this server calls itself on a hop.
    pub(super) fn signature(&self, hop: &Hop) -> Option<Signature<'_>> {
        signature(&self.sent_by, hop, self.source_address)
    }

    /// Whether a listener has this transport.
    pub(super) fn has_transport(&self, listener: ListenerKey, transport: Transport) -> bool {
        let mut all = self.sent_by.iter();
        all.any(|sent_by| sent_by.listener == listener && sent_by.transport == transport)
    }

    /// RFC 3261 §18.1.2: whether a response's topmost Via is one of ours.
    pub(super) fn is_ours(&self, host: Host<'_>, port: u16) -> bool {
        self.sent_by.iter().any(|ours| ours.is(host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_has_what_is_spoken_and_no_more() {
        let mut config = Config::new(0, HashKey::new([7; 16]));
        assert_eq!(config.overload_offer(), b";oc;oc-algo=\"loss,rate\"");
        config.offers_rate_control = false;
        assert_eq!(config.overload_offer(), b";oc;oc-algo=\"loss\"");
        config.overload_control = false;
        assert_eq!(config.overload_offer(), b"");
    }
}
