//! A stream of Redis: one entry per event, with the fields `kind` and `event`.

use super::{Line, SendError, SinkOptions};
use crate::error::StoreError;
use crate::kinds::redis::Redis;

/// Entries that the stream keeps: with readers that are away, it takes some 50 MB.
const MOST: usize = 100_000;

#[derive(Debug)]
pub(super) struct Stream {
    redis: Redis,
    key: String,
}

impl Stream {
    pub(super) fn new(options: &SinkOptions) -> Result<Stream, StoreError> {
        Ok(Stream {
            redis: Redis::new(&options.at)?,
            key: options.topic.clone(),
        })
    }

    pub(super) async fn add(&self, lines: &[Line]) -> Result<(), SendError> {
        let mut pipe = ::redis::pipe();
        for line in lines {
            let entry = pipe
                .cmd("XADD")
                .arg(&self.key)
                .arg("MAXLEN")
                .arg("~")
                .arg(MOST);
            entry
                .arg("*")
                .arg("kind")
                .arg(line.kind)
                .arg("event")
                .arg(&line.json)
                .ignore();
        }
        // The connection may have been closed while nothing was sent. A batch that was sent must not be sent again here: with at most one
        // attempt, it would arrive twice.
        let mut ping = ::redis::pipe();
        if self.redis.send(ping.cmd("PING").ignore()).await.is_err() {
            self.redis.send(&ping).await?;
        }
        Ok(self.redis.send(&pipe).await?)
    }
}
