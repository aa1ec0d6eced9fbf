//! Recorded exchanges of an API server with the webhooks of an operator: the rows of the file, and what of an exchange is the
//! same in every run. The test target `recordings` reads and writes the file with this, too.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "the unit test and the recorder each use a part of it, and a test may panic"
)]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

/// A recorded file.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Its first lines, which say what it is.
    comments: Vec<String>,
    /// What was asked, and what made it.
    pub(crate) by: Value,
    /// Who sends the requests.
    pub(crate) user: Value,
    /// Definitions whose conversion webhook has a path in place of a URL.
    pub(crate) definitions: Vec<Value>,
    /// `mutating` or `validating`, and a configuration whose webhooks have paths in place of URLs.
    pub(crate) configurations: Vec<(String, Value)>,
    pub(crate) cases: Vec<Case>,
    /// Conversions, each of one object. How often an object is converted is no part of a case: kube-apiserver does it once more
    /// for its watch caches.
    pub(crate) conversions: Vec<Call>,
}

/// A request, and what came of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) method: String,
    pub(crate) content_type: String,
    pub(crate) path: String,
    body: Value,
    /// The calls of admission webhooks, in their order.
    pub(crate) calls: Vec<Call>,
    pub(crate) reply: Value,
}

/// A review, and the answer to it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// With its query.
    pub(crate) path: String,
    pub(crate) review: Value,
    pub(crate) answer: Value,
}

impl Call {
    fn read(row: &Value) -> Self {
        Self { path: text(&row[0]), review: row[1].clone(), answer: row[2].clone() }
    }

    fn row(&self, kind: &str) -> String {
        json!({kind: [self.path, self.review, self.answer]}).to_string()
    }

    /// Whether another call is the same: programs in Go write the operations of a patch in any order.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let sorted = |call: &Self| {
            let mut answer = call.answer.clone();
            if let Some(patch) = answer.pointer_mut("/response/patch").and_then(Value::as_array_mut) {
                patch.sort_by_key(|operation| text(&operation["path"]));
            }
            answer
        };
        (&self.path, &self.review) == (&other.path, &other.review) && sorted(self) == sorted(other)
    }

    /// The same call without what differs in each run, and with its patch in clear.
    pub(crate) fn blanked(&self, user: &Value) -> Self {
        let mut blanks = Blanks::of(user);
        let review = blanks.blank(&self.review);
        let mut answer = self.answer.clone();
        if let Some(patch) = answer.pointer_mut("/response/patch") {
            let bytes = STANDARD.decode(patch.as_str().unwrap_or_default()).unwrap();
            *patch = serde_json::from_slice(&bytes).unwrap();
        }
        Self { path: self.path.clone(), review, answer: blanks.blank(&answer) }
    }
}

/// The body of an answer as it is sent for a review from which these blanks were taken.
pub(crate) fn sent(answer: &Value, blanks: &Blanks) -> Value {
    let mut answer = blanks.fill(answer);
    if let Some(patch) = answer.pointer_mut("/response/patch") {
        *patch = json!(STANDARD.encode(patch.to_string()));
    }
    answer
}

