//! Users in a text: lines of htdigest, and those of coturn's configuration.

use stores::Keys;

/// The users of a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Users {
    /// Realm, name and keys.
    pub(crate) found: Vec<(String, String, Keys)>,
    /// Lines that cannot be used, and why.
    pub(crate) mistakes: Vec<(usize, &'static str)>,
}

/// Reads all lines. `realm` is for lines that name none.
pub(crate) fn read(text: &str, realm: &str) -> Users {
    let mut users = Users::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let user = match line.strip_prefix("user=") {
            Some(entry) => of_coturn(entry, realm),
            None => of_htdigest(line),
        };
        match user {
            Ok(user) => users.found.push(user),
            Err(why) => users.mistakes.push((number, why)),
        }
    }
    users
}

/// `name:password`, or `name:0xKEY`.
fn of_coturn(entry: &str, realm: &str) -> Result<(String, String, Keys), &'static str> {
    let wrong = "expected user=NAME:PASSWORD or user=NAME:0xKEY";
    let (name, rest) = entry.split_once(':').ok_or(wrong)?;
    let keys = match rest.strip_prefix("0x") {
        Some(digits) => Keys::from_hex(digits).ok_or("the key is not 32 or 64 hexadecimal digits"),
        None => Keys::of(name, realm, rest).ok_or("RFC 8265 does not allow this name or password"),
    };
    match name.is_empty() {
        true => Err(wrong),
        false => Ok((realm.to_owned(), name.to_owned(), keys?)),
    }
}

/// `name:realm:key`.
fn of_htdigest(line: &str) -> Result<(String, String, Keys), &'static str> {
    let wrong = "expected NAME:REALM:KEY with a key of 32 or 64 hexadecimal digits";
    let (rest, key) = line.rsplit_once(':').ok_or(wrong)?;
    let (name, realm) = rest.rsplit_once(':').ok_or(wrong)?;
    let keys = Keys::from_hex(key).filter(|_| !name.is_empty() && !realm.is_empty());
    Ok((realm.to_owned(), name.to_owned(), keys.ok_or(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "7da2270ccfa49786e0115366d3a3d14d";

    #[test]
    fn lines_of_htdigest_and_of_coturn_are_users() {
        let text = format!("# users\ngorst:north.gov:{KEY}\n\nuser=gorst:0x{KEY}\nuser=bob:a:b\n");
        let users = read(&text, "north.gov");
        assert_eq!(users.mistakes, []);
        let keys = Keys::from_hex(KEY).unwrap();
        let user = |realm: &str, name: &str, keys| (realm.to_owned(), name.to_owned(), keys);
        assert_eq!(users.found[0], user("north.gov", "gorst", keys));
        assert_eq!(users.found[1], users.found[0]);
        let bob = Keys::of("bob", "north.gov", "a:b").unwrap();
        assert_eq!(users.found[2], user("north.gov", "bob", bob));
    }

    #[test]
    fn wrong_lines_have_their_numbers() {
        let users = read("gorst\nuser=gorst\nuser=gorst:0x12\nuser=:a\na:b:c\n", "r");
        let lines: Vec<_> = users.mistakes.iter().map(|(line, _)| *line).collect();
        assert_eq!((lines, users.found.len()), (vec![1, 2, 3, 4, 5], 0));
    }
}
