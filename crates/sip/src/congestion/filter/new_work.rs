//! The first look at a datagram: does it begin something, so that the filter may drop it?
//!
//! The kernel's half is programs/sip_admission_filter.bpf.c of the bpf crate; both decide alike.

/// Bytes within which To and credentials are looked for: the kernel's verifier bounds the loop. A To further down lets
/// a request pass.
const LOOKED_AT: usize = 1024;
/// The mandatory header fields of RFC 3261 §8.1.1 make a request longer.
const MIN_REQUEST_BYTES: usize = 64;

/// A request that begins something, as far as its method says.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewWork<'a> {
    datagram: &'a [u8],
    uri: &'a [u8],
}

impl<'a> NewWork<'a> {
    pub(super) fn of(datagram: &'a [u8]) -> Option<NewWork<'a>> {
        let uri = uri_of_new_work(datagram)?;
        Some(NewWork { datagram, uri })
    }

    /// Whether its header fields say so as well, and it is no emergency call.
    pub(super) fn is_certain(self) -> bool {
        // RFC 5031: urn:service:sos.
        let is_urn = self
            .uri
            .get(..4)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"urn:"));
        self.datagram.len() >= MIN_REQUEST_BYTES && !is_urn && is_surely_new_work(self.datagram)
    }
}

/// The datagram from the Request-URI to its end, if the method begins something.
fn uri_of_new_work(datagram: &[u8]) -> Option<&[u8]> {
    let methods: [&[u8]; 6] = [
        b"INVITE ",
        b"REGISTER ",
        b"OPTIONS ",
        b"SUBSCRIBE ",
        b"MESSAGE ",
        b"PUBLISH ",
    ];
    methods
        .iter()
        .find_map(|method| datagram.strip_prefix(*method))
}

/// Whether a request surely begins something: To is there without a tag, and there are no credentials.
fn is_surely_new_work(datagram: &[u8]) -> bool {
    let looked_at = &datagram[..datagram.len().min(LOOKED_AT)];
    let (mut in_to, mut seen_to) = (false, false);
    let mut at = 0;
    for end in memchr::memchr_iter(b'\n', looked_at) {
        let line = &looked_at[at..end];
        at = end + 1;
        match line {
            [] | b"\r" => return seen_to,
            // RFC 3261 §7.3.1: a line that begins with a blank continues the one before.
            [b' ' | b'\t', ..] => {}
            _ if has_credentials(line) => return false,
            _ => in_to = is_to(line),
        }
        seen_to |= in_to;
        if in_to && has_tag(line) {
            return false;
        }
    }
    seen_to && datagram.len() < LOOKED_AT
}

fn is_to(line: &[u8]) -> bool {
    let name = memchr::memchr(b':', line).map_or(line, |colon| &line[..colon]);
    let name = name.trim_ascii_end();
    name.eq_ignore_ascii_case(b"to") || name.eq_ignore_ascii_case(b"t")
}

fn has_tag(line: &[u8]) -> bool {
    line.windows(4)
        .any(|part| part.eq_ignore_ascii_case(b"tag="))
}

/// Whether this line has credentials, as in the response to a challenge. Admission control decides which of them count.
fn has_credentials(line: &[u8]) -> bool {
    let names: [&[u8]; 2] = [b"authorization", b"proxy-authorization"];
    names.iter().any(|name| {
        line.get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
    })
}
