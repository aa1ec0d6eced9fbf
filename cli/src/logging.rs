//! Where log lines go and which are kept.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Applied under the user's own filter: these crates print payloads (container environments among
/// them) or a line per packet when they are turned up.
const QUIET: [&str; 9] = [
    "bollard=info",
    "hyper=info",
    "hyper_util=info",
    "h2=info",
    "rustls=info",
    "netlink_packet_route=error",
    "netlink_proto=warn",
    "kube_client=info",
    // Whoever called gets the same error and says what it is about.
    "kube_client::client::builder=off",
];

/// Starts logging to standard error. `filter` is a level or a list such as `info,proxy=debug`.
///
/// # Errors
/// When the filter cannot be read.
pub(crate) fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let text = format!("{},{filter}", QUIET.join(","));
    let filter = EnvFilter::try_new(&text).map_err(|e| {
        anyhow::anyhow!(
            "the log filter {filter:?} cannot be read: {e}; give a level such as info, or module=level pairs"
        )
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
    }
    Ok(())
}
