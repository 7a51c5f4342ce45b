//! Certificate (RFC 5246 §7.4.2).

use rustls::pki_types::CertificateDer;

use super::{Reader, vector24};

/// More certificates than this in a chain are refused.
const MAX_CHAIN: usize = 10;

/// Appends the body: a chain, the end entity first; empty for a client without a certificate.
pub(crate) fn write(out: &mut Vec<u8>, chain: &[CertificateDer<'_>]) {
    vector24(out, |out| {
        for certificate in chain {
            vector24(out, |out| out.extend_from_slice(certificate));
        }
    });
}

/// The chain, the end entity first.
pub(crate) fn parse(body: &[u8]) -> Option<Vec<CertificateDer<'_>>> {
    let mut reader = Reader::new(body);
    let mut list = Reader::new(reader.vector24()?);
    reader.end()?;
    let mut chain = Vec::new();
    while !list.is_empty() {
        if chain.len() == MAX_CHAIN {
            return None;
        }
        chain.push(CertificateDer::from(list.vector24()?));
    }
    (!chain.is_empty()).then_some(chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_reads_as_written() {
        let chain = [
            CertificateDer::from(vec![1; 300]),
            CertificateDer::from(vec![2; 5]),
        ];
        let mut body = Vec::new();
        write(&mut body, &chain);
        assert_eq!(parse(&body).unwrap(), chain);
        assert!((0..body.len()).all(|length| parse(&body[..length]).is_none()));
    }

    #[test]
    fn an_empty_or_endless_chain_is_refused() {
        let mut body = Vec::new();
        write(&mut body, &[]);
        assert!(parse(&body).is_none());
        body.clear();
        write(
            &mut body,
            &vec![CertificateDer::from(vec![1]); MAX_CHAIN + 1],
        );
        assert!(parse(&body).is_none());
    }
}
