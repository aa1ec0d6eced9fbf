//! Our API says what kube-apiserver says: each row of the tables in this directory.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};
use tokio_util::sync::DropGuard;
use windlass_identity::service_account_tokens::TokenIssuer;

use super::recorded::{Answered, Asking, Caller, Reply, Request, Said, Server, TABLES, errors_of, rows, written};
use crate::{
    apiextensions::tests::establish_all,
    apiserver::{
        User,
        tests::{api_with, call, send, send_with},
    },
    control_plane::instance::Instance,
    store::{Expected, Key, Write},
};

/// Our API with a store in memory.
struct Ours {
    api: Instance,
    /// Serves definitions until it is dropped.
    _definitions: Option<DropGuard>,
}

/// An API with the namespaces of the tables.
async fn api() -> Instance {
    let tokens = TokenIssuer::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let api = api_with(Some(tokens), Some(24 * 60 * 60));
    for name in ["n", "kube-system"] {
        call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
    }
    call(&api, "POST", "/api/v1/namespaces/n/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    api
}

/// A user by its columns.
fn user(columns: &str) -> User {
    let mut user = User::default();
    for part in columns.split(',') {
        match part.split_once('=') {
            Some((key, value)) => drop(user.extra.insert(key.to_owned(), vec![value.to_owned()])),
            None if user.name.is_empty() => part.clone_into(&mut user.name),
            None => user.groups.push(part.to_owned()),
        }
    }
    user
}

impl Server for Ours {
    async fn start_afresh(&mut self) -> anyhow::Result<()> {
        *self = Self { api: api().await, _definitions: None };
        Ok(())
    }

    async fn ask(&self, request: &Request<'_>) -> anyhow::Result<Reply> {
        let Request { caller, method, path, content_type, accept, body } = *request;
        let user = match caller {
            Caller::Administrator => User::internal("test"),
            Caller::User(columns) => user(columns),
            Caller::Token(token) => return Ok(send_with(&self.api, token, method, path, body).await),
        };
        Ok(send(&self.api, &user, method, path, content_type, accept, body).await)
    }

    async fn write_past(&self, path: &str, change: &dyn Fn(Value) -> Value) -> anyhow::Result<()> {
        let api = &self.api;
        let stored = call(api, "GET", path, Value::Null).await.body;
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let metadata = &stored["metadata"];
        let key = Key { namespace: text(&metadata["namespace"]), name: text(&metadata["name"]) };
        let plural = path.rsplit('/').nth(1).unwrap();
        let catalog = api.catalogs().current();
        let is_of_path =
            |version: &str, plural_of: &str| plural_of == plural && stored["apiVersion"].as_str() == Some(version);
        let version = catalog.all().find(|version| is_of_path(&version.gvk.api_version(), &version.plural)).unwrap();
        let resource = version.id().unwrap();
        let expected = Expected::Revision(api.store().get(resource, &key).unwrap().revision);
        let (value, guards, companions) = (Some(change(stored)), Vec::new(), Vec::new());
        api.store().write(Write { resource, key, expected, value, guards, companions }).await.unwrap();
        Ok(())
    }

    async fn established(&mut self, definitions: &[String]) -> anyhow::Result<()> {
        self._definitions = establish_all(&self.api, definitions).await;
        Ok(())
    }

    async fn settle(&self) {}
}

fn without_uids(text: &str) -> String {
    const DASHES: [usize; 4] = [8, 13, 18, 23];
    let is_uid = |part: &[u8]| {
        part.iter()
            .enumerate()
            .all(|(at, byte)| if DASHES.contains(&at) { *byte == b'-' } else { byte.is_ascii_hexdigit() })
    };
    let found = text.as_bytes().windows(36).position(is_uid);
    found.map_or(text.to_owned(), |at| format!("{}UID{}", &text[..at], without_uids(&text[at + 36..])))
}

/// A text of an error without what is by chance, and without a value that upstream writes as Go's internal type.
fn comparable(text: &str, internal: bool) -> String {
    let text = without_uids(text);
    let value = text.find(" value: ").map(|at| at + " value: ".len());
    let Some(at) = value.filter(|at| internal && text[*at..].starts_with(['{', '['])) else { return text };
    let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
    if values.next().is_none_or(|value| value.is_err()) {
        return text;
    }
    format!("{}…{}", &text[..at], &text[at + values.byte_offset()..])
}

/// Whether a text has what a server writes of its own: times, and the fields that a client manages.
fn is_managed(text: &str) -> bool {
    text.contains("managedFields")
}

/// Whether a text has a value of Go's internal types: their fields begin with a capital.
fn is_internal(text: &str) -> bool {
    text.match_indices("{\"").any(|(at, _)| text[at + 2..].starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Whether errors of fields are those that upstream has.
fn are_same(found: &[String], upstream: &[String]) -> bool {
    let (mut found, mut upstream) = (found.to_vec(), upstream.to_vec());
    // Upstream says the same of metadata more than once, by each function that looks at it.
    for all in [&mut found, &mut upstream] {
        all.dedup_by(|text, before| text == before && text.starts_with("metadata."));
    }
    found.len() == upstream.len()
        && found.iter().zip(&upstream).all(|(found, upstream)| {
            let internal = is_managed(upstream) || (is_internal(upstream) && !is_internal(found));
            comparable(found, internal) == comparable(upstream, internal)
        })
}

/// The errors of fields in an answer, if they are not those that upstream has.
pub(super) fn compare(row: &str, reply: &Reply, upstream: &[String]) -> Option<String> {
    let found = errors_of(reply);
    (!are_same(&found, upstream)).then(|| format!("{row}:\n  upstream: {upstream:?}\n  ours:     {found:?}"))
}

/// Whether we said in a column what was recorded there.
fn agrees(said: &Said, recorded: &str) -> bool {
    let texts = || serde_json::from_value::<Vec<String>>(written(recorded)).unwrap();
    match said {
        Said::Errors(found) => are_same(found, &texts()),
        Said::Message(found) => texts() == [found.clone()],
        // That a kind has no effect here is for users of this API alone.
        Said::Warnings(found) => texts().iter().eq(found.iter().filter(|warning| !warning.contains("is stored, but"))),
        // What is the client's fault is said to be so, also where upstream calls it its own.
        Said::Code(found) => found.to_string() == recorded || (recorded == "500" && *found == 400),
        Said::Value(found) => recorded.is_empty() || *found == written(recorded),
        Said::Nothing => true,
    }
}

/// What we say of a row, if it is not what was recorded.
fn difference(answered: &Answered<'_>) -> Option<String> {
    let row = answered.given.join("\t");
    let said = match &answered.said {
        Ok(said) => said,
        Err(error) => return Some(format!("{row}: {error:#}")),
    };
    assert_eq!(said.len(), answered.recorded.len(), "{row}");
    let differ = said.iter().zip(&answered.recorded).filter(|(said, recorded)| !agrees(said, recorded));
    let lines: Vec<String> =
        differ.map(|(said, recorded)| format!("\n  upstream: {recorded}\n  ours:     {said:?}")).collect();
    (!lines.is_empty()).then(|| format!("{row}:{}", lines.concat()))
}

/// Compares what we say of each row of these tables.
async fn compare_tables(names: &[&str]) {
    let mut asking = Asking::new(Ours { api: api().await, _definitions: None });
    for name in names {
        let table = TABLES.iter().find(|table| table.name == *name).unwrap();
        let text = super::table(name);
        let answers = table.answers(&mut asking, rows(&text)).await.unwrap();
        let wrong: Vec<String> = answers.iter().filter_map(difference).collect();
        assert!(answers.len() > table.more_than, "{name}: {}", answers.len());
        assert!(wrong.is_empty(), "{name}: {} of {} differ:\n{}", wrong.len(), answers.len(), wrong.join("\n"));
    }
}

#[tokio::test]
async fn what_upstream_refuses_is_refused_in_its_words() {
    compare_tables(&["refusals"]).await;
}

#[tokio::test]
async fn changes_that_upstream_refuses_are_refused_in_its_words() {
    compare_tables(&["changes"]).await;
}

#[tokio::test]
async fn clients_are_warned_as_upstream_warns_them() {
    compare_tables(&["warnings", "warning_changes"]).await;
}

#[tokio::test]
async fn what_is_stored_is_tolerated_as_upstream_does() {
    compare_tables(&["tolerated"]).await;
}

#[tokio::test]
async fn objects_in_any_state_change_as_upstream_allows() {
    compare_tables(&["stored_changes"]).await;
}

#[tokio::test]
async fn claims_and_volumes_change_as_upstream_allows() {
    compare_tables(&["volume_changes"]).await;
}

#[tokio::test]
async fn specs_of_pods_are_validated_as_upstream_does() {
    compare_tables(&["scheduling", "pod_volumes", "pod_warnings", "pod_security"]).await;
    compare_tables(&["pod_fields", "pod_resources", "pod_containers", "pod_volume_sources"]).await;
}

#[tokio::test]
async fn pods_change_as_upstream_allows() {
    compare_tables(&["pod_changes"]).await;
}

#[tokio::test]
async fn ephemeral_containers_are_validated_as_upstream_does() {
    compare_tables(&["ephemeral_containers"]).await;
}

#[tokio::test]
async fn profiles_are_read_as_upstream_reads_them() {
    compare_tables(&["security_profiles"]).await;
}

#[tokio::test]
async fn requests_are_refused_as_upstream_refuses_them() {
    compare_tables(&["requests"]).await;
}

#[tokio::test]
async fn requests_are_warned_of_as_upstream_warns() {
    compare_tables(&["request_warnings"]).await;
}

/// Each table has its rows asked for and recorded: none is written by hand, or forgotten.
#[test]
fn every_table_is_recorded() {
    let files = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/kinds/tests")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let found: BTreeSet<String> = names.filter_map(|name| Some(name.strip_suffix(".tsv")?.to_owned())).collect();
    let mut known: BTreeSet<String> = TABLES.iter().map(|table| table.name.to_owned()).collect();
    // Ours: the objects that rows change.
    known.insert("samples".to_owned());
    assert_eq!(found, known);
}
