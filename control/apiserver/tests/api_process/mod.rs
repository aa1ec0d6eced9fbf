//! The API as a process of its own, so that tests can kill it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use axum::Extension;
use kube::Client;
use windlass_control::{ControlPlane, apiserver::User};

use super::config::config;

const FOLDER: &str = "WINDLASS_KILL_FOLDER";

#[test]
#[ignore = "what other tests start and kill"]
fn the_api_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { panic!("{FOLDER} is not set") };
    let folder = Path::new(&folder);
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        let plane = ControlPlane::open(config(folder)).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut out = std::io::stdout();
        writeln!(out, "\nport={}", listener.local_addr().unwrap().port()).unwrap();
        out.flush().unwrap();
        axum::serve(listener, plane.router().layer(Extension(User::internal("storm")))).await.unwrap();
    });
}

/// One life of the process, and a client of it. No controllers run.
pub(crate) struct Life {
    child: Child,
    pub(crate) client: Client,
}

impl Life {
    /// Starts the API over a directory, which may be that of an earlier life.
    pub(crate) fn begin(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the path of this program"))
            .args(["--ignored", "--exact", "api_process::the_api_that_is_killed", "--nocapture"])
            .env(FOLDER, folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process of this program");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let port = lines.find_map(|line| line.expect("a line").strip_prefix("port=").map(str::to_owned));
        let port = port.expect("the API does not start; its words stand above");
        let url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        Self { child, client: Client::try_from(kube::Config::new(url)).expect("a client") }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process that runs");
        self.child.wait().expect("its end");
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // The process of a test that failed would stay.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
