//! The columns of a version's tables, which `kubectl get` shows. Pure; the time is a value.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;

use super::Name;

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The heading.
    pub name: Name,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: Name,
    /// `name` for the first one.
    pub format: Name,
    /// Its description.
    pub description: Name,
    /// Columns above 0 are shown by `-o wide` only.
    pub priority: i64,
}

/// Computes the cells of an object.
pub type Row = dyn Fn(&Value, Timestamp) -> Vec<Value> + Send + Sync;

/// The columns of a version and how its rows are computed.
pub struct Table {
    /// The columns.
    pub columns: Vec<Column>,
    /// The cells of one object, as many as there are columns.
    pub row: Box<Row>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("columns", &self.columns).finish_non_exhaustive()
    }
}

/// The name of the object.
pub const NAME: Column = Column {
    name: Cow::Borrowed("Name"),
    type_: Cow::Borrowed("string"),
    format: Cow::Borrowed("name"),
    description: Cow::Borrowed("Name must be unique within a namespace."),
    priority: 0,
};

/// The age of the object.
pub const AGE: Column = Column {
    name: Cow::Borrowed("Age"),
    type_: Cow::Borrowed("string"),
    format: Cow::Borrowed(""),
    description: Cow::Borrowed("Time since the object was created."),
    priority: 0,
};

impl Table {
    /// The columns of objects of which nothing more is known.
    #[must_use]
    pub fn name_and_age() -> Self {
        let row = |object: &Value, now: Timestamp| {
            let created = object["metadata"]["creationTimestamp"].as_str().unwrap_or("");
            vec![object["metadata"]["name"].clone(), Value::from(age(created, now))]
        };
        Self { columns: vec![NAME, AGE], row: Box::new(row) }
    }
}

/// The time since a timestamp, as `kubectl` writes it.
#[must_use]
pub fn age(since: &str, now: Timestamp) -> String {
    let Ok(since) = since.parse::<Timestamp>() else { return "<unknown>".to_owned() };
    duration(now.as_second() - since.as_second())
}

/// Seconds in the shortest form that still says enough; upstream's steps.
#[must_use]
pub fn duration(seconds: i64) -> String {
    let two = |big: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 | 0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}
