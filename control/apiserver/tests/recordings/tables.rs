//! Records what a real API server says of the rows of `src/kinds/tests`, and checks that it still says what is recorded:
//! `UPDATE_RECORDED=1 cargo test -p windlass-control --test recordings tables` writes the rows that differ.

use std::{collections::BTreeMap, fs, time::Duration};

use serde_json::Value;
use windlass_tests::cluster::ControlPlane;

use crate::{
    is_recording,
    real_server::RealServer,
    recorded::{Answered, Asking, Said, TABLES, Table, rows, written},
};

/// How long the server has to learn of what is stored when an answer is not as it was recorded.
const LONG_PAUSE: Duration = Duration::from_secs(3);

/// An environment variable with the name of a table, to the exclusion of the others.
const ONLY: &str = "RECORDED_TABLE";

/// Compares or writes all tables.
pub(crate) async fn record(server: RealServer, _: &ControlPlane) -> anyhow::Result<()> {
    let mut asking = Asking::new(server);
    let only = std::env::var(ONLY).ok();
    let mut differ = Vec::new();
    for table in TABLES.iter().filter(|table| only.as_ref().is_none_or(|name| name == table.name)) {
        differ.extend(record_table(table, &mut asking).await?);
    }
    anyhow::ensure!(differ.is_empty() || is_recording(), "{}", differ.join("\n"));
    Ok(())
}

/// The rows of a table that differ; they are written if that is asked for.
async fn record_table(table: &Table, asking: &mut Asking<RealServer>) -> anyhow::Result<Vec<String>> {
    let file = format!("{}/src/kinds/tests/{}.tsv", env!("CARGO_MANIFEST_DIR"), table.name);
    let text = fs::read_to_string(&file)?;
    let mut answers = table.answers(asking, rows(&text)).await?;
    let asked = answers.len();
    answers.retain(differs);
    if !answers.is_empty() {
        // The server may not have known all that was given.
        let pause = std::mem::replace(&mut asking.server().pause, LONG_PAUSE);
        let again = rows(&text).filter(|(line, _)| answers.iter().any(|answered| answered.line == *line));
        answers = table.answers(asking, again).await?;
        asking.server().pause = pause;
        answers.retain(differs);
    }
    println!("{}: {asked} rows, {} of which differ", table.name, answers.len());
    anyhow::ensure!(asked > table.more_than, "{}: only {asked} rows were found", table.name);
    if is_recording() {
        let by_line: BTreeMap<usize, &Answered<'_>> =
            answers.iter().map(|answered| (answered.line, answered)).collect();
        let lines = text.lines().enumerate();
        let lines =
            lines.map(|(number, line)| by_line.get(&number).map_or(line.to_owned(), |answered| line_of(answered)));
        fs::write(&file, lines.map(|line| line + "\n").collect::<String>())?;
    }
    let shown = |answered: &Answered<'_>| {
        let (row, recorded) = (answered.given.join("\t"), answered.recorded.join("\t"));
        let now = match &answered.said {
            Ok(said) => said.iter().map(|said| format!("{said:?} ")).collect(),
            Err(error) => format!("{error:#}"),
        };
        format!("{} {}: {row}\n    recorded: {recorded}\n    now:      {now}", table.name, answered.line + 1)
    };
    Ok(answers.iter().map(shown).collect())
}

/// Whether the server says something else than what was recorded.
fn differs(answered: &Answered<'_>) -> bool {
    let Ok(said) = &answered.said else { return true };
    said.len() != answered.recorded.len()
        || said.iter().zip(&answered.recorded).any(|(said, recorded)| match (said, said.column()) {
            (_, None) => false,
            (Said::Value(found), _) => recorded.is_empty() || *found != written(recorded),
            (_, Some(found)) => recorded.is_empty() || comparable(&found) != comparable(&written(recorded)),
        })
}

/// A row with what the server says; what it did not come to stays as it is.
fn line_of(answered: &Answered<'_>) -> String {
    let mut columns: Vec<String> = answered.given.iter().map(|given| (*given).to_owned()).collect();
    for (at, recorded) in answered.recorded.iter().enumerate() {
        let said = answered.said.as_ref().ok().and_then(|said| said.get(at));
        let column = said.and_then(|said| Some((said, said.column()?)));
        columns.push(match column {
            None => (*recorded).to_owned(),
            Some((Said::Value(_), value)) => value.to_string(),
            // As a person would write a list of texts.
            Some((_, texts)) => shortened(&texts.to_string().replace("\",\"", "\", \"")),
        });
    }
    columns.join("\t")
}

/// Letters after which a repetition is written as `{a*300}`.
const LONG: usize = 300;

/// A text in which many times the same letter stand as their number.
fn shortened(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let runs = letters.chunk_by(|letter, next| letter == next && letter.is_alphanumeric());
    let run = |run: &[char]| {
        if run.len() < LONG { run.iter().collect() } else { format!("{{{}*{}}}", run[0], run.len()) }
    };
    runs.map(run).collect()
}

/// Without the addresses of Go's memory, the uids and the times that some messages show, and in one order: of the keys of a map
/// Go has another one in each run.
fn comparable(errors: &Value) -> String {
    let is_uid = |word: &str| {
        let lengths = word.split('-').map(str::len);
        lengths.eq([8, 4, 4, 4, 12]) && word.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
    };
    let mut errors: Vec<String> = match errors {
        Value::Array(errors) => errors.iter().map(Value::to_string).collect(),
        other => vec![other.to_string()],
    };
    errors.sort();
    let words = errors.join("\n");
    let words = words.split_inclusive(|c: char| !(c == '-' || c.is_ascii_alphanumeric()));
    let text: String = words
        .map(|word| if word.get(..36).is_some_and(is_uid) { word[36..].to_owned() } else { word.to_owned() })
        .collect();
    let without_addresses = without(&text, "0xc", |c| c.is_ascii_hexdigit());
    without(&without_addresses, TIME, |c| c.is_ascii_digit() || "-:TZ".contains(c))
}

/// What comes before a time in an object that a message shows.
const TIME: &str = r#"\"time\":\""#;

/// A text without the letters that come after each occurrence of another one.
fn without(text: &str, before: &str, are_left_out: impl Fn(char) -> bool) -> String {
    let mut parts = text.split(before);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(before);
        out.push_str(part.trim_start_matches(&are_left_out));
    }
    out
}
