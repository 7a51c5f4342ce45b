//! What a small server knows, in memory: its domains, its one address, its users and their bindings. It has all the
//! traits of a [`RegistrarProxy`](crate::registrar_proxy::RegistrarProxy); `examples/proxy.rs` puts sockets around it.
//!
//! A server with a database, with trunks or with several workers implements these traits itself. This file shows how.

use std::net::SocketAddr;

use sip::flow::{Flow, ListenerKey};
use sip::header::Authorization;
use sip::uri::SipUri;
use sip::{Host, Message, Mono, Now};

use crate::Aor;
use crate::flow::FlowId;
use crate::location::{Change, Found, Location, MemoryLocation};
use crate::proxy::{
    Authenticated, Authentication, BindingsLocation, Calls, Inbound, LookedUp, Lookup, Pushes,
    Routing, Trunks,
};
use crate::registrar::Domains;
use crate::registrar_proxy::Registrations;
use crate::users::{AskedBy, Users};

/// A site with one address, whose listener is `ListenerKey(0)`. A user may register the address of record with the
/// user's name in each of the domains. There are no limits of calls, no trunks and no push notifications.
#[derive(Debug)]
pub struct MemorySite {
    /// The domains. Requests for other hosts are not for this site.
    pub domains: Domains,
    /// The address of the sockets.
    pub local: SocketAddr,
    /// Who may register and call.
    pub users: Users,
    /// Where the phones of the users are.
    pub location: MemoryLocation,
}

impl Routing for MemorySite {
    fn domain(&self, host: Host<'_>) -> Option<Inbound> {
        self.domains.of(host).map(|domain| domain.inbound)
    }
    fn aor(&self, uri: &SipUri<'_>) -> Option<Aor> {
        Aor::of(uri, self.domains.of(uri.host)?.name.as_bytes())
    }
    fn is_own(&self, host: Host<'_>, port: Option<u16>) -> bool {
        host.ip() == Some(self.local.ip()) && port.unwrap_or(5060) == self.local.port()
    }
    fn is_trunk(&self, _flow: &Flow) -> bool {
        false
    }
    fn is_trunk_host(&self, _host: Host<'_>) -> bool {
        false
    }
    fn listener_at(&self, local: SocketAddr) -> Option<ListenerKey> {
        (local == self.local).then_some(ListenerKey(0))
    }
}

impl Lookup for MemorySite {
    fn place(&mut self, uri: &SipUri<'_>) -> BindingsLocation {
        self.aor(uri).map_or(BindingsLocation::Nowhere, |aor| {
            BindingsLocation::Here(aor, None)
        })
    }
    fn find(&mut self, _now: Now, aor: &Aor) -> LookedUp<'_> {
        match self.location.find(aor) {
            Found::Bindings(_, bindings) if self.users.contains(aor.user().unwrap_or_default()) => {
                LookedUp::Known(bindings)
            }
            _ => LookedUp::Unknown,
        }
    }
    fn flow_failed(&mut self, now: Now, aor: &Aor, flow: &FlowId) {
        let Found::Bindings(revision, bindings) = self.location.find(aor) else {
            return;
        };
        // A binding that was refreshed meanwhile has another flow and stays.
        let bindings = bindings.iter().enumerate();
        let gone = bindings.filter(|(_, binding)| binding.flow().as_ref() == Some(flow));
        let mut changes: Vec<Change> = gone.map(|(place, _)| Change::Remove(place)).collect();
        // A removal can only fail if somebody has changed the bindings. Then a binding stays until it expires.
        let _ = self.location.change(now, aor, revision, &mut changes);
    }
}

impl Authentication for MemorySite {
    fn authenticate(&mut self, now: Now, request: &Message<'_>, flow: &Flow) -> Authenticated<'_> {
        self.users.check(now, request, flow, AskedBy::Proxy)
    }
    fn owns(&self, user: &[u8], aor: &Aor) -> bool {
        aor.user() == Some(user)
    }
    fn is_for_us(&self, credentials: &Authorization<'_>) -> bool {
        self.users.is_for_us(credentials)
    }
}

impl Registrations for MemorySite {
    fn location(&mut self) -> &mut dyn Location {
        &mut self.location
    }
    fn authenticate_register(
        &mut self,
        now: Now,
        request: &Message<'_>,
        flow: &Flow,
    ) -> Authenticated<'_> {
        self.users.check(now, request, flow, AskedBy::Registrar)
    }
    fn next_expiry(&self) -> Option<Mono> {
        self.location.next_deadline()
    }
    fn expire(&mut self, now: Mono) {
        while self.location.expire(now).is_some() {}
    }
}

impl Calls for MemorySite {}
impl Trunks for MemorySite {}
impl Pushes for MemorySite {}
