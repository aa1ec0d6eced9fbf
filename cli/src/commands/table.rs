//! Formats tables and amounts for terminals. Pure.

use std::fmt::Write as _;

/// Formats rows in aligned columns.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}   ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

/// `512 B`, `1.5 MiB`.
#[allow(clippy::cast_precision_loss, reason = "two digits are shown")]
pub(super) fn bytes(amount: u64) -> String {
    let mut value = amount as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// `12m`, `1.50`: cores, from billionths of one.
#[allow(clippy::cast_precision_loss, reason = "two digits are shown")]
pub(super) fn cores(nano: u64) -> String {
    if nano < 1_000_000_000 { format!("{}m", nano.div_ceil(1_000_000)) } else { format!("{:.2}", nano as f64 / 1e9) }
}

/// `45s`, `12m`, `3h`, `9d`.
pub(super) fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        assert_eq!([0, 512, 1536, 150 << 20, 3 << 30].map(bytes), ["0 B", "512 B", "1.5 KiB", "150 MiB", "3.0 GiB"]);
        assert_eq!([0, 1, 12_300_000, 1_500_000_000].map(cores), ["0m", "1m", "13m", "1.50"]);
        assert_eq!([-5, 45, 119, 120, 7200, 800_000].map(age), ["0s", "45s", "119s", "2m", "2h", "9d"]);
    }

    #[test]
    fn columns_are_as_wide_as_needed() {
        let rows = [["NAME", "N"], ["a", "1"]].map(|row| row.map(str::to_owned));
        assert_eq!(columns(&rows), "NAME   N\na      1");
    }
}
