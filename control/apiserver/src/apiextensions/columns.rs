//! The columns of custom resources: `additionalPrinterColumns`, whose cells are found by a subset of JSONPath. Pure; the
//! time is a value.

use jiff::Timestamp;
use serde_json::{Number, Value};

use crate::apiserver::types::{Column, NAME, Table, age};

/// One step of a path.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// `.name` or `['name']`.
    Field(String),
    /// `[n]`; from the end where it is negative.
    Index(i64),
    /// `[*]` or `.*`.
    All,
    /// `[from:to]`, where negative numbers count from the end.
    Slice(Option<i64>, Option<i64>),
    /// `[?(@.path == "value")]`; the last is whether they must be equal.
    Filter(Vec<Step>, Value, bool),
    /// `[?(@.path)]`: those that have it.
    Having(Vec<Step>),
}

/// A path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Path(Vec<Step>);

impl Path {
    /// Parses a path; `None` for one beyond the subset.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim();
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, after) = step(rest)?;
            steps.push(step);
            rest = after;
        }
        Some(Self(steps))
    }

    /// The first value at the path.
    pub(super) fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        find(&self.0, value).into_iter().next()
    }
}

fn step(text: &str) -> Option<(Step, &str)> {
    if let Some(rest) = text.strip_prefix("[?(@") {
        return filter(rest);
    }
    if let Some(rest) = text.strip_prefix('[') {
        if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
            let (name, rest) = rest[1..].split_once(quote)?;
            return Some((Step::Field(name.to_owned()), rest.strip_prefix(']')?));
        }
        let (inside, rest) = rest.split_once(']')?;
        let bound = |text: &str| match text.trim() {
            "" => Some(None),
            text => text.parse().ok().map(Some),
        };
        let step = match inside.split_once(':') {
            _ if inside == "*" => Step::All,
            Some((from, to)) => Step::Slice(bound(from)?, bound(to)?),
            None => Step::Index(inside.parse().ok()?),
        };
        return Some((step, rest));
    }
    let rest = text.strip_prefix('.')?;
    let mut name = String::new();
    let mut chars = rest.char_indices();
    let mut end = rest.len();
    while let Some((at, c)) = chars.next() {
        match c {
            // A dot in a name, as in annotations.
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => {
                end = at;
                break;
            }
            c => name.push(c),
        }
    }
    match name.as_str() {
        // `..`, recursive descent.
        "" => None,
        "*" => Some((Step::All, &rest[end..])),
        _ => Some((Step::Field(name), &rest[end..])),
    }
}

fn filter(text: &str) -> Option<(Step, &str)> {
    let (inside, rest) = text.split_once(")]")?;
    let operator = ["==", "!="]
        .iter()
        .find_map(|operator| inside.split_once(operator).map(|(path, value)| (path, value, *operator == "==")));
    let Some((path, value, equal)) = operator else {
        let path = Some(inside.trim()).filter(|path| !path.contains(['?', '<', '>', '=']))?;
        return Some((Step::Having(Path::parse(path)?.0), rest));
    };
    let value = value.trim();
    let quoted = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
    let value = match quoted {
        Some(text) => Value::from(text),
        None => serde_json::from_str(value).ok()?,
    };
    // Filters inside of filters are beyond the subset.
    let path = path.trim();
    if path.contains('?') {
        return None;
    }
    Some((Step::Filter(Path::parse(path)?.0, value, equal), rest))
}

fn find<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    for step in steps {
        found = found.into_iter().flat_map(|value| next(step, value)).collect();
    }
    found
}

fn next<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    let inside = |value: &'a Value| -> Vec<&'a Value> {
        match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            _ => Vec::new(),
        }
    };
    match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(at) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            let at =
                if *at < 0 { items.len().checked_sub(at.unsigned_abs() as usize) } else { usize::try_from(*at).ok() };
            at.and_then(|at| items.get(at)).into_iter().collect()
        }
        Step::All => inside(value),
        Step::Slice(from, to) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            let at = |bound: i64| match usize::try_from(bound) {
                Ok(at) => at.min(items.len()),
                Err(_) => items.len().saturating_sub(usize::try_from(bound.unsigned_abs()).unwrap_or(usize::MAX)),
            };
            let (from, to) = (from.map_or(0, at), to.map_or(items.len(), at));
            items.get(from..to).into_iter().flatten().collect()
        }
        Step::Having(path) => {
            value.as_array().into_iter().flatten().filter(|item| !find(path, item).is_empty()).collect()
        }
        Step::Filter(path, wanted, equal) => {
            let matches = |item: &&Value| find(path, item).first().is_some_and(|found| (*found == wanted) == *equal);
            value.as_array().into_iter().flatten().filter(matches).collect()
        }
    }
}

