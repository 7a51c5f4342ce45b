//! Finding functions and their length in Rust text, those inside macro calls included.
//!
//! Not a parser: comments, strings and character literals are blanked out first; after that a `fn` with a name and
//! the braces that follow it can be counted as they stand.

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of its `fn`, from 1.
    pub(crate) line: usize,
    /// From the line of `fn` to the line of the closing brace, both counted.
    pub(crate) lines: usize,
    /// Whether a `// long: WHY` stands above it.
    pub(crate) has_reason: bool,
    /// Whether it is a test.
    pub(crate) is_test: bool,
}

/// The text with every comment, string and character literal turned into spaces. Lines stay where they are.
pub(crate) fn code_only(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    let mut previous = ' ';
    while let Some(next) = rest.chars().next() {
        let in_word = previous.is_alphanumeric() || previous == '_';
        let blanked = comment(rest).or_else(|| if in_word { quoted(rest) } else { literal(rest) });
        let (length, keep) = blanked.map_or((next.len_utf8(), true), |length| (length, false));
        let (taken, after) = rest.split_at(length);
        if keep {
            code.push(next);
        } else {
            code.extend(taken.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        previous = if keep { next } else { ' ' };
        rest = after;
    }
    code
}

/// Length of the comment that `text` starts with.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    // Block comments nest.
    let mut depth = 0_usize;
    let mut at = 0;
    loop {
        let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) else {
            return Some(text.len());
        };
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
}

/// Length of the literal that `text` starts with, its prefix (`b`, `r#`, `c`, ..) included.
fn literal(text: &str) -> Option<usize> {
    let prefix = text.len() - text.trim_start_matches(['b', 'c', 'r']).len();
    let raw = text.get(..prefix)?.contains('r');
    let after = text.get(prefix..)?;
    let hashes = if raw {
        after.len() - after.trim_start_matches('#').len()
    } else {
        0
    };
    let body = after.get(hashes..)?;
    if raw && body.starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let length = body
            .get(1..)?
            .find(&end)
            .map_or(body.len(), |at| 1 + at + end.len());
        return Some(prefix + hashes + length);
    }
    if raw {
        None
    } else {
        quoted(after).map(|length| prefix + length)
    }
}

/// Length of the string or character that `text` starts with. A lifetime is neither.
fn quoted(text: &str) -> Option<usize> {
    let mut characters = text.char_indices();
    let (_, quote) = characters.next().filter(|(_, c)| matches!(c, '"' | '\''))?;
    if quote == '\'' {
        let second = characters.clone().next()?.1;
        let third = characters.clone().nth(1).map(|(_, c)| c);
        if second != '\\' && third != Some('\'') {
            return None;
        }
    }
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == quote {
            return Some(at + c.len_utf8());
        }
    }
    Some(text.len())
}

/// Every function of the text that has a body.
pub(crate) fn functions(text: &str) -> Vec<Function> {
    let code = code_only(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word = !code[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_');
        let name: String = code[at + 3..]
            .trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if !starts_word || name.is_empty() {
            continue;
        }
        let Some(end) = body_end(&code[at..]) else {
            continue;
        };
        let line = 1 + newlines(&code[..at]);
        found.push(Function {
            name,
            line,
            lines: 1 + newlines(&code[at..at + end]),
            has_reason: above(&lines, line).any(|text| super::is_reason(text, "// long:")),
            is_test: above(&lines, line).any(|text| text == "#[test]"),
        });
    }
    found
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}

/// Offset of the brace that closes the body of the function that `code` starts with; `None` if it has no body.
fn body_end(code: &str) -> Option<usize> {
    let mut braces = 0_usize;
    // Braces in brackets or parentheses of the signature (`[u8; { N }]`) are not the body.
    let mut brackets = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' if braces == 0 => brackets += 1,
            ')' | ']' if braces == 0 => brackets = brackets.checked_sub(1)?,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' if brackets == 0 => braces += 1,
            '}' if brackets == 0 => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The comments and attributes directly above line `line` (from 1), from below.
fn above<'a>(lines: &'a [&'a str], line: usize) -> impl Iterator<Item = &'a str> {
    let is_attached =
        |text: &&str| text.starts_with("//") || text.starts_with('#') || text.ends_with(']');
    lines[..line - 1]
        .iter()
        .rev()
        .map(|text| text.trim())
        .take_while(is_attached)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_and_lines(text: &str) -> Vec<(String, usize, usize)> {
        functions(text)
            .into_iter()
            .map(|f| (f.name, f.line, f.lines))
            .collect()
    }

    #[test]
    fn braces_in_strings_characters_and_comments_do_not_count() {
        let text = "fn a<'x>(s: &'x str) -> char {\n    // }\n    let _ = \"}\\\"}\"; let _ = r#\"}\"}\"#; /* } /* } */ */\n    '}'\n}\nfn b() {}\n";
        assert_eq!(
            names_and_lines(text),
            [("a".to_owned(), 1, 5), ("b".to_owned(), 6, 1)]
        );
    }

    #[test]
    fn functions_inside_macros_and_functions_are_found() {
        let text = "proptest! {\n    fn outer() {\n        fn inner() {\n        }\n    }\n}\n";
        assert_eq!(
            names_and_lines(text),
            [("outer".to_owned(), 2, 4), ("inner".to_owned(), 3, 2)]
        );
    }

    #[test]
    fn tests_are_told_from_other_functions() {
        let text = "#[test]\n#[should_panic]\nfn a() {}\n\nfn b() {}\n";
        let tests: Vec<bool> = functions(text).iter().map(|f| f.is_test).collect();
        assert_eq!(tests, [true, false]);
    }

    #[test]
    fn declarations_and_function_types_are_not_functions() {
        assert!(
            names_and_lines(
                "trait T { fn declared(&self) -> [u8; { 4 }]; }\ntype F = fn (u8) -> u8;\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn byte_strings_and_words_that_end_like_a_prefix() {
        let text =
            "fn a() { let _ = (b\"{\", b'{', br\"{\", c\"{\"); }\nfn b() { for_r!(\"{\") }\n";
        assert_eq!(
            names_and_lines(text),
            [("a".to_owned(), 1, 1), ("b".to_owned(), 2, 1)]
        );
    }
}
