//! The live screen: key handling and drawing. Pure, except for the frame.

use std::collections::VecDeque;

use ratatui::{
    Frame,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize as _},
    text::{Line as Text, Span},
    widgets::{Block, Cell, Gauge, Paragraph, Row, Sparkline, Table, TableState},
};
use windlass_agent::dashboard::NodeUsage;

use super::{
    super::table::{bytes, cores},
    model::{Query, Snapshot, Sort, View, snapshot},
    print::{cells, heads, node},
};

/// The history of the node's graphs, in samples.
const HISTORY: usize = 300;
/// The width from which all columns are shown.
const WIDE_COLUMNS: u16 = 130;

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) query: Query,
    /// Typed letters edit the filter.
    editing_filter: bool,
    previous: Option<NodeUsage>,
    latest: Option<NodeUsage>,
    /// CPU in thousandths of a core and memory in MiB, the newest last.
    history: VecDeque<(u64, u64)>,
    error: Option<String>,
    table: TableState,
}

/// The result of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAction {
    /// Continue.
    Continue,
    /// Quit.
    Quit,
}

impl Screen {
    pub(super) fn new(query: Query) -> Self {
        Self {
            query,
            editing_filter: false,
            previous: None,
            latest: None,
            history: VecDeque::new(),
            error: None,
            table: TableState::default(),
        }
    }

    /// Updates the screen with a sample; after an error the previous one stays.
    pub(super) fn update(&mut self, sample: Result<NodeUsage, String>) {
        match sample {
            Ok(live) => {
                self.error = None;
                // The same sample again has no rates.
                if self.latest.as_ref().is_some_and(|n| n.node.used.at_ms == live.node.used.at_ms) {
                    return;
                }
                let used = &live.node.used;
                self.history.push_back((used.cpu_nano.unwrap_or(0) / 1_000_000, used.memory_bytes >> 20));
                if self.history.len() > HISTORY {
                    self.history.pop_front();
                }
                self.previous = self.latest.replace(live);
            }
            Err(error) => self.error = Some(error),
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyAction::Quit } else { KeyAction::Continue };
        }
        if self.editing_filter {
            match key.code {
                KeyCode::Esc => {
                    self.query.filter.clear();
                    self.editing_filter = false;
                }
                KeyCode::Enter => self.editing_filter = false,
                KeyCode::Backspace => drop(self.query.filter.pop()),
                KeyCode::Char(letter) => self.query.filter.push(letter),
                _ => {}
            }
            return KeyAction::Continue;
        }
        match key.code {
            KeyCode::Char('q') => return KeyAction::Quit,
            KeyCode::Esc if self.query.filter.is_empty() => return KeyAction::Quit,
            KeyCode::Esc => self.query.filter.clear(),
            KeyCode::Char('/') => self.editing_filter = true,
            KeyCode::Char('r') => self.query.reverse = !self.query.reverse,
            KeyCode::Char('1') => self.query.view = View::Pods,
            KeyCode::Char('2') => self.query.view = View::Containers,
            KeyCode::Char('3') => self.query.view = View::Node,
            KeyCode::Tab => {
                self.query.view = match self.query.view {
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
                    self.query.sort = *sort;
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
        KeyAction::Continue
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(3), Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
        let Some(latest) = &self.latest else {
            let text = self.error.clone().unwrap_or_else(|| "asking the node …".to_owned());
            frame.render_widget(Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: true }), body);
            return;
        };
        let snapshot = snapshot(self.previous.as_ref(), latest, &self.query);
        gauges(frame, head, &snapshot);
        match self.query.view {
            View::Node => self.machine(frame, body, &snapshot),
            _ => self.list(frame, body, &snapshot),
        }
        frame.render_widget(self.footer(), foot);
    }

    fn footer(&self) -> Paragraph<'_> {
        if let Some(error) = &self.error {
            return Paragraph::new(error.as_str()).style(Style::new().fg(Color::Red));
        }
        if self.editing_filter || !self.query.filter.is_empty() {
            let cursor = if self.editing_filter { "▏" } else { "  (Esc clears)" };
            return Paragraph::new(format!("/{}{cursor}", self.query.filter));
        }
        Paragraph::new("q quit  Tab pods, containers, node  / filter  sort: c cpu  m memory  n network  d disk  s restarts  a name  r reverse")
            .style(Style::new().add_modifier(Modifier::DIM))
    }

    fn list(&mut self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let wide = self.query.view == View::Containers;
        // The container's name where pods are listed, and rates where there is no room, are left out.
        let is_wide = area.width >= WIDE_COLUMNS;
        let shown = |i: usize| (wide || i != 2) && (is_wide || !(6..=9).contains(&i));
        let pick = |cells: Vec<String>| cells.into_iter().enumerate().filter(move |(i, _)| shown(*i)).map(|(_, c)| c);
        let rows = snapshot.items.iter().map(|line| {
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

    fn machine(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let [text, cpu, memory] =
            Layout::vertical([Constraint::Length(8), Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        let lines: Vec<Text<'_>> = node(&snapshot.node).into_iter().map(Text::from).collect();
        frame.render_widget(Paragraph::new(lines), text);
        let graph = |title: &'static str, values: Vec<u64>, most: u64, color: Color| {
            Sparkline::default()
                .block(Block::bordered().title(title))
                .data(values)
                .max(most)
                .style(Style::new().fg(color))
        };
        // As many as fit, the newest at the right.
        let fits = usize::from(area.width.saturating_sub(2));
        let skip = self.history.len().saturating_sub(fits);
        let column = |of: fn(&(u64, u64)) -> u64| self.history.iter().skip(skip).map(of).collect::<Vec<u64>>();
        let most = |values: &[u64]| values.iter().copied().max().unwrap_or(1).max(1);
        let (used, memory_values) = (column(|p| p.0), column(|p| p.1));
        let (max_used, max_memory) = (most(&used), most(&memory_values));
        frame.render_widget(graph(" CPU ", used, max_used, Color::Blue), cpu);
        frame.render_widget(graph(" memory ", memory_values, max_memory, Color::Magenta), memory);
    }
}

/// CPU and memory of the node, as shares of its capacity.
fn gauges(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let node = &snapshot.node;
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
