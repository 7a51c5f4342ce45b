//! A stream of Redis: one entry per event, with the fields `kind` and `event`.

use super::{Line, SendError, SinkOptions};
use crate::error::StoreError;
use crate::kinds::redis::Redis;

/// Entries that the stream keeps: with readers that are away, it takes some 50 MB.
const MAX_ENTRIES: usize = 100_000;

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
                .arg(MAX_ENTRIES);
            entry
                .arg("*")
                .arg("kind")
                .arg(line.kind)
                .arg("event")
                .arg(&line.json)
                .ignore();
        }
        // The connection may have been closed while nothing was sent. A batch that was sent must not be sent again
        // here: with at most one attempt, it would arrive twice.
        let mut ping = ::redis::pipe();
        if self.redis.send(ping.cmd("PING").ignore()).await.is_err() {
            self.redis.send(&ping).await?;
        }
        Ok(self.redis.send(&pipe).await?)
    }
}

#[cfg(test)]
mod needs_packages {
    use super::*;
    use crate::test_redis::TestRedis;

    #[test]
    fn after_an_error_of_the_server_the_next_batch_connects_again() {
        let redis = TestRedis::start();
        let stream = Stream::new(&SinkOptions {
            at: redis.options(),
            topic: "events".to_owned(),
            is_durable: true,
        });
        let (stream, line) = (
            stream.unwrap(),
            Line {
                kind: "k",
                json: "{}".to_owned(),
            },
        );
        let add = || redis.wait(stream.add(std::slice::from_ref(&line)));
        let connections = || {
            let stats = redis.ask(&["client", "list"]);
            let ids = stats
                .split_whitespace()
                .filter(|word| word.starts_with("id="));
            // The last one is of redis-cli.
            ids.map(str::to_owned).collect::<Vec<_>>()
        };
        add().unwrap();
        let before = connections();
        add().unwrap();
        assert_eq!(connections()[0], before[0], "the same connection");
        redis.ask(&["replicaof", "127.0.0.1", "1"]);
        let error = add().unwrap_err().to_string();
        assert!(
            error.contains("READONLY") || error.contains("read only"),
            "{error}"
        );
        redis.ask(&["replicaof", "no", "one"]);
        add().unwrap();
        assert!(!connections().contains(&before[0]), "another connection");
        assert_eq!(redis.ask(&["xlen", "events"]), "3");
    }
}
