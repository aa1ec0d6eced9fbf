//! `windlass top`: what the node, its pods and containers use, live in the terminal or once for scripts.

mod model;
mod print;
mod screen;

#[cfg(test)]
mod tests;

use std::{
    io::{IsTerminal as _, stdout},
    net::SocketAddr,
    process::ExitCode,
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use windlass_agent::dashboard::NodeUsage;

use super::{read_only_client, say};
use crate::config::Settings;
use model::{Query, Sort, View};
use screen::{KeyAction, Screen};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is listed
    #[arg(value_enum, default_value = "pods")]
    what: View,
    /// Print once and exit; rates are over one second
    #[arg(long)]
    once: bool,
    /// Output format; json implies --once
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
    /// Sort order
    #[arg(long, value_enum, default_value = "cpu")]
    sort: Sort,
    /// Reverse the order
    #[arg(long)]
    reverse: bool,
    /// Only this namespace
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Only lines with this text in namespace/pod/container or state
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Seconds between refreshes
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people
    Text,
    /// For scripts
    Json,
}

/// The time between the two samples of `--once`; the node samples at most once a second.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1200);

pub(super) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    let query = Query {
        view: args.what,
        sort: args.sort,
        reverse: args.reverse,
        namespace: args.namespace.clone(),
        filter: args.filter.clone(),
    };
    let address = read_only_client::address(settings)?;
    if args.once || args.output == Output::Json {
        return once(address, &query, args.output);
    }
    anyhow::ensure!(
        stdout().is_terminal(),
        "the live view needs a terminal, and standard output is none; use --once, or -o json"
    );
    run_live(address, query, Duration::from_secs(args.interval))
}

fn fetch_usage(address: SocketAddr) -> anyhow::Result<NodeUsage> {
    read_only_client::get_json(address, "/windlass/usage")
}

fn once(address: SocketAddr, query: &Query, output: Output) -> anyhow::Result<ExitCode> {
    let before = fetch_usage(address)?;
    std::thread::sleep(SAMPLE_INTERVAL);
    let snapshot = model::snapshot(Some(&before), &fetch_usage(address)?, query);
    say(match output {
        Output::Json => serde_json::to_string_pretty(&snapshot)?,
        Output::Text => print::text(&snapshot, query.view),
    });
    Ok(ExitCode::SUCCESS)
}

fn run_live(address: SocketAddr, query: Query, interval: Duration) -> anyhow::Result<ExitCode> {
    // Before the screen is taken over, so that a connection error is printed normally.
    let first = fetch_usage(address)?;
    let mut screen = Screen::new(query);
    screen.update(Ok(first));
    let mut terminal = ratatui::try_init()?;
    let ended = event_loop(&mut terminal, &mut screen, address, interval);
    ratatui::try_restore()?;
    ended.map(|()| ExitCode::SUCCESS)
}

/// Draws, and waits for keys or the next refresh, until quit.
fn event_loop(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    address: SocketAddr,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut next_refresh = Instant::now() + SAMPLE_INTERVAL;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if event::poll(next_refresh.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && screen.key(key) == KeyAction::Quit
            {
                return Ok(());
            }
            continue;
        }
        screen.update(fetch_usage(address).map_err(|e| format!("{e:#}")));
        next_refresh = Instant::now() + interval;
    }
}
