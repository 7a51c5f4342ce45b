//! Which peers the server permits, by the last response (RFC 8656 §9).

use std::net::IpAddr;

use stun::AddressFamily;

use crate::Mono;

/// RFC 8656 §9: "The Permission Lifetime MUST be 300 seconds".
const LIFETIME_S: u64 = 300;
/// A failed refresh has this long to be repeated before the permission lapses.
const MARGIN_S: u64 = 60;
/// How long to wait before a failed refresh is repeated.
pub(super) const RETRY_S: u64 = 5;
/// Addresses in one CreatePermission request. Eight IPv6 addresses (24 bytes each) and long credentials stay below the
/// 548 bytes that RFC 8489 §6.1 allows if the path MTU is unknown.
pub(super) const MAX_PERMITTED_AT_ONCE: usize = 8;

#[derive(Debug)]
struct Permission {
    peer: IpAddr,
    expires_at: Mono,
    refresh_at: Mono,
    /// A request for it waits or is on its way.
    pending: bool,
    /// Its owner waits for an event.
    announce: bool,
}

/// The permissions of an allocation, sorted by address.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    list: Vec<Permission>,
}

impl Permissions {
    /// Whether data from this peer is welcome: permitted, or asked for and not yet refused.
    pub(super) fn accepts_data_from(&self, peer: &IpAddr, now: Mono) -> bool {
        self.get(peer)
            .is_some_and(|permission| permission.pending || permission.expires_at > now)
    }

    /// Whether data may be sent to this peer: the server has confirmed the permission and it has not lapsed.
    pub(super) fn is_active(&self, peer: &IpAddr, now: Mono) -> bool {
        self.get(peer)
            .is_some_and(|permission| permission.expires_at > now)
    }

    /// Notes that the owner wants it. False if a request is already on its way.
    pub(super) fn ask(&mut self, peer: IpAddr) -> bool {
        let permission = self.entry(peer);
        permission.announce = true;
        !std::mem::replace(&mut permission.pending, true)
    }

    /// The server has granted it to a request first sent at `started`. True if the owner waits for the result.
    pub(super) fn granted(&mut self, peer: IpAddr, started: Mono, keep_alive: bool) -> bool {
        self.granted_by_channel(peer, started, keep_alive);
        let permission = self.entry(peer);
        permission.pending = false;
        std::mem::take(&mut permission.announce)
    }

    /// A ChannelBind has granted it on the way; a CreatePermission for it may still be.
    pub(super) fn granted_by_channel(&mut self, peer: IpAddr, started: Mono, keep_alive: bool) {
        let permission = self.entry(peer);
        permission.expires_at = started.plus_secs(LIFETIME_S);
        permission.refresh_at = match keep_alive {
            true => started.plus_secs(LIFETIME_S - MARGIN_S),
            false => Mono::NEVER,
        };
    }

    /// The request failed. True if the owner must get the failure; otherwise the request is repeated.
    pub(super) fn failed(&mut self, peer: &IpAddr, now: Mono, transient: bool) -> bool {
        let Ok(index) = self.find(peer) else {
            return false;
        };
        let permission = &mut self.list[index];
        permission.pending = false;
        let repeat_at = now.plus_secs(RETRY_S);
        if transient && permission.expires_at > repeat_at {
            permission.refresh_at = repeat_at;
            return false;
        }
        if permission.expires_at <= now {
            self.list.remove(index);
        } else {
            permission.refresh_at = Mono::NEVER;
        }
        true
    }

    /// Lets it lapse instead of refreshing it.
    pub(super) fn forget(&mut self, peer: &IpAddr) {
        if let Ok(index) = self.find(peer) {
            self.list[index].refresh_at = Mono::NEVER;
        }
    }

