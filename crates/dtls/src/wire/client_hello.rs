//! The ClientHello (RFC 5246 §7.4.1.2 with the cookie of RFC 6347 §4.2.1).

use super::{DTLS12, Reader, extension, put_u16, u16s, vector8, vector16};

/// Stands for an empty renegotiation_info in a list of cipher suites (RFC 5746 §3.3).
const EMPTY_RENEGOTIATION_INFO_SCSV: u16 = 0x00ff;

/// The part before the extensions. The first fragment must hold it. The HMAC in the cookie is over this part, without
/// the cookie itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) version: u16,
    pub(crate) random: &'a [u8; 32],
    pub(crate) cookie: &'a [u8],
    /// Version, random and session id.
    pub(crate) before_cookie: &'a [u8],
    /// Cipher suites and compression methods, with their lengths.
    pub(crate) after_cookie: &'a [u8],
    suites: &'a [u8],
    compression: &'a [u8],
}

impl<'a> Start<'a> {
    /// Reads the start of a body. The extensions are left in `reader`.
    pub(crate) fn take(reader: &mut Reader<'a>) -> Option<Start<'a>> {
        let whole = *reader;
        let version = reader.u16()?;
        let random = reader.array::<32>()?;
        if reader.vector8()?.len() > 32 {
            return None;
        }
        let before_cookie = whole.until(reader);
        let cookie = reader.vector8()?;
        let after = *reader;
        let suites = reader.vector16()?;
        let compression = reader.vector8()?;
        (!suites.is_empty() && suites.len().is_multiple_of(2) && !compression.is_empty()).then_some(
            Start {
                version,
                random,
                cookie,
                before_cookie,
                after_cookie: after.until(reader),
                suites,
                compression,
            },
        )
    }
}

/// A whole ClientHello.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientHello<'a> {
    pub(crate) start: Start<'a>,
    pub(crate) server_name: Option<&'a str>,
    groups: Option<&'a [u8]>,
    pub(crate) point_formats: bool,
    signature_schemes: &'a [u8],
    /// The vector of names, each with its length.
    alpn: Option<&'a [u8]>,
    pub(crate) extended_master_secret: bool,
    /// The client supports RFC 5746, by the extension or by the cipher suite value.
    pub(crate) secure_renegotiation: bool,
}

impl<'a> ClientHello<'a> {
    /// Parses a body.
    pub(crate) fn parse(body: &'a [u8]) -> Option<ClientHello<'a>> {
        let mut reader = Reader::new(body);
        let start = Start::take(&mut reader)?;
        let mut hello = ClientHello {
            start,
            server_name: None,
            groups: None,
            point_formats: false,
            signature_schemes: &[],
            alpn: None,
            extended_master_secret: false,
            secure_renegotiation: u16s(start.suites)
                .any(|suite| suite == EMPTY_RENEGOTIATION_INFO_SCSV),
        };
        if reader.is_empty() {
            return Some(hello);
        }
        let mut extensions = Reader::new(reader.vector16()?);
        reader.end()?;
        while !extensions.is_empty() {
            let kind = extensions.u16()?;
            hello.extension(kind, extensions.vector16()?)?;
        }
        Some(hello)
    }

    fn extension(&mut self, kind: u16, body: &'a [u8]) -> Option<()> {
        let mut reader = Reader::new(body);
        match kind {
            extension::SERVER_NAME => {
                self.server_name = host_name(reader)?;
                return Some(());
            }
            extension::SUPPORTED_GROUPS => self.groups = Some(even(reader.vector16()?)?),
            extension::EC_POINT_FORMATS => self.point_formats = !reader.vector8()?.is_empty(),
            extension::SIGNATURE_ALGORITHMS => self.signature_schemes = even(reader.vector16()?)?,
            extension::ALPN => self.alpn = Some(reader.vector16()?),
            extension::EXTENDED_MASTER_SECRET => self.extended_master_secret = true,
            // RFC 5746 §3.6: it must be empty in an initial handshake.
            extension::RENEGOTIATION_INFO => {
                self.secure_renegotiation = reader.vector8()?.is_empty().then_some(true)?;
            }
            _ => return Some(()),
        }
        reader.end()
    }

    pub(crate) fn suites(&self) -> impl Iterator<Item = u16> + 'a {
        u16s(self.start.suites)
    }

    /// The groups that the client supports. `None`: the client names none, and the server may select any (RFC 8422 §4).
    pub(crate) fn groups(&self) -> Option<impl Iterator<Item = u16> + 'a> {
        self.groups.map(u16s)
    }

    pub(crate) fn signature_schemes(&self) -> impl Iterator<Item = u16> + 'a {
        u16s(self.signature_schemes)
    }

    /// The application protocols that the client offers, if it offers any.
    pub(crate) fn protocols(&self) -> Option<impl Iterator<Item = &'a [u8]> + 'a> {
        let mut reader = Reader::new(self.alpn?);
        Some(std::iter::from_fn(move || reader.vector8()))
    }

    /// RFC 5246 §7.4.1.2: the null method must be offered.
    pub(crate) fn offers_no_compression(&self) -> bool {
        self.start.compression.contains(&0)
    }
}

