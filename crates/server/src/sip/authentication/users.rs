//! Users in the settings and in sources of credentials: who has an address of record, and the keys of a name.

use super::super::lookups::{KeysQuery, LookupResult, QueriedUser, QueuedQuery};
use super::{DigestAuthenticator, IsAddress};
use sip::digest::{Algorithm, Ha1};
use sip::flow::Flow;
use sip_server::Aor;
use sip_server::proxy::AtNodes;
use sip_server::registrar::{Access, Authority as _, SameUser};
use std::sync::Arc;
use stun::PasswordAlgorithm;
use turn::server::credentials::{Credentials as KeySource, KeyLookup};

/// The result of a query to sources for a user.
#[derive(Debug)]
pub(super) enum UserLookupResult {
    /// The user exists, with these keys.
    Keys(Vec<Ha1>),
    Nobody,
    Pending,
    Unavailable,
}

impl DigestAuthenticator {
    /// Whether an address of record may have bindings: it is that of a user of the settings, or sources may have the
    /// user.
    pub(in crate::sip) fn may_have_address(&self, aor: &Aor) -> bool {
        let realm = self.realm(self.realm_of(aor.domain()));
        realm.sources.is_some() || self.has_address(aor)
    }

    /// Whether an address of record is that of a user. In sources, the name of the user is the user part of the
    /// address.
    pub(in crate::sip) fn find_address(
        &mut self,
        aor: &Aor,
        flow: &Flow,
        unix_s: u64,
    ) -> IsAddress {
        if self.has_address(aor) {
            return IsAddress::Yes;
        }
        let key = self.realm_of(aor.domain());
        let realm_users = self.realms.get(key.0).unwrap_or(&self.realms[0]);
        let wanted = realm_users
            .algorithms
            .first()
            .zip(aor.user())
            .and_then(|(algorithm, user)| realm_users.wanted(user, *algorithm));
        let (Some(source), Some(wanted)) = (realm_users.sources.clone(), wanted) else {
            return IsAddress::No;
        };
        match self.query_source(&source, wanted, flow, unix_s) {
            UserLookupResult::Keys(_) => IsAddress::Yes,
            UserLookupResult::Nobody => IsAddress::No,
            UserLookupResult::Pending => IsAddress::Pending,
            UserLookupResult::Unavailable => IsAddress::Unavailable,
        }
    }

    /// Queries the sources for a user. After [`UserLookupResult::Pending`], [`DigestAuthenticator::lookups`] has the
    /// query.
    pub(super) fn query_source(
        &mut self,
        source: &Arc<dyn KeySource>,
        wanted: QueriedUser,
        flow: &Flow,
        unix_s: u64,
    ) -> UserLookupResult {
        let found = match &self.lookup_result {
            Some(LookupResult::Keys(of, found)) if *of == wanted => found.clone(),
            _ => source.find(&wanted.query(flow, unix_s)),
        };
        match found {
            KeyLookup::Known(user) => {
                let algorithm = match wanted.algorithm {
                    PasswordAlgorithm::Md5 => Algorithm::Md5,
                    PasswordAlgorithm::Sha256 => Algorithm::Sha256,
                };
                let keys = user.keys.iter();
                let keys = keys.filter(|key| key.expires_unix_s.is_none_or(|end| end > unix_s));
                let keys = keys.filter_map(|key| Ha1::from_hash(algorithm, key.key.as_bytes()));
                UserLookupResult::Keys(keys.collect())
            }
            KeyLookup::Unavailable => UserLookupResult::Unavailable,
            KeyLookup::Pending => {
                let query = QueuedQuery::Keys(KeysQuery {
                    wanted,
                    source: Arc::clone(source),
                    flow: *flow,
                    unix_s,
                });
                match self.lookups.note_query(query) {
                    true => UserLookupResult::Pending,
                    false => UserLookupResult::Unavailable,
                }
            }
            _ => UserLookupResult::Nobody,
        }
    }

    /// The other nodes with bindings of an address, if the request has waited for that.
    pub(in crate::sip) fn looked_up_nodes(&self, aor: &Aor) -> Option<AtNodes> {
        match &self.lookup_result {
            Some(LookupResult::Nodes(of, found)) if **of == *aor => Some(found.clone()),
            _ => None,
        }
    }

    /// Whether an address of record is that of a user of the settings.
    fn has_address(&self, aor: &Aor) -> bool {
        let Some(user) = aor.user() else {
            return false;
        };
        let realm = self.realm(self.realm_of(aor.domain()));
        let has = |name: &[u8]| realm.users.contains_key(name);
        // A user of several domains may have the name of one address.
        has(user) || realm.domain.is_none() && has(aor.as_bytes())
    }

    /// Whether an address of record is that of this user, as [`DigestAuthenticator::user`] names it.
    pub(in crate::sip) fn owns(&self, user: &[u8], aor: &Aor) -> bool {
        match self.realm(self.realm_of(aor.domain())).domain {
            Some(_) => aor.as_bytes() == user,
            None => SameUser.access(Some(user), aor) == Access::Granted,
        }
    }
}
