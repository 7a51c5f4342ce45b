//! The sentences of an RFC's text that have a keyword of RFC 2119: MUST, SHALL, REQUIRED, SHOULD or RECOMMENDED.

/// A sentence with one of [`KEYWORDS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sentence {
    /// `9.2.4`, or `A.1` in an appendix. Empty before the first section.
    pub(super) section: String,
    /// The text in one line, words separated by single spaces.
    pub(super) text: String,
}

const KEYWORDS: [&str; 5] = ["MUST", "SHALL", "REQUIRED", "SHOULD", "RECOMMENDED"];

/// How many words before and after the first keyword name a sentence: enough to find it, too few to copy the RFC.
const WORDS_BEFORE: usize = 4;
const WORDS_AFTER: usize = 6;

/// Every sentence of `text` that has a keyword, in the order of the text.
pub(super) fn sentences(text: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut section = String::new();
    let mut paragraph = String::new();
    for line in text.lines().filter(|line| !is_page_break(line)) {
        if let Some(number) = section_number(line) {
            end_paragraph(&mut paragraph, &section, &mut found, true);
            section = number;
        } else if line.trim().is_empty() {
            end_paragraph(&mut paragraph, &section, &mut found, false);
        } else {
            paragraph.push(' ');
            paragraph.push_str(line.trim());
        }
    }
    end_paragraph(&mut paragraph, &section, &mut found, true);
    // RFC 2119 is cited by a sentence that lists all keywords and asks for nothing.
    found.retain(|sentence| {
        !sentence.text.contains("RFC2119") && !sentence.text.contains("\"MUST\"")
    });
    found
}

/// The header or footer of a page: `Petit-Huguenin, et al.  Standards Track  [Page 7]` or
/// `RFC 8489  STUN  February 2020`.
fn is_page_break(line: &str) -> bool {
    line.ends_with(']') && line.contains("[Page ")
        || line.starts_with("RFC ") && line.contains("   ")
        || line == "\u{c}"
}

/// The number in the heading of a section. Headings begin in the first column, and nothing else does but titles.
fn section_number(line: &str) -> Option<String> {
    if let Some(appendix) = line.strip_prefix("Appendix ") {
        return Some(appendix.split(['.', ' ']).next()?.to_owned());
    }
    let (number, title) = line.split_once(' ')?;
    let number = number.trim_end_matches('.');
    let mut parts = number.split('.');
    let first = parts.next()?;
    let is_letter = first.len() == 1 && first.starts_with(|c: char| c.is_ascii_uppercase());
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_heading = (is_number(first) || is_letter && number.contains('.'))
        && parts.all(is_number)
        && !title.trim().is_empty();
    is_heading.then(|| number.to_owned())
}

/// Takes the sentences out of the paragraph. Where a page ends within one, an empty line follows text without a full
/// stop.
fn end_paragraph(paragraph: &mut String, section: &str, found: &mut Vec<Sentence>, is_end: bool) {
    let goes_on = !paragraph
        .trim_end()
        .ends_with(['.', ':', ';', '>', '?', '|', '+']);
    if goes_on && !is_end {
        return;
    }
    let text = std::mem::take(paragraph);
    let words: Vec<&str> = text.split_whitespace().collect();
    for sentence in split(&words) {
        if sentence.iter().any(|word| is_keyword(word)) {
            found.push(Sentence {
                section: section.to_owned(),
                text: sentence.join(" "),
            });
        }
    }
}

/// Splits after each word that ends a sentence. Such a word has a full stop or a colon, and the next word does not
/// begin in lower case.
fn split<'a>(words: &'a [&'a str]) -> impl Iterator<Item = &'a [&'a str]> {
    let mut rest = words;
    std::iter::from_fn(move || {
        let ends = |index: &usize| {
            let word = rest[*index].trim_end_matches([')', '"', ']']);
            let next = rest.get(index + 1);
            word.ends_with(['.', '?'])
                && word != ".."
                && !["e.g.", "i.e.", "Sec.", "vs.", "et.", "al."].contains(&word)
                && next.is_none_or(|next| !next.starts_with(|c: char| c.is_lowercase()))
        };
        let len = (0..rest.len())
            .find(ends)
            .map_or(rest.len(), |index| index + 1);
        let (sentence, behind) = rest.split_at(len);
        rest = behind;
        (!sentence.is_empty()).then_some(sentence)
    })
}

fn is_keyword(word: &str) -> bool {
    KEYWORDS.contains(&word.trim_matches(|c: char| !c.is_ascii_alphabetic()))
}

impl Sentence {
    /// Some words around the first keyword.
    pub(super) fn excerpt(&self) -> String {
        let words: Vec<&str> = self.text.split(' ').collect();
        let at = words.iter().position(|word| is_keyword(word)).unwrap_or(0);
        let first = at.saturating_sub(WORDS_BEFORE);
        let last = (at + WORDS_AFTER + 1).min(words.len());
        words[first..last].join(" ")
    }

    /// 32 bits of FNV-1a over the text: tells the sentences of one RFC apart, and notices that a text has changed.
    pub(super) fn digest(&self) -> String {
        let hash = fnv1a(self.text.bytes());
        format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
    }
}

/// FNV-1a, 64 bits.
pub(super) fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
