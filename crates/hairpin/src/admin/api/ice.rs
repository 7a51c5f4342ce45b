//! TURN credentials for clients, as JSON of draft-uberti-behave-turn-rest, and as `iceServers` of RTCPeerConnection.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::problem::Problem;
use super::values::Query;
use super::{Applied, Inner};
use crate::commands::creds;

/// Lifetimes in seconds. Below a minute, credentials can expire before the call begins. Above a day, they are as risky
/// as passwords.
const TTL: std::ops::RangeInclusive<u64> = 60..=86_400;
/// RFC 8489 §14.3: USERNAME has fewer than 509 bytes. It consists of ten digits, a colon, and this name.
const MAX_NAME: usize = 400;
/// Responses per second: the rate of the token bucket. Each response requires an HMAC.
const PER_SECOND: f64 = 50.0;
/// Size of the token bucket.
const BURST_REQUESTS: f64 = 100.0;

/// A token bucket.
#[derive(Debug)]
pub(super) struct Bucket(Mutex<(f64, Instant)>);

impl Default for Bucket {
    fn default() -> Self {
        Self(Mutex::new((BURST_REQUESTS, Instant::now())))
    }
}

impl Bucket {
    /// Whether a token was left. Takes it.
    fn take(&self, now: Instant) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = now.saturating_duration_since(bucket.1).as_secs_f64();
        let level = (bucket.0 + since * PER_SECOND).min(BURST_REQUESTS);
        let is_enough = level >= 1.0;
        *bucket = (if is_enough { level - 1.0 } else { level }, now);
        is_enough
    }
}

pub(super) fn servers(inner: &Inner, query: &Query) -> Result<Value, Problem> {
    if let Some(other) = query.get("service").filter(|service| *service != "turn") {
        let message = format!("service {other} is unknown: send service=turn");
        return Err(Problem::bad_request(message));
    }
    let ttl = query.number("ttl", TTL)?.unwrap_or(*TTL.end());
    let name = query.get("username").unwrap_or_default();
    if name.len() > MAX_NAME || name.chars().any(char::is_control) {
        let message = format!(
            "username is too long or has control characters: send at most {MAX_NAME} bytes"
        );
        return Err(Problem::bad_request(message));
    }
    if !inner.bucket.take(Instant::now()) {
        let message = format!("more than {PER_SECOND} requests per second: try again in a second");
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, message));
    }
    let applied = inner.shared.applied();
    let secret = secret(inner, &applied).ok_or_else(|| {
        Problem::conflict("no secret for time-limited credentials is configured: set auth.secrets, or add one with hairpin secret add")
    })?;
    let expires = creds::now_unix_s().saturating_add(ttl);
    let made = creds::make(&secret, name, expires, applied.uris.clone());
    Ok(json!({
        "username": made.username,
        "password": made.password,
        "ttl": ttl,
        "uris": made.uris,
        "iceServers": [{
            "urls": made.uris,
            "username": made.username,
            "credential": made.password,
        }],
    }))
}

/// The first secret of `auth.secrets`. Without one, the first secret of the default realm in a store.
fn secret(inner: &Inner, applied: &Applied) -> Option<String> {
    applied.secret.clone().or_else(|| {
        inner.shared.source.stores().iter().find_map(|store| {
            let shared = store.shared()?;
            let is_ours = |realm: &str| realm.is_empty() || realm == applied.realm;
            let found = shared.secrets.iter().find(|(realm, _)| is_ours(realm))?;
            Some(found.1.clone())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_admitted_and_then_so_many_per_second() {
        let bucket = Bucket::default();
        let now = Instant::now();
        let count = (0..1_000).filter(|_| bucket.take(now)).count();
        assert_eq!(count, 100);
        let later = now + Duration::from_secs(1);
        let count = (0..1_000).filter(|_| bucket.take(later)).count();
        assert_eq!(count, 50);
    }
}
