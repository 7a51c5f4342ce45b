//! Why a request was not believed. Some of these have the same code, so the client cannot distinguish them; counters
//! and the log do.

macro_rules! auth_failures {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a request was not believed, though it carried credentials.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum AuthFailure { $($(#[doc = $doc])+ $variant,)+ }

        impl AuthFailure {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [AuthFailure] = &[$(AuthFailure::$variant,)+];

            /// How many reasons there are.
            pub(crate) const COUNT: usize = Self::ALL.len();

            /// The reason's name in metrics and logs, in snake case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(AuthFailure::$variant => $name,)+ }
            }
        }
    };
}

auth_failures! {
    /// 401: no source of credentials has the user, a key of the client's algorithm, or a key with the kid of the access
    /// token.
    UnknownUser = "unknown_user",
    /// The integrity was not made with a key of the user: 401.
    WrongPassword = "wrong_password",
    /// The credential is past its time: 401.
    ExpiredCredential = "expired_credential",
    /// The access token was not made with the key that its kid names, for this server: 401.
    ForgedToken = "forged_token",
    /// The realm is not the server's: 401.
    WrongRealm = "wrong_realm",
    /// The nonce was issued to this client too long ago: 438. Every client gets this now and then.
    StaleNonce = "stale_nonce",
    /// The nonce was not issued by this server, or to another address, or under an expired key: 438.
    ForgedNonce = "forged_nonce",
    /// The nonce was issued with another offer of password algorithms or of hashed user names than the current one:
    /// 438.
    OutdatedOffer = "outdated_offer",
    /// The user is known, but the allocation belongs to another one: 441.
    WrongUser = "wrong_user",
}

impl AuthFailure {
    /// Whether a client by the book meets this too, so that it is counted and not logged.
    pub(super) const fn is_routine(self) -> bool {
        matches!(self, AuthFailure::StaleNonce | AuthFailure::OutdatedOffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_index_the_table_and_names_are_unique() {
        for (number, reason) in AuthFailure::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
            let twins = AuthFailure::ALL.iter();
            assert_eq!(
                twins.filter(|other| other.name() == reason.name()).count(),
                1
            );
        }
    }
}
