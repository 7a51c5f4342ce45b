//! The registrar (RFC 3261 §10.3), with Path (RFC 3327), Outbound (RFC 5626), GRUU (RFC 5627) and Service-Route
//! (RFC 3608).

mod access;
mod changes;
mod domains;
mod gruu;
mod push;
mod requested_change;
mod response;

pub use access::{Access, Authority, SameUser};
pub use domains::{Domain, DomainError, Domains};
pub use response::RegistrarResponse;

use sip::header::HeaderKind;
use sip::uri::{SipUri, Uri, starts_with_sips};
use sip::{HashKey, Host, Message, Now};

use crate::flow::FlowId;
use crate::location::{Change, ChangeError, Found, Location, Saved};
use crate::{Aor, AorHash, AorKey};
use changes::Changes;
use gruu::TempGruus;
pub(crate) use gruu::{escape_instance, is_same_instance};
pub(crate) use requested_change::instance;
use requested_change::{RequestedBinding, RequestedChange, has_token};
use response::Listed;

/// What a REGISTER may have in Require: the option tags that a registrar understands.
pub const EXTENSIONS: [&str; 3] = ["path", "outbound", "gruu"];

/// Bytes of the URI and of the parameters of a contact together.
pub const MAX_CONTACT: usize = 1024;
/// Bytes of all Path values of a request together.
pub const MAX_PATH: usize = 1024;
/// Bytes of a Call-ID that is stored.
pub const MAX_CALL_ID: usize = 255;
/// Bytes of an instance.
pub(crate) const MAX_INSTANCE: usize = 128;

/// How a registrar is to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Seconds that a binding lasts if its request does not say. Default 3600 (RFC 3261 §10.2.1.1).
    pub default_expires: u32,
    /// Seconds that a binding must last at least; a shorter time gets 423. At most 3600. Default 60.
    pub min_expires: u32,
    /// Seconds that a binding lasts at most; a longer time is shortened to it. Default 86,400.
    pub max_expires: u32,
    /// Whether a request with Path is served even if the user agent does not support that; RFC 3327 §5.3 recommends 420.
    /// Default: no.
    pub path_without_support: bool,
    /// Seconds after which a connection that is silent counts as failed (RFC 5626 §4.4); user agents send keep-alives
    /// more often. Whoever sets it closes such connections, somewhat later. A response to a request that came by UDP
    /// does not say it. Default: it is not said.
    pub flow_timer: Option<u32>,
    /// The push services by which phones are woken (RFC 8599), such as `fcm`. A phone that names another one gets 555.
    /// Default: none, and parameters for push services mean nothing.
    pub push_providers: Vec<String>,
    /// Seconds before the end of its binding by which a phone with a push service refreshes, by itself or after a
    /// notification ([`RefreshSchedule`](crate::push::RefreshSchedule)). RFC 8599 §5.6.1.1: more than 120. The 200 to a
    /// phone whose binding does not last longer than this names no push service. Default 130.
    pub push_refresh: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            default_expires: 3600,
            min_expires: 60,
            max_expires: 86_400,
            path_without_support: false,
            flow_timer: None,
            push_providers: Vec::new(),
            push_refresh: 130,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// RFC 3261 §10.3 step 7: an hour may not be refused.
    #[error("the shortest registration is longer than an hour, which a registrar must accept")]
    MinAboveHour,
    /// The three times are not in order.
    #[error("the default registration time is not between the shortest and the longest")]
    DefaultOutside,
}

impl Config {
    /// What a 555 says of push services: all of them.
    fn push_features(&self) -> Vec<push::Feature<'_>> {
        let all = self.push_providers.iter();
        all.map(|provider| push::Feature::of(provider)).collect()
    }

    /// Checks the times.
    ///
    /// # Errors
    /// [`ConfigError`] if they contradict each other or the RFC.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.min_expires > 3600 {
            return Err(ConfigError::MinAboveHour);
        }
        match (self.min_expires..=self.max_expires).contains(&self.default_expires) {
            true => Ok(()),
            false => Err(ConfigError::DefaultOutside),
        }
    }
}

/// What [`Registrar::examine`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub enum Examined<'b> {
    /// The request is for another domain: RFC 3261 §10.3 step 1 has a proxy forward it.
    Foreign,
    /// The request is refused for every sender.
    Refused(RegistrarResponse<'b>),
    /// The request is for this address of record; `None` if To names none in the domain of the Request-URI.
    Aor(Option<Aor>),
}

/// A REGISTER whose sender has been authenticated.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r, 'm> {
    /// The request.
    pub message: &'r Message<'m>,
    /// Its address of record, as [`Registrar::examine`] has found it.
    pub aor: Option<Aor>,
    /// The way it came by.
    pub flow: FlowId,
    /// What its sender may do (RFC 3261 §10.3 step 4).
    pub access: Access,
}

