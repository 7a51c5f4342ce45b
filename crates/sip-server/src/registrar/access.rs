//! Who may change whose bindings (RFC 3261 §10.3 step 4).

use crate::Aor;

/// What the sender of a REGISTER may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Change the bindings of the address.
    Granted,
    /// The user may not register: 403.
    Forbidden,
    /// The address does not exist: 404. Only for senders who may know which addresses exist.
    NoSuchUser,
}

/// Decides who may change whose bindings.
pub trait Authority {
    /// What this user may do with the bindings of this address. The user is authenticated, or `None` if the domain asks
    /// nobody for credentials.
    fn access(&self, user: Option<&[u8]>, aor: &Aor) -> Access;
}

/// Users have the address of their own name: `alice`, or `alice@example.com`, may register `sip:alice@example.com`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SameUser;

impl Authority for SameUser {
    fn access(&self, user: Option<&[u8]>, aor: &Aor) -> Access {
        match user {
            None => Access::Granted,
            Some(user) if aor.user() == Some(user) || aor.as_bytes() == user => Access::Granted,
            Some(_) => Access::Forbidden,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_address_of_their_name_only_rfc3261_10_3() {
        let aor = Aor::from_canonical(b"alice@example.com").unwrap();
        for (user, access) in [
            (Some("alice"), Access::Granted),
            (Some("alice@example.com"), Access::Granted),
            (None, Access::Granted),
            (Some("Alice"), Access::Forbidden),
            (Some("alice@example.org"), Access::Forbidden),
            (Some(""), Access::Forbidden),
        ] {
            let user = user.map(str::as_bytes);
            assert_eq!(SameUser.access(user, &aor), access, "{user:?}");
        }
    }
}
