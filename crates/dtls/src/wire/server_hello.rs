//! ServerHello (RFC 5246 §7.4.1.3) and HelloVerifyRequest (RFC 6347 §4.2.1).

use crate::cookie;

use super::{DTLS10, DTLS12, Reader, extension, put_u16, vector8, vector16};

/// A ServerHello, as we write and read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerHello<'a> {
    pub(crate) random: &'a [u8; 32],
    pub(crate) suite: u16,
    pub(crate) extended_master_secret: bool,
    pub(crate) secure_renegotiation: bool,
    pub(crate) point_formats: bool,
    /// The server chose its certificate by the name that the client sent.
    pub(crate) server_name: bool,
    pub(crate) protocol: Option<&'a [u8]>,
}

/// Why a ServerHello is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadServerHello {
    Malformed,
    Version,
    /// An extension that we did not offer.
    Extension,
}

impl<'a> ServerHello<'a> {
    /// Appends the body.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_u16(out, DTLS12);
        out.extend_from_slice(self.random);
        // No session id: sessions are not resumed.
        vector8(out, |_| ());
        put_u16(out, self.suite);
        out.push(0);
        let mut extensions = Vec::with_capacity(64);
        self.write_extensions(&mut extensions);
        // RFC 5246 §7.4.1.3: without extensions the vector itself is left out.
        if !extensions.is_empty() {
            vector16(out, |out| out.extend_from_slice(&extensions));
        }
    }

    fn write_extensions(&self, out: &mut Vec<u8>) {
        let mut extension = |present: bool, kind: u16, body: &dyn Fn(&mut Vec<u8>)| {
            if present {
                put_u16(out, kind);
                vector16(out, body);
            }
        };
        extension(
            self.secure_renegotiation,
            extension::RENEGOTIATION_INFO,
            &|out| vector8(out, |_| ()),
        );
        extension(self.server_name, extension::SERVER_NAME, &|_| ());
        extension(self.point_formats, extension::EC_POINT_FORMATS, &|out| {
            vector8(out, |out| out.push(0))
        });
        extension(
            self.extended_master_secret,
            extension::EXTENDED_MASTER_SECRET,
            &|_| (),
        );
        extension(self.protocol.is_some(), extension::ALPN, &|out| {
            vector16(out, |out| {
                vector8(out, |out| {
                    out.extend_from_slice(self.protocol.unwrap_or_default())
                })
            });
        });
    }

    /// Parses a body.
    pub(crate) fn parse(body: &'a [u8]) -> Result<ServerHello<'a>, BadServerHello> {
        let mut reader = Reader::new(body);
        let (version, hello) = ServerHello::fixed(&mut reader).ok_or(BadServerHello::Malformed)?;
        if version != DTLS12 {
            return Err(BadServerHello::Version);
        }
        let mut hello = hello.ok_or(BadServerHello::Malformed)?;
        if reader.is_empty() {
            return Ok(hello);
        }
        let extensions = reader.vector16().ok_or(BadServerHello::Malformed)?;
        reader.end().ok_or(BadServerHello::Malformed)?;
        let mut extensions = Reader::new(extensions);
        while !extensions.is_empty() {
            let kind = extensions.u16().ok_or(BadServerHello::Malformed)?;
            let body = extensions.vector16().ok_or(BadServerHello::Malformed)?;
            hello.extension(kind, body)?;
        }
        Ok(hello)
    }

    /// The version, and the fields before the extensions. The fields are `None` if the server has selected compression.
    fn fixed(reader: &mut Reader<'a>) -> Option<(u16, Option<ServerHello<'a>>)> {
        let version = reader.u16()?;
        let random = reader.array::<32>()?;
        reader.vector8()?;
        let suite = reader.u16()?;
        let compression = reader.u8()?;
        let hello = ServerHello {
            random,
            suite,
            extended_master_secret: false,
            secure_renegotiation: false,
            point_formats: false,
            server_name: false,
            protocol: None,
        };
        Some((version, (compression == 0).then_some(hello)))
    }

    fn extension(&mut self, kind: u16, body: &'a [u8]) -> Result<(), BadServerHello> {
        let mut reader = Reader::new(body);
        let read = match kind {
            extension::RENEGOTIATION_INFO => {
                self.secure_renegotiation = true;
                reader.vector8().filter(|info| info.is_empty()).is_some()
            }
            extension::SERVER_NAME => {
                self.server_name = true;
                true
            }
            extension::EC_POINT_FORMATS => {
                self.point_formats = true;
                reader.vector8().is_some_and(|formats| formats.contains(&0))
            }
            extension::EXTENDED_MASTER_SECRET => {
                self.extended_master_secret = true;
                true
            }
            extension::ALPN => {
                let mut names = Reader::new(reader.vector16().unwrap_or_default());
                self.protocol = names.vector8();
                self.protocol.is_some() && names.is_empty()
            }
            // RFC 5246 §7.4.1.4: a server may only send extensions that the client has sent.
            _ => return Err(BadServerHello::Extension),
        };
        (read && reader.is_empty())
            .then_some(())
            .ok_or(BadServerHello::Malformed)
    }
}

