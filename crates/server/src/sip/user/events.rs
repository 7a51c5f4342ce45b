//! Subscriptions to registrations (RFC 3680): who may have one, and what its subscribers get.

use super::{MarkOwner, WorkerTu};
use crate::sip::lines;
use crate::sip::nodes::MovedBinding;
use sip::engine::{Mark, NewRequest, Reply, RespondError};
use sip::tu::{RequestOwner, Transactions};
use sip::uri::starts_with_sips;
use sip::{HeaderKind, Message, Now, Uri};
use sip_server::Aor;
use sip_server::location::Binding;
use sip_server::proxy::{BindingsLocation, LookedUp};
use sip_server::reg_event::{Cause, RegEvents};

/// Whether a mark is of a NOTIFY for a subscription to registrations.
pub(super) fn is_of_events(mark: Mark) -> bool {
    mark.user() == MarkOwner::RegEvents as u8
}

impl WorkerTu {
    /// Whether a SUBSCRIBE is for the registrar: in the dialog of a subscription, or for the registrations of a user
    /// here. Others are forwarded.
    pub(super) fn is_subscription(&self, request: &NewRequest<'_>) -> bool {
        let Some(events) = &self.events else {
            return false;
        };
        if events.worker_of(request).is_some() {
            return true;
        }
        let message = &request.message;
        request.to_tag().is_none() && RegEvents::is_asked(message) && self.is_for_a_user(message)
    }

    /// Whether the Request-URI names a user of a domain.
    fn is_for_a_user(&self, message: &Message<'_>) -> bool {
        let domains = self.registrations.as_ref().map(|it| it.domains());
        match (
            Uri::parse(message.request_uri().unwrap_or_default()),
            domains,
        ) {
            (Ok(Uri::Sip(uri)), Some(domains)) => {
                uri.user.is_some() && domains.of(uri.host).is_some()
            }
            _ => false,
        }
    }

