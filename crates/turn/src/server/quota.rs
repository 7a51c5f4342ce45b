//! How many relayed transport addresses one user, one source or all together may hold. The count is the
//! embedder's, so that it can span workers.

use std::fmt::Debug;
use std::sync::Arc;

use stun::ErrorCode;

use super::Server;
use super::policy::{ClientIdentity, OwnedClientIdentity};
use super::user::User;
use crate::ClientPath;

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaExceeded {
    /// The user's: 486 (RFC 8656 §7.2, item 10).
    #[error("the user holds as many relayed addresses as allowed")]
    User,
    /// The realm's: 486, too.
    #[error("the realm's users hold as many relayed addresses as allowed")]
    Realm,
    /// The source address's or prefix's: 486, too.
    #[error("the source holds as many relayed addresses as allowed")]
    Source,
    /// The whole server's: 508, as it is the server that is full (RFC 8656 §19).
    #[error("the server holds as many relayed addresses as allowed")]
    Total,
}

impl QuotaExceeded {
    pub(super) const fn code(self) -> ErrorCode<'static> {
        match self {
            QuotaExceeded::User | QuotaExceeded::Realm | QuotaExceeded::Source => {
                ErrorCode::ALLOCATION_QUOTA_REACHED
            }
            QuotaExceeded::Total => ErrorCode::INSUFFICIENT_CAPACITY,
        }
    }
}

/// Counts relayed transport addresses. One unit is one address: a dual allocation and an allocation with a
/// reservation each take two.
pub trait Quota: Debug + Send + Sync {
    /// Acquires one unit for this client.
    ///
    /// # Errors
    /// Says which limit is reached. Then nothing was acquired.
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded>;

    /// Releases one unit. Called exactly once for each unit acquired, for the client that holds it.
    fn release(&self, client: &ClientIdentity<'_>);

    /// Moves one unit to another client of the same user, or of another access token (RFC 7635). That client claims a
    /// reservation (RFC 8656 §7.2). No other client can acquire the unit in between.
    ///
    /// # Errors
    /// Says which limit is reached. Then `from` still holds the unit.
    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded>;
}

/// One acquired unit that no allocation or reservation holds yet: it is on its way from one engine to another. Dropping
/// it releases the unit.
#[derive(Debug)]
pub struct QuotaUnit {
    /// `None` once an allocation holds the unit.
    quota: Option<Arc<dyn Quota>>,
    client: OwnedClientIdentity,
}

impl QuotaUnit {
    /// The unit that this client has just acquired.
    pub(super) fn acquired(quota: &Arc<dyn Quota>, client: &ClientIdentity<'_>) -> QuotaUnit {
        QuotaUnit {
            quota: Some(Arc::clone(quota)),
            client: client.to_owned(),
        }
    }

    /// An allocation holds the unit from now on, and releases it.
    pub(super) fn hand_to_allocation(mut self) {
        self.quota = None;
    }
}

impl Drop for QuotaUnit {
    fn drop(&mut self) {
        if let Some(quota) = &self.quota {
            quota.release(&self.client.identity());
        }
    }
}

/// No limit but those of [`Config`](super::Config).
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Quota for Unlimited {
    fn try_acquire(&self, _: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        Ok(())
    }

    fn release(&self, _: &ClientIdentity<'_>) {}

    fn transfer(
        &self,
        _: &ClientIdentity<'_>,
        _: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        Ok(())
    }
}

impl Server {
    /// A client as policy and quota see it.
    pub(super) fn identity<'a>(user: &'a User, path: ClientPath) -> ClientIdentity<'a> {
        user.identity(path.five_tuple)
    }

    /// Acquires this many units, or none.
    pub(super) fn acquire(
        &self,
        user: &User,
        path: ClientPath,
        units: usize,
    ) -> Result<(), ErrorCode<'static>> {
        let client = Self::identity(user, path);
        for acquired in 0..units {
            if let Err(exceeded) = self.quota.try_acquire(&client) {
                self.release(user, path, acquired);
                return Err(exceeded.code());
            }
        }
        Ok(())
    }

    /// Releases this many units.
    pub(super) fn release(&self, user: &User, path: ClientPath, units: usize) {
        let client = Self::identity(user, path);
        for _ in 0..units {
            self.quota.release(&client);
        }
    }
}
