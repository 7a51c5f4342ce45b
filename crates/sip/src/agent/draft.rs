//! A request of a user agent, before it has a Via: kept as long as it may have to be sent again with other credentials.

use super::event::CallError;
use crate::Method;
use crate::build::{BuildError, Builder, Part, fold_free_pieces};
use crate::header::{HeaderKind, NameAddr};
use crate::message::Message;
use crate::uri::Uri;

/// A body and its media type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Content-Type, such as `application/sdp`; empty if there is no body.
    pub media_type: String,
    /// The body.
    pub bytes: Vec<u8>,
}

impl Content {
    /// No body.
    #[must_use]
    pub const fn none() -> Content {
        Content {
            media_type: String::new(),
            bytes: Vec::new(),
        }
    }

    /// A session description (RFC 8866).
    #[must_use]
    pub fn sdp(description: impl Into<Vec<u8>>) -> Content {
        Content {
            media_type: "application/sdp".to_owned(),
            bytes: description.into(),
        }
    }

    /// Whether there is no body.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The body of a message.
    pub(super) fn of(message: &Message<'_>) -> Content {
        let media_type = message.header(HeaderKind::ContentType);
        let media_type = media_type.filter(|_| !message.body().is_empty());
        let media_type = media_type.map_or_else(String::new, |it| {
            String::from_utf8_lossy(&unfolded(it.value)).into_owned()
        });
        Content {
            media_type,
            bytes: message.body().to_vec(),
        }
    }

    /// Adds Content-Type to header lines of a response.
    pub(super) fn add_type(&self, lines: &mut Vec<u8>) {
        if !self.is_empty() {
            lines.extend_from_slice(format!("Content-Type: {}\r\n", self.media_type).as_bytes());
        }
    }

    pub(super) fn check(&self) -> Result<(), CallError> {
        let is_typed = self.media_type.contains('/');
        let is_one_line = !self.media_type.contains(['\r', '\n']);
        match is_one_line && (is_typed || self.is_empty()) {
            true => Ok(()),
            false => Err(CallError::Lines),
        }
    }
}

/// A value without folds (RFC 3261 §7.3.1), as it can be written again.
pub(super) fn unfolded(value: &[u8]) -> Vec<u8> {
    let pieces: Vec<&[u8]> = fold_free_pieces(value).collect();
    pieces.join(&b' ')
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) method: Vec<u8>,
    /// The Request-URI.
    pub(super) uri: Vec<u8>,
    /// The values of Route.
    pub(super) routes: Vec<Vec<u8>>,
    /// The URI that says where it goes (RFC 3261 §8.1.2).
    pub(super) next_hop: Vec<u8>,
    /// The route set of its dialog; `None` outside of dialogs.
    pub(super) route_set: Option<Vec<Vec<u8>>>,
    /// The value of From, with its tag.
    pub(super) from: Vec<u8>,
    /// The value of To.
    pub(super) to: Vec<u8>,
    pub(super) call_id: Vec<u8>,
    pub(super) cseq: u32,
    /// Further header lines, each with its line end.
    pub(super) lines: Vec<u8>,
    pub(super) content: Content,
    /// The lines of the credentials that it was sent with.
    pub(super) credentials: Vec<u8>,
    /// The realms that have challenged it, or a request before it in the same call.
    pub(super) realms: Vec<RealmName>,
    /// Realms that have challenged this request itself.
    pub(super) challenged: Vec<RealmName>,
}

/// Authorization or Proxy-Authorization, and a realm.
pub(super) type RealmName = (HeaderKind, Vec<u8>);