/// What becomes of a REGISTER.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum Outcome<'b> {
    /// It is answered.
    Response(RegistrarResponse<'b>),
    /// It is answered so once the location says that the change with this number is saved; with 500 if it says that it
    /// is not.
    Later(u64, RegistrarResponse<'b>),
    /// The location looks up the bindings elsewhere: the request is to be passed in again when it has them.
    Pending,
}

/// A code and what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    code: u16,
    reason: &'static str,
    /// The value of Min-Expires or Retry-After.
    seconds: u32,
}

impl Refusal {
    const fn of(code: u16, reason: &'static str) -> Refusal {
        Refusal {
            code,
            reason,
            seconds: 0,
        }
    }

    const fn bad(reason: &'static str) -> Refusal {
        Refusal::of(400, reason)
    }

    const fn too_brief(min_expires: u32) -> Refusal {
        Refusal {
            seconds: min_expires,
            ..Refusal::of(423, "")
        }
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Refusal {
        match error {
            ChangeError::UserFull => Refusal::of(403, "Too Many Bindings"),
            // More room comes with the end of other bindings.
            ChangeError::Full => Refusal {
                seconds: 60,
                ..Refusal::of(503, "Too Many Bindings in All")
            },
            // RFC 3261 §10.3 step 7: "because the back-end database commit failed".
            ChangeError::Conflict | ChangeError::Failed => Refusal::of(500, ""),
        }
    }
}

/// A registrar. One worker's; all have the same key and domains.
#[derive(Debug)]
pub struct Registrar {
    config: Config,
    domains: Domains,
    hash: AorHash,
    gruus: TempGruus,
    /// A buffer that each request uses again.
    changes: Vec<Change>,
}

impl Registrar {
    /// With a key that is the same in all workers and runs, and a seed that never is.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration cannot be used.
    pub fn new(
        config: Config,
        domains: Domains,
        key: HashKey,
        seed: u64,
    ) -> Result<Registrar, ConfigError> {
        config.validate()?;
        Ok(Registrar {
            config,
            domains,
            hash: AorHash::new(key),
            gruus: TempGruus::new(key, seed),
            changes: Vec::new(),
        })
    }

    /// Uses another configuration from now on. Bindings stay as they are.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration cannot be used; nothing changes then.
    pub fn configure(&mut self, config: Config, domains: Domains) -> Result<(), ConfigError> {
        config.validate()?;
        (self.config, self.domains) = (config, domains);
        Ok(())
    }

    /// The domains.
    #[must_use]
    pub const fn domains(&self) -> &Domains {
        &self.domains
    }

    /// The key of an address: it names the worker.
    #[must_use]
    pub fn key_of(&self, aor: &Aor) -> AorKey {
        self.hash.of(aor)
    }

    /// The key of the address and the number of the instance of a temporary GRUU with this user part. `None` if this
    /// server has not made the GRUU. [`Location::find_gruu`] on the worker of the key says whether it is still valid.
    #[must_use]
    pub fn read_temp_gruu(&self, user: &[u8]) -> Option<(AorKey, u64)> {
        self.gruus.read(user)
    }

    /// Steps 1, 2 and the first half of 5 of RFC 3261 §10.3: what the request is about. Nothing of it needs
    /// authentication.
    pub fn examine<'b>(&self, message: &Message<'_>, buffer: &'b mut [u8]) -> Examined<'b> {
        let Some(domain) = self.domain_of(message.request_uri().unwrap_or_default()) else {
            return Examined::Foreign;
        };
        let is_known = |tag: &[u8]| {
            let mut known = EXTENSIONS.iter();
            known.any(|known| known.as_bytes().eq_ignore_ascii_case(tag))
        };
        let required = message.require().filter_map(Result::ok);
        let mut unknown = required.filter(|tag| !is_known(tag)).peekable();
        if unknown.peek().is_some() {
            return Examined::Refused(RegistrarResponse::unsupported(buffer, unknown));
        }
        let aor = message.to().ok().and_then(|to| self.aor_in(domain, to.uri));
        Examined::Aor(aor)
    }

