//! Access control of the API: a request requires a token of the configuration. A client on this machine can read
//! without one.
//!
//! A page of another site must not use the API through a browser on this machine. Such a page does not have the token.
//! Browsers mark its requests with `Sec-Fetch-Site`, and the server rejects them. `Host` must name loopback, which
//! stops DNS rebinding.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName};
use hyper::{StatusCode, Uri};
use subtle::ConstantTimeEq;

use super::problem::Problem;
use super::routes::Access;
use super::values::Query;
use crate::admin::http::Peer;
use crate::config::AdminTokens;

/// A reverse proxy on this machine adds one of these header fields. Its clients can be on other hosts.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// The sender of a request, as the audit log names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller(pub(super) String);

/// Checks whether this request is allowed.
pub(super) fn check(
    headers: &HeaderMap,
    query: &Query,
    peer: &Peer,
    wanted: Access,
    tokens: &AdminTokens,
) -> Result<Caller, Problem> {
    if headers
        .get("sec-fetch-site")
        .is_some_and(|site| site == "cross-site" || site == "same-site")
    {
        let why = "the server rejects requests from pages of other sites: open the page of this server itself";
        return Err(Problem::new(StatusCode::FORBIDDEN, why));
    }
    match token(headers, query, wanted) {
        Some(token) => by_token(&token, peer, wanted, tokens),
        None if wanted == Access::Read && is_on_this_machine(headers, peer) => {
            Ok(Caller(format!("{}", peer.address.ip())))
        }
        None => Err(missing_token(tokens)),
    }
}

fn missing_token(tokens: &AdminTokens) -> Problem {
    if tokens.is_empty() {
        let why = "no token is configured: set admin.tokens, reload, and send one as Authorization: Bearer TOKEN";
        return Problem::new(StatusCode::FORBIDDEN, why);
    }
    let why = "a token is required: send one of admin.tokens as Authorization: Bearer TOKEN";
    Problem::new(StatusCode::UNAUTHORIZED, why)
}

/// The token of a request. Requests for TURN credentials can have it in the parameter `key`, as in
/// draft-uberti-behave-turn-rest.
fn token(headers: &HeaderMap, query: &Query, wanted: Access) -> Option<String> {
    let given = headers.get(AUTHORIZATION);
    if let Some(given) = given {
        let text = given.to_str().unwrap_or_default();
        let (scheme, token) = text.split_once(' ').unwrap_or_default();
        let is_bearer = scheme.eq_ignore_ascii_case("bearer");
        return Some(if is_bearer { token.trim() } else { "" }.to_owned());
    }
    let key = query.get("key").filter(|_| wanted == Access::Credentials);
    key.map(str::to_owned)
}

fn by_token(
    token: &str,
    peer: &Peer,
    wanted: Access,
    tokens: &AdminTokens,
) -> Result<Caller, Problem> {
    if peer.has_tls && !peer.is_tls && !is_loopback(peer.address.ip()) {
        let why = "the server rejects tokens from other hosts over HTTP: use https, and replace this token, because it was sent unencrypted";
        return Err(Problem::new(StatusCode::FORBIDDEN, why));
    }
    let caller = |name: &str, number: usize| {
        let place = peer.address.ip();
        Caller(format!("{name} {} at {place}", number + 1))
    };
    if let Some(number) = position(&tokens.all, token) {
        return Ok(caller("admin.tokens", number));
    }
    match position(&tokens.credentials, token) {
        Some(number) if wanted == Access::Credentials => {
            Ok(caller("admin.credential_tokens", number))
        }
        Some(_) => {
            let why = "this token is valid for /api/v1/ice-servers only: use one of admin.tokens";
            Err(Problem::new(StatusCode::FORBIDDEN, why))
        }
        None => {
            let why = "this token is not in admin.tokens: check the token, or add it and reload";
            Err(Problem::new(StatusCode::UNAUTHORIZED, why))
        }
    }
}

/// Constant time: an attacker can measure the lengths of the tokens only.
fn position(tokens: &[String], given: &str) -> Option<usize> {
    let is_it = |token: &String| bool::from(token.as_bytes().ct_eq(given.as_bytes()));
    tokens.iter().position(is_it)
}

fn is_on_this_machine(headers: &HeaderMap, peer: &Peer) -> bool {
    let forwarded = FORWARDED.map(HeaderName::from_static);
    is_loopback(peer.address.ip())
        && !forwarded.iter().any(|name| headers.contains_key(name))
        && headers
            .get(HOST)
            .and_then(|host| host.to_str().ok())
            .is_some_and(names_loopback)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether `Host` is `localhost` or a loopback address. No DNS server can point these to another host.
fn names_loopback(host: &str) -> bool {
    let Ok(uri) = host.parse::<Uri>() else {
        return false;
    };
    let name = uri.host().unwrap_or_default();
    let ip = name.trim_start_matches('[').trim_end_matches(']').parse();
    name == "localhost" || ip.is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_loopback_are_accepted() {
        for host in [
            "localhost",
            "localhost:9641",
            "127.0.0.1:9641",
            "[::1]:9641",
        ] {
            assert!(names_loopback(host), "{host}");
        }
        for host in [
            "",
            "evil.example:9641",
            "192.0.2.1",
            "localhost.evil.example",
            "[",
        ] {
            assert!(!names_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_compared_as_a_whole() {
        let tokens = ["abcdef".to_owned(), "abc".to_owned()];
        assert_eq!(position(&tokens, "abc"), Some(1));
        assert_eq!(position(&tokens, "abcd"), None);
        assert_eq!(position(&tokens, ""), None);
    }
}