/// The table of a version: its name and columns, or name and age without columns. One whose path cannot be read is empty.
pub(super) fn table(version: &Value) -> Table {
    let Some(columns) = version["additionalPrinterColumns"].as_array().filter(|all| !all.is_empty()) else {
        return Table::name_and_age();
    };
    let paths: Vec<(Option<Path>, String)> = columns
        .iter()
        .map(|column| {
            let (path, kind) = (column["jsonPath"].as_str(), column["type"].as_str());
            (path.and_then(Path::parse), kind.unwrap_or_default().to_owned())
        })
        .collect();
    let text = |column: &Value, field: &str| column[field].as_str().unwrap_or("").to_owned().into();
    let column = |column: &Value| Column {
        name: text(column, "name"),
        type_: text(column, "type"),
        format: text(column, "format"),
        description: text(column, "description"),
        priority: column["priority"].as_i64().unwrap_or(0),
    };
    let columns = std::iter::once(NAME).chain(columns.iter().map(column)).collect();
    let row = move |object: &Value, now: Timestamp| {
        let cells = paths.iter().map(|(path, kind)| {
            let found = path.as_ref().and_then(|path| path.first(object));
            found.map_or(Value::Null, |value| cell(kind, value, now))
        });
        std::iter::once(object["metadata"]["name"].clone()).chain(cells).collect()
    };
    Table { columns, row: Box::new(row) }
}

/// The cell of a value in a column of a type.
fn cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("string", Value::String(text)) => Value::from(text.as_str()),
        ("string", Value::Null) => Value::Null,
        ("string", other) => Value::from(other.to_string()),
        ("integer", Value::Number(number)) => match number.as_i64() {
            Some(_) => value.clone(),
            // Go's conversion of a float cuts it.
            None => number.as_f64().map_or(Value::Null, |n| Value::from(n as i64)),
        },
        ("number", Value::Number(number)) => {
            number.as_f64().and_then(Number::from_f64).map_or(Value::Null, Value::Number)
        }
        ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(_) => Value::from(age(text, now)),
            Err(_) => Value::from("<invalid>"),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_columns() {
        let object = json!({"spec": {"replicas": 3, "ports": [{"port": 1}, {"port": 2}], "a.b": "x"},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        for (path, found) in [
            (".spec.replicas", json!(3)),
            (".spec.ports[1].port", json!(2)),
            (".spec.ports[-1].port", json!(2)),
            (".spec.ports[*].port", json!(1)),
            (".spec['a.b']", json!("x")),
            (".spec.a\\.b", json!("x")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type == 'Ready')].status", json!("True")),
            (".status.conditions[?(@.type!=\"Ready\")].status", json!("False")),
            (".spec.ports[-1:].port", json!(2)),
            (".spec.ports[0:2].port", json!(1)),
            (".spec.ports[1:].port", json!(2)),
            (".spec.ports[:-1].port", json!(1)),
            (".spec.ports[-9:9].port", json!(1)),
            (".spec.ports[2:1].port", Value::Null),
            (".status.conditions[-1:].type", json!("Ready")),
            (".status.conditions[?(@.status)].type", json!("A")),
            (".status.conditions[?(@.nothing)].type", Value::Null),
            (".spec.ports[9].port", Value::Null),
            (".nothing.at.all", Value::Null),
        ] {
            let path = Path::parse(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(path.first(&object).cloned().unwrap_or_default(), found, "{path:?}");
        }
        for bad in ["spec", "..spec", ".spec[", ".spec[x]", ".spec[x:1]", ".a[?(@.b<1)]", ".a[?(@.b==c)]", ".spec."] {
            assert!(Path::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn cells_of_each_type() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        for (kind, value, shown) in [
            ("string", json!("a"), json!("a")),
            ("string", json!({"a": 1}), json!("{\"a\":1}")),
            ("string", json!(5), json!("5")),
            ("integer", json!(5), json!(5)),
            ("integer", json!(5.7), json!(5)),
            ("integer", json!("5"), Value::Null),
            ("number", json!(5), json!(5.0)),
            ("boolean", json!(true), json!(true)),
            ("date", json!("2026-01-01T00:00:00Z"), json!("24h")),
            ("date", json!("yesterday"), json!("<invalid>")),
        ] {
            assert_eq!(cell(kind, &value, now), shown, "{kind} {value}");
        }
    }

    #[test]
    fn a_path_that_cannot_be_read_costs_its_own_column_alone() {
        let columns = json!([
            {"name": "Bad", "type": "string", "jsonPath": "..x"},
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        ]);
        let table = table(&json!({"additionalPrinterColumns": columns}));
        assert_eq!(table.columns.iter().map(|column| &*column.name).collect::<Vec<_>>(), ["Name", "Bad", "Size"]);
        let row = (table.row)(&json!({"metadata": {"name": "a"}, "spec": {"size": 2}}), Timestamp::UNIX_EPOCH);
        assert_eq!(row, [json!("a"), Value::Null, json!(2)]);
    }
}
