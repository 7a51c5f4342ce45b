//! One order of a certificate (RFC 8555 §7.4).

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use instant_acme::{
    Account, AuthorizationHandle, AuthorizationStatus, CertificateIdentifier, ChallengeType,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use server::certificates::{AcmeValidation, Certificates};

use super::responder::{HttpValidation, Responder};
use super::store::Store;
use crate::config::{Acme, Challenge};

/// How long the ACME server may take for each of its steps.
const STEP_TIMEOUT: Duration = Duration::from_secs(90);

/// A certificate chain and its private key, in PEM.
pub(super) struct IssuedCertificate {
    pub(super) key: String,
    pub(super) chain: String,
}

/// The answer to a validation, which ends when it is dropped.
#[expect(dead_code, reason = "dropping them is what counts")]
enum ValidationResponse {
    Http(HttpValidation),
    Tls(AcmeValidation),
}

/// The account in the folder, or a new one.
pub(super) async fn account(config: &Acme, store: &Store) -> Result<Account> {
    let builder = match config.ca.first() {
        Some(file) => Account::builder_with_root(file),
        None => Account::builder(),
    };
    let builder = builder.context("cannot connect by HTTPS")?;
    if let Some(credentials) = store.account(&config.directory)? {
        return Ok(builder.from_credentials(credentials).await?);
    }
    let contact: Vec<String> = config
        .email
        .iter()
        .map(|mail| format!("mailto:{mail}"))
        .collect();
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = builder.create(&new, config.directory.clone(), None).await?;
    store.save_account(&config.directory, &credentials)?;
    Ok(account)
}

/// Orders a certificate, answers the validations, and returns it.
pub(super) async fn obtain(
    config: &Acme,
    account: &Account,
    replaces: Option<CertificateIdentifier<'_>>,
    responder: &Responder,
    certificates: &Certificates,
) -> Result<IssuedCertificate> {
    let names: Vec<Identifier> = config
        .domains
        .iter()
        .cloned()
        .map(Identifier::Dns)
        .collect();
    let mut new = NewOrder::new(&names);
    if let Some(replaces) = replaces {
        new = new.replaces(replaces);
    }
    let mut order = account.new_order(&new).await?;
    let mut answers = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let authorization = authorization?;
        if authorization.status == AuthorizationStatus::Pending {
            answers.push(answer(config, authorization, responder, certificates).await?);
        }
    }
    let policy = RetryPolicy::default().timeout(STEP_TIMEOUT);
    let status = order.poll_ready(&policy).await?;
    drop(answers);
    if status != OrderStatus::Ready {
        bail!("{}", failure_reason(&mut order).await);
    }
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&policy).await?;
    Ok(IssuedCertificate { key, chain })
}

async fn answer(
    config: &Acme,
    authorization: AuthorizationHandle<'_>,
    responder: &Responder,
    certificates: &Certificates,
) -> Result<ValidationResponse> {
    let kind = match config.challenge {
        Challenge::Http01 => ChallengeType::Http01,
        Challenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
    };
    let mut authorization = authorization;
    let mut challenge = authorization
        .challenge(kind)
        .ok_or_else(|| anyhow!("the ACME server does not offer this challenge (acme.challenge)"))?;
    let proof = challenge.key_authorization();
    let answer = match config.challenge {
        Challenge::Http01 => {
            ValidationResponse::Http(responder.answer(&challenge.token, proof.as_str()))
        }
        Challenge::TlsAlpn01 => {
            let digest = proof.digest().as_ref().try_into().context("a SHA-256")?;
            let domain = challenge.identifier().to_string();
            ValidationResponse::Tls(certificates.answer_acme(&domain, digest)?)
        }
    };
    challenge.set_ready().await?;
    Ok(answer)
}

/// What the ACME server says of an order that has failed.
async fn failure_reason(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        // What is known of it may be as old as the order.
        if authorization.refresh().await.is_err() {
            continue;
        }
        let problems = authorization
            .challenges
            .iter()
            .filter_map(|one| one.error.as_ref());
        reasons.extend(problems.map(ToString::to_string));
    }
    match reasons.is_empty() {
        true => "the ACME server has refused the order without a reason".to_owned(),
        false => reasons.join("; "),
    }
}
