//! The user part of a request after its route has rewritten it.

use sip::uri::escape_user;

use super::config::Route;

/// A rewritten user part is no longer than this.
const MAX_USER_BYTES: usize = 512;

/// The user part that a route makes of this one; `None` if nothing is left, or it is too long.
pub(super) fn user(route: &Route, called: &[u8]) -> Option<Vec<u8>> {
    let rest = match &route.replace {
        Some(whole) => whole.as_bytes(),
        None => called.get(usize::from(route.strip)..)?,
    };
    let user = [route.add.as_bytes(), rest].concat();
    (!user.is_empty() && user.len() <= MAX_USER_BYTES).then_some(user)
}

/// A user part with escapes, as [`uri`] needs it.
pub(super) fn escaped(user: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 3 * user.len()];
    let len = escape_user(user, &mut buffer).map_or(0, <[u8]>::len);
    buffer.truncate(len);
    buffer
}

/// The URI of an escaped user part at a host, with what follows the host in `tail`.
pub(super) fn uri(is_sips: bool, user: &[u8], tail: &[u8]) -> Box<[u8]> {
    let scheme: &[u8] = if is_sips { b"sips:" } else { b"sip:" };
    [scheme, user, b"@", tail].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_removed_then_added() {
        let mut route = Route {
            strip: 1,
            add: "00".to_owned(),
            ..Route::default()
        };
        assert_eq!(user(&route, b"+4930").unwrap(), b"004930");
        assert_eq!(user(&route, b"+").unwrap(), b"00");
        assert_eq!(user(&route, b""), None, "there is nothing to remove");
        route.replace = Some("reception".to_owned());
        route.add.clear();
        assert_eq!(user(&route, b"+4930").unwrap(), b"reception");
        route.replace = None;
        assert_eq!(user(&route, b"1"), None, "nothing is left");
    }

    #[test]
    fn forbidden_characters_of_a_user_part_are_escaped() {
        let made = uri(false, &escaped(b"a b@c"), b"192.0.2.7:5070;transport=tcp");
        assert_eq!(&*made, b"sip:a%20b%40c@192.0.2.7:5070;transport=tcp");
        assert_eq!(
            &*uri(true, &escaped(b"+49"), b"h.example"),
            b"sips:+49@h.example"
        );
        let escapes = escaped(&[b' '; MAX_USER_BYTES]);
        assert_eq!(escapes, b"%20".repeat(MAX_USER_BYTES));
    }
}
