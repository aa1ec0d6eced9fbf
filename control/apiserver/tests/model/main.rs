//! Random requests to the API and to a small model of it, with kills and restarts in between: both agree on each answer, on
//! every list and on every event of a watch.
//!
//! `MODEL_CASES` sets the number of sequences; each has two hundred requests. `TEST_SEED` repeats those of an earlier run.

#![allow(clippy::print_stderr, reason = "a test says what it saw")]

#[path = "../api_process/mod.rs"]
mod api_process;
#[path = "../config/mod.rs"]
mod config;
mod kinds;
mod request;
mod semantics;
mod server;

use std::{collections::BTreeMap, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{RngSeed, TestRunner},
};

use api_process::Life;
use kinds::{KINDS, Kind};
use request::{Kill, Request, Step, Verb};
use semantics::{Answer, EventType, Model, Object};
use server::{Response, Seen, Sent};

const CASES: u32 = 12;
const STEPS: usize = 200;

/// What the server chose: uids and revisions, by those of the model.
#[derive(Default)]
struct Chosen {
    uids: BTreeMap<u64, String>,
    revisions: BTreeMap<u64, u64>,
}

impl Chosen {
    /// Notes what the server chose for a value of the model, and compares if it is known. Revisions grow with those of the
    /// model.
    fn compare(&mut self, what: &str, model: &Object, seen: &Seen) {
        let uid = self.uids.entry(model.uid).or_insert_with(|| seen.uid.clone());
        assert_eq!(*uid, seen.uid, "{what}: the uid of {model:?}");
        assert_eq!(self.uids.values().filter(|uid| **uid == seen.uid).count(), 1, "{what}: a uid of two objects");
        let revision = *self.revisions.entry(model.revision).or_insert(seen.revision);
        assert_eq!(revision, seen.revision, "{what}: the revision of {model:?}");
        let before = self.revisions.range(..model.revision).next_back().map_or(0, |(_, revision)| *revision);
        assert!(before < revision, "{what}: revision {revision} after {before}");
        let after = self.revisions.range(model.revision + 1..).next().map_or(u64::MAX, |(_, revision)| *revision);
        assert!(revision < after, "{what}: revision {revision} before {after}");
        compare_content(what, model, seen);
    }
}

/// Compares all but what the server chooses.
fn compare_content(what: &str, model: &Object, seen: &Seen) {
    let expected = Seen {
        fields: model.fields.clone(),
        managers: model.managers.clone(),
        finalizers: model.finalizers.clone(),
        generation: model.generation,
        deletion: model.deletion,
        uid: seen.uid.clone(),
        revision: seen.revision,
    };
    assert_eq!(expected, *seen, "{what}: the model (left) and the server (right)");
}

/// Compares an answer with that of the model.
fn compare_answer(chosen: &mut Chosen, request: &Request, stored_after: bool, model: &Answer, server: &Response) {
    let what = format!("{request:?}: {}", server.body);
    match model {
        Answer::Object(code, object) => {
            assert_eq!(*code, server.code, "{what}");
            let seen = Seen::of(request.kind, &server.body);
            // What is only tried, or gone with this answer, has no revision of its own.
            if request.dry_run || !stored_after {
                compare_content(&what, object, &seen);
            } else {
                chosen.compare(&what, object, &seen);
            }
        }
        Answer::Done => assert_eq!((200, "Success"), (server.code, text(server, "status")), "{what}"),
        Answer::List(names) => {
            assert_eq!(200, server.code, "{what}");
            let items = server.body["items"].as_array().cloned().unwrap_or_default();
            let seen: Vec<&str> = items.iter().filter_map(|o| o["metadata"]["name"].as_str()).collect();
            assert_eq!(*names, seen, "{what}");
        }
        Answer::Refused(code, reason) => {
            assert_eq!((*code, *reason), (server.code, text(server, "reason")), "{what}");
        }
    }
}

fn text<'a>(response: &'a Response, field: &str) -> &'a str {
    response.body[field].as_str().unwrap_or_default()
}

/// Whether all objects are those of the model.
async fn agrees(life: &Life, model: &Model, chosen: &Chosen) -> bool {
    for kind in KINDS {
        let (seen, _) = server::list(&life.client, kind).await;
        let of_kind = model.objects.iter().filter(|((of, _), _)| *of == kind);
        let expected: BTreeMap<&str, &Object> = of_kind.map(|((_, name), object)| (*name, object)).collect();
        let alike = expected.len() == seen.len()
            && expected.iter().all(|(name, object)| {
                seen.get(*name).is_some_and(|seen| {
                    let known = chosen.revisions.get(&object.revision);
                    let same_content = seen.fields == object.fields
                        && seen.managers == object.managers
                        && seen.finalizers == object.finalizers
                        && seen.generation == object.generation
                        && seen.deletion == object.deletion;
                    same_content && known.is_none_or(|revision| *revision == seen.revision)
                })
            });
        if !alike {
            return false;
        }
    }
    true
}

