//! The registration of the contact (RFC 3261 §10.2), which is refreshed as long as the program wants it.

use std::time::Duration;

use super::authenticator::AuthProblem;
use super::config::Config;
use super::draft::{Content, Draft, Path, RealmName};
use super::event::{CallError, Event, RegisterFailure};
use super::{Ended, Purpose, Random, UserAgent};
use crate::congestion::Class;
use crate::header::{Contact, HeaderKind};
use crate::message::Message;
use crate::tu::Transactions;
use crate::{Mono, Uri};

/// Time from a refresh to the expiry. If the registration lasts at most 1,200 s, the refresh is at half of it. RFC 3261
/// gives no value; this one is from 3GPP TS 24.229 §5.1.1.4.1.
const BEFORE_END: Duration = Duration::from_secs(600);
/// RFC 5626 §4.5: base-time and max-time. After the first failure, the wait is 30 to 60 s.
const FIRST_WAIT_S: u64 = 30;
const LONGEST_WAIT_S: u64 = 1800;

/// What is known of the registration.
#[derive(Debug)]
pub(super) struct Registration {
    call_id: Vec<u8>,
    tag: Vec<u8>,
    cseq: u32,
    /// The program wants to be registered.
    is_wanted: bool,
    /// A REGISTER waits for its response; there is at most one (RFC 3261 §10.2).
    is_pending: bool,
    /// The program has called `register` or `unregister` while a REGISTER was pending.
    is_changed: bool,
    /// The seconds that are asked for: a 423 may have raised them.
    expires: u32,
    /// When to send the next REGISTER.
    next: Option<Mono>,
    failures: u32,
    /// The values of Service-Route (RFC 3608).
    pub(super) service_route: Vec<Vec<u8>>,
    pub(super) realms: Vec<RealmName>,
}

impl Registration {
    pub(super) fn new(config: &Config, random: &mut Random) -> Registration {
        Registration {
            call_id: random.token(),
            tag: random.token(),
            cseq: 0,
            is_wanted: false,
            is_pending: false,
            is_changed: false,
            expires: config.expires,
            next: None,
            failures: 0,
            service_route: Vec::new(),
            realms: Vec::new(),
        }
    }

    pub(super) const fn next_at(&self) -> Option<Mono> {
        self.next
    }

    pub(super) const fn next_cseq(&mut self) -> u32 {
        self.cseq += 1;
        self.cseq
    }

    /// RFC 5626 §4.5: between half of an upper bound and the bound, which doubles with each failure.
    fn wait_after_failure(&mut self, random: u64) -> Duration {
        self.failures += 1;
        let doubled = FIRST_WAIT_S << self.failures.min(16);
        let bound_ms = doubled.min(LONGEST_WAIT_S) * 1000;
        Duration::from_millis(bound_ms / 2 + random % (bound_ms / 2))
    }
}

/// Whether the same REGISTER may succeed later.
fn may_succeed_later(code: u16) -> bool {
    matches!(code, 408 | 430 | 480 | 500..)
}

impl UserAgent {
    /// Registers the contact, and keeps it registered. [`Event::Registered`] or [`Event::RegisterFailed`] follows, and
    /// another one with each refresh.
    ///
    /// # Errors
    /// [`CallError`]; nothing was sent then.
    pub fn register(&mut self, transactions: &mut Transactions<'_>) -> Result<(), CallError> {
        self.registration.is_wanted = true;
        self.registration.failures = 0;
        self.send_register(transactions)
    }

    /// Removes the contact at the registrar. [`Event::Unregistered`] follows, or [`Event::RegisterFailed`]: then the
    /// binding ends by itself.
    ///
    /// # Errors
    /// [`CallError`]; nothing was sent then.
    pub fn unregister(&mut self, transactions: &mut Transactions<'_>) -> Result<(), CallError> {
        self.registration.is_wanted = false;
        self.send_register(transactions)
    }

    fn send_register(&mut self, transactions: &mut Transactions<'_>) -> Result<(), CallError> {
        self.registration.next = None;
        if self.registration.is_pending {
            self.registration.is_changed = true;
            return Ok(());
        }
        let draft = self.register_draft();
        self.send(transactions, draft, Class::New, Purpose::Register)?;
        self.registration.is_pending = true;
        Ok(())
    }

    fn register_draft(&mut self) -> Draft {
        let config = &self.config;
        let seconds = match self.registration.is_wanted {
            true => self.registration.expires,
            false => 0,
        };
        let proxy = config.outbound_proxy.iter();
        let routes: Vec<_> = proxy.map(|uri| format!("<{uri}>").into_bytes()).collect();
        let Path {
            uri,
            routes,
            next_hop,
        } = Path::new(&config.registrar_uri(), &routes);
        let (contact, params) = (&config.contact, &config.contact_params);
        let mut lines = format!("Contact: <{contact}>{params};expires={seconds}\r\n").into_bytes();
        config.add_abilities(&mut lines);
        let address = config.sender_address();
        let tag = &self.registration.tag;
        Draft {
            method: b"REGISTER".to_vec(),
            uri,
            routes,
            next_hop,
            route_set: None,
            from: [&address[..], b";tag=", tag].concat(),
            to: address,
            call_id: self.registration.call_id.clone(),
            cseq: self.registration.next_cseq(),
            lines,
            content: Content::none(),
            credentials: Vec::new(),
            realms: self.registration.realms.clone(),
            challenged: Vec::new(),
        }
    }

