//! The permissions of one relayed transport address (RFC 8656 §9).

use std::net::IpAddr;

use crate::Mono;

/// A permission: peers at this address may be talked to until it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    /// RFC 8656 §9: identifies the permission; ports play no part.
    pub(super) ip: IpAddr,
    /// The policy under which the address was last found to be allowed.
    pub(super) policy_epoch: u16,
    pub(super) expires: Mono,
}

const _: () = assert!(size_of::<Permission>() == 32);

/// Permissions, sorted by address.
#[derive(Debug, Default)]
pub(super) struct Permissions(Vec<Permission>);

impl Permissions {
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    fn find(&self, ip: &IpAddr) -> Result<usize, usize> {
        self.0.binary_search_by(|permission| permission.ip.cmp(ip))
    }

    /// The permission for this address, unless there is none or it has expired.
    pub(super) fn get(&mut self, ip: &IpAddr, now: Mono) -> Option<&mut Permission> {
        let place = self.find(ip).ok()?;
        self.0
            .get_mut(place)
            .filter(|permission| permission.expires > now)
    }

    /// Whether there is an entry for this address, expired or not: installing it again takes no room.
    pub(super) fn contains(&self, ip: &IpAddr) -> bool {
        self.find(ip).is_ok()
    }

    /// Installs or refreshes a permission, and returns when it expires. A refresh never makes it expire earlier.
    pub(super) fn install(&mut self, ip: IpAddr, policy_epoch: u16, expires: Mono) -> Mono {
        match self.find(&ip) {
            Ok(place) => {
                let permission = &mut self.0[place];
                permission.policy_epoch = policy_epoch;
                permission.expires = permission.expires.max(expires);
                permission.expires
            }
            Err(place) => {
                reserve_tight(&mut self.0);
                let permission = Permission {
                    ip,
                    policy_epoch,
                    expires,
                };
                self.0.insert(place, permission);
                expires
            }
        }
    }

    /// All permissions, also expired ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Permission> {
        self.0.iter()
    }

    /// Deletes expired permissions, calls `ended` for each, and returns their number.
    pub(super) fn expire(&mut self, now: Mono, mut ended: impl FnMut(&Permission)) -> usize {
        let before = self.0.len();
        self.0.retain(|permission| {
            let stays = permission.expires > now;
            if !stays {
                ended(permission);
            }
            stays
        });
        before - self.0.len()
    }

    /// When the first of them expires.
    pub(super) fn earliest(&self) -> Mono {
        self.0
            .iter()
            .map(|permission| permission.expires)
            .min()
            .unwrap_or(Mono::NEVER)
    }
}

/// Makes room for one more: exactly one at first, as most allocations have one peer, then half as much again.
pub(super) fn reserve_tight<T>(entries: &mut Vec<T>) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact(entries.len() / 2 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_lasts_until_it_expires_and_not_a_nanosecond_more() {
        let mut permissions = Permissions::default();
        let ip = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(permissions.install(ip, 0, Mono(305)), Mono(305));
        assert!(permissions.get(&ip, Mono(304)).is_some());
        assert!(permissions.get(&ip, Mono(305)).is_none());
        assert_eq!(permissions.earliest(), Mono(305));
        assert_eq!(permissions.expire(Mono(305), |_| {}), 1);
        assert_eq!(permissions.earliest(), Mono::NEVER);
    }

    #[test]
    fn a_refresh_never_shortens_a_permission() {
        let mut permissions = Permissions::default();
        let ip = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(permissions.install(ip, 0, Mono(600)), Mono(600));
        assert_eq!(permissions.install(ip, 0, Mono(400)), Mono(600));
        assert_eq!(permissions.install(ip, 0, Mono(700)), Mono(700));
    }

    #[test]
    fn one_address_has_one_permission() {
        let mut permissions = Permissions::default();
        for round in 0..3 {
            for host in [9, 3, 7, 1] {
                permissions.install(IpAddr::from([192, 0, 2, host]), 0, Mono(round));
            }
        }
        assert_eq!(permissions.len(), 4);
        assert!(permissions.0.is_sorted_by_key(|permission| permission.ip));
    }
}
