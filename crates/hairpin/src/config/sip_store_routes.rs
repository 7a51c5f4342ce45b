//! Routes of the SIP proxy in a store: the keys of `[[sip.route]]` as text, read as a configuration file is.

use server::sip::routes::Route;
use stores::{SipRouteRow, SipRouteValue};

use super::diagnostics::{Report, Severity};
use super::schema::Settings;
use super::setting::quote;
use super::source::{Layer, Sources};
use super::suggest::nearest;
use super::{sip_routes, walk};

/// The route of a row.
///
/// # Errors
/// What is wrong with the row, and what to do.
pub(crate) fn route_of_store(row: &SipRouteRow) -> Result<Route, String> {
    let mut text = format!("[[sip.route]]\nname = {}\n", literal(&row.name));
    for (key, value) in &row.keys {
        let value = value.trim();
        // 0 is the default of the column `strip`, which must not stand beside `replace`.
        if value.is_empty() || key == "strip" && value == "0" {
            continue;
        }
        let value = match SipRouteRow::value_of(key) {
            Some(SipRouteValue::List) => array(value).map_err(|why| format!("{key}: {why}"))?,
            Some(SipRouteValue::Number) if is_number(value) => value.to_owned(),
            Some(SipRouteValue::Number | SipRouteValue::Text) => literal(value),
            None => return Err(unknown_key(key)),
        };
        text += &format!("{key} = {value}\n");
    }
    let mut sources = Sources::default();
    let source = sources.add(Layer::File, "row", &text);
    let (mut settings, mut report) = (Settings::default(), Report::default());
    walk::document(source, &text, &mut settings, &mut report);
    let diagnostics = report.sorted();
    let mut errors = diagnostics
        .iter()
        .filter(|it| it.severity == Severity::Error);
    if let Some(error) = errors.next() {
        return Err(error.without_place());
    }
    let routes = sip_routes::resolve(&settings).unwrap_or_default();
    routes
        .into_iter()
        .next()
        .ok_or_else(|| "the row has no keys".to_owned())
}

