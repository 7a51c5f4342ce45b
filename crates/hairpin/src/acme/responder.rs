//! The HTTP listener that answers validations (RFC 8555 §8.3, HTTP-01).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::{Request, Response, StatusCode};

use crate::admin::http::{Body, Incoming, Peer, Respond};

/// Where an ACME server looks for the answer.
const PATH: &str = "/.well-known/acme-challenge/";

/// The answers of the validations that are in progress, by token.
#[derive(Clone, Debug, Default)]
pub(super) struct Responder {
    answers: Arc<Mutex<BTreeMap<String, String>>>,
}

/// An answer that is given until this is dropped.
#[derive(Debug)]
pub(super) struct HttpValidation {
    responder: Responder,
    token: String,
}

impl Drop for HttpValidation {
    fn drop(&mut self) {
        self.responder.answers().remove(&self.token);
    }
}

impl Responder {
    fn answers(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the validation with this token.
    pub(super) fn answer(&self, token: &str, proof: &str) -> HttpValidation {
        self.answers().insert(token.to_owned(), proof.to_owned());
        HttpValidation {
            responder: self.clone(),
            token: token.to_owned(),
        }
    }

    /// The response to a request.
    fn answer_to<B>(&self, request: &Request<B>) -> Response<Body> {
        let token = request.uri().path().strip_prefix(PATH);
        let answer = token.and_then(|token| self.answers().get(token).cloned());
        let found = answer.is_some();
        let mut response = Response::new(Body::from(answer.unwrap_or_default()));
        if !found {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        response
    }
}

impl Respond for Responder {
    async fn respond(&self, request: Incoming, _: Peer) -> Response<Body> {
        self.answer_to(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_validations_under_way_are_answered() {
        let responder = Responder::default();
        let status = |path: &str| {
            let request = Request::get(path).body(()).unwrap();
            responder.answer_to(&request).status()
        };
        let answer = responder.answer("token", "proof");
        assert_eq!(status("/.well-known/acme-challenge/token"), StatusCode::OK);
        assert_eq!(
            status("/.well-known/acme-challenge/other"),
            StatusCode::NOT_FOUND
        );
        assert_eq!(status("/"), StatusCode::NOT_FOUND);
        drop(answer);
        assert_eq!(
            status("/.well-known/acme-challenge/token"),
            StatusCode::NOT_FOUND
        );
    }
}
