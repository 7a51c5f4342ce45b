//! Requests within a dialog, made from the 2xx that began it (RFC 3261 §12.2.1.1).

use super::{BuildError, Builder, Part, fold_free_pieces};
use crate::Method;
use crate::header::{HeaderKind, NameAddr};
use crate::message::Message;
use crate::uri::{SipUri, Uri};

/// A request in the dialog, and where it goes next.
#[derive(Clone, Copy, Debug)]
pub struct DialogRequest<'b> {
    /// The request, without a Via of ours: the pieces of [`crate::engine::Outgoing`], or of
    /// [`crate::dispatch::OutgoingRequest`].
    pub bytes: &'b [u8],
    /// The URI that says where it goes: of the topmost Route, or the Request-URI (§8.1.2).
    pub next_hop: &'b [u8],
}

/// What the UAS sends in a dialog that `response`, a 2xx of its own, has begun: BYE, mostly. `remote_target` is the URI
/// of the Contact of the request that it answered, `cseq` the number of this request.
///
/// The route set is that of the Record-Route fields, which the 2xx has from its request, in their order (§12.1.1).
///
/// # Errors
/// [`BuildError::Malformed`] if the response lacks a field that the request needs.
pub fn request_of_uas<'b>(
    buffer: &'b mut [u8],
    method: Method<'_>,
    response: &Message<'_>,
    remote_target: &[u8],
    cseq: u32,
) -> Result<DialogRequest<'b>, BuildError> {
    let routes: Result<Vec<NameAddr<'_>>, _> = response.record_routes().collect();
    let routes = routes.map_err(|_| BuildError::Malformed)?;
    let target = without_headers(remote_target);
    let first = routes.first();
    let is_strict = first.is_some_and(|first| !is_loose(first));
    // A strict router wants its own URI as the Request-URI, and the target at the end.
    let (request_uri, routes, last) = match (first, is_strict) {
        (Some(first), true) => (
            without_headers(first.uri),
            routes.get(1..).unwrap_or_default(),
            Some(target),
        ),
        _ => (target, &routes[..], None),
    };
    let uri_at = method.as_bytes().len() + 1;
    let mut builder = Builder::request(buffer, method, request_uri);
    let mut next_hop = uri_at..uri_at + request_uri.len();
    for (place, route) in routes.iter().enumerate() {
        builder.header_unfolded(HeaderKind::Route, route.bytes);
        if place == 0 && !is_strict {
            // Behind the request line and `Route: `, wherever in the value it is.
            let line = uri_at + request_uri.len() + b" SIP/2.0\r\n".len();
            let value = line + HeaderKind::Route.name().len() + b": ".len();
            let within = route.uri.as_ptr() as usize - route.bytes.as_ptr() as usize;
            let within = unfolded_len(route.bytes.get(..within).unwrap_or_default());
            next_hop = value + within..value + within + route.uri.len();
        }
    }
    if let Some(target) = last {
        let parts = [Part::Bytes(b"<"), Part::Bytes(target), Part::Bytes(b">")];
        builder.header_of(HeaderKind::Route, &parts);
    }
    add_ends(&mut builder, method, response, cseq)?;
    let bytes = builder.finish()?;
    let next_hop = bytes.get(next_hop).ok_or(BuildError::Malformed)?;
    Ok(DialogRequest { bytes, next_hop })
}

/// From and To change places: what was the local end of the response is where the request comes from.
fn add_ends(
    builder: &mut Builder<'_>,
    method: Method<'_>,
    response: &Message<'_>,
    cseq: u32,
) -> Result<(), BuildError> {
    builder.number(HeaderKind::MaxForwards, 70);
    let ends = [
        (HeaderKind::From, HeaderKind::To),
        (HeaderKind::To, HeaderKind::From),
        (HeaderKind::CallId, HeaderKind::CallId),
    ];
    for (kind, source) in ends {
        let field = response.header(source).ok_or(BuildError::Malformed)?;
        builder.header_unfolded(kind, field.value);
    }
    let number = [
        Part::Number(cseq),
        Part::Bytes(b" "),
        Part::Bytes(method.as_bytes()),
    ];
    builder.header_of(HeaderKind::CSeq, &number);
    Ok(())
}

/// The length of a value without its folds.
fn unfolded_len(value: &[u8]) -> usize {
    let lengths = fold_free_pieces(value).map(|piece| piece.len() + 1);
    lengths.sum::<usize>().saturating_sub(1)
}

