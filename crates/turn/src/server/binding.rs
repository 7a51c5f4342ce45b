//! Binding requests: the STUN server (RFC 8489 §12).

use stun::{
    AttributeType, BINDING_SUCCESS_MAX, CLASSIC_RESPONSE_MAX, ClassicBinding, ErrorCode,
    FingerprintState, Message, Method, UnknownAttributes, XorMappedAddress, binding_success,
    classic_server_error,
};

use super::answer::Refusal;
use super::request::RequestOrigin;
use super::request_context::RequestContext;
use super::{DropReason, Server};
use crate::types::attribute::is_known;
use crate::{ClientPath, Now, Transport};

impl Server {
    /// Tells the client its reflexive transport address (RFC 8489 §6.3.1.1).
    pub(super) fn binding(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> Result<(), DropReason> {
        self.stats
            .count_request(Method::BINDING, message.as_bytes().len());
        // RFC 8489 §14.9: REALM in a request says that long-term credentials are being used. Whoever goes to
        // that length gets an authenticated response; other clients do not require it.
        let with_credentials =
            message.contains(AttributeType::REALM) && message.has_integrity().is_some();
        if self.config.authenticate_binding || with_credentials {
            return self.protected_binding(now, path, message, RequestOrigin::of_client());
        }
        let fingerprint = match message.fingerprint() {
            FingerprintState::Absent => false,
            FingerprintState::Valid => true,
            FingerprintState::Invalid => return Err(DropReason::WrongFingerprint),
        };
        if self.has_unknown_of_binding(path, message) {
            let context = RequestContext::unauthenticated(path, message);
            let unknown = self.unknown_of_binding(path, message, is_known);
            self.refuse(&context, &Refusal::Unknown(Box::new(unknown)));
        } else if self.config.discovery.listeners.is_empty() {
            return self.mapped(path, message, fingerprint);
        } else {
            let context = RequestContext::unauthenticated(path, message);
            return self.discovered(now, context, message);
        }
        Ok(())
    }

    /// The response that nearly every Binding request gets.
    fn mapped(
        &mut self,
        path: &ClientPath,
        message: &Message<'_>,
        fingerprint: bool,
    ) -> Result<(), DropReason> {
        let mut buffer = [0; BINDING_SUCCESS_MAX];
        let (id, mapped) = (message.transaction_id(), path.five_tuple.remote);
        let length = binding_success(&mut buffer, &id, &mapped, fingerprint);
        let request_len = message.as_bytes().len();
        if !self.config.may_answer(path, request_len, length) {
            return Err(DropReason::Amplification);
        }
        self.outputs
            .send(*path, buffer.get(..length).unwrap_or_default());
        self.stats.count_success(Method::BINDING);
        Ok(())
    }

    /// Answers as RFC 5780 §6.1 describes on its listeners, and as RFC 8489 does on others.
    fn discovered(
        &mut self,
        now: Now,
        mut context: RequestContext,
        message: &Message<'_>,
    ) -> Result<(), DropReason> {
        match self.config.discovery.response(&context.path, message) {
            Ok(Some(response)) => {
                let client = context.path.five_tuple.remote.ip();
                if let Some(bytes) = response.padding
                    && !self.padding_budgets.take(client, bytes, now.mono)
                {
                    return Err(DropReason::PaddingOverLimit);
                }
                context.path = response.path;
                self.succeed(&context, |message| response.write(message));
            }
            Ok(None) => {
                let mapped = XorMappedAddress(context.path.five_tuple.remote);
                self.succeed(&context, |message| message.push(&mapped).map(drop));
            }
            Err(refusal) => self.refuse(&context, &refusal),
        }
        Ok(())
    }

    /// Whether a request without credentials has an attribute that is not understood.
    fn has_unknown_of_binding(&self, path: &ClientPath, message: &Message<'_>) -> bool {
        let discovery = &self.config.discovery;
        let known = |attribute| is_known(attribute) || discovery.knows(path, attribute);
        message.unknown_required(known).next().is_some()
    }

    /// The attributes that are neither `is_understood` nor those of RFC 5780 on its listeners.
    fn unknown_of_binding(
        &self,
        path: &ClientPath,
        message: &Message<'_>,
        is_understood: impl Fn(AttributeType) -> bool,
    ) -> UnknownAttributes {
        let discovery = &self.config.discovery;
        let known = |attribute| is_understood(attribute) || discovery.knows(path, attribute);
        message.unknown_required(known).collect()
    }

    /// A Binding request that needs credentials, or brings some.
    pub(super) fn protected_binding(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        origin: RequestOrigin,
    ) -> Result<(), DropReason> {
        let Some(context) = self.authenticated(now, path, message, origin)? else {
            return Ok(());
        };
        let unknown = self.unknown_of_binding(path, message, |attribute| {
            self.knows_attribute(&context, attribute)
        });
        if unknown.is_empty() {
            return self.discovered(now, context, message);
        }
        self.refuse(&context, &Refusal::Unknown(Box::new(unknown)));
        Ok(())
    }

    /// What is no message of RFC 8489 may be a Binding request of RFC 3489 (RFC 5389 §12.2).
    pub(super) fn classic_binding(
        &mut self,
        path: &ClientPath,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        if path.five_tuple.transport == Transport::Dtls {
            return self.classic_over_dtls(path, datagram);
        }
        // RFC 3489 has UDP only.
        let is_udp = path.five_tuple.transport == Transport::Udp;
        let request = ClassicBinding::parse(datagram).filter(|_| is_udp);
        let request = request.ok_or(DropReason::MalformedStun)?;
        if !self.config.classic_stun || self.config.authenticate_binding {
            return Err(DropReason::ClassicStun);
        }
        self.stats.count_request(Method::BINDING, datagram.len());
        let mut out = [0; CLASSIC_RESPONSE_MAX];
        let knows_all = request.unknown_required(is_known).next().is_none();
        let length = match knows_all {
            true => request.success(&mut out, &path.five_tuple.remote),
            false => request.unknown_attributes(&mut out, request.unknown_required(is_known)),
        };
        if !self.config.may_answer(path, datagram.len(), length) {
            return Err(DropReason::Amplification);
        }
        match knows_all {
            true => self.stats.count_success(Method::BINDING),
            false => self
                .stats
                .count_error(Method::BINDING, ErrorCode::UNKNOWN_ATTRIBUTE.code),
        }
        self.outputs
            .send(*path, out.get(..length).unwrap_or_default());
        Ok(())
    }
    /// RFC 8489 §11: "DTLS MUST NOT be used with" classic STUN, so that each request without the magic cookie gets a
    /// 500.
    fn classic_over_dtls(&mut self, path: &ClientPath, datagram: &[u8]) -> Result<(), DropReason> {
        let mut out = [0; CLASSIC_RESPONSE_MAX];
        let length = classic_server_error(datagram, &mut out).ok_or(DropReason::MalformedStun)?;
        self.stats.count_request(Method::BINDING, datagram.len());
        self.stats
            .count_error(Method::BINDING, ErrorCode::SERVER_ERROR.code);
        self.outputs
            .send(*path, out.get(..length).unwrap_or_default());
        Ok(())
    }
}
