//! The API server by kube-apiserver's flags: that of `windlass up --no-node`, without controllers.

use std::{process::ExitCode, sync::Arc};

use windlass_control::{Config, Durability};
use windlass_kit::disk;

use super::{
    complain,
    data_directory::DataDirectory,
    flags::{Asked, Dialect, Given, Table},
    options, print,
    runtime_config::Item,
};
use crate::{
    assemble,
    commands::{runtime, termination_signal},
    config::LogFormat,
    logging,
};

const FLAGS: &str = include_str!("kube_apiserver_flags.tsv");

pub(super) fn table() -> Table {
    Table::read(Dialect::Pflag, "kube-apiserver", FLAGS)
}

pub(super) fn run(arguments: &[String]) -> ExitCode {
    let table = table();
    let failed = |why: &dyn std::fmt::Display| {
        complain(&format!("Error: {why}"));
        ExitCode::from(crate::exit::FAILED)
    };
    match table.parse(arguments) {
        Err(why) => failed(&why),
        Ok(Asked::Help) => {
            print(&table.help());
            ExitCode::SUCCESS
        }
        Ok(Asked::Version) => {
            print(&format!("Kubernetes {}\n", windlass_control::apiserver::VERSION));
            ExitCode::SUCCESS
        }
        Ok(Asked::Run(given)) => match serve_until_signal(&given) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&format!("{error:#}")),
        },
    }
}

fn serve_until_signal(given: &Given) -> anyhow::Result<()> {
    let missing = options::missing(given);
    anyhow::ensure!(missing.is_empty(), "[{}]", missing.join(", "));
    start_logging(given)?;
    let servers = given.list("etcd-servers");
    let [server] = servers.as_slice() else {
        anyhow::bail!("--etcd-servers={} is not possible with windlass: there is one store", servers.join(","));
    };
    let directory = DataDirectory::at(server)?;
    let (config, served) = options::configuration(given, &directory)?;
    if config.options.durability == Durability::Unsynced {
        // Certificates and marks, like the store.
        disk::mount(&config.data_dir, Arc::new(disk::Unsynced));
    }
    runtime()?.block_on(serve(config, &served))
}

async fn serve(config: Config, served: &[Item]) -> anyhow::Result<()> {
    let mut node = assemble::api_server(config, |is_served| {
        super::runtime_config::check(served, is_served).map_err(anyhow::Error::msg)
    })
    .await?;
    let result = tokio::select! {
        signal = termination_signal() => {
            tracing::info!(signal = signal.unwrap_or("a signal"), "stopping");
            Ok(())
        }
        failed = node.failed() => Err(failed),
        never = logging::report_suppressed() => match never {},
    };
    node.shutdown().await;
    logging::finish();
    result
}

fn start_logging(given: &Given) -> anyhow::Result<()> {
    let verbosity: i64 = given.text("v").and_then(|text| text.parse().ok()).unwrap_or(0);
    let filter = if verbosity >= 4 { "debug" } else { "info" };
    let format = if given.text("logging-format") == Some("json") { LogFormat::Json } else { LogFormat::Text };
    logging::start(filter, format)
}
