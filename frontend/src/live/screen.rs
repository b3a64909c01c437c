//! What is drawn on a terminal, of 80 x 24 cells or more: the verdict so far, latency over time,
//! throughput, connections and threads, and what happened last.

use qdl::stats::{
    LimitRecord, LimitUnit, text,
    timeline::{ThreadSide, Tick, bucket_begins},
};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Paragraph, Sparkline},
};
use report::SoFar;

/// Shades of the heat map, from few samples to many: of the 256 colours, on any ground.
const SHADES: [Color; 6] = [
    Color::Indexed(17),
    Color::Indexed(19),
    Color::Indexed(26),
    Color::Indexed(33),
    Color::Indexed(75),
    Color::Indexed(153),
];
/// Room for the labels of an axis.
const LABELS: u16 = 9;
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const GOOD: Style = Style::new().fg(Color::Green).add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// All of it.
pub fn draw(of: &SoFar, frame: &mut Frame<'_>) {
    let limits = of.limits.len().min(3) as u16;
    let rows = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(limits),
        Constraint::Min(5),
        Constraint::Length(3),
        Constraint::Length(6),
        Constraint::Length(2),
    ]);
    let [head, bars, heat, rate, both, last] = rows.areas(frame.area());
    frame.render_widget(Paragraph::new(self::head(of)), head);
    let lines: Vec<Line<'_>> = of.limits.iter().take(3).map(limit).collect();
    frame.render_widget(Paragraph::new(lines), bars);
    self::heat(of, frame, heat);
    throughput(of, frame, rate);
    let halves = Layout::horizontal([Constraint::Percentage(54), Constraint::Percentage(46)]);
    let [left, right] = halves.areas(both);
    frame.render_widget(Paragraph::new(connections(of, left)), left);
    frame.render_widget(Paragraph::new(threads(of, right)), right);
    frame.render_widget(Paragraph::new(happened(of)), last);
}

fn head(of: &SoFar) -> Vec<Line<'static>> {
    let (good, word, said) = of.verdict();
    let style = match good {
        Some(true) => GOOD,
        Some(false) => BAD,
        None => BOLD,
    };
    let over = match of.fabric.as_str() {
        "" => String::new(),
        fabric => format!(" over {fabric}"),
    };
    let time = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), text::time_us);
    let [p50, p90, p99, p999] = of.quantiles_us([0.5, 0.9, 0.99, 0.999]).map(time);
    let asked = of
        .target_qps
        .map(|q| format!(", {}/s asked for", text::rate(q)));
    let tokens = of
        .token_rate
        .map(|t| format!("   {} tokens/s", text::rate(t)));
    vec![
        Line::from(vec![
            Span::styled(of.title.clone(), BOLD),
            Span::raw(format!("   {}{over}   {:.0} s   ", of.node, of.elapsed_s)),
            Span::styled(word, style),
        ]),
        Line::styled(said, if good == Some(false) { BAD } else { DIM }),
        Line::raw(format!(
            "{}/s now, {}/s on the whole{}{}   {} done, {} in flight",
            text::rate(of.rate),
            text::rate(of.mean_rate()),
            asked.unwrap_or_default(),
            tokens.unwrap_or_default(),
            text::short(of.completed),
            text::short(of.in_flight()),
        )),
        Line::raw(format!(
            "issue to completion   p50 {p50}   p90 {p90}   p99 {p99}   p99.9 {p999}"
        )),
    ]
}

fn limit(l: &LimitRecord) -> Line<'static> {
    let value = |v: f64| match l.unit {
        LimitUnit::Us => text::time_us(v),
        LimitUnit::Queries | LimitUnit::Samples => text::grouped(v.max(0.0) as u64),
    };
    let share = l.was.map_or(0.0, |was| was / l.limit.max(1e-9));
    let filled = (share.clamp(0.0, 1.0) * 24.0).round() as usize;
    let (bound, style) = match (l.at_most, l.met) {
        (true, true) => ("at most", GOOD),
        (true, false) => ("at most", BAD),
        (false, true) => ("at least", GOOD),
        (false, false) => ("at least", Style::new().fg(Color::Blue)),
    };
    Line::from(vec![
        Span::raw(format!("{:<14}", text::head(&l.name, 13))),
        Span::styled("━".repeat(filled), style),
        Span::styled("━".repeat(24 - filled), DIM),
        Span::raw(format!(
            "  {} {bound} {}",
            l.was.map_or_else(|| "-".to_owned(), value),
            value(l.limit)
        )),
    ])
}

