//! Records what a real API server says of the rows of `src/kinds/tests`, and checks that it still says what is recorded:
//! `UPDATE_RECORDED=1 cargo test -p windlass-control --test differential recorded_tables` writes the rows that differ.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use crate::{
    api_server::{ApiServer, JSON},
    kinds::{Served, changed, collection, name_of, sample, served},
    known_differences::is_recording,
    recorded_rows::{with, written},
    scenario::step,
    with_both_servers,
};

/// The tables, each row with the errors of its fields in the last column: new objects, and changes of stored ones.
const TABLES: [&str; 2] = ["refusals", "changes"];

pub(crate) fn recorded_tables_are_those_of_the_real_server() {
    with_both_servers(async |real, _| {
        let (mut kinds, mut differ, mut rows) = (BTreeMap::new(), Vec::new(), 0);
        for table in TABLES {
            let file = format!("{}/src/kinds/tests/{table}.tsv", env!("CARGO_MANIFEST_DIR"));
            let text = fs::read_to_string(&file)?;
            let mut lines = String::new();
            for line in text.lines() {
                let (row, recorded) = line.rsplit_once('\t').unwrap_or((line, ""));
                let answer = if line.starts_with('#') { None } else { Some(answer_to(real, &mut kinds, row).await?) };
                let said = answer.map(|answer| errors_of(&answer));
                if let Some(said) = said.filter(|said| comparable(said) != comparable(&written(recorded))) {
                    differ.push(format!("{table}: {row}\n    recorded: {recorded}\n    now:      {said}"));
                    lines.push_str(&format!("{row}\t{said}\n"));
                } else {
                    lines.push_str(&format!("{line}\n"));
                }
                rows += 1;
            }
            if is_recording() {
                fs::write(&file, lines)?;
            }
        }
        println!("{rows} rows, {} of which differ", differ.len());
        anyhow::ensure!(rows > 1000, "only {rows} rows were found");
        anyhow::ensure!(differ.is_empty() || is_recording(), "{}", differ.join("\n"));
        Ok(())
    });
}

/// What the server says of a row: of a new object, or of a change where it names a subresource, maybe none, as well.
async fn answer_to(
    real: &ApiServer,
    kinds: &mut BTreeMap<String, BTreeMap<String, Served>>,
    row: &str,
) -> anyhow::Result<Value> {
    let fields: Vec<&str> = row.split('\t').collect();
    let (api_version, kind, change, pointer, value) = match fields[..] {
        [api_version, kind, pointer, value] => (api_version, kind, None, pointer, value),
        [api_version, kind, subresource, pointer, value] => (api_version, kind, Some(subresource), pointer, value),
        _ => anyhow::bail!("neither four nor five fields: {row}"),
    };
    if !kinds.contains_key(api_version) {
        kinds.insert(api_version.to_owned(), served(real, api_version).await?);
    }
    let served = kinds.get(api_version).and_then(|all| all.get(kind));
    let served = served.ok_or_else(|| anyhow::anyhow!("{api_version} {kind} is not served"))?;
    let all = collection(api_version, served);
    let ask = |method, path: &str, body| step("recorder", "admin", method, path, JSON, body);
    let Some(subresource) = change else {
        let object = with(named(api_version, kind)?, pointer, value);
        return real.ask(&ask("POST", &format!("{all}?dryRun=All"), object)).await;
    };
    let one = format!("{all}/{}", name_of(kind));
    real.ask(&ask("POST", &all, sample(api_version, kind)?)).await?;
    changed(real, &one, subresource, |stored| with(stored, pointer, value)).await
}

/// The good object of a kind as the tests of this crate name it, with a label and an annotation.
fn named(api_version: &str, kind: &str) -> anyhow::Result<Value> {
    let mut object = sample(api_version, kind)?;
    let name = match kind {
        "CustomResourceDefinition" => "x.test.example",
        "APIService" => "v1.x.example",
        "IPAddress" => "10.9.120.0",
        _ => "x",
    };
    if kind == "CustomResourceDefinition" {
        object["spec"]["names"]["plural"] = json!("x");
    }
    object["metadata"] = json!({"name": name, "labels": {"l": "1"}, "annotations": {"an": "1"}});
    Ok(object)
}

/// The errors of fields, each with its field.
fn errors_of(answer: &Value) -> Value {
    let causes = answer["body"]["details"]["causes"].as_array().into_iter().flatten();
    let text = |cause: &Value| {
        format!("{}: {}", cause["field"].as_str().unwrap_or(""), cause["message"].as_str().unwrap_or(""))
    };
    json!(causes.map(text).collect::<Vec<_>>())
}

/// Without the addresses of Go's memory and the uids that some messages show, and in one order: of the keys of a map Go has
/// another one in each run.
fn comparable(errors: &Value) -> String {
    let is_uid = |word: &str| {
        let lengths = word.split('-').map(str::len);
        lengths.eq([8, 4, 4, 4, 12]) && word.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
    };
    let mut errors: Vec<String> = errors.as_array().into_iter().flatten().map(Value::to_string).collect();
    errors.sort();
    let words = errors.join("\n");
    let words = words.split_inclusive(|c: char| !(c == '-' || c.is_ascii_alphanumeric()));
    let text: String = words
        .map(|word| if word.get(..36).is_some_and(is_uid) { word[36..].to_owned() } else { word.to_owned() })
        .collect();
    let mut parts = text.split("0xc");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("0xc…");
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
    out
}
