//! The live page. Its files are in the binary, and the browser loads nothing from other hosts.

use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use super::http::{Body, response};

/// Content-Security-Policy: no inline code, nothing from other hosts, and no frame around the page.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// A file: its path, its media type, and its contents.
type Asset = (&'static str, &'static str, &'static [u8]);

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

const ASSETS: [Asset; 8] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_bytes!("page/index.html"),
    ),
    (
        "/page/style.css",
        "text/css; charset=utf-8",
        include_bytes!("page/style.css"),
    ),
    (
        "/page/icon.svg",
        "image/svg+xml",
        include_bytes!("page/icon.svg"),
    ),
    ("/page/main.js", JAVASCRIPT, include_bytes!("page/main.js")),
    ("/page/api.js", JAVASCRIPT, include_bytes!("page/api.js")),
    (
        "/page/chart.js",
        JAVASCRIPT,
        include_bytes!("page/chart.js"),
    ),
    (
        "/page/views.js",
        JAVASCRIPT,
        include_bytes!("page/views.js"),
    ),
    ("/page/test.js", JAVASCRIPT, include_bytes!("page/test.js")),
];

/// The file at a path.
pub(super) fn asset(path: &str) -> Option<Response<Body>> {
    let (_, kind, bytes) = ASSETS.iter().find(|(known, ..)| *known == path)?;
    let mut response = response(StatusCode::OK, HeaderValue::from_static(kind), *bytes);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let own = HeaderValue::from_static("same-origin");
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), own);
    Some(response)
}
