//! The fields of a log event as JSON values. A field that holds a list is an array.

use std::fmt::Debug;

use serde_json::Value;
use tracing::field::{Field, Visit};

/// Calls a function for each field, with its name. The field of the message is `message`.
pub(crate) struct Fields<F: FnMut(&'static str, Value)>(pub(crate) F);

impl<F: FnMut(&'static str, Value)> Visit for Fields<F> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0(field.name(), Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0(field.name(), Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0(field.name(), Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0(field.name(), Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0(field.name(), Value::from(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        let list = match text.starts_with('[') && text.ends_with(']') {
            true => parse_list(&text, &format!("{value:#?}")),
            false => None,
        };
        self.0(field.name(), list.unwrap_or_else(|| Value::from(text)));
    }
}

/// The elements of a list. `text` is the list by `{:?}`; `lines` is the list by `{:#?}`, with a line per element.
/// `None` for anything else, such as a list of lists. Text that only looks like a list is the same in both.
fn parse_list(text: &str, lines: &str) -> Option<Value> {
    if text == "[]" {
        return Some(Value::Array(Vec::new()));
    }
    if text == lines {
        return None;
    }
    let lines = lines.strip_prefix("[\n")?.strip_suffix(",\n]")?;
    let lines = lines.split(",\n").map(|line| line.strip_prefix("    "));
    lines
        .map(|line| element(line?))
        .collect::<Option<_>>()
        .map(Value::Array)
}

/// One element. Strings and whole numbers are as in JSON; an address is text.
fn element(text: &str) -> Option<Value> {
    let is_number = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'-');
    if is_number || text.starts_with('"') {
        return serde_json::from_str(text).ok();
    }
    let is_nested = text.contains('\n') || text.ends_with(['{', '[', '(']);
    (!is_nested).then(|| Value::from(text))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn lists_become_arrays_and_other_values_stay_text() {
        let addresses: [SocketAddr; 2] =
            ["127.0.0.1:80".parse().unwrap(), "[::1]:80".parse().unwrap()];
        let cases: [(&dyn Debug, Option<&str>); 9] = [
            (&addresses, Some(r#"["127.0.0.1:80","[::1]:80"]"#)),
            (&["a", "b \"c\", d"], Some(r#"["a","b \"c\", d"]"#)),
            (&["\u{7f}"], None),
            (&[1, -2], Some("[1,-2]")),
            (&[0; 0], Some("[]")),
            (&[[1]], None),
            (&[Some(1)], None),
            (&format_args!("[::1]"), None),
            (&format_args!("[\n    x,\n]"), None),
        ];
        for (value, expected) in cases {
            let list = parse_list(&format!("{value:?}"), &format!("{value:#?}"));
            assert_eq!(
                list.map(|value| value.to_string()).as_deref(),
                expected,
                "{value:?}"
            );
        }
    }
}