fn is_loose(route: &NameAddr<'_>) -> bool {
    let uri = route.parse_uri();
    matches!(&uri, Ok(Uri::Sip(uri)) if SipUri::is_loose(uri))
}

/// §19.1.1: a Request-URI has no headers.
fn without_headers(uri: &[u8]) -> &[u8] {
    let end = uri.iter().position(|byte| *byte == b'?');
    uri.get(..end.unwrap_or(uri.len())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spans;

    fn bye(record_routes: &str) -> (String, String) {
        let response = format!(
            "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP h\r\n{record_routes}\
             From: \"A\" <sip:a@example.org>;tag=1\r\nTo: <sip:b@example.com>;tag=2\r\n\
             Call-ID: c@h\r\nCSeq: 7 INVITE\r\nContact: <sip:b@192.0.2.9>\r\n\r\n"
        );
        let (mut spans, mut buffer) = (Spans::new(), [0; 1024]);
        let response = Message::parse(response.as_bytes(), &mut spans).unwrap();
        let target = b"sip:a@caller.example:5070;transport=tcp?x=y";
        let request = request_of_uas(&mut buffer, Method::Bye, &response, target, 1).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(request.bytes), text(request.next_hop))
    }

    const ENDS: &str = "Max-Forwards: 70\r\nFrom: <sip:b@example.com>;tag=2\r\nTo: \"A\" <sip:a@example.org>;tag=1\r\n\
         Call-ID: c@h\r\nCSeq: 1 BYE\r\nContent-Length: 0\r\n\r\n";

    #[test]
    fn without_a_route_set_it_goes_to_the_remote_target_rfc3261_12_2_1_1() {
        let (bytes, next_hop) = bye("");
        let line = "BYE sip:a@caller.example:5070;transport=tcp SIP/2.0\r\n";
        assert_eq!(bytes, format!("{line}{ENDS}"));
        assert_eq!(next_hop, "sip:a@caller.example:5070;transport=tcp");
    }

    #[test]
    fn it_goes_along_the_route_set_in_its_order_rfc3261_12_2_1_1() {
        let routes = "Record-Route: \"P 1\" <sip:p1.example;lr>, <sip:p2.example:5090;lr>;x=1\r\n\
             Record-Route: <sip:p3.example>\r\n";
        let (bytes, next_hop) = bye(routes);
        let head = "BYE sip:a@caller.example:5070;transport=tcp SIP/2.0\r\n\
             Route: \"P 1\" <sip:p1.example;lr>\r\nRoute: <sip:p2.example:5090;lr>;x=1\r\nRoute: <sip:p3.example>\r\n";
        assert_eq!(bytes, format!("{head}{ENDS}"));
        assert_eq!(next_hop, "sip:p1.example;lr");
    }

    #[test]
    fn folds_of_the_response_are_left_out_rfc3261_7_3_1() {
        let (bytes, next_hop) =
            bye("Record-Route: \"P\"\r\n  <sip:p1.example;lr>;x=1\r\n\t;y=2\r\n");
        let head = "BYE sip:a@caller.example:5070;transport=tcp SIP/2.0\r\nRoute: \"P\" <sip:p1.example;lr>;x=1 ;y=2\r\n";
        assert_eq!(bytes, format!("{head}{ENDS}"));
        assert_eq!(next_hop, "sip:p1.example;lr");
    }

    #[test]
    fn a_strict_router_gets_its_uri_and_the_target_comes_last_rfc3261_12_2_1_1() {
        let (bytes, next_hop) = bye("Record-Route: <sip:old.example?h=1>, <sip:p2.example;lr>\r\n");
        let head = "BYE sip:old.example SIP/2.0\r\nRoute: <sip:p2.example;lr>\r\n\
             Route: <sip:a@caller.example:5070;transport=tcp>\r\n";
        assert_eq!(bytes, format!("{head}{ENDS}"));
        assert_eq!(next_hop, "sip:old.example");
    }

    #[test]
    fn a_bye_for_a_response_without_dialog_fields_is_malformed() {
        let mut spans = Spans::new();
        let response = Message::parse(b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP h\r\n\r\n", &mut spans);
        let response = response.unwrap();
        let made = |buffer: &mut [u8]| {
            request_of_uas(buffer, Method::Bye, &response, b"sip:a", 1).map(|made| made.bytes.len())
        };
        assert_eq!(made(&mut [0; 512]), Err(BuildError::Malformed));
    }
}
