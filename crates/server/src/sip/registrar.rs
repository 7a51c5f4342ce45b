//! The registrar of a worker. It has the bindings of those addresses of record whose keyed hash names the worker. A
//! REGISTER for another worker is passed on before this worker stores anything of it. So its retransmissions take the
//! same path.

use super::Secrets;
use super::flow_changes::FlowChanges;
use super::other_process::WorkerIdentity;
use super::refreshes::Refreshes;
use super::settings::SipConfig;
use super::store::{StoreCounts, WorkerBindings};
use sip::engine::NewRequest;
use sip::flow::ConnectionKey;
use sip::uri::{SipUri, Uri};
use sip::{HeaderKind, Message, Mono, Now};
use sip_server::flow::FlowId;
use sip_server::location::{Binding, Change, Found, Limits, Location as _, MemoryLocation};
use sip_server::proxy::{self, LookedUp};
use sip_server::push::{DueRefresh, RefreshConfig, RefreshPush, prid_of};
use sip_server::reg_event::Cause;
use sip_server::registrar::{
    Access, Config, Domains, Examined, Outcome, Registrar, RegistrarResponse, Request,
};
use sip_server::{Aor, AorKey};
use std::collections::HashMap;

/// Where a REGISTER is answered.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub(super) enum RegisterTarget<'b> {
    /// The refusal, regardless of the sender.
    Refused(RegistrarResponse<'b>),
    /// Another worker handles the REGISTER: the one with this number.
    Elsewhere(u16),
    /// Here, once its sender is known.
    Here(Option<Aor>),
}

/// A registrar and its bindings.
#[derive(Debug)]
pub(super) struct Registrations {
    registrar: Registrar,
    location: WorkerBindings,
    origin: WorkerIdentity,
    /// Addresses whose bindings have changed since the last call, and the causes.
    changes: Vec<(Aor, Cause)>,
    /// The addresses with flows (RFC 5626) by these connections.
    flows: HashMap<ConnectionKey, Vec<Box<[u8]>>>,
    /// When phones refresh their bindings.
    refreshes: Refreshes,
    /// When phones have got other flows.
    flow_changes: FlowChanges,
}

impl Registrations {
    /// Of worker `number`; `None` if there is no domain. `seed` is this worker's own.
    pub(super) fn new(
        number: u16,
        sip_config: &SipConfig,
        secrets: &Secrets,
        seed: u64,
    ) -> Option<Registrations> {
        let key = secrets.lasting;
        let settings = &sip_config.settings;
        // They were checked with all settings.
        let domains = Domains::new(settings.domains.clone()).ok()?;
        let registrar = Registrar::new(config(sip_config), domains, key, seed).ok()?;
        (!settings.domains.is_empty()).then(|| Registrations {
            registrar,
            location: WorkerBindings::InMemory(MemoryLocation::new(key, limits(sip_config))),
            origin: secrets.origin(number),
            changes: Vec::new(),
            flows: HashMap::new(),
            refreshes: Refreshes::new(refresh_config(sip_config)),
            flow_changes: secrets.flow_changes.clone(),
        })
    }

    /// New settings. Bindings stay, also those of removed domains.
    pub(super) fn apply_settings(&mut self, sip_config: &SipConfig) {
        let settings = &sip_config.settings;
        if let Ok(domains) = Domains::new(settings.domains.clone()) {
            // Both were checked with all settings.
            let _ = self.registrar.configure(config(sip_config), domains);
        }
        self.location.set_limits(limits(sip_config));
        self.refreshes.configure(refresh_config(sip_config));
    }

    /// Takes these bindings in place of its own.
    pub(super) fn restore(&mut self, mut kept: WorkerBindings, sip_config: &SipConfig) {
        kept.keep_until_loaded(&mut self.location);
        kept.set_limits(limits(sip_config));
        self.location = kept;
        self.refreshes.restart();
    }

    /// Whether this process wakes phones: another one may serve new clients.
    pub(super) fn set_waking(&mut self, wakes: bool) {
        self.refreshes.pause(!wakes);
    }

    /// Notes when the phones of an address are due.
    fn note_refresh(&mut self, now: Mono, aor: &Aor) {
        if let Found::Bindings(_, bindings) = self.location.find(aor) {
            self.refreshes.note(now, aor, bindings);
        }
    }

