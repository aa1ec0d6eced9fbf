//! The live screen: what keys do, and how it is drawn. Pure but for the frame that it draws on.

use std::collections::VecDeque;

use ratatui::{
    Frame,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize as _},
    text::{Line as Text, Span},
    widgets::{Block, Cell, Gauge, Paragraph, Row, Sparkline, Table, TableState},
};
use windlass_agent::live::Live;

use super::{
    super::table::{bytes, cores},
    model::{Shot, Sort, View, Wish, shot},
    print::{cells, heads, node},
};

/// Looks that the node's graphs remember.
const REMEMBERED: usize = 300;
/// From so many columns on there is room for all of the list.
const ROOMY: u16 = 130;

/// What the screen shows.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) wish: Wish,
    /// Letters go into the filter.
    typing: bool,
    before: Option<Live>,
    now: Option<Live>,
    /// CPU in thousandths of a core and memory in MiB, the newest last.
    past: VecDeque<(u64, u64)>,
    error: Option<String>,
    table: TableState,
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// To go on.
    Stay,
    /// To end.
    Quit,
}

impl Screen {
    pub(super) fn new(wish: Wish) -> Self {
        Self {
            wish,
            typing: false,
            before: None,
            now: None,
            past: VecDeque::new(),
            error: None,
            table: TableState::default(),
        }
    }

    /// Takes a look, or the reason why there is none; the one before stays on the screen then.
    pub(super) fn take(&mut self, look: Result<Live, String>) {
        match look {
            Ok(live) => {
                self.error = None;
                // The same round told twice has no rates in it.
                if self.now.as_ref().is_some_and(|n| n.node.used.at_ms == live.node.used.at_ms) {
                    return;
                }
                let used = &live.node.used;
                self.past.push_back((used.cpu_nano.unwrap_or(0) / 1_000_000, used.memory_bytes >> 20));
                if self.past.len() > REMEMBERED {
                    self.past.pop_front();
                }
                self.before = self.now.replace(live);
            }
            Err(error) => self.error = Some(error),
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Wanted {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Wanted::Quit } else { Wanted::Stay };
        }
        if self.typing {
            match key.code {
                KeyCode::Esc => {
                    self.wish.filter.clear();
                    self.typing = false;
                }
                KeyCode::Enter => self.typing = false,
                KeyCode::Backspace => drop(self.wish.filter.pop()),
                KeyCode::Char(letter) => self.wish.filter.push(letter),
                _ => {}
            }
            return Wanted::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Wanted::Quit,
            KeyCode::Esc if self.wish.filter.is_empty() => return Wanted::Quit,
            KeyCode::Esc => self.wish.filter.clear(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('r') => self.wish.reverse = !self.wish.reverse,
            KeyCode::Char('1') => self.wish.view = View::Pods,
            KeyCode::Char('2') => self.wish.view = View::Containers,
            KeyCode::Char('3') => self.wish.view = View::Node,
            KeyCode::Tab => {
                self.wish.view = match self.wish.view {
                    View::Pods => View::Containers,
                    View::Containers => View::Node,
                    View::Node => View::Pods,
                };
            }
            KeyCode::Char(letter) => {
                let sorts = [
                    ('c', Sort::Cpu),
                    ('m', Sort::Memory),
                    ('n', Sort::Network),
                    ('d', Sort::Disk),
                    ('s', Sort::Restarts),
                    ('a', Sort::Name),
                ];
                if let Some((_, sort)) = sorts.iter().find(|(known, _)| *known == letter) {
                    self.wish.sort = *sort;
                }
            }
            KeyCode::Down => self.table.select_next(),
            KeyCode::Up => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(10),
            KeyCode::PageUp => self.table.scroll_up_by(10),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
        Wanted::Stay
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(3), Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
        let Some(now) = &self.now else {
            let text = self.error.clone().unwrap_or_else(|| "asking the node …".to_owned());
            frame.render_widget(Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: true }), body);
            return;
        };
        let shot = shot(self.before.as_ref(), now, &self.wish);
        gauges(frame, head, &shot);
        match self.wish.view {
            View::Node => self.machine(frame, body, &shot),
            _ => self.list(frame, body, &shot),
        }
        frame.render_widget(self.footer(), foot);
    }

