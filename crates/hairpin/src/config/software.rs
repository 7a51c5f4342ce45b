//! What the server calls itself in responses.

use super::setting::{FromText, Mistake};

/// RFC 8489 §14.14: SOFTWARE has fewer than 128 characters.
const MAX_CHARACTERS: usize = 127;

/// The value of SOFTWARE; without a character, responses have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Software(pub(crate) String);

impl FromText for Software {
    const EXPECTED: &'static str = "a text, like \"hairpin\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let characters = text.chars().count();
        if characters > MAX_CHARACTERS {
            let message = format!("SOFTWARE has {characters} characters");
            let help = format!("use at most {MAX_CHARACTERS}: RFC 8489 admits no more");
            return Err(Mistake::new(message).help(help));
        }
        match text.chars().find(|c| c.is_control()) {
            Some(bad) => Err(Mistake::new(format!("{bad:?} cannot stand in SOFTWARE"))
                .help("use text in one line, like \"hairpin\"")),
            None => Ok(Self(text.to_owned())),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_has_at_most_127_characters_and_one_line() {
        assert!(Software::from_text(&"é".repeat(127)).is_ok());
        let long = Software::from_text(&"é".repeat(128)).unwrap_err();
        assert!(long.one_line().contains("has 128 characters"));
        assert!(Software::from_text("two\nlines").is_err());
        assert_eq!(
            Software::from_text("").map(|none| none.0).ok(),
            Some(String::new())
        );
    }
}
