//! A Redis server of a test, with a socket in a folder of its own.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::kinds::Options;

pub(crate) struct TestRedis {
    process: Child,
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl TestRedis {
    pub(crate) fn start() -> TestRedis {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "redis-server"]);
        command.args(["--port", "0", "--save", "", "--unixsocket"]);
        let command = command
            .arg(folder.path().join("redis"))
            .stdout(Stdio::null());
        let process = command.spawn();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let redis = TestRedis {
            process: process.expect("cargo xtask tools installs redis-server"),
            folder,
            runtime,
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while redis.ask(&["ping"]) != "PONG" {
            assert!(Instant::now() < deadline, "redis-server does not respond");
            std::thread::sleep(Duration::from_millis(20));
        }
        redis
    }

    pub(crate) fn options(&self) -> Options {
        let path = self.folder.path().join("redis");
        Options {
            url: format!("redis+unix://{}", path.display()),
            ..Options::default()
        }
    }

    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        let command = command.arg("-s").arg(self.folder.path().join("redis"));
        let output = command.args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

impl Drop for TestRedis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