    /// The other steps of RFC 3261 §10.3. `buffer` is where the header lines of the answer are written; 64 KiB hold
    /// any.
    pub fn register<'b>(
        &mut self,
        now: Now,
        request: &Request<'_, '_>,
        location: &mut dyn Location,
        buffer: &'b mut [u8],
    ) -> Outcome<'b> {
        self.changes.clear();
        let (answer, saved) = match self.run(now, request, location, &mut *buffer) {
            // `len` is how much of the buffer was written.
            Ok(Some((len, saved))) => (RegistrarResponse::with_lines(200, &buffer[..len]), saved),
            Err(refusal) if refusal.code == push::NOT_SUPPORTED.code => {
                let len = push::add_features(buffer, 0, &self.config.push_features());
                (push::not_supported(&buffer[..len]), Saved::Now)
            }
            Ok(None) => return Outcome::Pending,
            Err(refusal) => (RegistrarResponse::refusal(buffer, &refusal), Saved::Now),
        };
        match saved {
            Saved::Now => Outcome::Response(answer),
            Saved::Later(number) => Outcome::Later(number, answer),
        }
    }

    /// How many bytes of header lines the 200 has, and when it may be sent; `None` if the location does not have the
    /// result yet.
    fn run(
        &mut self,
        now: Now,
        request: &Request<'_, '_>,
        location: &mut dyn Location,
        buffer: &mut [u8],
    ) -> Result<Option<(usize, Saved)>, Refusal> {
        let aor = match (request.access, request.aor) {
            // Step 4 comes first: a sender who may not register does not learn whether the address exists.
            (Access::Forbidden, _) => return Err(Refusal::of(403, "")),
            (Access::NoSuchUser, _) | (_, None) => return Err(Refusal::of(404, "")),
            (Access::Granted, Some(aor)) => aor,
        };
        let name = Host::new(aor.domain());
        // It is there unless the domains have changed since.
        let domain = name.and_then(|name| self.domains.of(name));
        let domain = domain.ok_or(Refusal::of(404, ""))?;
        let message = request.message;
        let path = self.path_of(message)?;
        let mut requested = RequestedChange::read(message, &self.config)?;
        let is_outbound = self.check(message, &aor, &path, &mut requested)?;
        let push = push::features_of(&requested, &self.config)?;
        let Found::Bindings(revision, bindings) = location.find(&aor) else {
            return Ok(None);
        };
        let mut changes = Changes {
            now: now.mono,
            call_id: message
                .call_id()
                .map_err(|_| Refusal::bad("Malformed Call-ID"))?,
            cseq: message
                .cseq()
                .map_err(|_| Refusal::bad("Malformed CSeq"))?
                .number,
            flow: (!path.is_empty() || message.vias().count() == 1).then_some(request.flow),
            path: &path,
            agent: message
                .header(HeaderKind::UserAgent)
                .map_or(&[][..], |agent| agent.value),
            bindings,
            gruus: &mut self.gruus,
            steps: &mut self.changes,
        };
        if changes.call_id.len() > MAX_CALL_ID {
            return Err(Refusal::bad("Call-ID Too Long"));
        }
        changes.of(&requested)?;
        // The response is written first. If that fails, no binding may be changed.
        let listed = Listed {
            now,
            config: &self.config,
            domain,
            aor: &aor,
            key: self.hash.of(&aor),
            path: &path,
            is_outbound,
            is_connected: path.is_empty() && request.flow.flow.connection.is_some(),
            gruus: has_token(message, HeaderKind::Supported, b"gruu").then_some(&mut self.gruus),
        };
        let len = listed.write(bindings, &self.changes, buffer)?;
        let len = push::add_features(buffer, len, &push);
        if self.changes.is_empty() {
            return Ok(Some((len, Saved::Now)));
        }
        let saved = location.change(now, &aor, revision, &mut self.changes)?;
        Ok(Some((len, saved)))
    }

    /// The values of Path with commas between (RFC 3327 §5.3).
    fn path_of(&self, message: &Message<'_>) -> Result<Vec<u8>, Refusal> {
        let mut path = Vec::new();
        for route in message.paths() {
            let malformed = Refusal::bad("Malformed Path");
            let route = route.map_err(|_| malformed)?;
            route.parse_uri().map_err(|_| malformed)?;
            if !path.is_empty() {
                path.extend_from_slice(b", ");
            }
            changes::push_unfolded(&mut path, route.bytes);
        }
        let is_supported = self.config.path_without_support
            || path.is_empty()
            || has_token(message, HeaderKind::Supported, b"path")
            || has_token(message, HeaderKind::Require, b"path");
        match (is_supported, path.len()) {
            (false, _) => Err(Refusal::of(420, "")),
            (true, len) if len > MAX_PATH => Err(Refusal::bad("Path Too Long")),
            _ => Ok(path),
        }
    }

    /// Checks the contacts, without the stored bindings. Clears each `reg-id` to which Outbound does not apply
    /// (RFC 5626 §6). Returns whether Outbound is applied and the user agent supports it.
    ///
    /// # Errors
    /// The response that refuses the REGISTER.
    fn check(
        &self,
        message: &Message<'_>,
        aor: &Aor,
        path: &[u8],
        requested: &mut RequestedChange<'_>,
    ) -> Result<bool, Refusal> {
        let RequestedChange::Contacts(requested) = requested else {
            return Ok(false);
        };
        for binding_request in requested.iter() {
            if binding_request.expires > 0 {
                self.check_contact(message, aor, binding_request)?;
            }
        }
        let supports_outbound = [HeaderKind::Supported, HeaderKind::Require]
            .into_iter()
            .any(|kind| has_token(message, kind, b"outbound"));
        if requested
            .iter()
            .all(|binding_request| binding_request.reg_id == 0)
        {
            return Ok(false);
        }
        // RFC 5626 §6: the registrar is the first hop, or the first hop says so in Path.
        let is_fit = message.vias().count() == 1 || is_first_hop_outbound(message, path);
        match (is_fit, supports_outbound) {
            (false, true) => return Err(Refusal::of(439, "")),
            (false, false) => {
                requested
                    .iter_mut()
                    .for_each(|binding_request| binding_request.reg_id = 0);
                return Ok(false);
            }
            (true, _) => {}
        }
        let lasting = || {
            requested
                .iter()
                .filter(|binding_request| binding_request.expires > 0)
        };
        if lasting().count() > 1 && lasting().any(|binding_request| binding_request.reg_id != 0) {
            return Err(Refusal::bad("One Flow per Registration"));
        }
        Ok(supports_outbound)
    }

    fn check_contact(
        &self,
        message: &Message<'_>,
        aor: &Aor,
        binding_request: &RequestedBinding<'_>,
    ) -> Result<(), Refusal> {
        let Uri::Sip(uri) = &binding_request.uri else {
            // RFC 5627 §5.1: an instance is reached by SIP.
            return match binding_request.instance {
                [] => Ok(()),
                _ => Err(Refusal::of(403, "Contact of an Instance Must Be SIP")),
            };
        };
        if self.resolves_to_aor(message, aor, uri) {
            return Err(Refusal::of(
                403,
                "Contact Leads Back to the Address of Record",
            ));
        }
        // RFC 5630 §5.2: Request-URI, contacts and Path are all SIPS, or none of the contacts is.
        if uri.is_sips && !all_sips(message) {
            return Err(Refusal::bad("SIPS Contact Without SIPS Everywhere"));
        }
        Ok(())
    }

    /// Whether a request for this contact would return to the address of record. That is so if the contact is that
    /// address, or a GRUU of it (RFC 5627 §5.1).
    fn resolves_to_aor(&self, message: &Message<'_>, aor: &Aor, uri: &SipUri<'_>) -> bool {
        if let Some((key, _)) = uri.user.and_then(|user| self.gruus.read(user)) {
            return key == self.hash.of(aor);
        }
        let domain = self.domains.of(uri.host);
        let its_aor = domain.and_then(|domain| Aor::of(uri, domain.name.as_bytes()));
        let is_same = its_aor == Some(*aor);
        // A phone on the host whose address is the domain's name has a port of its own.
        let to = message.to().ok();
        let to = to.as_ref().and_then(|to| to.parse_uri().ok());
        let to_port = to.and_then(|to| to.as_sip().and_then(|to| to.port));
        is_same && (uri.port.is_none() || uri.port == to_port || uri.params.get(b"gr").is_some())
    }

    fn domain_of(&self, uri: &[u8]) -> Option<&Domain> {
        match Uri::parse(uri) {
            Ok(Uri::Sip(uri)) => self.domains.of(uri.host),
            _ => None,
        }
    }

    /// The address of record that a URI names in this domain.
    fn aor_in(&self, domain: &Domain, uri: &[u8]) -> Option<Aor> {
        let Ok(Uri::Sip(uri)) = Uri::parse(uri) else {
            return None;
        };
        let its_domain = self.domains.of(uri.host)?;
        // RFC 5627 §5.4: a GRUU is not the address of record of somebody else.
        let is_gruu = uri.user.is_some_and(|user| self.gruus.read(user).is_some());
        match its_domain.name == domain.name && !is_gruu {
            true => Aor::of(&uri, domain.name.as_bytes()),
            false => None,
        }
    }
}

/// Whether the first hop supports Outbound. It was the first to add itself to Path, so it is the last there.
fn is_first_hop_outbound(message: &Message<'_>, path: &[u8]) -> bool {
    let last = message.paths().filter_map(Result::ok).last();
    let uri = last.and_then(|last| last.parse_uri().ok());
    let uri = uri.as_ref().and_then(Uri::as_sip);
    !path.is_empty() && uri.is_some_and(|uri| uri.params.get(b"ob").is_some())
}

fn all_sips(message: &Message<'_>) -> bool {
    let mut contacts = message.contacts().filter_map(Result::ok);
    let mut paths = message.paths().filter_map(Result::ok);
    message.request_uri().is_some_and(starts_with_sips)
        && paths.all(|path| starts_with_sips(path.uri))
        && contacts.all(|contact| match contact {
            sip::header::Contact::Addr(contact) => starts_with_sips(contact.uri),
            sip::header::Contact::Star => true,
        })
}
