//! Log output: to standard error as text or JSON, or to the journal with fields if systemd reads standard error. Filter
//! and format can change at run time.

pub(crate) mod file;
mod journal;
mod rate_limit;

use std::{
    io,
    sync::{
        LazyLock, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    Layer as _, Registry,
    filter::{LevelFilter, ParseError, Targets},
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Full, Json, Writer},
    },
    layer::{Context, Filter, SubscriberExt as _},
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt as _,
};

use crate::config::LogFormat;
use rate_limit::{SharedRateLimiter, SuppressedLine};

/// Default directives under the user's filter: at debug these crates print payloads (container environments among them)
/// or a line per packet.
const DEFAULT_DIRECTIVES: [&str; 11] = [
    "bollard=info",
    "hyper=info",
    "hyper_util=info",
    "h2=info",
    "rustls=info",
    "netlink_packet_route=error",
    "netlink_proto=warn",
    // Malformed packets, which any client can send.
    "hickory_proto=error",
    "kube_client=info",
    // Callers get the same error and log it with context.
    "kube_client::client::builder=off",
    // Watchers log failures themselves, once.
    "kube_runtime::watcher=error",
];

/// The interval at which suppressed lines are reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();
static AS_JSON: AtomicBool = AtomicBool::new(false);
static RATE_LIMITER: LazyLock<SharedRateLimiter> = LazyLock::new(SharedRateLimiter::default);
static STARTED_AT: LazyLock<Instant> = LazyLock::new(Instant::now);

fn parse_filter(filter: &str) -> anyhow::Result<Targets> {
    let refused = |why: String| {
        anyhow::anyhow!(
            "the log filter {filter:?} cannot be read: {why}; give a level such as info, or module=level pairs"
        )
    };
    // A bare name would set a module of that name to trace; more likely it is a misspelt level.
    let mut bare = filter.split(',').filter(|part| !part.is_empty() && !part.contains('='));
    if let Some(word) = bare.find(|part| part.parse::<LevelFilter>().is_err()) {
        return Err(refused(format!("{word:?} is not a level")));
    }
    format!("{},{filter}", DEFAULT_DIRECTIVES.join(",")).parse().map_err(|e: ParseError| refused(e.to_string()))
}

/// Starts logging. `filter` is a level or a list such as `info,proxy=debug`.
///
/// # Errors
/// When the filter cannot be read.
pub(crate) fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(parse_filter(filter)?);
    let _ = FILTER.set(handle);
    AS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    let registry = tracing_subscriber::registry().with(filter);
    match journal::Journal::connect() {
        Some(journal) => registry.with(journal.with_filter(RateLimitFilter)).init(),
        None => {
            let lines = tracing_subscriber::fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
                .event_format(LineFormat { text: Format::default(), json: Format::default().json() });
            registry.with(lines.with_filter(RateLimitFilter)).init();
        }
    }
    Ok(())
}

/// Changes filter and format.
///
/// # Errors
/// When the filter cannot be read; nothing is changed then.
pub(crate) fn change(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = parse_filter(filter)?;
    if let Some(handle) = FILTER.get() {
        handle.reload(filter)?;
    }
    AS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    Ok(())
}

/// Reports suppressed lines at intervals; never returns.
pub(crate) async fn report_suppressed() -> std::convert::Infallible {
    loop {
        tokio::time::sleep(REPORT_INTERVAL).await;
        log_suppressed(RATE_LIMITER.due(STARTED_AT.elapsed()));
    }
}

/// Reports all suppressed lines at the end of the process.
pub(crate) fn finish() {
    log_suppressed(RATE_LIMITER.all());
}

fn log_suppressed(lines: Vec<SuppressedLine>) {
    for SuppressedLine { level, target, text, suppressed_count, .. } in lines {
        // The level of an event is a constant.
        match level {
            Level::ERROR => {
                tracing::error!(of = target, line = text, suppressed_count, "suppressed repeated log lines")
            }
            Level::WARN => tracing::warn!(of = target, line = text, suppressed_count, "suppressed repeated log lines"),
            _ => tracing::info!(of = target, line = text, suppressed_count, "suppressed repeated log lines"),
        }
    }
}

/// Suppresses repeated lines.
struct RateLimitFilter;

impl<S: Subscriber> Filter<S> for RateLimitFilter {
    fn enabled(&self, _: &tracing::Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        // Debug and trace lines are never suppressed.
        *event.metadata().level() > Level::INFO || RATE_LIMITER.allow(event, STARTED_AT.elapsed())
    }
}

/// Text or JSON, as currently configured.
struct LineFormat {
    text: Format<Full>,
    json: Format<Json>,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, writer: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        if AS_JSON.load(Ordering::Relaxed) {
            self.json.format_event(context, writer, event)
        } else {
            self.text.format_event(context, writer, event)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_and_noisy_crates_are_turned_up_by_name_only() {
        for (filter, target, level, told) in [
            ("info", "windlass_proxy::sync", Level::INFO, true),
            ("info", "windlass_proxy::sync", Level::DEBUG, false),
            ("info,windlass_proxy=debug", "windlass_proxy::sync", Level::DEBUG, true),
            ("info,windlass_proxy=debug", "windlass_agent", Level::DEBUG, false),
            ("debug", "bollard::docker", Level::DEBUG, false),
            ("info,bollard=debug", "bollard::docker", Level::DEBUG, true),
            ("debug", "kube_client::client::builder", Level::ERROR, false),
            ("off", "windlass_agent", Level::ERROR, false),
            ("", "bollard::docker", Level::INFO, true),
        ] {
            assert_eq!(parse_filter(filter).unwrap().would_enable(target, &level), told, "{filter:?} {target} {level}");
        }
        for filter in ["loud", "windlass_proxy=loud", "a=b=c"] {
            let error = parse_filter(filter).unwrap_err().to_string();
            assert!(error.contains(filter) && error.contains("module=level"), "{error}");
        }
    }
}