    /// A SUBSCRIBE for the registrar.
    pub(super) fn subscribed(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<RequestOwner, RespondError> {
        let worker = self.events.as_ref().and_then(|it| it.worker_of(&request));
        match worker {
            Some(worker) if worker == self.number => {
                self.refresh_subscription(transactions, request)?;
                Ok(RequestOwner::Here)
            }
            Some(worker) => Ok(RequestOwner::Elsewhere(worker)),
            None => self.subscribed_anew(transactions, request),
        }
    }

    /// A SUBSCRIBE within a subscription. Its sender must be the user, as at the beginning (RFC 6665 §6.3): the tags of a
    /// dialog are no secret, and the next NOTIFY goes to the source of this SUBSCRIBE.
    fn refresh_subscription(
        &mut self,
        transactions: &mut Transactions<'_>,
        mut request: NewRequest<'_>,
    ) -> Result<(), RespondError> {
        let events = self.events.as_ref();
        if let Some(aor) = events.and_then(|it| it.address_of(&request)) {
            let realm = self.authenticator.realm_of(aor.domain());
            let asked = (&request.message, HeaderKind::Authorization);
            let unix_s = transactions.now.unix_s;
            let checked = self
                .authenticator
                .check(realm, asked, &request.flow, unix_s);
            if let Err(stop) = checked {
                return self.stop(transactions, request, (realm, stop));
            }
            request.trust();
            if !self.authenticator.owns(self.authenticator.user(), &aor) {
                return transactions.answer_statelessly(request, &Reply::new(403));
            }
        }
        let contact = self.contact(transactions, &request)?;
        match &mut self.events {
            Some(events) => events.refresh(transactions, request, &contact),
            None => Ok(()),
        }
    }

    /// A user may subscribe to the own registrations.
    fn subscribed_anew(
        &mut self,
        transactions: &mut Transactions<'_>,
        mut request: NewRequest<'_>,
    ) -> Result<RequestOwner, RespondError> {
        let place = self.place_of(&request.message);
        if let BindingsLocation::Elsewhere(worker) = place {
            return Ok(RequestOwner::Elsewhere(worker));
        }
        let message = &request.message;
        let registrations = self.registrations.as_ref();
        let domain = registrations.and_then(|it| it.domain_of(message));
        let realm = self
            .authenticator
            .realm_of(domain.unwrap_or_default().as_bytes());
        let asked = (message, HeaderKind::Authorization);
        let unix_s = transactions.now.unix_s;
        if let Err(stop) = self
            .authenticator
            .check(realm, asked, &request.flow, unix_s)
        {
            self.stop(transactions, request, (realm, stop))?;
            return Ok(RequestOwner::Here);
        }
        request.trust();
        let aor = match place {
            // GRUUs have no registrations of their own.
            BindingsLocation::Here(aor, None)
                if self.authenticator.owns(self.authenticator.user(), &aor) =>
            {
                aor
            }
            _ => {
                transactions.answer_statelessly(request, &Reply::new(403))?;
                return Ok(RequestOwner::Here);
            }
        };
        let contact = self.contact(transactions, &request)?;
        let (Some(events), Some(registrations)) = (&mut self.events, &mut self.registrations)
        else {
            return Ok(RequestOwner::Here);
        };
        match registrations.look_up(&aor) {
            LookedUp::Known(bindings) => {
                events.subscribe(transactions, request, &aor, bindings, &contact)?;
            }
            // Bindings in memory have their result at once.
            LookedUp::Unknown | LookedUp::Pending => {
                transactions.answer_statelessly(request, &Reply::new(500))?;
            }
        }
        Ok(RequestOwner::Here)
    }

    fn place_of(&mut self, message: &Message<'_>) -> BindingsLocation {
        let uri = Uri::parse(message.request_uri().unwrap_or_default());
        match (uri, &mut self.registrations) {
            (Ok(Uri::Sip(uri)), Some(registrations)) => registrations.bindings_location(&uri),
            _ => BindingsLocation::Nowhere,
        }
    }

    /// The Contact of this server in the dialog of a subscription.
    fn contact(
        &mut self,
        transactions: &Transactions<'_>,
        request: &NewRequest<'_>,
    ) -> Result<Vec<u8>, RespondError> {
        let own = transactions.engine.signature(&(&request.flow).into());
        let own = own.ok_or(RespondError::Unanswerable)?;
        let uri = request.message.request_uri().unwrap_or_default();
        let line = lines::contact(&mut self.lines, &own, starts_with_sips(uri))?;
        Ok(line.to_vec())
    }

    /// Removes a binding whose phone has registered at another node. Returns how many were removed.
    ///
    /// A REGISTER of the phone is the cause, so subscribers get `unregistered`. After `deactivated`, the phone would
    /// register again at once (RFC 3680 §4.7.1), perhaps here: then the other node would remove its binding.
    pub(in crate::sip) fn remove_moved(
        &mut self,
        now: Now,
        aor: &Aor,
        moved: &MovedBinding,
    ) -> usize {
        let publisher = &self.publisher;
        let registrations = self.registrations.as_mut();
        registrations.map_or(0, |it| {
            let is_meant = |binding: &Binding| publisher.is_moved(now.mono, binding, moved);
            it.remove_if(now, aor, Cause::Register, is_meant)
        })
    }

    /// Tells subscribers of bindings that have changed.
    pub(super) fn report_changes(&mut self, transactions: &mut Transactions<'_>) {
        loop {
            let (Some(events), Some(registrations)) = (&mut self.events, &mut self.registrations)
            else {
                return;
            };
            let Some((aor, cause)) = registrations.next_change() else {
                return;
            };
            let has_nodes = self.publisher.has_nodes();
            // Most addresses have no subscribers.
            let has_subscribers = events.has_subscribers(&aor);
            if (has_nodes || has_subscribers)
                && let LookedUp::Known(bindings) = registrations.look_up(&aor)
            {
                if has_nodes {
                    let now = transactions.now.mono;
                    self.publisher.changed(now, aor.as_bytes(), bindings);
                }
                if has_subscribers {
                    events.changed(transactions, &aor, bindings, cause);
                }
            }
            // A call may wait for the phone that has registered.
            let now = transactions.now;
            self.with_proxy(transactions, None, |proxy, stack| {
                proxy.registered(now, stack, &aor);
            });
        }
    }

    /// A SUBSCRIBE for this server itself: it has no state to subscribe to (RFC 6665 §4.2.1.1). With a To tag, it is for
    /// a subscription that this server does not know, such as one of before a restart (RFC 3261 §12.2.2).
    pub(super) fn bad_event(
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<(), RespondError> {
        let reply = match request.to_tag() {
            Some(_) => Reply::new(481),
            None => Reply::new(489).headers(sip_server::reg_event::ALLOW_EVENTS),
        };
        transactions.answer_statelessly(request, &reply)
    }
}
