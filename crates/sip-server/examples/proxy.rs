//! A registrar and a stateful proxy with users in memory: the traits of a server are implemented here, the rest is the
//! library.
//!
//! ```text
//! cargo run -p hairpin-sip-server --example proxy -- --listen 127.0.0.1:5060 --domain example.com alice:secret bob:hidden
//! ```

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has sockets, threads and a clock"
)]

extern crate hairpin_sip_server as sip_server;

mod sockets;

use std::net::SocketAddr;

use sip::flow::{Flow, ListenerKey};
use sip::header::Authorization;
use sip::uri::SipUri;
use sip::verdict::Rules;
use sip::{Host, Message, Mono, Now};
use sip_server::Aor;
use sip_server::flow::FlowId;
use sip_server::location::{Change, Found, Limits, Location, MemoryLocation};
use sip_server::proxy::{
    Authenticated, Authentication, BindingsLocation, Calls, Inbound, LookedUp, Lookup, Proxy,
    Pushes, Routing, Trunks,
};
use sip_server::registrar::{Domain, Domains, Registrar};
use sip_server::registrar_proxy::{RegistrarProxy, Registrations};
use sip_server::users::{AskedBy, Users};
use sockets::{Arguments, Failed, Sockets};

const USAGE: &str = "proxy --listen ADDRESS --domain NAME USER:PASSWORD ..";

/// What this server knows: its domain, its address, its users and their bindings.
struct Site {
    domains: Domains,
    local: SocketAddr,
    users: Users,
    location: MemoryLocation,
}

impl Routing for Site {
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

impl Lookup for Site {
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
        println!("{aor:?}: the phone's connection is gone");
        let Found::Bindings(revision, bindings) = self.location.find(aor) else {
            return;
        };
        // A binding that was refreshed meanwhile has another flow and stays.
        let bindings = bindings.iter().enumerate();
        let gone = bindings.filter(|(_, binding)| binding.flow().as_ref() == Some(flow));
        let mut changes: Vec<Change> = gone.map(|(place, _)| Change::Remove(place)).collect();
        if let Err(error) = self.location.change(now, aor, revision, &mut changes) {
            println!("{aor:?}: its binding stays: {error}");
        }
    }
}

impl Authentication for Site {
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

impl Registrations for Site {
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

// No limits of calls, no trunks, no push notifications.
impl Calls for Site {}
impl Trunks for Site {}
impl Pushes for Site {}

fn run() -> Result<(), Failed> {
    let arguments = Arguments::read(&["listen", "domain"], USAGE)?;
    let mut sockets = Sockets::bind(arguments.get("listen").ok_or(USAGE)?)?;
    let name = arguments.get("domain").ok_or(USAGE)?.to_owned();
    let key = sockets::random_key()?;
    let mut users = Users::new(&name, key);
    for word in &arguments.words {
        let (user, password) = word.split_once(':').ok_or(USAGE)?;
        users.add(user, password);
    }
    let domains = Domains::new(vec![Domain {
        name,
        ..Domain::default()
    }])?;
    // No two runs share this number: tokens of an earlier one name connections that are gone.
    let run = sockets.now().unix_s as u32;
    let registrar = Registrar::new(
        sip_server::registrar::Config::default(),
        domains.clone(),
        key,
        run.into(),
    )?;
    let proxy = Proxy::new(sip_server::proxy::Config::default(), key, 0, run);
    let location = MemoryLocation::new(key, Limits::default());
    let site = Site {
        domains,
        local: sockets.local,
        users,
        location,
    };
    let mut endpoint = sockets.endpoint(
        Rules::PROXY,
        key,
        RegistrarProxy::new(registrar, proxy, site, run),
    );
    println!("listening on {}", sockets.local);
    loop {
        sockets.turn(&mut endpoint, None);
    }
}

fn main() -> std::process::ExitCode {
    sockets::report(run())
}