/// Ticks in so many groups at most, the same number of ticks in each.
fn groups(ticks: &[Tick], most: u16) -> impl Iterator<Item = &[Tick]> {
    let each = ticks.len().div_ceil(usize::from(most.max(1))).max(1);
    ticks.chunks(each)
}

fn heat(of: &SoFar, frame: &mut Frame<'_>, area: Rect) {
    let title = "latency over time, the brighter the more samples";
    let inner = titled(frame, area, title);
    let ticks = &of.timeline.ticks;
    let buckets = || ticks.iter().flat_map(|t| &t.latency).map(|(b, _)| *b);
    let (Some(low), Some(high)) = (buckets().min(), buckets().max()) else {
        frame.render_widget(Paragraph::new("no tick of the run is over yet"), inner);
        return;
    };
    let height = inner.height.max(1);
    let each = (high - low + 1).div_ceil(height).max(1);
    let width = inner.width.saturating_sub(LABELS);
    let mut cells = Vec::new();
    for (x, ticks) in groups(ticks, width).enumerate() {
        let mut column = vec![0u64; usize::from(height)];
        for (bucket, n) in ticks.iter().flat_map(|t| &t.latency) {
            column[usize::from((bucket - low) / each).min(usize::from(height) - 1)] += n;
        }
        let column = column.into_iter().enumerate();
        cells.extend(column.filter(|(_, n)| *n > 0).map(|(y, n)| (x, y, n)));
    }
    let most = cells.iter().map(|c| c.2).max().unwrap_or(1) as f64;
    for (x, y, n) in cells {
        let share = (n as f64).ln() / most.ln().max(1e-9);
        let shade = (share * (SHADES.len() - 1) as f64).round() as usize;
        let at = (inner.x + LABELS + x as u16, inner.y + height - 1 - y as u16);
        if let Some(cell) = frame.buffer_mut().cell_mut(at) {
            cell.set_bg(SHADES[shade.min(SHADES.len() - 1)]);
        }
    }
    let bound = of.bound_us();
    for y in 0..height {
        let begins = |row: u16| bucket_begins(low + row * each) as f64 / 1000.0;
        let is_bound = bound.is_some_and(|us| begins(y) <= us && us < begins(y + 1));
        let label = match bound.filter(|_| is_bound) {
            Some(us) => Line::styled(format!(">{:>7}", text::time_us(us)), BAD),
            None if y % 2 == 0 => Line::styled(format!("{:>8}", text::time_us(begins(y))), DIM),
            None => continue,
        };
        let row = Rect::new(inner.x, inner.y + height - 1 - y, LABELS, 1);
        frame.render_widget(Paragraph::new(label), row);
    }
}

