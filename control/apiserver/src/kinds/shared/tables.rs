//! The columns that built-in kinds share. Pure; the time is a value.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;

use super::cells::text;
pub(crate) use crate::apiserver::types::{AGE, NAME};
use crate::apiserver::types::{Column, Table, age};

const fn make(name: &'static str, type_: &'static str, description: &'static str, priority: i64) -> Column {
    Column {
        name: Cow::Borrowed(name),
        type_: Cow::Borrowed(type_),
        format: Cow::Borrowed(""),
        description: Cow::Borrowed(description),
        priority,
    }
}

/// A column of text.
pub(crate) const fn column(name: &'static str, description: &'static str) -> Column {
    make(name, "string", description, 0)
}

/// A column that `-o wide` shows.
pub(crate) const fn wide(name: &'static str, description: &'static str) -> Column {
    make(name, "string", description, 1)
}

/// A column of numbers.
pub(crate) const fn count(name: &'static str, description: &'static str) -> Column {
    make(name, "integer", description, 0)
}

/// A column of yes or no.
pub(crate) const fn flag(name: &'static str, description: &'static str) -> Column {
    make(name, "boolean", description, 0)
}

/// The table of upstream's types without columns of their own: the name, and when the object was created.
pub(crate) fn created_at() -> Table {
    let created = make("Created At", "date", "When the object was created.", 0);
    let row = |object: &Value, _: Timestamp| {
        vec![object["metadata"]["name"].clone(), object["metadata"]["creationTimestamp"].clone()]
    };
    Table { columns: vec![NAME, created], row: Box::new(row) }
}

/// A table whose first column is the name; `cells` gets the object and its age and gives the other cells.
pub(crate) fn named(columns: Vec<Column>, cells: fn(&Value, &str) -> Vec<Value>) -> Table {
    let columns = std::iter::once(NAME).chain(columns).collect();
    let row = move |object: &Value, now: Timestamp| {
        let age = age(text(&object["metadata"]["creationTimestamp"]), now);
        let mut row = cells(object, &age);
        row.insert(0, object["metadata"]["name"].clone());
        row
    };
    Table { columns, row: Box::new(row) }
}
