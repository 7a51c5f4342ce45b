//! Users who prove the key in an access token (RFC 7635 §7, §9).

use std::sync::Arc;

use stun::{
    AccessToken, AttributeError, AttributeType, IntegrityAlgorithm, Message, UnknownAttributes,
};

use super::Server;
use super::allocation::Client;
use super::auth::{Unauthenticated, is_signed_with};
use super::auth_failure::AuthFailure;
use super::credentials::{Claim, TokenContent, TokenError};
use super::request::RequestOrigin;
use super::request_context::RequestContext;
use super::user::User;
use crate::Now;
use crate::types::attribute::is_known;

impl Server {
    /// The user of a request with an access token. A token names nobody, so each one counts as a user of its own.
    pub(super) fn find_token_user(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        claim: Claim<'_>,
        token: Result<AccessToken<'_>, AttributeError>,
        origin: RequestOrigin,
    ) -> Result<Arc<User>, Unauthenticated> {
        let holder = || self.token_holder(context, message, claim);
        let tokens = self.config.access_tokens_of(context.realm);
        let Some(tokens) = tokens else {
            return holder().ok_or(Unauthenticated::UnexpectedToken);
        };
        let integrity = message
            .has_integrity()
            .ok_or(Unauthenticated::NoIntegrity)?;
        let moved = origin.user.filter(|user| user.is_by_token());
        if let Some(user) = moved.filter(|user| is_signed_with(message, user.key())) {
            return Ok(user);
        }
        let token = token.map_err(|_| Unauthenticated::BadRequest)?;
        // The RFC has the kid in USERNAME only.
        let Claim::Username(kid) = claim else {
            return Err(AuthFailure::UnknownUser.into());
        };
        let content = match tokens.open(kid, &token) {
            Ok(content) => content,
            Err(TokenError::UnknownKey) => return holder().ok_or(AuthFailure::UnknownUser.into()),
            Err(TokenError::Forged) => return Err(AuthFailure::ForgedToken.into()),
        };
        let expires = content.expires_unix_s(now.unix_s);
        let expires = expires.ok_or(AuthFailure::ExpiredCredential)?;
        let realm = self.realms.of_tokens(&**tokens, kid, context.realm);
        let realm = realm.ok_or(AuthFailure::WrongRealm)?;
        let with = |mac_key| User::by_token(realm, kid, &token, (mac_key, integrity), expires);
        let mut users = self.mac_keys(&content, integrity).map(with);
        let user = users.find(|user| is_signed_with(message, user.key()));
        let user = user.ok_or(AuthFailure::WrongPassword)?;
        // A reload may have given the key another realm: the allocation keeps its own.
        if let Some(own) = holder()
            && own.realm() != user.realm()
        {
            return Ok(own);
        }
        self.stats.keys_derived += 1;
        Ok(Arc::new(user.found_at(now, None, self.credentials_epoch)))
    }

    /// The user of the allocation that the request is for. Requires that a token with the same kid made the allocation,
    /// and that the session key of this token signs the request. A reload may have removed the key of the kid: the
    /// allocation continues until its token ends.
    fn token_holder(
        &self,
        context: &RequestContext,
        message: &Message<'_>,
        claim: Claim<'_>,
    ) -> Option<Arc<User>> {
        let user = &self.client_named_by(context, message)?.user;
        let is_holder = user.has_kid(claim) && is_signed_with(message, user.key());
        is_holder.then(|| Arc::clone(user))
    }

    /// The client whose allocation a request is for. Most requests name it by their 5-tuple, a ConnectionBind request by
    /// its CONNECTION-ID (RFC 6062), a Refresh request from another 5-tuple by its ticket (RFC 8016).
    pub(super) fn client_named_by(
        &self,
        context: &RequestContext,
        message: &Message<'_>,
    ) -> Option<&Client> {
        let place = self
            .holder_of(&context.path.five_tuple)
            .or_else(|| self.client_of_connection(message))
            .or_else(|| self.client_of_ticket(message))?;
        self.clients.get(place)
    }

    /// The key in a token; then what coturn's clients make of one for SHA-1: they sign with the first 16 of its 20
    /// bytes.
    fn mac_keys<'a>(
        &self,
        content: &'a TokenContent,
        integrity: IntegrityAlgorithm,
    ) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let is_short = self.config.short_token_keys && integrity == IntegrityAlgorithm::Sha1;
        let short = content
            .mac_key
            .get(..16)
            .filter(|_| is_short && content.mac_key.len() == 20);
        [Some(&*content.mac_key), short].into_iter().flatten()
    }

    /// From now on, the allocation's requests are signed with the key of the token that refreshed it (RFC 7635 §9).
    pub(super) fn renew_token(&mut self, context: &RequestContext, place: u32) {
        let newer = context.user.as_ref().filter(|user| user.is_by_token());
        if let (Some(newer), Some(client)) = (newer, self.clients.get_mut(place)) {
            client.user = Arc::new(client.user.renewed(newer));
        }
    }

    /// The attributes of an authenticated request that this server must understand and does not.
    pub(super) fn unknown_attributes(
        &self,
        context: &RequestContext,
        message: &Message<'_>,
    ) -> UnknownAttributes {
        message
            .unknown_required(|attribute| self.knows_attribute(context, attribute))
            .collect()
    }

    /// Whether every request may have this attribute.
    pub(super) fn knows_attribute(
        &self,
        context: &RequestContext,
        attribute: AttributeType,
    ) -> bool {
        let takes_tokens = self.config.access_tokens_of(context.realm).is_some();
        // The last key may be gone, but not the allocations that tokens made.
        let is_by_token = || context.user.as_ref().is_some_and(|user| user.is_by_token());
        is_known(attribute)
            || attribute == AttributeType::ACCESS_TOKEN && (takes_tokens || is_by_token())
    }
}
