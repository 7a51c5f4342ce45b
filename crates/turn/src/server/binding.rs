//! Binding requests: the STUN server (RFC 8489 §12).

use stun::{
    AttributeType, BINDING_SUCCESS_MAX, CLASSIC_RESPONSE_MAX, ClassicBinding, ErrorCode,
    FingerprintState, Message, Method, UnknownAttributes, XorMappedAddress, binding_success,
};

use super::answer::Refusal;
use super::asked::Asked;
use super::request::Source;
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
        // that length gets an authenticated answer; everybody else does not need to.
        let with_credentials =
            message.contains(AttributeType::REALM) && message.has_integrity().is_some();
        if self.config.authenticate_binding || with_credentials {
            return self.protected_binding(now, path, message, Source::of(None));
        }
        let fingerprint = match message.fingerprint() {
            FingerprintState::Absent => false,
            FingerprintState::Valid => true,
            FingerprintState::Invalid => return Err(DropReason::WrongFingerprint),
        };
        let unknown: UnknownAttributes = message.unknown_required(is_known).collect();
        if unknown.is_empty() {
            let mut buffer = [0; BINDING_SUCCESS_MAX];
            let mapped = path.five_tuple.remote;
            let length =
                binding_success(&mut buffer, &message.transaction_id(), &mapped, fingerprint);
            if !self
                .config
                .may_answer(path, message.as_bytes().len(), length)
            {
                return Err(DropReason::Amplification);
            }
            self.outputs
                .send(*path, buffer.get(..length).unwrap_or_default());
            self.stats.count_success(Method::BINDING);
        } else {
            let asked = Asked::by_anybody(path, message);
            self.refuse(&asked, &Refusal::Unknown(Box::new(unknown)));
        }
        Ok(())
    }

    /// A Binding request that needs credentials, or brings some.
    pub(super) fn protected_binding(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        source: Source,
    ) -> Result<(), DropReason> {
        if let Some(asked) = self.authenticated(now, path, message, source)? {
            self.authenticated_binding(&asked, message);
        }
        Ok(())
    }

    fn authenticated_binding(&mut self, asked: &Asked, message: &Message<'_>) {
        let unknown = self.unknown_attributes(message);
        if unknown.is_empty() {
            let mapped = XorMappedAddress(asked.path.five_tuple.remote);
            self.succeed(asked, |message| message.push(&mapped).map(drop));
        } else {
            self.refuse(asked, &Refusal::Unknown(Box::new(unknown)));
        }
    }

    /// What is no message of RFC 8489 may be a Binding request of RFC 3489 (RFC 5389 §12.2).
    pub(super) fn classic_binding(
        &mut self,
        path: &ClientPath,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        // RFC 8489 §11: "DTLS MUST NOT be used with" classic STUN; RFC 3489 knows UDP only.
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
}