/// The reviews of one object each in place of one of several.
pub(crate) fn single(review: &Value) -> Vec<Value> {
    let objects = review["request"]["objects"].as_array().into_iter().flatten();
    let of_one = |object: &Value| {
        let mut one = review.clone();
        one["request"]["objects"] = json!([object]);
        one
    };
    objects.map(of_one).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Recorded {
    pub(crate) fn read(file: &str) -> Self {
        let mut read = Self::default();
        for line in file.lines() {
            if line.starts_with('#') {
                read.comments.push(line.to_owned());
                continue;
            }
            let row: Map<String, Value> = serde_json::from_str(line).unwrap();
            let (kind, row) = row.into_iter().next().unwrap();
            match kind.as_str() {
                "by" => read.by = row,
                "user" => read.user = row,
                "definition" => read.definitions.push(row),
                "mutating" | "validating" => read.configurations.push((kind, row)),
                "request" => read.cases.push(Case::read(&row)),
                "call" => read.cases.last_mut().unwrap().calls.push(Call::read(&row)),
                "reply" => read.cases.last_mut().unwrap().reply = row,
                "conversion" => read.conversions.push(Call::read(&row)),
                other => panic!("{other} is no row of these"),
            }
        }
        read
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = self.comments.clone();
        let row = |kind: &str, row: &Value| json!({kind: row}).to_string();
        lines.push(row("by", &self.by));
        lines.push(row("user", &self.user));
        lines.extend(self.definitions.iter().map(|definition| row("definition", definition)));
        lines.extend(self.configurations.iter().map(|(kind, configuration)| row(kind, configuration)));
        for case in &self.cases {
            lines.push(row("request", &case.given()));
            lines.extend(case.calls.iter().map(|call| call.row("call")));
            lines.push(row("reply", &case.reply));
        }
        lines.extend(self.conversions.iter().map(|call| call.row("conversion")));
        lines
    }

    /// The path of the conversion webhook of a definition.
    pub(crate) fn conversion_path(definition: &Value) -> String {
        text(&definition["spec"]["conversion"]["webhook"]["clientConfig"]["path"])
    }
}

/// What a merge patch is, unless a row says otherwise.
const MERGE: &str = "application/merge-patch+json";

impl Case {
    /// The method may be followed by the type of a patch.
    fn read(row: &Value) -> Self {
        let method = text(&row[1]);
        let (method, content_type) = method.split_once(' ').unwrap_or((&method, ""));
        Self {
            name: text(&row[0]),
            method: method.to_owned(),
            content_type: content_type.to_owned(),
            path: text(&row[2]),
            body: row[3].clone(),
            ..Self::default()
        }
    }

    fn given(&self) -> Value {
        let method = format!("{} {}", self.method, self.content_type);
        json!([self.name, method.trim(), self.path, self.body])
    }

    pub(crate) fn content_type(&self) -> &str {
        match (self.content_type.as_str(), self.method.as_str()) {
            ("", "PATCH") => MERGE,
            ("", _) => "application/json",
            (other, _) => other,
        }
    }

    /// The body, with the revision of what is there now in place of `{revision}`.
    pub(crate) fn body(&self, revision: &str) -> String {
        if self.body.is_null() { String::new() } else { self.body.to_string().replace(REVISION, revision) }
    }

    /// Whether the body has a revision.
    pub(crate) fn has_revision(&self) -> bool {
        self.body.to_string().contains(REVISION)
    }
}

const REVISION: &str = "{revision}";

/// An answer to a request without what differs in each run: code, warnings and body.
pub(crate) fn reply(code: u16, warnings: &[String], body: &Value) -> Value {
    json!([code, warnings, Blanks::of(&Value::Null).blank(body)])
}

/// What differs in each run, in the order in which it was found in a value, with what stands for it: uids, revisions and drawn
/// names each have a number, so that the same ones stay the same.
pub(crate) struct Blanks {
    found: Vec<(String, String)>,
    /// Who sends the request.
    user: Value,
}

const TIME: &str = "<time>";
const USER: &str = "<user>";
const REVISION_OF_LIST: &str = "<revision>";
/// A time for what had none.
const ANY_TIME: &str = "2026-01-01T00:00:00Z";
/// How the id of a client certificate begins, which is another one in each run.
const CREDENTIAL: (&str, &str) = ("X509SHA256=", "<certificate>");

impl Blanks {
    pub(crate) fn of(user: &Value) -> Self {
        Self { found: Vec::new(), user: user.clone() }
    }

    /// The value with blanks, which are numbered on from those that were found before.
    pub(crate) fn blank(&mut self, value: &Value) -> Value {
        self.find_drawn_names(value);
        self.blanked("", value)
    }

    fn find_drawn_names(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let (Some(prefix), Some(name)) = (value["generateName"].as_str(), value["name"].as_str())
                    && name.len() > prefix.len()
                    && name.starts_with(prefix)
                {
                    self.numbered("name", name);
                }
                fields.values().for_each(|value| self.find_drawn_names(value));
            }
            Value::Array(items) => items.iter().for_each(|value| self.find_drawn_names(value)),
            _ => {}
        }
    }

    fn numbered(&mut self, kind: &str, actual: &str) -> String {
        let is_of_kind = |blank: &str| blank.trim_start_matches('<').starts_with(kind);
        if let Some((blank, _)) = self.found.iter().find(|(blank, found)| found == actual && is_of_kind(blank)) {
            return blank.clone();
        }
        let number = 1 + self.found.iter().filter(|(blank, _)| is_of_kind(blank)).count();
        let blank = format!("<{kind} {number}>");
        self.found.push((blank.clone(), actual.to_owned()));
        blank
    }

    fn blanked(&mut self, key: &str, value: &Value) -> Value {
        match value {
            Value::Object(_) if key == "userInfo" && normal_user(value) == self.user => json!(USER),
            Value::Object(fields) => {
                // That of a list is any.
                let is_of_list = key == "metadata" && !fields.contains_key("name");
                let blanked = |(key, value): (&String, &Value)| match key.as_str() {
                    "resourceVersion" if is_of_list => (key.clone(), json!(REVISION_OF_LIST)),
                    _ => (key.clone(), self.blanked(key, value)),
                };
                fields.iter().map(blanked).collect::<Map<_, _>>().into()
            }
            Value::Array(items) => {
                let mut items = items.clone();
                if key == "managedFields" {
                    items.sort_by_key(manager);
                }
                items.iter().map(|value| self.blanked("", value)).collect::<Vec<_>>().into()
            }
            Value::String(text) if text.is_empty() => value.clone(),
            Value::String(text) => json!(match key {
                "uid" => self.numbered("uid", text),
                "resourceVersion" => self.numbered("revision", text),
                "creationTimestamp" | "deletionTimestamp" | "time" => {
                    if !self.found.iter().any(|(blank, _)| blank == TIME) {
                        self.found.push((TIME.to_owned(), text.clone()));
                    }
                    TIME.to_owned()
                }
                _ => self.without_drawn_names(text),
            }),
            other => other.clone(),
        }
    }

    fn without_drawn_names(&self, text: &str) -> String {
        let names = self.found.iter().filter(|(blank, _)| blank.starts_with("<name"));
        names.fold(text.to_owned(), |text, (blank, actual)| text.replace(actual, blank))
    }

    /// The value with what was found in place of the blanks.
    pub(crate) fn fill(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), self.fill(value))).collect::<Map<_, _>>().into()
            }
            Value::Array(items) => items.iter().map(|value| self.fill(value)).collect::<Vec<_>>().into(),
            Value::String(text) => {
                let filled =
                    self.found.iter().fold(text.clone(), |text, (blank, actual)| text.replace(blank.as_str(), actual));
                json!(filled.replace(TIME, ANY_TIME))
            }
            other => other.clone(),
        }
    }
}

