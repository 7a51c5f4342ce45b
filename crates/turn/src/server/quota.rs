//! How many relayed transport addresses one user, one source or all together may hold. The count is the
//! embedder's, so that it can span workers.

use std::fmt::Debug;
use std::net::IpAddr;

use stun::ErrorCode;

use super::Server;

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum QuotaExceeded {
    /// The user's: 486 (RFC 8656 §7.2, item 10).
    #[error("the user holds as many relayed addresses as allowed")]
    User,
    /// The source address's or prefix's: 486, too.
    #[error("the source holds as many relayed addresses as allowed")]
    Source,
    /// The whole server's: 508, as it is the server that is full (RFC 8656 §19).
    #[error("the server holds as many relayed addresses as allowed")]
    Total,
}

/// Counts relayed transport addresses. One unit is one address: a dual allocation and an allocation with a
/// reservation each take two.
pub trait Quota: Debug + Send + Sync {
    /// Takes one unit for this user at this client address.
    ///
    /// # Errors
    /// Says which limit is reached; nothing was taken then.
    fn try_acquire(&self, user: &str, source: IpAddr) -> Result<(), QuotaExceeded>;

    /// Gives back one unit. Called exactly once for each unit taken, with the same arguments.
    fn release(&self, user: &str, source: IpAddr);
}

/// No limit but those of [`Config`](super::Config).
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Quota for Unlimited {
    fn try_acquire(&self, _user: &str, _source: IpAddr) -> Result<(), QuotaExceeded> {
        Ok(())
    }

    fn release(&self, _user: &str, _source: IpAddr) {}
}

impl Server {
    /// Takes so many units, or none.
    pub(super) fn acquire(
        &self,
        user: &str,
        source: IpAddr,
        units: usize,
    ) -> Result<(), ErrorCode<'static>> {
        for taken in 0..units {
            if let Err(exceeded) = self.quota.try_acquire(user, source) {
                self.release(user, source, taken);
                return Err(match exceeded {
                    QuotaExceeded::User | QuotaExceeded::Source => {
                        ErrorCode::ALLOCATION_QUOTA_REACHED
                    }
                    QuotaExceeded::Total => ErrorCode::INSUFFICIENT_CAPACITY,
                });
            }
        }
        Ok(())
    }

    /// Gives so many units back.
    pub(super) fn release(&self, user: &str, source: IpAddr, units: usize) {
        for _ in 0..units {
            self.quota.release(user, source);
        }
    }
}
