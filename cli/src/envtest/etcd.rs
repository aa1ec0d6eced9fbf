//! The stand-in for etcd: it answers health checks and says where its data directory is, in which the API server keeps its objects.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use axum::{Json, Router, routing::get};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use windlass_kit::serve;

use super::{
    complain,
    data_directory::{DataDirectory, PATH, address_of},
    flags::{Asked, Dialect, Given, Table},
    print,
};
use crate::{
    commands::{runtime, termination_signal},
    exit,
};

const FLAGS: &str = include_str!("etcd_flags.tsv");
/// The release whose flags are in the table.
const RELEASE: &str = "3.6.0";
/// What etcd calls the directory of a member without a name.
const DEFAULT_DIR: &str = "default.etcd";
const DEFAULT_URL: &str = "http://localhost:2379";

pub(super) fn table() -> Table {
    Table::read(Dialect::GoFlag, "etcd", FLAGS)
}

pub(super) fn run(arguments: &[String]) -> ExitCode {
    let table = table();
    match table.parse(arguments) {
        Err(why) => {
            complain(&why);
            ExitCode::from(exit::USAGE)
        }
        Ok(Asked::Help) => {
            print(&table.help());
            ExitCode::SUCCESS
        }
        Ok(Asked::Version) => {
            print(&format!("etcd Version: {RELEASE}\nwindlass {}, in its place\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        Ok(Asked::Run(given)) => match serve_until_signal(&given) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::report(&error),
        },
    }
}

fn serve_until_signal(given: &Given) -> anyhow::Result<()> {
    let addresses = addresses(&given.list("listen-client-urls"))?;
    let directory = DataDirectory { path: data_dir(given)?, is_synced: !given.is_true("unsafe-no-fsync") };
    runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let mut servers = Vec::new();
        for address in addresses {
            let listener = serve::listen("etcd", address).await?;
            servers.push(tokio::spawn(serve::serve_plain("etcd", listener, router(&directory), stop.clone())));
        }
        let _ = termination_signal().await;
        stop.cancel();
        for server in servers {
            let _ = server.await;
        }
        Ok(())
    })
}

fn router(directory: &DataDirectory) -> Router {
    let directory = Json(json!(directory));
    let version = Json(json!({"etcdserver": RELEASE, "etcdcluster": RELEASE, "storage": "windlass"}));
    Router::new()
        .route("/health", get(async || Json(json!({"health": "true", "reason": ""}))))
        .route("/readyz", get(async || "ok"))
        .route("/livez", get(async || "ok"))
        .route("/version", get(async move || version))
        .route(PATH, get(async move || directory))
}

/// The addresses of the URLs. Pure.
fn addresses(urls: &[&str]) -> anyhow::Result<Vec<SocketAddr>> {
    let urls = if urls.is_empty() { &[DEFAULT_URL][..] } else { urls };
    let address = |url: &&str| {
        address_of(url).with_context(|| {
            format!("--listen-client-urls={url} is not possible with windlass: the stand-in for etcd is at http://ADDRESS:PORT")
        })
    };
    urls.iter().map(address).collect()
}

/// The data directory, which is made if it is missing.
fn data_dir(given: &Given) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let dir = Path::new(given.text("data-dir").unwrap_or(DEFAULT_DIR));
    let failed = || format!("the data directory {} cannot be used", dir.display());
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(failed)?;
    std::path::absolute(dir).with_context(failed)
}
