//! A service that gets events over HTTP: a POST request with a JSON array.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, StatusCode, Uri};

use super::{Line, SendError, SinkOptions};
use crate::error::StoreError;
use crate::kinds::http::{HttpClient, bearer, client, uri};

/// Nobody reads the response; it is taken off the connection.
const MAX_BODY: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Webhook {
    uri: Uri,
    authorization: Option<String>,
    client: HttpClient,
}

impl Webhook {
    pub(super) fn new(options: &SinkOptions) -> Result<Webhook, StoreError> {
        Ok(Webhook {
            uri: uri(&options.at)?,
            authorization: bearer(&options.at),
            client: client(&options.at)?,
        })
    }

    /// One attempt. If the service has closed an idle connection, the client takes another one by itself.
    pub(super) async fn post(&self, lines: &[Line]) -> Result<(), SendError> {
        let events: Vec<&str> = lines.iter().map(|line| &*line.json).collect();
        let body = Bytes::from(format!("[{}]", events.join(",\n")));
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| SendError::Refused(error.to_string()))?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| StoreError::connect(&error))?;
        let status = response.status();
        let _ = Limited::new(response.into_body(), MAX_BODY).collect().await;
        match status {
            status if status.is_success() => Ok(()),
            // RFC 9110 §15.5: these speak of the content, which does not change. All others can be mended at the
            // service or in its settings.
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNPROCESSABLE_ENTITY => Err(SendError::Refused(format!(
                "the service responds with {status}"
            ))),
            status => Err(SendError::Later(format!(
                "the service responds with {status}"
            ))),
        }
    }
}