    /// The phones of one address that are to refresh their bindings. To be called until it returns `None`.
    pub(super) fn next_refresh(&mut self, now: Mono) -> Option<(DueRefresh, Vec<RefreshPush>)> {
        let due = self.refreshes.next_due(now, &self.location)?;
        let phones = match self.location.find(&due.aor) {
            Found::Bindings(_, bindings) => self.refreshes.phones(now, &due, bindings),
            Found::Pending => Vec::new(),
        };
        Some((due, phones))
    }

    /// To be called after the notifications of an address. If one was not accepted, all are tried again.
    pub(super) fn refresh_pushed(&mut self, now: Mono, due: &DueRefresh, are_accepted: bool) {
        match are_accepted {
            true => self.note_refresh(now, &due.aor),
            false => self.refreshes.retry(now, due),
        }
    }

    /// The bindings, for an upgrade.
    pub(super) fn kept(&mut self) -> &mut WorkerBindings {
        &mut self.location
    }

    /// During an upgrade, the run of the other process.
    pub(super) fn set_other_run(&mut self, other: Option<u32>) {
        self.origin.runs.other = other;
    }

    /// The number of the worker that has the bindings of an address with this key.
    fn worker_of(&self, key: AorKey) -> u16 {
        let numbering = self.origin.numbering;
        numbering.number(key.worker(numbering.workers))
    }

    /// Sends changes to the writing thread, and adds bindings that were read late. Returns whether it has added some.
    pub(super) fn save(&mut self, now: Mono) -> bool {
        let has_added = self.location.load_late(now);
        if has_added {
            self.refreshes.restart();
        }
        self.location.save(now);
        has_added
    }

    /// The counters of the log, for all workers.
    pub(super) fn store_counts(&self) -> StoreCounts {
        self.location.counts()
    }

