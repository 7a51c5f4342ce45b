//! Certificates and versions of TLS.

use super::{Draft, File, Line, Row, Rule, Verdict, flag, unnecessary, unsupported, value};

const OLD: Rule = unsupported("TLS 1.0 and 1.1 are broken (RFC 8996): the oldest version is 1.2");
const DH: Rule = unnecessary("hairpin uses elliptic curves only (ECDHE)");

pub(super) const ROWS: &[Row] = &[
    value("cert", Rule::Decide(certificate)),
    value("pkey", Rule::Decide(certificate)),
    value(
        "pkey-pwd",
        unsupported(
            "hairpin reads only keys without a passphrase: run openssl pkey -in OLD -out NEW, and name the new file in tls.certificates",
        ),
    ),
    flag(
        "dtls",
        Rule::Decide(|_, file, _| match pair(file) {
            Some(_) => Verdict::carried("listen.dtls"),
            None => Verdict::unnecessary("coturn serves no DTLS without cert and pkey"),
        }),
    ),
    flag(
        "no-dtls",
        Rule::Decide(|_, file, _| match pair(file) {
            Some(_) => Verdict::carried("listen.dtls"),
            None => Verdict::unnecessary("there is no DTLS without a certificate"),
        }),
    ),
    value(
        "cipher-list",
        unnecessary("hairpin offers only suites with forward secrecy and AEAD"),
    ),
    value(
        "CA-file",
        unsupported("TURN clients authenticate with their credentials, not with a certificate"),
    ),
    value(
        "ec-curve-name",
        unnecessary("hairpin offers X25519, P-256 and P-384"),
    ),
    value("dh-file", DH),
    flag("dh566", DH),
    flag("dh1066", DH),
    flag("tlsv1", OLD),
    flag("tlsv1_1", OLD),
    flag(
        "no-tlsv1_2",
        Rule::Decide(|_, _, draft| {
            draft.set("tls.min_version", "1.3");
            Verdict::carried("tls.min_version")
        }),
    ),
    flag(
        "raw-public-keys",
        unsupported("hairpin supports X.509 certificates only"),
    ),
];

/// Certificate and key, if coturn would serve TLS.
pub(super) fn pair(file: &File) -> Option<(&str, &str)> {
    let value = |name| {
        file.last(name)
            .map(|line| &*line.value)
            .filter(|value| !value.is_empty())
    };
    Some((value("cert")?, value("pkey")?))
}

fn certificate(line: &Line, file: &File, _: &mut Draft) -> Verdict {
    match pair(file) {
        _ if !line.value.starts_with('/') => Verdict::carried(
            "tls.certificates: coturn searches several directories for this file, so write the absolute path",
        ),
        Some(_) => Verdict::carried("tls.certificates"),
        None => Verdict::unnecessary("coturn serves TLS only with both cert and pkey"),
    }
}

/// Writes the certificate.
pub(super) fn finish(file: &File, draft: &mut Draft) {
    if let Some((certificate, key)) = pair(file) {
        let fields = [("certificate", certificate.into()), ("key", key.into())];
        draft.push_table("tls.certificates", fields);
    }
}
