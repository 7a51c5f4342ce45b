//! The parameters and the JSON body of a request.

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The parameters of a URI, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the part of a URI after `?`.
    pub(super) fn read(query: Option<&str>) -> Result<Self, Problem> {
        let pairs = query.unwrap_or_default().split('&');
        let pairs = pairs.filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((
                decode(&name.replace('+', " "))?,
                decode(&value.replace('+', " "))?,
            ))
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }

    /// Rejects unknown and repeated parameters.
    pub(super) fn allow(&self, known: &[&str]) -> Result<(), Problem> {
        for (place, (name, _)) in self.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let list = match known {
                    [] => "this path has no parameters".to_owned(),
                    known => format!("use {}", known.join(", ")),
                };
                let message = format!("unknown parameter {name}: {list}");
                return Err(Problem::bad_request(message));
            }
            if self.0[..place].iter().any(|(other, _)| other == name) {
                let message = format!("the parameter {name} occurs twice: send it once");
                return Err(Problem::bad_request(message));
            }
        }
        Ok(())
    }

    /// The value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that is a number.
    pub(super) fn number(
        &self,
        name: &str,
        allowed: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|number| allowed.contains(number));
        let (from, to) = (allowed.start(), allowed.end());
        let wrong = || Problem::bad_request(format!("{name} is not a number from {from} to {to}"));
        number.ok_or_else(wrong).map(Some)
    }
}

/// Decodes percent-encoded bytes, such as `%41` (RFC 3986 §2.1).
pub(super) fn decode(text: &str) -> Result<String, Problem> {
    let wrong = || Problem::bad_request(format!("{text} is not percent-encoded UTF-8"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).ok_or_else(wrong)?;
        let value = |digit: u8| char::from(digit).to_digit(16);
        let high = value(digits[0]).ok_or_else(wrong)?;
        let low = value(digits[1]).ok_or_else(wrong)?;
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

/// Reads a body of at most this many bytes.
pub(super) async fn body(most: usize, body: Incoming) -> Result<Bytes, Problem> {
    let body = Limited::new(body, most).collect().await;
    let body = body.map_err(|_| {
        let message = format!("the body is incomplete or too long: send at most {most} bytes");
        Problem::bad_request(message)
    })?;
    Ok(body.to_bytes())
}

/// Reads the JSON of a body. An empty body counts as `{}`.
pub(super) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let text: &[u8] = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(text).map_err(|error| {
        Problem::bad_request(format!(
            "the body is not valid ({error}): see /api/v1/openapi.json"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::read(Some("user=1735689600%3Ao%27neil&limit=5&x=a+b")).unwrap();
        assert_eq!(query.get("user"), Some("1735689600:o'neil"));
        assert_eq!(query.get("x"), Some("a b"));
        assert_eq!(query.number("limit", 1..=5), Ok(Some(5)));
        assert!(query.number("limit", 1..=4).is_err());
        assert!(query.number("user", 1..=4).is_err());
        assert!(query.allow(&["user", "limit", "x"]).is_ok());
        assert!(query.allow(&["user"]).is_err());
        assert!(Query::read(Some("a=1&a=2")).unwrap().allow(&["a"]).is_err());
        for wrong in ["%", "%4", "%zz", "%ff"] {
            assert!(decode(wrong).is_err(), "{wrong}");
        }
    }
}
