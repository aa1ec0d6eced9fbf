//! Recorded webhooks of real operators: they are asked by this API what kube-apiserver has asked them, and their answers lead
//! to the same objects, refusals and warnings.

use std::{fs, mem, sync::Arc};

use parking_lot::Mutex;
use tokio_util::sync::DropGuard;

use super::{
    exchanges::{Blanks, Call, Case, Recorded, differences, reply, sent, single},
    *,
};
use crate::{
    apiextensions::tests::establish_all,
    apiserver::{User, tests::send},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CONVERSION: &str = "ConversionReview";

/// The webhooks of an operator, which answer what is recorded.
struct Replay {
    user: Value,
    conversions: Vec<Call>,
    /// The calls that are still to come with a request.
    expected: Vec<Call>,
    /// What was asked otherwise.
    differ: Vec<String>,
}

impl Replay {
    fn answer(&mut self, path: &str, review: &Value) -> Act {
        let body = if review["kind"] == CONVERSION { self.convert(review) } else { self.admit(path, review) };
        body.map_or_else(|| Act::Raw(500, "this was not recorded".to_owned()), |body| Act::Raw(200, body.to_string()))
    }

    fn admit(&mut self, path: &str, review: &Value) -> Option<Value> {
        let mut blanks = Blanks::of(&self.user);
        let now = blanks.blank(review);
        let found = self.expected.iter().position(|call| call.path.split('?').next() == Some(path));
        let Some(found) = found else {
            self.differ.push(format!("{path} was not asked when it was recorded; now: {now}"));
            return None;
        };
        let call = self.expected.remove(found);
        let differ = differences(&call.review, &now);
        if !differ.is_empty() {
            self.differ.push(format!("{path}: {}\nrecorded: {}\nnow: {now}", differ.join("\n"), call.review));
        }
        Some(sent(&call.answer, &blanks))
    }

    /// Kube-apiserver converts each object of a list alone, this API all at once: each is looked for by itself.
    fn convert(&mut self, review: &Value) -> Option<Value> {
        let mut whole: Option<Value> = None;
        for one in single(review) {
            let mut blanks = Blanks::of(&self.user);
            let now = blanks.blank(&one);
            let Some(call) = self.conversions.iter().find(|call| call.review == now) else {
                let about = |review: &Value| {
                    let object = &review["request"]["objects"][0];
                    [&object["kind"], &object["metadata"]["name"], &review["request"]["desiredAPIVersion"]]
                        .map(Clone::clone)
                };
                let like = self.conversions.iter().filter(|call| about(&call.review) == about(&now));
                let nearest = like.map(|call| differences(&call.review, &now)).min_by_key(Vec::len).unwrap_or_default();
                self.differ.push(format!("this conversion is not recorded: {now}\nnearest: {}", nearest.join("\n")));
                return None;
            };
            let mut answer = sent(&call.answer, &blanks);
            match &mut whole {
                None => whole = Some(answer),
                Some(whole) => {
                    let converted = answer["response"]["convertedObjects"].as_array_mut().map(mem::take);
                    whole["response"]["convertedObjects"].as_array_mut()?.extend(converted?);
                }
            }
        }
        whole
    }
}

/// Installs the definitions and configurations with the test's webhook.
async fn install(api: &Instance, server: &WebhookServer, recorded: &Recorded) -> Option<DropGuard> {
    let mut paths = Vec::new();
    for definition in &recorded.definitions {
        let mut definition = definition.clone();
        let path = Recorded::conversion_path(&definition);
        definition["spec"]["conversion"]["webhook"]["clientConfig"] = server.client_config(&path);
        let made = call(api, "POST", DEFINITIONS, definition).await;
        assert_eq!(made.code, 201, "{}", made.body);
        paths.push(format!("{DEFINITIONS}/{}", made.body["metadata"]["name"].as_str().unwrap()));
    }
    for (kind, configuration) in &recorded.configurations {
        let mut configuration = configuration.clone();
        for webhook in configuration["webhooks"].as_array_mut().unwrap() {
            let path = webhook["clientConfig"]["path"].as_str().unwrap().to_owned();
            webhook["clientConfig"] = server.client_config(&path);
        }
        let path = format!("{CONFIGURATIONS}/{kind}webhookconfigurations");
        let made = call(api, "POST", &path, configuration).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    establish_all(api, &paths).await
}

async fn ask(api: &Instance, user: &User, case: &Case) -> Reply {
    let mut revision = String::new();
    if case.has_revision() {
        let path = case.path.split('?').next().unwrap();
        let there = call(api, "GET", path, Value::Null).await;
        there.body["metadata"]["resourceVersion"].as_str().unwrap().clone_into(&mut revision);
    }
    let json = "application/json";
    send(api, user, &case.method, &case.path, case.content_type(), json, &case.body(&revision)).await
}

/// What differs from the recording of an operator.
async fn replay(file: &str) -> Vec<String> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plugin/admission/webhook/tests");
    let recorded = Recorded::read(&fs::read_to_string(format!("{directory}/{file}")).unwrap());
    assert!(recorded.cases.len() > 20, "only {} requests were found", recorded.cases.len());
    let user: User = user_of(&recorded.user);
    let (api, server) = (with_namespace().await, WebhookServer::start("127.0.0.1", &[]).await);
    let replay = Arc::new(Mutex::new(Replay {
        user: recorded.user.clone(),
        conversions: recorded.conversions.clone(),
        expected: Vec::new(),
        differ: Vec::new(),
    }));
    let answering = Arc::clone(&replay);
    server.decide(move |path, review| answering.lock().answer(path, review));
    let _serving = install(&api, &server, &recorded).await;
    let mut differ = Vec::new();
    for case in &recorded.cases {
        server.calls();
        replay.lock().expected.clone_from(&case.calls);
        let answered = ask(&api, &user, case).await;
        let mut replay = replay.lock();
        let mut found = mem::take(&mut replay.differ);
        let left = mem::take(&mut replay.expected);
        found.extend(left.iter().map(|call| format!("{} was asked, and is not now", call.path)));
        let calls = server.calls().into_iter().filter(|(_, review)| review["kind"] != CONVERSION);
        let (now, before): (Vec<String>, Vec<String>) =
            (calls.map(|(path, _)| path).collect(), case.calls.iter().map(|call| call.path.clone()).collect());
        if found.is_empty() && now != before {
            found.push(format!("the calls are {now:?}, and were {before:?}"));
        }
        let said = reply(answered.code, &answered.warnings, &answered.body);
        found.extend(differences(&case.reply, &said).into_iter().map(|line| format!("reply{line}")));
        differ.extend(found.iter().map(|line| format!("{}: {line}", case.name)));
    }
    differ
}

fn user_of(recorded: &Value) -> User {
    let texts = |value: &Value| serde_json::from_value(value.clone()).unwrap_or_default();
    User {
        name: recorded["username"].as_str().unwrap().to_owned(),
        uid: recorded["uid"].as_str().unwrap_or_default().to_owned(),
        groups: texts(&recorded["groups"]),
        extra: serde_json::from_value(recorded["extra"].clone()).unwrap_or_default(),
    }
}

#[tokio::test]
async fn the_webhooks_of_tekton_are_asked_as_by_kube_apiserver() {
    let differ = replay("tekton.jsonl").await;
    assert!(differ.is_empty(), "{} differences:\n{}", differ.len(), differ.join("\n"));
}
