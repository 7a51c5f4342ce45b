//! Methods.

/// Defines [`Method`] from a list of variants and names.
macro_rules! methods {
    ($($variant:ident $name:literal $rfc:literal,)*) => {
        /// A method. Methods are case-sensitive (RFC 3261 §7.1): `invite` is a [`Method::Other`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Method<'a> {
            $(#[doc = concat!("`", $name, "` (RFC ", $rfc, ")")] $variant,)*
            /// Any other token.
            Other(&'a [u8]),
        }

        impl<'a> Method<'a> {
            /// The methods known by name.
            pub const KNOWN: &'static [Method<'static>] = &[$(Method::$variant,)*];

            /// As it is written in a message.
            #[inline]
            #[must_use]
            pub const fn as_bytes(self) -> &'a [u8] {
                match self {
                    $(Method::$variant => $name.as_bytes(),)*
                    Method::Other(name) => name,
                }
            }

            /// The method with this name; the caller has checked that it is a token.
            #[inline]
            #[must_use]
            pub fn of(name: &'a [u8]) -> Method<'a> {
                $(if name == $name.as_bytes() { return Method::$variant; })*
                Method::Other(name)
            }
        }
    };
}

methods! {
    Register "REGISTER" "3261",
    Invite "INVITE" "3261",
    Ack "ACK" "3261",
    Bye "BYE" "3261",
    Cancel "CANCEL" "3261",
    Options "OPTIONS" "3261",
    Info "INFO" "6086",
    Message "MESSAGE" "3428",
    Notify "NOTIFY" "6665",
    Prack "PRACK" "3262",
    Publish "PUBLISH" "3903",
    Refer "REFER" "3515",
    Subscribe "SUBSCRIBE" "6665",
    Update "UPDATE" "3311",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_case_sensitive() {
        for &method in Method::KNOWN {
            assert_eq!(Method::of(method.as_bytes()), method);
        }
        assert_eq!(Method::of(b"Invite"), Method::Other(b"Invite"));
    }
}
