//! From the pre-master secret to record keys and Finished (RFC 5246 §5, §6.3, §7.4.9, §8.1; RFC 7627 §4).

use aws_lc_rs::tls_prf;
use zeroize::Zeroizing;

use super::{Opener, Refused, Sealer, Suite};

const MASTER_SECRET: usize = 48;
/// Length of verify_data in a Finished message.
pub(crate) const VERIFY_DATA: usize = 12;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// Both hello messages' randoms.
#[derive(Clone, Copy)]
pub(crate) struct Randoms<'a> {
    pub(crate) client: &'a [u8; 32],
    pub(crate) server: &'a [u8; 32],
}

/// The master secret of a connection; it lives until the handshake has ended.
pub(crate) struct Secret {
    suite: &'static Suite,
    master: Zeroizing<[u8; MASTER_SECRET]>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn prf(
    suite: &Suite,
    secret: &[u8],
    label: &[u8],
    seed: [&[u8]; 2],
    length: usize,
) -> Result<tls_prf::Secret, Refused> {
    let secret = tls_prf::Secret::new(suite.prf, secret)?;
    Ok(secret.derive_with_seed_concatination(label, seed[0], seed[1], length)?)
}

impl Secret {
    /// The master secret. `session_hash` is that of RFC 7627 §3, if both sides extend the secret by it.
    pub(crate) fn new(
        suite: &'static Suite,
        pre_master: &[u8],
        randoms: Randoms<'_>,
        session_hash: Option<&[u8]>,
    ) -> Result<Secret, Refused> {
        let master = match session_hash {
            Some(hash) => prf(
                suite,
                pre_master,
                b"extended master secret",
                [hash, &[]],
                MASTER_SECRET,
            )?,
            None => prf(
                suite,
                pre_master,
                b"master secret",
                [randoms.client, randoms.server],
                MASTER_SECRET,
            )?,
        };
        let mut secret = Secret {
            suite,
            master: Zeroizing::new([0; MASTER_SECRET]),
        };
        secret.master.copy_from_slice(master.as_ref());
        Ok(secret)
    }

    /// The keys of both directions, for one side.
    pub(crate) fn keys(
        &self,
        side: Side,
        randoms: Randoms<'_>,
    ) -> Result<(Sealer, Opener), Refused> {
        let key = self.suite.aead.key_len();
        let iv = if self.suite.explicit_nonce { 4 } else { 12 };
        let seed = [&randoms.server[..], &randoms.client[..]];
        let block = prf(
            self.suite,
            &self.master[..],
            b"key expansion",
            seed,
            2 * (key + iv),
        )?;
        let (keys, ivs) = block.as_ref().split_at(2 * key);
        let (client_key, server_key) = keys.split_at(key);
        let (client_iv, server_iv) = ivs.split_at(iv);
        let (ours, theirs) = match side {
            Side::Client => ((client_key, client_iv), (server_key, server_iv)),
            Side::Server => ((server_key, server_iv), (client_key, client_iv)),
        };
        Ok((
            Sealer::new(self.suite, ours.0, ours.1)?,
            Opener::new(self.suite, theirs.0, theirs.1)?,
        ))
    }

    /// The contents of one side's Finished message.
    pub(crate) fn verify_data(
        &self,
        side: Side,
        transcript_hash: &[u8],
    ) -> Result<[u8; VERIFY_DATA], Refused> {
        let label: &[u8] = match side {
            Side::Client => b"client finished",
            Side::Server => b"server finished",
        };
        let secret = prf(
            self.suite,
            &self.master[..],
            label,
            [transcript_hash, &[]],
            VERIFY_DATA,
        )?;
        let mut data = [0; VERIFY_DATA];
        data.copy_from_slice(secret.as_ref());
        Ok(data)
    }
}
