//! The best response of several branches (RFC 3261 §16.7 steps 6 and 7).

use sip::header::HeaderKind;
use sip::message::Message;

/// Most bytes of merged challenges; further challenges are left out.
const MAX_CHALLENGES: usize = 8 << 10;

/// The best final response so far.
#[derive(Debug, Default)]
pub(super) struct Best {
    /// 0 if there is none.
    pub(super) code: u16,
    /// As it is to be forwarded; empty for one that this proxy makes.
    pub(super) bytes: Box<[u8]>,
    /// The code is this server's own: a 503 of its own is one.
    pub(super) is_own: bool,
    /// The request was not sent, because the next hop has asked for fewer requests (RFC 7339).
    pub(super) is_throttled: bool,
    /// Challenges of all 401 and 407, whole header lines.
    pub(super) challenges: Vec<u8>,
    /// How many responses they are from.
    pub(super) challengers: u32,
}

impl Best {
    /// Whether a response with this code is better than the best so far. Among equals, the first one is the best.
    pub(super) fn is_beaten_by(&self, code: u16) -> bool {
        self.code == 0 || rank(code) < rank(self.code)
    }

    /// Notes a final response that this server makes itself.
    pub(super) fn add_own(&mut self, code: u16) {
        if self.is_beaten_by(code) {
            self.code = code;
            self.is_own = true;
            self.is_throttled = false;
            self.bytes = Box::default();
        }
    }

    /// Notes that the request was not sent because of a throttle. The caller gets "a 503 (Service Unavailable) response
    /// without the Retry-After header" (RFC 7339 §5.10). With the field, the caller would also stop requests that this
    /// server can send elsewhere.
    pub(super) fn add_throttled(&mut self) {
        if self.is_beaten_by(503) {
            self.add_own(503);
            self.is_throttled = true;
        }
    }

    /// Notes the challenges of a 401 or 407.
    pub(super) fn add_challenges(&mut self, response: &Message<'_>) {
        self.challengers += 1;
        for kind in [HeaderKind::WwwAuthenticate, HeaderKind::ProxyAuthenticate] {
            for header in response.headers(kind) {
                if self.challenges.len() + header.line.len() <= MAX_CHALLENGES {
                    self.challenges.extend_from_slice(header.line);
                }
            }
        }
    }
}

/// The place of a response among others; the lowest is forwarded.
///
/// A 6xx comes first, then the lowest class. Among 4xx, responses that tell the caller how to try again come first.
/// Then come those that a user or a user agent has decided, and in the end those without a decision (cancelled, looped,
/// timed out).
fn rank(code: u16) -> u16 {
    match code {
        600.. => 0,
        300..=399 => 10,
        401 | 407 => 20,
        412 | 413 | 414 | 415 | 416 | 420 | 421 | 422 | 423 | 428 | 429 | 436 | 437 | 438 | 439
        | 470 | 484 | 488 | 493 | 494 => 21,
        486 => 22,
        480 => 23,
        404 | 410 | 403 => 25,
        // No decision: cancelled, looped, or no response.
        487 => 26,
        482 | 483 => 27,
        430 | 440 => 28,
        408 => 29,
        400..=499 => 24,
        // RFC 3261 §16.7 step 6: a 503 is not forwarded as one.
        503 => 41,
        _ => 40,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_6xx_then_the_lowest_class_then_what_helps_the_caller_rfc3261_16_7() {
        let order = [603, 302, 401, 484, 486, 480, 404, 487, 482, 408, 500, 503];
        for (place, better) in order.iter().enumerate() {
            for worse in &order[place + 1..] {
                let best = Best {
                    code: *worse,
                    ..Best::default()
                };
                assert!(best.is_beaten_by(*better), "{better} before {worse}");
                let best = Best {
                    code: *better,
                    ..Best::default()
                };
                assert!(!best.is_beaten_by(*worse), "{better} before {worse}");
            }
        }
        assert!(Best::default().is_beaten_by(503), "none is worse than any");
        let first = Best {
            code: 486,
            ..Best::default()
        };
        assert!(!first.is_beaten_by(486), "the first of equals");
    }
}
