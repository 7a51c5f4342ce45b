//! ServerKeyExchange and ClientKeyExchange of ECDHE (RFC 8422 §5.4, §5.7).

use super::{Reader, put_u16, vector8, vector16};

/// RFC 8422 §5.4: the only curve type left.
const NAMED_CURVE: u8 = 3;

/// The server's ephemeral key and its signature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerKeyExchange<'a> {
    pub(crate) group: u16,
    pub(crate) public: &'a [u8],
    /// What is signed, after both randoms.
    pub(crate) params: &'a [u8],
    pub(crate) scheme: u16,
    pub(crate) signature: &'a [u8],
}

impl<'a> ServerKeyExchange<'a> {
    /// Parses a body.
    pub(crate) fn parse(body: &'a [u8]) -> Option<ServerKeyExchange<'a>> {
        let mut reader = Reader::new(body);
        let whole = reader;
        reader.u8().filter(|kind| *kind == NAMED_CURVE)?;
        let group = reader.u16()?;
        let public = reader.vector8()?;
        let params = whole.until(&reader);
        let scheme = reader.u16()?;
        let signature = reader.vector16()?;
        reader.end()?;
        Some(ServerKeyExchange {
            group,
            public,
            params,
            scheme,
            signature,
        })
    }
}

/// Appends the parameters that the server signs.
pub(crate) fn write_params(out: &mut Vec<u8>, group: u16, public: &[u8]) {
    out.push(NAMED_CURVE);
    put_u16(out, group);
    vector8(out, |out| out.extend_from_slice(public));
}

/// Appends what follows the parameters.
pub(crate) fn write_signature(out: &mut Vec<u8>, scheme: u16, signature: &[u8]) {
    put_u16(out, scheme);
    vector16(out, |out| out.extend_from_slice(signature));
}

/// Appends the body of a ClientKeyExchange.
pub(crate) fn write_client(out: &mut Vec<u8>, public: &[u8]) {
    vector8(out, |out| out.extend_from_slice(public));
}

/// The client's public key.
pub(crate) fn parse_client(body: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(body);
    let public = reader.vector8()?;
    reader.end()?;
    Some(public)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_key_exchange_reads_as_written() {
        let mut body = Vec::new();
        write_params(&mut body, 29, &[5; 32]);
        let params = body.clone();
        write_signature(&mut body, 0x0403, &[6; 70]);
        let parsed = ServerKeyExchange::parse(&body).unwrap();
        assert_eq!(
            (parsed.group, parsed.public, parsed.params),
            (29, &[5; 32][..], &params[..])
        );
        assert_eq!((parsed.scheme, parsed.signature), (0x0403, &[6; 70][..]));
        assert!((0..body.len()).all(|length| ServerKeyExchange::parse(&body[..length]).is_none()));
    }

    #[test]
    fn a_client_key_exchange_reads_as_written() {
        let mut body = Vec::new();
        write_client(&mut body, &[4; 65]);
        assert_eq!(parse_client(&body), Some(&[4; 65][..]));
        body.push(0);
        assert_eq!(parse_client(&body), None);
    }
}
