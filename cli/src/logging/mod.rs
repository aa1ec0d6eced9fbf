//! Where log lines go, which are kept, and how they look: on standard error as text or JSON, or in the journal with
//! its own fields where systemd reads standard error. What is kept and how it looks can change while the process runs.

pub(crate) mod file;
mod journal;
mod repeats;

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
use repeats::{Line, Shared};

/// Applied under the user's own filter: these crates print payloads (container environments among
/// them) or a line per packet when they are turned up.
const QUIET: [&str; 10] = [
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
    // Whoever watches tells of what failed, once and in its own words.
    "kube_runtime::watcher=error",
];

/// Repeated lines are counted up this often at the latest.
const COUNT_UP: Duration = Duration::from_secs(5);

static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();
static AS_JSON: AtomicBool = AtomicBool::new(false);
static REPEATS: LazyLock<Shared> = LazyLock::new(Shared::default);
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn read(filter: &str) -> anyhow::Result<Targets> {
    let refused = |why: String| {
        anyhow::anyhow!(
            "the log filter {filter:?} cannot be read: {why}; give a level such as info, or module=level pairs"
        )
    };
    // A name alone would turn a module of that name up to trace: more likely it is a level with a letter wrong.
    let mut alone = filter.split(',').filter(|part| !part.is_empty() && !part.contains('='));
    if let Some(word) = alone.find(|part| part.parse::<LevelFilter>().is_err()) {
        return Err(refused(format!("{word:?} is no level")));
    }
    format!("{},{filter}", QUIET.join(",")).parse().map_err(|e: ParseError| refused(e.to_string()))
}

/// Starts logging. `filter` is a level or a list such as `info,proxy=debug`.
///
/// # Errors
/// When the filter cannot be read.
pub(crate) fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(read(filter)?);
    let _ = FILTER.set(handle);
    AS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    let registry = tracing_subscriber::registry().with(filter);
    match journal::Journal::find() {
        Some(journal) => registry.with(journal.with_filter(Repeated)).init(),
        None => {
            let lines = tracing_subscriber::fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
                .event_format(Form { text: Format::default(), json: Format::default().json() });
            registry.with(lines.with_filter(Repeated)).init();
        }
    }
    Ok(())
}

/// Keeps other lines from now on, in another form.
///
/// # Errors
/// When the filter cannot be read; nothing is changed then.
pub(crate) fn change(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = read(filter)?;
    if let Some(handle) = FILTER.get() {
        handle.reload(filter)?;
    }
    AS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    Ok(())
}

/// Says now and then how often lines were repeated, for as long as the process runs.
pub(crate) async fn count_up() -> std::convert::Infallible {
    loop {
        tokio::time::sleep(COUNT_UP).await;
        tell_repeated(REPEATS.due(BEGUN.elapsed()));
    }
}

/// Says how often lines were repeated that were not told of yet: nothing is lost without a count.
pub(crate) fn finish() {
    tell_repeated(REPEATS.all());
}

fn tell_repeated(lines: Vec<Line>) {
    for Line { level, target, text, more, .. } in lines {
        // The level of an event is fixed where it stands.
        match level {
            Level::ERROR => tracing::error!(of = target, line = text, more, "the same was logged again"),
            Level::WARN => tracing::warn!(of = target, line = text, more, "the same was logged again"),
            _ => tracing::info!(of = target, line = text, more, "the same was logged again"),
        }
    }
}

/// Holds back what was said just now.
struct Repeated;

impl<S: Subscriber> Filter<S> for Repeated {
    fn enabled(&self, _: &tracing::Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        // Whoever turns a module up wants each of its lines.
        *event.metadata().level() > Level::INFO || REPEATS.may_be_told(event, BEGUN.elapsed())
    }
}

/// Text or JSON, as it is wanted at the moment.
struct Form {
    text: Format<Full>,
    json: Format<Json>,
}

impl<S, N> FormatEvent<S, N> for Form
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
            assert_eq!(read(filter).unwrap().would_enable(target, &level), told, "{filter:?} {target} {level}");
        }
        for filter in ["loud", "windlass_proxy=loud", "a=b=c"] {
            let error = read(filter).unwrap_err().to_string();
            assert!(error.contains(filter) && error.contains("module=level"), "{error}");
        }
    }
}