    fn footer(&self) -> Paragraph<'_> {
        if let Some(error) = &self.error {
            return Paragraph::new(error.as_str()).style(Style::new().fg(Color::Red));
        }
        if self.typing || !self.wish.filter.is_empty() {
            let cursor = if self.typing { "▏" } else { "  (Esc clears)" };
            return Paragraph::new(format!("/{}{cursor}", self.wish.filter));
        }
        Paragraph::new("q quit  Tab pods, containers, node  / filter  sort: c cpu  m memory  n network  d disk  s restarts  a name  r reverse")
            .style(Style::new().add_modifier(Modifier::DIM))
    }

    fn list(&mut self, frame: &mut Frame<'_>, area: Rect, shot: &Shot) {
        let wide = self.wish.view == View::Containers;
        // The container's name where pods are listed, and rates where there is no room, are left out.
        let roomy = area.width >= ROOMY;
        let shown = |i: usize| (wide || i != 2) && (roomy || !(6..=9).contains(&i));
        let pick = |cells: Vec<String>| cells.into_iter().enumerate().filter(move |(i, _)| shown(*i)).map(|(_, c)| c);
        let rows = shot.items.iter().map(|line| {
            let full = line.memory_limit_bytes.zip(line.memory_bytes).is_some_and(|(limit, used)| {
                u64::try_from(limit).is_ok_and(|limit| used.saturating_mul(10) > limit.saturating_mul(9))
            });
            let style = match (full, line.state.as_str()) {
                (true, _) => Style::new().fg(Color::Yellow),
                (_, "Running" | "Succeeded" | "Completed") => Style::new(),
                _ => Style::new().fg(Color::Red),
            };
            Row::new(pick(cells(line).to_vec()).map(Cell::from)).style(style)
        });
        let widths = [12, 18, 12, 17, 13, 21, 10, 10, 10, 10, 11];
        let widths = widths.iter().enumerate().filter(|(i, _)| shown(*i)).map(|(i, w)| match i {
            1 => Constraint::Min(*w),
            _ => Constraint::Length(*w),
        });
        let head = Row::new(pick(heads().map(str::to_owned).to_vec())).style(Style::new().add_modifier(Modifier::BOLD));
        let table = Table::new(rows, widths)
            .header(head)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::new());
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn machine(&self, frame: &mut Frame<'_>, area: Rect, shot: &Shot) {
        let [text, cpu, memory] =
            Layout::vertical([Constraint::Length(8), Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        let lines: Vec<Text<'_>> = node(&shot.node).into_iter().map(Text::from).collect();
        frame.render_widget(Paragraph::new(lines), text);
        let graph = |title: &'static str, values: Vec<u64>, most: u64, color: Color| {
            Sparkline::default()
                .block(Block::bordered().title(title))
                .data(values)
                .max(most)
                .style(Style::new().fg(color))
        };
        // As many as fit, the newest at the right edge.
        let fits = usize::from(area.width.saturating_sub(2));
        let skip = self.past.len().saturating_sub(fits);
        let column = |of: fn(&(u64, u64)) -> u64| self.past.iter().skip(skip).map(of).collect::<Vec<u64>>();
        let most = |values: &[u64]| values.iter().copied().max().unwrap_or(1).max(1);
        let (used, held) = (column(|p| p.0), column(|p| p.1));
        let (most_used, most_held) = (most(&used), most(&held));
        frame.render_widget(graph(" CPU ", used, most_used, Color::Blue), cpu);
        frame.render_widget(graph(" memory ", held, most_held, Color::Magenta), memory);
    }
}

/// CPU and memory of the node, each with its share of all.
fn gauges(frame: &mut Frame<'_>, area: Rect, shot: &Shot) {
    let node = &shot.node;
    let [title, cpu, memory] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let line = vec![Span::from(node.name.clone()).bold(), Span::from(format!("  {}", node.system)).dim()];
    frame.render_widget(Text::from(line), title);
    let nano = node.cpu_nano_cores.unwrap_or(0);
    let all = node.cores.saturating_mul(1_000_000_000);
    for (place, share, label, color) in [
        (cpu, share(nano, all), format!("CPU {} of {}", cores(nano), node.cores), Color::Blue),
        (
            memory,
            share(node.memory_bytes, node.memory_capacity_bytes),
            format!("memory {} of {}", bytes(node.memory_bytes), bytes(node.memory_capacity_bytes)),
            Color::Magenta,
        ),
    ] {
        frame.render_widget(Gauge::default().ratio(share).label(label).gauge_style(Style::new().fg(color)), place);
    }
}

#[allow(clippy::cast_precision_loss, reason = "a bar has a few hundred cells")]
fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { (part as f64 / all as f64).clamp(0.0, 1.0) }
}