fn even(bytes: &[u8]) -> Option<&[u8]> {
    bytes.len().is_multiple_of(2).then_some(bytes)
}

/// The host name of a server_name extension (RFC 6066 §3).
fn host_name(mut reader: Reader<'_>) -> Option<Option<&str>> {
    let mut names = Reader::new(reader.vector16()?);
    reader.end()?;
    while !names.is_empty() {
        let kind = names.u8()?;
        let name = names.vector16()?;
        if kind == 0 {
            return Some(
                std::str::from_utf8(name)
                    .ok()
                    .filter(|name| name.is_ascii()),
            );
        }
    }
    Some(None)
}

/// What our client offers.
#[derive(Debug)]
pub(crate) struct Offer<'a> {
    pub(crate) random: &'a [u8; 32],
    pub(crate) cookie: &'a [u8],
    pub(crate) server_name: Option<&'a str>,
    pub(crate) suites: &'a [u16],
    pub(crate) groups: &'a [u16],
    pub(crate) signature_schemes: &'a [u16],
    pub(crate) protocols: &'a [Vec<u8>],
}

impl Offer<'_> {
    /// Appends the body of the ClientHello.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_u16(out, DTLS12);
        out.extend_from_slice(self.random);
        vector8(out, |_| ());
        vector8(out, |out| out.extend_from_slice(self.cookie));
        vector16(out, |out| {
            for suite in self.suites {
                put_u16(out, *suite);
            }
            put_u16(out, EMPTY_RENEGOTIATION_INFO_SCSV);
        });
        vector8(out, |out| out.push(0));
        vector16(out, |out| self.write_extensions(out));
    }

    fn write_extensions(&self, out: &mut Vec<u8>) {
        let mut extension = |kind: u16, body: &dyn Fn(&mut Vec<u8>)| {
            put_u16(out, kind);
            vector16(out, body);
        };
        if let Some(name) = self.server_name {
            extension(extension::SERVER_NAME, &|out| {
                vector16(out, |out| {
                    out.push(0);
                    vector16(out, |out| out.extend_from_slice(name.as_bytes()));
                });
            });
        }
        extension(extension::SUPPORTED_GROUPS, &|out| {
            u16_list(out, self.groups)
        });
        extension(extension::EC_POINT_FORMATS, &|out| {
            vector8(out, |out| out.push(0))
        });
        extension(extension::SIGNATURE_ALGORITHMS, &|out| {
            u16_list(out, self.signature_schemes)
        });
        extension(extension::EXTENDED_MASTER_SECRET, &|_| ());
        if !self.protocols.is_empty() {
            extension(extension::ALPN, &|out| {
                vector16(out, |out| {
                    for protocol in self.protocols {
                        vector8(out, |out| out.extend_from_slice(protocol));
                    }
                });
            });
        }
    }
}

fn u16_list(out: &mut Vec<u8>, values: &[u16]) {
    vector16(out, |out| {
        for value in values {
            put_u16(out, *value);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Vec<u8> {
        let mut out = Vec::new();
        Offer {
            random: &[7; 32],
            cookie: b"cookie",
            server_name: Some("turn.example.org"),
            suites: &[0xc02b, 0xc02f],
            groups: &[29, 23],
            signature_schemes: &[0x0403],
            protocols: &[b"stun.turn".to_vec()],
        }
        .write(&mut out);
        out
    }

    #[test]
    fn a_client_hello_reads_as_written() {
        let body = body();
        let hello = ClientHello::parse(&body).unwrap();
        assert_eq!(hello.start.version, DTLS12);
        assert_eq!(
            (hello.start.random, hello.start.cookie),
            (&[7; 32], &b"cookie"[..])
        );
        assert_eq!(hello.server_name, Some("turn.example.org"));
        assert_eq!(hello.suites().collect::<Vec<_>>(), [0xc02b, 0xc02f, 0x00ff]);
        assert_eq!(hello.groups().unwrap().collect::<Vec<_>>(), [29, 23]);
        assert_eq!(hello.signature_schemes().collect::<Vec<_>>(), [0x0403]);
        assert_eq!(
            hello.protocols().unwrap().collect::<Vec<_>>(),
            [b"stun.turn"]
        );
        assert!(hello.extended_master_secret && hello.secure_renegotiation && hello.point_formats);
        assert!(hello.offers_no_compression());
    }

    #[test]
    fn every_truncation_is_refused_or_has_no_extensions() {
        let body = body();
        for length in 0..body.len() {
            if let Some(hello) = ClientHello::parse(&body[..length]) {
                assert!(hello.groups().is_none(), "{length} bytes");
            }
        }
    }

    #[test]
    fn the_cookie_leaves_what_it_is_computed_over_as_it_was() {
        let with = body();
        let mut without = with.clone();
        without[35] = 0;
        without.drain(36..42);
        let parts = |body: &[u8]| {
            let start = Start::take(&mut Reader::new(body)).unwrap();
            (start.before_cookie.to_vec(), start.after_cookie.to_vec())
        };
        assert_eq!(parts(&with), parts(&without));
    }
}