impl Draft {
    /// The whole request without a Via.
    pub(super) fn write(&self) -> Result<Vec<u8>, BuildError> {
        let routes: usize = self.routes.iter().map(|route| route.len() + 16).sum();
        let texts = [
            &self.method,
            &self.uri,
            &self.from,
            &self.to,
            &self.call_id,
            &self.lines,
            &self.credentials,
            &self.content.bytes,
        ];
        let length: usize = texts.iter().map(|text| text.len()).sum();
        // The method is also in CSeq. 256 bytes are for field names and numbers.
        let room = length + routes + self.method.len() + self.content.media_type.len() + 256;
        let mut buffer = vec![0; room];
        let method = Method::of(&self.method);
        let mut builder = Builder::request(&mut buffer, method, &self.uri);
        for route in &self.routes {
            builder.header(HeaderKind::Route, route);
        }
        builder
            .number(HeaderKind::MaxForwards, 70)
            .header(HeaderKind::From, &self.from)
            .header(HeaderKind::To, &self.to)
            .header(HeaderKind::CallId, &self.call_id);
        let number = Part::Number(self.cseq);
        let name = [number, Part::Bytes(b" "), Part::Bytes(&self.method)];
        builder.header_of(HeaderKind::CSeq, &name);
        builder.raw(&self.credentials).raw(&self.lines);
        if !self.content.is_empty() {
            let media_type = self.content.media_type.as_bytes();
            builder.header(HeaderKind::ContentType, media_type);
        }
        let length = builder.finish_with(&self.content.bytes)?.len();
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// Where a request goes: Request-URI, Route values and next hop, of a target and a route set (RFC 3261 §12.2.1.1).
pub(super) struct Path {
    pub(super) uri: Vec<u8>,
    pub(super) routes: Vec<Vec<u8>>,
    pub(super) next_hop: Vec<u8>,
}

impl Path {
    pub(super) fn new(target: &[u8], routes: &[Vec<u8>]) -> Path {
        // RFC 3261 §19.1.1: a Request-URI has no headers. A user part may have a question mark.
        let host = target.iter().position(|byte| *byte == b'@').unwrap_or(0);
        let rest = target.get(host..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == b'?');
        let end = end.map_or(target.len(), |end| host + end);
        let target = target.get(..end).unwrap_or_default();
        let first = routes.first().and_then(|route| uri_of(route));
        let Some(first) = first else {
            return Path {
                uri: target.to_vec(),
                routes: Vec::new(),
                next_hop: target.to_vec(),
            };
        };
        let is_loose = matches!(Uri::parse(first), Ok(Uri::Sip(uri)) if uri.is_loose());
        if is_loose {
            return Path {
                uri: target.to_vec(),
                routes: routes.to_vec(),
                next_hop: first.to_vec(),
            };
        }
        // A strict router wants its own URI as the Request-URI, and the target at the end.
        let mut others = routes.get(1..).unwrap_or_default().to_vec();
        others.push([b"<", target, b">"].concat());
        Path {
            uri: first.to_vec(),
            routes: others,
            next_hop: first.to_vec(),
        }
    }
}

/// The URI in a value of Route.
fn uri_of(route: &[u8]) -> Option<&[u8]> {
    NameAddr::list(route).first().map(|first| first.uri)
}

/// Checks header lines of the program: each has its line end, and none is empty, which would end the header.
pub(super) fn check_lines(lines: &[u8]) -> Result<(), CallError> {
    let Some(inner) = lines.strip_suffix(b"\r\n") else {
        return match lines {
            [] => Ok(()),
            _ => Err(CallError::Lines),
        };
    };
    let mut all = inner.split(|byte| *byte == b'\n');
    let last = all.next_back().unwrap_or_default();
    let is_field = |line: &[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let is_token = !name.is_empty() && crate::chars::all(name, crate::chars::TOKEN);
        is_token && name.len() < line.len() && !line.contains(&b'\r')
    };
    let are_fields = all.all(|line| line.strip_suffix(b"\r").is_some_and(is_field));
    match are_fields && is_field(last) {
        true => Ok(()),
        false => Err(CallError::Lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_program_are_whole_fields() {
        for good in [
            "",
            "Subject: a\r\n",
            "Subject: a\r\nX-B: c\r\n",
            "Subject:\r\n",
        ] {
            assert_eq!(check_lines(good.as_bytes()), Ok(()), "{good:?}");
        }
        for bad in [
            "Subject: a",
            "\r\n",
            "Subject: a\r\n\r\n",
            "Subject: a\r\n\r\nX: b\r\n",
            "Subject: a\nX: b\r\n",
            "Subject: a\rX: b\r\n",
            "no colon\r\n",
            ": no name\r\n",
        ] {
            assert_eq!(
                check_lines(bad.as_bytes()),
                Err(CallError::Lines),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_path_follows_loose_and_strict_routers_rfc3261_12_2_1_1() {
        let texts = |routes: &[&str]| -> Vec<Vec<u8>> {
            routes.iter().map(|it| it.as_bytes().to_vec()).collect()
        };
        let path = Path::new(b"sip:b@h?x=y", &[]);
        assert_eq!(
            (&path.uri[..], &path.next_hop[..]),
            (&b"sip:b@h"[..], &b"sip:b@h"[..])
        );
        let path = Path::new(b"sip:b@h", &texts(&["<sip:p1;lr>", "<sip:p2;lr>"]));
        assert_eq!(
            (&path.uri[..], &path.next_hop[..]),
            (&b"sip:b@h"[..], &b"sip:p1;lr"[..])
        );
        assert_eq!(path.routes, texts(&["<sip:p1;lr>", "<sip:p2;lr>"]));
        let path = Path::new(b"sip:b@h", &texts(&["<sip:old>", "<sip:p2;lr>"]));
        assert_eq!(
            (&path.uri[..], &path.next_hop[..]),
            (&b"sip:old"[..], &b"sip:old"[..])
        );
        assert_eq!(path.routes, texts(&["<sip:p2;lr>", "<sip:b@h>"]));
    }
}