    /// Marks what is due for a refresh as pending and hands it to `request`; drops what has lapsed.
    pub(super) fn handle_timeout(&mut self, now: Mono, mut request: impl FnMut(IpAddr)) {
        self.list.retain_mut(|permission| {
            if permission.pending {
                return true;
            }
            if permission.refresh_at <= now {
                permission.refresh_at = Mono::NEVER;
                permission.pending = true;
                request(permission.peer);
                return true;
            }
            permission.expires_at > now
        });
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(super) fn next_deadline(&self) -> Mono {
        let waiting = self.list.iter().filter(|permission| !permission.pending);
        waiting
            .map(|permission| permission.refresh_at.min(permission.expires_at))
            .min()
            .unwrap_or(Mono::NEVER)
    }

    /// Drops all whose relayed address was released; `None` means all.
    pub(super) fn remove_family(&mut self, family: Option<AddressFamily>) {
        match family {
            Some(family) => self
                .list
                .retain(|permission| AddressFamily::of(&permission.peer) != family),
            None => self.list = Vec::new(),
        }
    }

    fn find(&self, peer: &IpAddr) -> Result<usize, usize> {
        self.list
            .binary_search_by(|permission| permission.peer.cmp(peer))
    }

    fn get(&self, peer: &IpAddr) -> Option<&Permission> {
        self.find(peer).ok().map(|index| &self.list[index])
    }

    fn entry(&mut self, peer: IpAddr) -> &mut Permission {
        let index = self.find(&peer).unwrap_or_else(|index| {
            let new = Permission {
                peer,
                expires_at: Mono(0),
                refresh_at: Mono::NEVER,
                pending: false,
                announce: false,
            };
            self.list.insert(index, new);
            index
        });
        &mut self.list[index]
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    fn at_s(seconds: u64) -> Mono {
        Mono(0).plus_secs(seconds)
    }

    fn due(permissions: &mut Permissions, now: Mono) -> Vec<IpAddr> {
        let mut due = Vec::new();
        permissions.handle_timeout(now, |peer| due.push(peer));
        due
    }

    #[test]
    fn a_permission_is_refreshed_after_four_minutes() {
        let mut permissions = Permissions::default();
        assert!(permissions.ask(PEER));
        assert!(!permissions.ask(PEER), "a request is on its way");
        assert!(permissions.accepts_data_from(&PEER, at_s(0)));
        assert!(permissions.granted(PEER, at_s(1), true));
        assert_eq!(permissions.next_deadline(), at_s(241));
        assert!(due(&mut permissions, at_s(240)).is_empty());
        assert_eq!(due(&mut permissions, at_s(241)), [PEER]);
        assert!(
            due(&mut permissions, at_s(242)).is_empty(),
            "the refresh is on its way"
        );
        assert!(
            !permissions.granted(PEER, at_s(241), true),
            "nobody waits for a refresh"
        );
        assert_eq!(permissions.next_deadline(), at_s(481));
    }

    #[test]
    fn without_keep_alive_it_lapses_after_five_minutes() {
        let mut permissions = Permissions::default();
        permissions.ask(PEER);
        permissions.granted(PEER, at_s(0), false);
        assert!(permissions.accepts_data_from(&PEER, at_s(299)));
        assert!(!permissions.accepts_data_from(&PEER, at_s(300)));
        assert!(due(&mut permissions, at_s(300)).is_empty());
        assert_eq!(permissions.next_deadline(), Mono::NEVER);
    }

    #[test]
    fn a_lost_refresh_is_repeated_and_a_refused_one_is_not() {
        let mut permissions = Permissions::default();
        permissions.ask(PEER);
        permissions.granted(PEER, at_s(0), true);
        due(&mut permissions, at_s(240));
        assert!(!permissions.failed(&PEER, at_s(279), true));
        assert_eq!(due(&mut permissions, at_s(284)), [PEER]);
        assert!(permissions.failed(&PEER, at_s(285), false));
        assert!(
            permissions.accepts_data_from(&PEER, at_s(286)),
            "the server still lets it through"
        );
        assert_eq!(permissions.next_deadline(), at_s(300));
        due(&mut permissions, at_s(300));
        assert!(!permissions.accepts_data_from(&PEER, at_s(300)));
    }

    #[test]
    fn a_refused_request_leaves_nothing() {
        let mut permissions = Permissions::default();
        permissions.ask(PEER);
        assert!(permissions.failed(&PEER, at_s(1), true));
        assert!(!permissions.accepts_data_from(&PEER, at_s(1)));
        assert_eq!(permissions.next_deadline(), Mono::NEVER);
    }
}
