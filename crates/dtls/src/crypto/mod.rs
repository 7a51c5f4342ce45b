//! The cryptography of a connection, by aws-lc: key agreement, key derivation, record protection.

pub(crate) mod cipher;
pub(crate) mod group;
pub(crate) mod schedule;
pub(crate) mod suite;

pub(crate) use cipher::{OpenError, Opener, Sealer};
pub(crate) use group::Group;
pub(crate) use suite::{Authentication, SUITES, Suite};

/// The cryptographic library failed. It fails only if it is out of memory, or if a self-test has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl From<aws_lc_rs::error::Unspecified> for Refused {
    fn from(_: aws_lc_rs::error::Unspecified) -> Refused {
        Refused
    }
}

/// Random bytes for hello messages.
pub(crate) fn random() -> Result<[u8; 32], Refused> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes)?;
    Ok(bytes)
}

/// Compares in time that does not depend on the contents.
pub(crate) fn equal(one: &[u8], other: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(one, other).is_ok()
}
