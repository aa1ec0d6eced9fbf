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
use windlass_agent::live::Live;

use super::{say, stats};
use crate::config::Settings;
use model::{Sort, View, Wish};
use screen::{Screen, Wanted};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is listed
    #[arg(value_enum, default_value = "pods")]
    what: View,
    /// Print what is used now and end: rates are over one second
    #[arg(long)]
    once: bool,
    /// How it is printed; json means --once
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
    /// What comes first
    #[arg(long, value_enum, default_value = "cpu")]
    sort: Sort,
    /// The other way round
    #[arg(long)]
    reverse: bool,
    /// Only of this namespace
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Only what has this text in namespace/pod/container or state
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Seconds between looks
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

/// How long the two looks of `--once` are apart; the node reads no more often than each second.
const APART: Duration = Duration::from_millis(1200);

pub(super) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    let wish = Wish {
        view: args.what,
        sort: args.sort,
        reverse: args.reverse,
        namespace: args.namespace.clone(),
        filter: args.filter.clone(),
    };
    let address = stats::address(settings)?;
    if args.once || args.output == Output::Json {
        return once(address, &wish, args.output);
    }
    anyhow::ensure!(
        stdout().is_terminal(),
        "the live view needs a terminal, and standard output is none; use --once, or -o json"
    );
    live(address, wish, Duration::from_secs(args.interval))
}

fn look(address: SocketAddr) -> anyhow::Result<Live> {
    stats::ask(address, "/windlass/usage")
}

fn once(address: SocketAddr, wish: &Wish, output: Output) -> anyhow::Result<ExitCode> {
    let before = look(address)?;
    std::thread::sleep(APART);
    let shot = model::shot(Some(&before), &look(address)?, wish);
    say(match output {
        Output::Json => serde_json::to_string_pretty(&shot)?,
        Output::Text => print::text(&shot, wish.view),
    });
    Ok(ExitCode::SUCCESS)
}

fn live(address: SocketAddr, wish: Wish, interval: Duration) -> anyhow::Result<ExitCode> {
    // Before the screen is taken over, so that a node that is not there is told on a usual line.
    let first = look(address)?;
    let mut screen = Screen::new(wish);
    screen.take(Ok(first));
    let mut terminal = ratatui::try_init()?;
    let ended = attend(&mut terminal, &mut screen, address, interval);
    ratatui::try_restore()?;
    ended.map(|()| ExitCode::SUCCESS)
}

/// Draws, waits for a key or for the next look, until asked to end.
fn attend(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    address: SocketAddr,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut next = Instant::now() + APART;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && screen.key(key) == Wanted::Quit
            {
                return Ok(());
            }
            continue;
        }
        screen.take(look(address).map_err(|e| format!("{e:#}")));
        next = Instant::now() + interval;
    }
}
