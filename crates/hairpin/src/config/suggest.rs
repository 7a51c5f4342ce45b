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
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits from one word to the other: a letter added, left out or replaced, or two neighbours swapped.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let mut best = (above[j] + usize::from(a[i] != b[j]))
                .min(above[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
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
    fn distance_counts_edits() {
        assert_eq!(distance("inof", "info"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
    }
}