/// Compares all objects with those of the model.
async fn compare_lists(life: &Life, model: &Model, chosen: &mut Chosen, when: &str) {
    for kind in KINDS {
        let (mut seen, revision) = server::list(&life.client, kind).await;
        for ((_, name), object) in model.objects.iter().filter(|((of, _), _)| *of == kind) {
            let what = format!("{kind:?} {name} {when}");
            let seen = seen.remove(*name).unwrap_or_else(|| panic!("{what} is missing"));
            assert!(seen.revision <= revision, "{what} is newer than its list");
            chosen.compare(&what, object, &seen);
        }
        assert!(seen.is_empty(), "only the server has {seen:?} {when}");
    }
}

/// From where each kind is watched: a revision, and how many events of the model there were.
type Watched = BTreeMap<Kind, (u64, usize)>;

/// Watches all kinds, and compares the events. Where the history does not reach back far enough, watches begin again.
async fn compare_events(life: &Life, model: &Model, chosen: &mut Chosen, watched: &mut Watched) {
    for kind in KINDS {
        let (from, before) = watched[&kind];
        let expected: Vec<_> = model.events.iter().filter(|event| event.kind == kind).collect();
        let Some(seen) = server::events(&life.client, kind, from, expected.len() - before).await else {
            let (_, revision) = server::list(&life.client, kind).await;
            watched.insert(kind, (revision, expected.len()));
            continue;
        };
        for (expected, seen) in expected[before..].iter().zip(&seen) {
            let what = format!("event {:?} of {kind:?} {}", expected.event, expected.name);
            assert_eq!((expected.event, expected.name), (seen.event, seen.name.as_str()), "{what}: {seen:?}");
            chosen.compare(&what, &expected.object, &seen.object);
        }
        assert_eq!(expected.len() - before, seen.len(), "events of {kind:?}");
    }
}

async fn run(steps: &[Step]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut life = Life::begin(dir.path());
    let (mut model, mut chosen, mut watched) = (Model::default(), Chosen::default(), Watched::new());
    for kind in KINDS {
        let (objects, revision) = server::list(&life.client, kind).await;
        assert!(objects.is_empty(), "{objects:?}");
        watched.insert(kind, (revision, 0));
    }
    for step in steps {
        let request = &step.request;
        if step.kill != Kill::Never {
            compare_events(&life, &model, &mut chosen, &mut watched).await;
        }
        let sent = Sent::prepare(&life.client, request).await.expect("an API that lives");
        let mut after = model.clone();
        let expected = after.answer(request);
        let answered = match step.kill {
            Kill::During(tenths) => {
                let client = life.client.clone();
                let sending = tokio::spawn(async move { sent.send(&client).await });
                tokio::time::sleep(Duration::from_micros(100 * tenths)).await;
                life.kill();
                sending.await.expect("a task that does not panic").ok()
            }
            Kill::Never | Kill::AfterAnswer => Some(sent.send(&life.client).await.expect("an API that lives")),
        };
        if step.kill == Kill::AfterAnswer {
            life.kill();
        }
        if step.kill != Kill::Never {
            life = Life::begin(dir.path());
        }
        match answered {
            Some(answer) => {
                let stored = after.objects.contains_key(&(request.kind, request.name));
                compare_answer(&mut chosen, request, stored, &expected, &answer);
                model = after;
            }
            // Done or not: the objects say it. A collection may have been deleted in part.
            None if matches!(request.verb, Verb::DeleteCollection { .. }) => return,
            None if agrees(&life, &after, &chosen).await => model = after,
            None => {}
        }
        if step.kill != Kill::Never {
            compare_lists(&life, &model, &mut chosen, "after a kill").await;
            compare_events(&life, &model, &mut chosen, &mut watched).await;
        }
    }
    compare_lists(&life, &model, &mut chosen, "at the end").await;
    compare_events(&life, &model, &mut chosen, &mut watched).await;
    let deleted = model.events.iter().filter(|event| event.event == EventType::Deleted).count();
    eprintln!("{} requests, {} events, {deleted} of them deletions", steps.len(), model.events.len());
}

#[test]
fn the_api_answers_as_the_model_over_kills() {
    let cases =
        std::env::var("MODEL_CASES").ok().map_or(CASES, |cases| cases.parse().expect("a number in MODEL_CASES"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rng_seed = RngSeed::Fixed(windlass_tests::seed());
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 150,
        failure_persistence: None,
        rng_seed,
        ..ProptestConfig::default()
    };
    let steps = prop::collection::vec(request::step(), STEPS);
    let result = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(run(&steps));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