/// A heading in the first row; the rest of the area.
fn titled(frame: &mut Frame<'_>, area: Rect, title: &str) -> Rect {
    let [head, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(Paragraph::new(Line::styled(title.to_owned(), BOLD)), head);
    rest
}

fn throughput(of: &SoFar, frame: &mut Frame<'_>, area: Rect) {
    let width = area.width.saturating_sub(LABELS);
    let seconds = of.timeline.tick_ms.max(1) as f64 / 1000.0;
    let rates: Vec<u64> = groups(&of.timeline.ticks, width)
        .map(|ticks| {
            let completed: u64 = ticks.iter().map(|t| t.completed).sum();
            (completed as f64 / (ticks.len().max(1) as f64 * seconds)) as u64
        })
        .collect();
    let top = rates.iter().copied().max().unwrap_or(0);
    let title = format!("samples/s over time, to {}", text::rate(top as f64));
    let inner = titled(frame, area, &title);
    let place = Rect {
        x: inner.x + LABELS.min(inner.width),
        width: inner.width.saturating_sub(LABELS),
        ..inner
    };
    let line = Sparkline::default().data(&rates).max(top.max(1));
    frame.render_widget(line.style(Style::new().fg(Color::Blue)), place);
}

fn connections(of: &SoFar, area: Rect) -> Vec<Line<'static>> {
    let head = format!(
        "{:<18}{:>8}{:>8}{:>7}",
        "connection", "sent", "rcvd", "flying"
    );
    let mut lines = vec![Line::styled(head, BOLD)];
    let room = usize::from(area.height.saturating_sub(1));
    let row = |name: &str, sent: u64, received: u64, flying: Option<u64>| {
        let flying = flying.map_or_else(|| "-".to_owned(), text::short);
        Line::raw(format!(
            "{:<18}{:>8}{:>8}{flying:>7}",
            text::cut(name, 17),
            text::bytes(sent).replace(' ', ""),
            text::bytes(received).replace(' ', ""),
        ))
    };
    let each = of.connections.iter();
    let each = each.map(|(n, c)| row(n, c.bytes_out, c.bytes_in, Some(c.in_flight)));
    let nics = of.nics.iter();
    let nics = nics.map(|(n, f)| row(n, f.bytes_out, f.bytes_in, None));
    let all: Vec<_> = each.chain(nics).collect();
    match all.len().checked_sub(room) {
        Some(over @ 1..) => {
            let shown = room.saturating_sub(1);
            lines.extend(all.into_iter().take(shown));
            lines.push(Line::styled(format!("and {} more", over + 1), DIM));
        }
        _ => lines.extend(all),
    }
    lines
}

fn threads(of: &SoFar, area: Rect) -> Vec<Line<'static>> {
    let bar = usize::from(area.width.saturating_sub(28)).max(4);
    let head = format!("{:<14}{:>4} {:>4}", "thread", "cpu", "wait");
    let mut lines = vec![Line::styled(head, BOLD)];
    let all = of.timeline.nodes.iter().flat_map(|n| &n.threads);
    // Of the last seconds: the whole run is on the page.
    let recent = |permille: &[u16]| {
        let ticks = (3_000 / of.timeline.tick_ms.max(1)).max(1) as usize;
        let last = &permille[permille.len().saturating_sub(ticks)..];
        let sum: u64 = last.iter().map(|p| u64::from(*p)).sum();
        (sum / last.len().max(1) as u64) as usize
    };
    let row = |t: &ThreadSide| {
        let (ran, waited) = (recent(&t.on_core), recent(&t.waited));
        let filled = |permille: usize| (permille * bar).div_ceil(1000).min(bar);
        let (ran_to, waited_for) = (filled(ran), filled(waited));
        let waited_for = waited_for.min(bar - ran_to);
        Line::from(vec![
            Span::raw(format!(
                "{:<14}{:>3}% {:>3}% ",
                text::head(&t.name, 13),
                ran / 10,
                waited / 10
            )),
            Span::styled("█".repeat(ran_to), Style::new().fg(Color::Blue)),
            Span::styled("█".repeat(waited_for), Style::new().fg(Color::Red)),
        ])
    };
    let room = usize::from(area.height.saturating_sub(1));
    lines.extend(all.take(room).map(row));
    lines
}

fn happened(of: &SoFar) -> Vec<Line<'static>> {
    let last = of.timeline.events.last();
    let said = last.map_or_else(
        || "nothing has happened".to_owned(),
        |e| format!("{:.1} s  {}: {}", e.at_s, e.kind.replace('_', " "), e.text),
    );
    vec![
        Line::raw(said),
        Line::styled("q leaves this picture, Ctrl-C ends the run", DIM),
    ]
}

#[cfg(test)]
mod tests;