    /// When bindings end, or are to be saved, or phones are to refresh them.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let refresh = self.refreshes.next_deadline();
        self.location
            .next_deadline()
            .into_iter()
            .chain(refresh)
            .min()
    }

    /// Removes the ended bindings of one address. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Mono) -> bool {
        let expired = self.location.expire(now);
        self.changes
            .extend(expired.map(|aor| (aor, Cause::Register)));
        expired.is_some()
    }

    /// The next address whose bindings have changed.
    pub(super) fn next_change(&mut self) -> Option<(Aor, Cause)> {
        self.changes.pop()
    }

    /// Bindings that are there.
    pub(super) fn len(&self) -> usize {
        self.location.len()
    }

    /// Where this REGISTER is answered. `buffer` is where header lines are written.
    pub(super) fn place_of<'b>(
        &self,
        message: &Message<'_>,
        buffer: &'b mut [u8],
    ) -> RegisterTarget<'b> {
        match self.registrar.examine(message, buffer) {
            // The proxy forwards a REGISTER for another domain before it comes here (RFC 3261 §10.3 step 1).
            Examined::Foreign => RegisterTarget::Refused(RegistrarResponse {
                code: 404,
                reason: "Unknown Domain",
                headers: &[],
            }),
            Examined::Refused(answer) => RegisterTarget::Refused(answer),
            Examined::Aor(None) => RegisterTarget::Here(None),
            Examined::Aor(Some(aor)) => match self.worker_of(self.registrar.key_of(&aor)) {
                worker if worker == self.origin.number => RegisterTarget::Here(Some(aor)),
                worker => RegisterTarget::Elsewhere(worker),
            },
        }
    }

    /// The domains.
    pub(super) const fn domains(&self) -> &Domains {
        self.registrar.domains()
    }

    /// The name of the domain that the Request-URI names, as addresses of record have it.
    pub(super) fn domain_of(&self, message: &Message<'_>) -> Option<&str> {
        match Uri::parse(message.request_uri()?) {
            Ok(Uri::Sip(uri)) => Some(&self.domains().of(uri.host)?.name),
            _ => None,
        }
    }

    /// Which worker has the bindings of the address of record that a URI or temporary GRUU names.
    pub(super) fn bindings_location(&mut self, uri: &SipUri<'_>) -> proxy::BindingsLocation {
        let Some(domain) = self.registrar.domains().of(uri.host) else {
            return proxy::BindingsLocation::Nowhere;
        };
        let gruu = uri
            .user
            .and_then(|user| self.registrar.read_temp_gruu(user));
        let aor = Aor::of(uri, domain.name.as_bytes());
        let key = match (gruu, &aor) {
            (Some((key, _)), _) => key,
            (None, Some(aor)) => self.registrar.key_of(aor),
            (None, None) => return proxy::BindingsLocation::Nowhere,
        };
        let worker = self.worker_of(key);
        if worker != self.origin.number {
            return proxy::BindingsLocation::Elsewhere(worker);
        }
        let found = match gruu {
            Some((key, number)) => self
                .location
                .find_gruu(key, number)
                .map(|aor| (aor, Some(number))),
            None => aor.map(|aor| (aor, None)),
        };
        match found {
            Some((aor, number)) => proxy::BindingsLocation::Here(aor, number),
            None => proxy::BindingsLocation::Nowhere,
        }
    }

    /// The bindings of an address that this worker has.
    pub(super) fn look_up(&mut self, aor: &Aor) -> LookedUp<'_> {
        match self.location.find(aor) {
            Found::Bindings(_, bindings) => LookedUp::Known(bindings),
            Found::Pending => LookedUp::Pending,
        }
    }

    /// The key of an address of record.
    pub(super) fn key_of(&self, aor: &Aor) -> AorKey {
        self.registrar.key_of(aor)
    }

    /// The place of the bindings of this address of record, for a request of a dialog that began at `since` (Unix
    /// time). `Nowhere` if no phone has got another flow since.
    pub(super) fn moved_phone(&mut self, key: AorKey, since: u64) -> proxy::BindingsLocation {
        if !self.flow_changes.any_since(key, since) {
            return proxy::BindingsLocation::Nowhere;
        }
        let worker = self.worker_of(key);
        if worker != self.origin.number {
            return proxy::BindingsLocation::Elsewhere(worker);
        }
        match self.location.find_key(key) {
            Some(aor) => proxy::BindingsLocation::Here(aor, None),
            None => proxy::BindingsLocation::Nowhere,
        }
    }

    /// Whether a binding of the address has this flow.
    fn has_flow(&mut self, aor: &Aor, flow: &FlowId) -> bool {
        // Datagrams have no run: any process can send to their addresses.
        let is_it = |it: FlowId| {
            let run = it.flow.connection.map_or(flow.run, |_| it.run);
            (run, it.flow.transport, it.flow.connection, it.flow.remote)
                == (
                    flow.run,
                    flow.flow.transport,
                    flow.flow.connection,
                    flow.flow.remote,
                )
        };
        match self.location.find(aor) {
            Found::Bindings(_, bindings) => bindings.iter().filter_map(Binding::flow).any(is_it),
            Found::Pending => false,
        }
    }

    /// Notes that the address has a flow by this connection.
    fn note_flow(&mut self, aor: &Aor, flow: &FlowId) {
        let Some(key) = flow.flow.connection else {
            return;
        };
        let providers = self.refreshes.providers();
        let is_flow = |binding: &Binding| {
            let may_end = ends_with_flow(binding) || prid_of(binding.uri(), providers).is_some();
            may_end && binding.flow().as_ref() == Some(flow)
        };
        if let Found::Bindings(_, bindings) = self.location.find(aor)
            && bindings.iter().any(is_flow)
        {
            let addresses = self.flows.entry(key).or_default();
            if !addresses.iter().any(|known| **known == *aor.as_bytes()) {
                addresses.push(aor.as_bytes().into());
            }
        }
    }

    /// A connection is closed: removes the bindings of its flows, those with `reg-id` (RFC 5626 §7) and those over
    /// WebSocket. Bindings of phones that can be woken (RFC 8599) lose only the flow. All others stay.
    pub(super) fn connection_gone(&mut self, now: Now, key: ConnectionKey) {
        let run = self.origin.runs.own;
        let is_gone = |binding: &Binding| {
            let is_there = |id: FlowId| id.run == run && id.flow.connection == Some(key);
            binding.flow().is_some_and(is_there)
        };
        for address in self.flows.remove(&key).into_iter().flatten() {
            if let Some(aor) = Aor::from_canonical(&address) {
                self.lose_flow(now, &aor, is_gone);
                let is_meant = |it: &Binding| ends_with_flow(it) && is_gone(it);
                self.remove_if(now, &aor, Cause::Server, is_meant);
            }
        }
    }

    /// A flow has failed: removes the bindings with this flow, except those of phones that can be woken.
    pub(super) fn flow_failed(&mut self, now: Now, aor: &Aor, flow: &FlowId) {
        // A binding that was refreshed meanwhile has another flow and stays.
        let has_failed = |binding: &Binding| binding.flow().as_ref() == Some(flow);
        self.lose_flow(now, aor, has_failed);
        self.remove_if(now, aor, Cause::Server, has_failed);
    }

    /// Removes the flow of each of these bindings whose phone can be woken. Until the phone registers again, it is
    /// asleep.
    fn lose_flow(&mut self, now: Now, aor: &Aor, is_meant: impl Fn(&Binding) -> bool) {
        let Found::Bindings(revision, bindings) = self.location.find(aor) else {
            return;
        };
        let providers = self.refreshes.providers();
        let lost = |(place, binding): (usize, &Binding)| {
            let is_lost = is_meant(binding) && prid_of(binding.uri(), providers).is_some();
            is_lost.then(|| Change::Replace(place, binding.without_flow()))
        };
        let mut changes: Vec<Change> = bindings.iter().enumerate().filter_map(lost).collect();
        if !changes.is_empty() {
            // On an error the binding stays as it is, and its phone is woken when it has been silent.
            let _ = self.location.change(now, aor, revision, &mut changes);
        }
    }

    /// Removes bindings of an address, and returns how many. Subscribers get the cause.
    pub(super) fn remove_if(
        &mut self,
        now: Now,
        aor: &Aor,
        cause: Cause,
        is_meant: impl Fn(&Binding) -> bool,
    ) -> usize {
        let Found::Bindings(revision, bindings) = self.location.find(aor) else {
            return 0;
        };
        let meant = |(place, binding): (usize, &Binding)| {
            is_meant(binding).then_some(Change::Remove(place))
        };
        let mut changes: Vec<Change> = bindings.iter().enumerate().filter_map(meant).collect();
        let count = changes.len();
        if count == 0 {
            return 0;
        }
        match self.location.change(now, aor, revision, &mut changes) {
            Ok(_) => {
                self.changes.push((*aor, cause));
                count
            }
            Err(_) => 0,
        }
    }

    /// The response to a REGISTER that this worker handles. Its sender is authorized.
    pub(super) fn answer<'b>(
        &mut self,
        now: Now,
        request: &NewRequest<'_>,
        aor: Option<Aor>,
        access: Access,
        buffer: &'b mut [u8],
    ) -> RegistrarResponse<'b> {
        let request = Request {
            message: &request.message,
            aor,
            flow: self.origin.flow_id(&request.flow),
            access,
        };
        let had_flow = aor.is_some_and(|aor| self.has_flow(&aor, &request.flow));
        let location = &mut self.location;
        match self.registrar.register(now, &request, location, buffer) {
            Outcome::Response(answer) => {
                if let Some(aor) = request.aor.filter(|_| answer.code == 200) {
                    // Without a Contact, it only asks for the bindings (RFC 3261 §10.2.3).
                    if request.message.has(HeaderKind::Contact) {
                        self.changes.push((aor, Cause::Register));
                        self.note_refresh(now.mono, &aor);
                        if !had_flow {
                            self.flow_changes.note(self.key_of(&aor), now.unix_s);
                        }
                    }
                    self.note_flow(&aor, &request.flow);
                }
                answer
            }
            // Bindings in memory have their result at once.
            Outcome::Later(..) | Outcome::Pending => RegistrarResponse {
                code: 500,
                reason: "",
                headers: &[],
            },
        }
    }
}

