//! Rows of recorded tables, and their columns.

use serde_json::Value;

/// The rows of a table, each with the number of its line from 0: lines that begin with `#` say what the table is.
pub(crate) fn rows(table: &str) -> impl Iterator<Item = (usize, &str)> {
    table.lines().enumerate().filter(|(_, line)| !line.starts_with('#'))
}

/// The value of a column: a text such as `{a*300}` in it stands for 300 times the letter.
pub(crate) fn written(text: &str) -> Value {
    let expanded = repeats(text);
    serde_json::from_str(&expanded).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn repeats(text: &str) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let repeat = part.split_once('}').and_then(|(inside, after)| {
            let (letter, times) = inside.split_once('*')?;
            Some((letter, times.parse::<usize>().ok()?, after))
        });
        match repeat.filter(|(letter, ..)| letter.chars().count() == 1) {
            Some((letter, times, after)) => {
                out.push_str(&letter.repeat(times));
                out.push_str(after);
            }
            None => {
                out.push('{');
                out.push_str(part);
            }
        }
    }
    out
}

/// The object with another value at a pointer, or without one.
pub(crate) fn with(mut object: Value, pointer: &str, value: &str) -> Value {
    let (holder, key) = pointer.rsplit_once('/').unwrap_or_else(|| panic!("{pointer} is no pointer"));
    let key = key.replace("~1", "/");
    let mut place = &mut object;
    for step in holder.split('/').skip(1) {
        place = match place {
            Value::Array(items) => &mut items[place_in(step)],
            other => &mut other[step],
        };
    }
    match (place, value) {
        (Value::Object(fields), "-") => drop(fields.remove(&key)),
        (Value::Array(items), value) => {
            let (at, value) = (place_in(&key), written(value));
            if at < items.len() { items[at] = value } else { items.push(value) }
        }
        (other, value) => other[key] = written(value),
    }
    object
}

fn place_in(key: &str) -> usize {
    key.parse().unwrap_or_else(|error| panic!("{key} is no place in a list: {error}"))
}
