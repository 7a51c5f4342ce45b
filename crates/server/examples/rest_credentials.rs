//! Time-limited credentials ("TURN REST API"): the web service and the server share a secret.

use hairpin_server::{Server, rest::rest_password};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECRET: &[u8] = b"shared with the web service";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .realm("example.org")
        .secret(SECRET)
        .start()?;

    // What the web service gives to a browser, valid for a day.
    let expires = SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_secs(86_400);
    let username = format!("{}:alice", expires.as_secs());
    let credential = rest_password(SECRET, &username);
    let url = format!("turn:{}", server.listeners()[0]);
    println!("{{ urls: {url:?}, username: {username:?}, credential: {credential:?} }}");
    server.shutdown()?;
    Ok(())
}