/// A user without the id of its certificate.
pub(crate) fn normal_user(user: &Value) -> Value {
    let mut user = user.clone();
    for (_, values) in user["extra"].as_object_mut().into_iter().flatten() {
        for value in values.as_array_mut().into_iter().flatten() {
            if value.as_str().is_some_and(|text| text.starts_with(CREDENTIAL.0)) {
                *value = json!(CREDENTIAL.1);
            }
        }
    }
    user
}

/// What managers are sorted by: a server sorts them by times, in seconds.
fn manager(entry: &Value) -> [String; 4] {
    ["operation", "manager", "apiVersion", "subresource"].map(|field| text(&entry[field]))
}

/// Where two values differ, each with both.
pub(crate) fn differences(recorded: &Value, now: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", Some(recorded), Some(now), &mut found);
    found
}

fn compare(at: &str, recorded: Option<&Value>, now: Option<&Value>, found: &mut Vec<String>) {
    match (recorded, now) {
        (Some(Value::Object(recorded)), Some(Value::Object(now))) => {
            let only_now = now.keys().filter(|key| !recorded.contains_key(*key));
            for key in recorded.keys().chain(only_now) {
                compare(&format!("{at}/{key}"), recorded.get(key), now.get(key), found);
            }
        }
        (Some(Value::Array(recorded)), Some(Value::Array(now))) => {
            for index in 0..recorded.len().max(now.len()) {
                compare(&format!("{at}/{index}"), recorded.get(index), now.get(index), found);
            }
        }
        (recorded, now) if recorded != now => {
            let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
            found.push(format!("{at}: recorded {}, now {}", show(recorded), show(now)));
        }
        _ => {}
    }
}

#[test]
fn what_differs_in_each_run_is_left_out_and_filled_in_again() {
    let user = json!({"username": "u", "extra": {"id": ["<certificate>"]}});
    let review = json!({"request": {
        "uid": "a-1", "name": "g-xyz", "userInfo": {"username": "u", "extra": {"id": ["X509SHA256=12"]}},
        "object": {"metadata": {"uid": "b-2", "generateName": "g-", "name": "g-xyz", "resourceVersion": "7",
            "managedFields": [{"manager": "b", "time": "2026-01-02T03:04:05Z"}, {"manager": "a"}]}},
        "oldObject": {"metadata": {"uid": "b-2", "name": "g-xyz", "resourceVersion": "6"}},
    }});
    let mut blanks = Blanks::of(&user);
    let blanked = json!({"request": {
        "uid": "<uid 2>", "name": "<name 1>", "userInfo": "<user>",
        "object": {"metadata": {"uid": "<uid 1>", "generateName": "g-", "name": "<name 1>", "resourceVersion": "<revision 1>",
            "managedFields": [{"manager": "a"}, {"manager": "b", "time": "<time>"}]}},
        "oldObject": {"metadata": {"uid": "<uid 1>", "name": "<name 1>", "resourceVersion": "<revision 2>"}},
    }});
    assert_eq!(blanks.blank(&review), blanked);
    let answer = json!({"response": {"uid": "<uid 2>", "patch": [{"op": "add", "path": "/a", "value": "<name 1>"}]}});
    let patch = STANDARD.encode(r#"[{"op":"add","path":"/a","value":"g-xyz"}]"#);
    let actual = json!({"response": {"uid": "a-1", "patch": patch}});
    assert_eq!(sent(&answer, &blanks), actual);
    let call = Call { path: String::new(), review, answer: actual };
    assert_eq!(call.blanked(&user), Call { path: String::new(), review: blanked, answer });
    assert_eq!(differences(&json!({"a": [1, {"b": 2}]}), &json!({"a": [1, {}, 3]})).len(), 2);
}
