//! "did you mean": the nearest known word to a misspelt one.

/// The candidate nearest to `word`, if it is near enough to be what was meant: at most a third of its letters differ.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A key is at most 30 letters; comparing megabytes with the quadratic algorithm would only make `check` slow.
    if word.len() > 64 {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_word_that_was_meant() {
        let keys = ["realm", "secrets", "users", "nonce_lifetime"];
        assert_eq!(nearest("relm", keys), Some("realm"));
        assert_eq!(nearest("secret", keys), Some("secrets"));
        assert_eq!(nearest("nonce-lifetime", keys), Some("nonce_lifetime"));
        assert_eq!(nearest("Users", keys), Some("users"));
    }

    #[test]
    fn stays_silent_when_nothing_is_near() {
        assert_eq!(nearest("colour", ["realm", "users"]), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), ["realm"]), None);
    }

    #[test]
    fn two_swapped_letters_are_one_edit() {
        assert_eq!(nearest("inof", ["info"]), Some("info"));
    }
}