/// The body of a HelloVerifyRequest.
pub(crate) fn hello_verify(cookie: &[u8; cookie::LENGTH]) -> [u8; 3 + cookie::LENGTH] {
    let mut body = [0; 3 + cookie::LENGTH];
    // RFC 6347 §4.2.1: the server sends version 1.0 here, whichever version it negotiates later.
    body[..2].copy_from_slice(&DTLS10.to_be_bytes());
    body[2] = cookie::LENGTH as u8;
    body[3..].copy_from_slice(cookie);
    body
}

/// The cookie of a HelloVerifyRequest.
pub(crate) fn parse_hello_verify(body: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(body);
    reader.u16().filter(|version| version >> 8 == 0xfe)?;
    let cookie = reader.vector8()?;
    reader.end()?;
    Some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: ServerHello<'static> = ServerHello {
        random: &[9; 32],
        suite: 0xc02b,
        extended_master_secret: true,
        secure_renegotiation: true,
        point_formats: true,
        server_name: true,
        protocol: Some(b"stun.turn"),
    };

    #[test]
    fn a_server_hello_reads_as_written() {
        let mut body = Vec::new();
        HELLO.write(&mut body);
        let parsed = ServerHello::parse(&body).unwrap();
        assert_eq!(format!("{parsed:?}"), format!("{HELLO:?}"));
        for length in 0..body.len() {
            let cut = ServerHello::parse(&body[..length]);
            assert!(cut.is_err() || length == 38, "{length} bytes");
        }
    }

    #[test]
    fn without_extensions_there_is_no_vector() {
        let bare = ServerHello {
            extended_master_secret: false,
            secure_renegotiation: false,
            point_formats: false,
            server_name: false,
            protocol: None,
            ..HELLO
        };
        let mut body = Vec::new();
        bare.write(&mut body);
        assert_eq!(body.len(), 38);
        assert!(ServerHello::parse(&body).is_ok());
        body[0..2].copy_from_slice(&DTLS10.to_be_bytes());
        assert_eq!(
            ServerHello::parse(&body).unwrap_err(),
            BadServerHello::Version
        );
    }

    #[test]
    fn extensions_without_an_offer_are_refused() {
        let mut body = Vec::new();
        HELLO.write(&mut body);
        let at = body.len() - 4 - 12;
        let (kind, rest) = body[38 + 2..].split_at_mut(2);
        assert!(!rest.is_empty() && at > 0);
        kind.copy_from_slice(&99u16.to_be_bytes());
        assert_eq!(
            ServerHello::parse(&body).unwrap_err(),
            BadServerHello::Extension
        );
    }

    #[test]
    fn a_hello_verify_request_is_smaller_than_any_client_hello() {
        let body = hello_verify(&[1; cookie::LENGTH]);
        assert_eq!(parse_hello_verify(&body), Some(&[1; cookie::LENGTH][..]));
        // Version, random, no session id, no cookie, one suite, one compression method.
        assert!(body.len() <= 2 + 32 + 1 + 1 + 4 + 2);
    }
}