    /// It is time for the next REGISTER.
    pub(super) fn refresh(&mut self, transactions: &mut Transactions<'_>) {
        if let Err(error) = self.send_register(transactions) {
            let failure = RegisterFailure::NotSent(error);
            self.register_failed(transactions, failure, None, true);
        }
    }

    /// Handles the final response to a REGISTER, or its failure, and sets the time of the next one.
    pub(super) fn register_concluded(
        &mut self,
        transactions: &mut Transactions<'_>,
        problem: Option<AuthProblem>,
        ended: Ended<'_, '_>,
    ) {
        self.registration.is_pending = false;
        if std::mem::take(&mut self.registration.is_changed) {
            return self.refresh(transactions);
        }
        match ended {
            Ended::Response(200..300, response) => self.registered(transactions, response),
            Ended::Response(423, response) if self.raise_expires(response) => {
                self.refresh(transactions);
            }
            Ended::Response(code, response) => {
                let failure = match problem {
                    Some(problem) => RegisterFailure::Authentication(problem),
                    None => RegisterFailure::Refused(code, reason_of(response)),
                };
                let after = response.retry_after().ok().flatten();
                let after = after.map(|after| after.seconds);
                let may_succeed_later =
                    problem.is_none() && (may_succeed_later(code) || after.is_some());
                self.register_failed(transactions, failure, after, may_succeed_later);
            }
            Ended::Failure(failure) => {
                let failure = RegisterFailure::NoResponse(failure);
                self.register_failed(transactions, failure, None, true);
            }
        }
    }

    /// RFC 3261 §10.2.8: the registrar wants a longer registration. Returns whether to ask for it.
    fn raise_expires(&mut self, response: &Message<'_>) -> bool {
        let least = response.min_expires().ok().flatten();
        let higher = least.filter(|least| *least > self.registration.expires);
        if let Some(higher) = higher.filter(|_| self.registration.is_wanted) {
            self.registration.expires = higher;
            return true;
        }
        false
    }

    fn registered(&mut self, transactions: &Transactions<'_>, response: &Message<'_>) {
        self.registration.failures = 0;
        if !self.registration.is_wanted {
            self.registration.service_route.clear();
            self.events.push_back(Event::Unregistered);
            return;
        }
        let routes = response.addresses(HeaderKind::ServiceRoute);
        let routes = routes.filter_map(Result::ok);
        self.registration.service_route = routes.map(|route| route.bytes.to_vec()).collect();
        let granted = self.granted(response);
        let expires = Duration::from_secs(granted.into());
        // A registrar that grants less than this is asked no more often than each second.
        let wait = expires.saturating_sub(BEFORE_END.min(expires / 2));
        let wait = wait.max(Duration::from_secs(1));
        self.registration.next = Some(transactions.now.mono.plus(wait));
        self.events.push_back(Event::Registered { expires });
    }

    /// The seconds for which the registrar keeps our contact (RFC 3261 §10.2.4).
    fn granted(&self, response: &Message<'_>) -> u32 {
        let ours = Uri::parse(self.config.contact.as_bytes());
        let mut contacts = response.contacts().filter_map(Result::ok);
        let granted = contacts.find_map(|contact| match (contact, &ours) {
            (Contact::Addr(addr), Ok(ours)) => {
                let is_ours = addr.parse_uri().is_ok_and(|uri| uri.is_equivalent(ours));
                is_ours.then(|| addr.expires())
            }
            _ => None,
        });
        let in_general = response.expires().ok().flatten();
        let asked = self.registration.expires;
        granted.flatten().or(in_general).unwrap_or(asked)
    }

    fn register_failed(
        &mut self,
        transactions: &Transactions<'_>,
        failure: RegisterFailure,
        after_s: Option<u32>,
        may_succeed_later: bool,
    ) {
        let random = self.random.number();
        let registration = &mut self.registration;
        let retry_after = (may_succeed_later && registration.is_wanted).then(|| {
            let wait = registration.wait_after_failure(random);
            wait.max(Duration::from_secs(after_s.unwrap_or_default().into()))
        });
        registration.next = retry_after.map(|wait| transactions.now.mono.plus(wait));
        self.events.push_back(Event::RegisterFailed {
            failure,
            retry_after,
        });
    }
}

/// The reason phrase of a response.
pub(super) fn reason_of(response: &Message<'_>) -> String {
    match response.start_line() {
        crate::StartLine::Response { reason, .. } => String::from_utf8_lossy(reason).into_owned(),
        crate::StartLine::Request { .. } => String::new(),
    }
}