/// A text as TOML has it. Its `${` is no reference: who writes rows must not read files of this machine.
fn literal(text: &str) -> String {
    quote(&text.replace("${", "$${"))
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn unknown_key(key: &str) -> String {
    match nearest(key, SipRouteRow::KEYS.map(|(name, _)| name)) {
        Some(near) => format!("there is no key `{key}` (did you mean {near}?)"),
        None => format!("there is no key `{key}`"),
    }
}

/// A list as TOML has it.
fn array(text: &str) -> Result<String, &'static str> {
    let items: Vec<String> = match text.starts_with('[') {
        true => {
            let items: Vec<serde_json::Value> = serde_json::from_str(text)
                .map_err(|_| "it begins with [, but is no JSON array like [\"+49\", \"+43\"]")?;
            let items = items.into_iter().filter(|item| !item.is_null());
            let text = |item: serde_json::Value| match item {
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            items.map(text).collect()
        }
        false => {
            let items = text.split(',').map(str::trim);
            items
                .filter(|item| !item.is_empty())
                .map(str::to_owned)
                .collect()
        }
    };
    let quoted: Vec<String> = items.iter().map(|item| literal(item)).collect();
    Ok(format!("[{}]", quoted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::sip::routes::{Action, Hunt, Next};
    use std::time::Duration;

    fn row(name: &str, keys: &[(&str, &str)]) -> SipRouteRow {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        SipRouteRow {
            name: name.to_owned(),
            keys: keys.iter().map(pair).collect(),
        }
    }

    #[test]
    fn a_row_is_read_like_a_route_of_the_configuration() {
        let route = route_of_store(&row(
            "out",
            &[
                ("priority", "7"),
                ("prefixes", "+49, +43,"),
                ("from_networks", "192.0.2.0/24"),
                ("headers", "[\"X-Tenant: 7, 8\"]"),
                ("strip", "0"),
                ("replace", "reception"),
                ("trunks", "[\"a\", \"b\"]"),
                ("hunt", "weight"),
                ("on_busy", "next_route"),
                ("ring_time", "20s"),
            ],
        ));
        let route = route.expect("a route");
        assert_eq!((&*route.name, route.priority), ("out", 7));
        assert_eq!(route.prefixes, ["+49", "+43"]);
        assert_eq!(
            (route.from_networks.len(), route.from_networks[0].prefix),
            (1, 24)
        );
        assert_eq!(route.headers[0].value, "7, 8");
        assert_eq!(route.replace.as_deref(), Some("reception"));
        assert_eq!(
            route.action,
            Action::Trunks(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(
            (route.hunt, route.failures.busy),
            (Hunt::Weight, Next::NextRoute)
        );
        assert_eq!(route.ring_time, Duration::from_secs(20));
        let null = route_of_store(&row(
            "out",
            &[("trunks", "a"), ("prefixes", "[\"+49\", null]")],
        ));
        assert_eq!(null.expect("a route").prefixes, ["+49"]);
    }

    /// A list that is written as a text would be an error, and the other way round.
    #[test]
    fn each_key_has_the_values_that_the_configuration_knows() {
        for (key, value) in SipRouteRow::KEYS {
            let value = match (key, value) {
                (_, SipRouteValue::List) if key == "from_networks" => "192.0.2.0/24",
                (_, SipRouteValue::List) if key == "headers" => "X-Tenant: 7",
                (_, SipRouteValue::List) => "a",
                (_, SipRouteValue::Number) => "7",
                ("hunt", _) => "order",
                ("on_busy" | "on_no_answer" | "on_unreachable", _) => "next_route",
                ("reject", _) => "403 No",
                ("ring_time", _) => "20s",
                ("to_domain", _) => "a.example",
                _ => "a",
            };
            let is_action = ["trunks", "to_domain", "reject"].contains(&key);
            let action = (!is_action).then_some(("trunks", "a"));
            let keys: Vec<_> = [(key, value)].into_iter().chain(action).collect();
            let route = route_of_store(&row("out", &keys));
            assert!(route.is_ok(), "{key}: {route:?}");
        }
    }

    #[test]
    fn a_wrong_row_says_what_is_wrong() {
        for (keys, part) in [
            (&[][..], "leads nowhere"),
            (&[("trunks", "a"), ("reject", "403 No")], "several places"),
            (&[("reject", "200 OK")], "not a response"),
            (&[("trunks", "a"), ("priority", "high")], "whole number"),
            (&[("trunks", "a"), ("priority", "5000")], "out of range"),
            (
                &[("trunks", "a"), ("prefixes", "[\"+49\"")],
                "no JSON array",
            ),
            (&[("trunks", "a"), ("from_networks", "all")], "`all`"),
            (
                &[("trunks", "a"), ("strip", "2"), ("replace", "b")],
                "no effect",
            ),
            (&[("trunk", "a")], "did you mean trunks?"),
            (&[("trunks", "a"), ("ring_time", "${SECRET}")], "SECRET"),
        ] {
            let error = route_of_store(&row("out", keys)).expect_err(part);
            assert!(error.contains(part), "{keys:?}: {error}");
        }
        assert!(route_of_store(&row("", &[("trunks", "a")])).is_err());
        // References to files and the environment are texts here.
        let reject = "403 ${file:/etc/hostname} ${HOME}";
        let route = route_of_store(&row("out", &[("reject", reject)]));
        let route = format!("{:?}", route.expect("a route"));
        assert!(route.contains("${file:/etc/hostname} ${HOME}"), "{route}");
        for key in ["prefixes", "add"] {
            let keys = [("trunks", "a"), (key, "${file:/etc/hostname}")];
            let outcome = route_of_store(&row("out", &keys));
            let outcome = format!("{outcome:?}");
            assert!(
                outcome.contains("${file:/etc/hostname}"),
                "{key}: {outcome}"
            );
        }
        // A value cannot add a key.
        let error = route_of_store(&row(
            "out",
            &[("trunks", "a"), ("hunt", "order\"\npriority = 9 #")],
        ));
        assert!(error.expect_err("a refusal").contains("unknown value"));
    }
}
