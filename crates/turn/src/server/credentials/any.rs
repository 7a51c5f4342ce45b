//! Several sources of credentials, asked in turn.

use std::sync::Arc;

use stun::PasswordAlgorithm;

use super::{Candidate, Credentials, KeyQuery, KeySearch};

/// Asks several sources in order, until one has the right key.
#[derive(Clone, Debug, Default)]
pub struct AnyOf(
    /// The sources, in the order in which they are asked.
    pub Vec<Arc<dyn Credentials>>,
);

impl Credentials for AnyOf {
    fn find(
        &self,
        query: &KeyQuery<'_>,
        accept: &mut dyn FnMut(&Candidate<'_>) -> bool,
    ) -> KeySearch {
        let mut outcome = KeySearch::UnknownUser;
        for source in &self.0 {
            match source.find(query, accept) {
                KeySearch::Accepted => return KeySearch::Accepted,
                KeySearch::UnknownUser => {}
                told => outcome = told,
            }
        }
        outcome
    }

    /// Only if all can: a client that was told to send hashes sends nothing else.
    fn knows_userhash(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|source| source.knows_userhash())
    }

    fn supports(&self, algorithm: PasswordAlgorithm) -> bool {
        self.0.iter().all(|source| source.supports(algorithm))
    }
}