/// How the registrar serves.
fn config(sip_config: &SipConfig) -> Config {
    let push = sip_config.settings.push.as_ref();
    Config {
        push_providers: push.map(|it| it.providers.clone()).unwrap_or_default(),
        push_refresh: push.map_or(0, |it| it.refresh.as_secs() as u32),
        ..sip_config.settings.registrar.clone()
    }
}

/// Which phones are woken to refresh their bindings.
fn refresh_config(sip_config: &SipConfig) -> RefreshConfig {
    let push = sip_config.settings.push.as_ref();
    RefreshConfig {
        providers: push.map(|it| it.providers.clone()).unwrap_or_default(),
        lead: push.map(|it| it.refresh).unwrap_or_default(),
    }
}

/// A worker's part of all bindings.
fn limits(sip_config: &SipConfig) -> Limits {
    Limits {
        per_user: sip_config.settings.bindings_per_user as usize,
        total: sip_config.share(sip_config.settings.bindings),
    }
}

/// Whether a binding is useless without its flow: it has a `reg-id` (RFC 5626), or its client has opened a WebSocket
/// (RFC 7118 §2.1).
fn ends_with_flow(binding: &Binding) -> bool {
    let is_websocket = |id: FlowId| id.flow.transport.is_websocket();
    binding.reg_id() != 0 || binding.flow().is_some_and(is_websocket)
}
